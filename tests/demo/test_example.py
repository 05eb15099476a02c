"""How a script of an example is started, and how its events come to lie in files."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockgate.demo.example import in_directories, run_main
from lockgate.errors import Failed, Refused


def start(main: Any, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["example.py", *words])
        patch.setattr("signal.signal", lambda *_: None)  # the signals of this process are pytest's
        with pytest.raises(SystemExit) as end:
            run_main(main)
    assert isinstance(end.value.code, int)
    return end.value.code


def test_words_of_the_command_line_are_parameters_of_main(tmp_path: Path) -> None:
    given: list[Any] = []

    def in_files(directory: Path | None = None, **times: int) -> None:
        given.append(directory)

    def with_kafka(servers: str | None = None, live: bool = False) -> None:
        given.append((servers, live))

    assert start(in_files) == start(in_files, str(tmp_path)) == 0
    assert start(with_kafka) == start(with_kafka, "--live", "broker:9092") == 0
    assert given == [None, tmp_path, (None, False), ("broker:9092", True)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(Refused("no broker", "here", "start one"), 2), (Failed("broke", "here", "again"), 1), (KeyboardInterrupt(), 130)],
)
def test_an_end_that_is_not_good_is_a_paragraph_and_a_status(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    assert start(main) == status
    assert capsys.readouterr().err == ("stopped\n" if status == 130 else f"{error}\n")


def test_events_lie_in_as_many_files_as_there_are_epochs_in_the_order_of_their_age(tmp_path: Path) -> None:
    with in_directories("in", "out", directory=tmp_path, epochs=3) as tryout:
        tryout.send("in", ({"number": number} for number in range(8)))
        assert tryout.places == {"in": str(tmp_path / "in"), "out": str(tmp_path / "out")}
    files = sorted((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_mtime)
    numbers = [[json.loads(line)["number"] for line in file.read_text().splitlines()] for file in files]
    assert numbers == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_directory_that_nobody_named_is_removed() -> None:
    with in_directories("in") as tryout:
        tryout.send("in", [{"number": 1}])
        place = Path(tryout.places["in"])
        assert place.is_dir()
    assert not place.parent.exists()
