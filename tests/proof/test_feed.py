"""Events reach their sources in order: lines as files that are put in place whole."""

from pathlib import Path

from lockgate.proof.feed import Event, Feed, send_all


def lines(count: int) -> list[Event]:
    return [Event("in-0" if number % 2 else "in-1", 0, None, b"%d" % number) for number in range(count)]


def text(directory: Path) -> list[int]:
    files = sorted(directory.iterdir())
    assert all(path.suffix == ".txt" for path in files)
    return [int(line) for path in files for line in path.read_text().split()]


def test_lines_become_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    places = {"in-0": tmp_path / "a", "in-1": tmp_path / "b"}
    send_all("", lines(11), {}, places)
    assert text(tmp_path / "a") == [1, 3, 5, 7, 9]
    assert text(tmp_path / "b") == [0, 2, 4, 6, 8, 10]


def test_no_more_is_sent_than_may_be(tmp_path: Path) -> None:
    feed = Feed("", lines(100), {}, {"in-0": tmp_path / "a", "in-1": tmp_path / "b"}, rate=float("inf"))
    for limit in (10, 10, 30):
        feed.send(limit)
        assert feed.sent == limit
    assert sorted([*text(tmp_path / "a"), *text(tmp_path / "b")]) == list(range(30))
    feed.close()
