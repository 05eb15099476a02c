"""Events reach their sources in order: lines as files that are put in place whole."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate.errors import Failed
from lockgate.lab.rig import feed as feeding
from lockgate.lab.rig.feed import Event, Feed, send_all


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
    feed = Feed("", lines(100), {}, {"in-0": tmp_path / "a", "in-1": tmp_path / "b"})
    for limit in (10, 10, 30):
        feed.send(limit)
        assert feed.sent == limit
    assert sorted([*text(tmp_path / "a"), *text(tmp_path / "b")]) == list(range(30))
    feed.close()


class Client:
    """Takes records, and tells offsets of them that a test chooses."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = iter(offsets)

    def send(self, topic: str, *, partition: int, **_: Any) -> Any:
        told = SimpleNamespace(topic=topic, partition=partition, offset=next(self.offsets))
        return SimpleNamespace(get=lambda timeout: told)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def records(count: int) -> list[Event]:
    return [Event("in-0", number % 2, None, b"%d" % number) for number in range(count)]


@pytest.mark.parametrize(
    ("offsets", "is_fine"),
    [([0, 0, 1, 1, 2, 2], True), ([7, 0, 8, 1, 9, 2], True), ([0, 0, 1, 1, 5, 2], False), ([0, 0, 1, 1, 1, 2], False)],
    ids=["into empty topics", "behind others", "a batch came twice before it", "one offset for two"],
)
def test_records_that_were_sent_twice_by_the_client_are_noticed(
    offsets: list[int], is_fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "_producer", lambda servers: Client(offsets))
    feed = Feed("", records(6), {"in-0": "topic"})
    with contextlib.nullcontext() if is_fine else pytest.raises(Failed, match="put other records between"):
        feed.send(6)
