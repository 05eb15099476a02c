"""A checkpoint, a ledger or a savepoint in which one file is damaged or hostile: commands end with an error of ours.

All files of the checkpoint have a checksum that fits, as they have if somebody writes to them and not if a disk fails.
"""

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fuzz.places import Place
from support.cli import call


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    return content.replace(content[len(content) // 2 :][:1], b"\xff", 1)


def _wrong_values(wrong: Any) -> Callable[[bytes], bytes]:
    """Every number and text of every line of JSON is something else."""

    def replaced(told: Any) -> Any:
        if isinstance(told, dict):
            return {name: replaced(one) for name, one in told.items()}
        return [replaced(one) for one in told] if isinstance(told, list) else wrong

    def change(content: bytes) -> bytes:
        lines = content.decode("utf-8", "replace").split("\n")
        return "\n".join(
            json.dumps(replaced(json.loads(line))) if line[:1] in "{[" and _is_json(line) else line for line in lines
        ).encode()

    return change


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": _half,
    "empty": lambda content: b"",
    "flipped": _flipped,
    "deep": lambda content: b"v1\n" * content.startswith(b"v1") + b"[" * 100_000,
    "an object": lambda content: b"v1\n" * content.startswith(b"v1") + b"{}\n{}",
    "numbers": _wrong_values(-(1 << 63)),
    "digits": lambda content: b"v1\n{}\n" * content.startswith(b"v1") + b'{"in": {"' + b"9" * 5_000 + b'": 1}}',
    "texts": _wrong_values("\ud800\x1b[2J\0"),
    "lists": _wrong_values([[]]),
    "not UTF-8": lambda content: b"\xff\xfe\0" + content,
    "twice": lambda content: content + content,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("whole"))
    place.make()
    return place


@pytest.fixture(autouse=True)
def unexpected_errors() -> Iterator[None]:
    """An unexpected error is raised, and not put into a file for a report."""

    def raise_it(surprise: Exception, **_: object) -> None:
        raise surprise

    with mock.patch("lockgate.cli.main.report_unexpected", raise_it):
        yield


def damaged(whole: Place, at: Path, file: Path, change: Callable[[bytes], bytes]) -> Place:
    """A copy in which one file has other content."""
    shutil.copytree(whole.root, at)
    place = Place(at)
    content = change((at / file).read_bytes())
    (at / file).write_bytes(content)
    sums = (at / file).with_name(f".{file.name}.crc")
    if sums.exists():
        pieces = [content[at : at + 512] for at in range(0, len(content), 512)]
        sums.write_bytes(
            b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", zlib.crc32(one)) for one in pieces)
        )
    return place


def check_commands(place: Place, file: Path, *, every: int = 1) -> None:
    """Each command that reads a file, or every third, ends with one of its exit statuses, and says something."""
    for command in place.commands(file)[::every]:
        called = call(*command, cwd=place.root)
        assert called.status in (0, 1, 2), command
        assert called.text.strip(), command
        assert len(called.err) < 20_000, command


def test_commands_understand_what_is_whole(whole: Place, tmp_path: Path) -> None:
    shutil.copytree(whole.root, tmp_path / "copy")
    statuses = {" ".join(one[:2]): call(*one, cwd=tmp_path).status for one in Place(tmp_path / "copy").commands()}
    assert {name for name, status in statuses.items() if status == 0} >= {
        *("checkpoints list", "checkpoints show", "checkpoints verify", "checkpoints clean", "checkpoints restore"),
        *("ledger show", "ledger set"),
    }


def test_one_damaged_file_of_each_kind_is_an_error_of_ours(whole: Place, tmp_path: Path) -> None:
    names = list(DAMAGES)
    kinds = [kind for kind in whole.kinds() if not kind.name.endswith(".crc")]
    for number, kind in enumerate(kinds):
        check_commands(damaged(whole, tmp_path / str(number), kind, DAMAGES[names[number % len(names)]]), kind, every=3)
    assert len(kinds) > 10


@pytest.mark.prove
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_of_each_kind_of_file_is_an_error_of_ours(damage: str, whole: Place, tmp_path: Path) -> None:
    kinds = [kind for kind in whole.kinds() if not kind.name.endswith(".crc")]
    for number, kind in enumerate(kinds):
        check_commands(damaged(whole, tmp_path / str(number), kind, DAMAGES[damage]), kind)
        shutil.rmtree(tmp_path / str(number))
    assert len(kinds) > 10


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"a": 1}', b"\xff", b"null", b'[{"seed": [[]]}]', b"", b"9" * 5_000]
)
def test_a_file_of_kept_seeds_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "seeds.json").write_bytes(content)
    command = ("simulate", "--schedules", "20", "--mutant", "ledger", "--processes", "1", "--keep")
    called = call(*command, tmp_path / "seeds.json", cwd=tmp_path)
    assert called.status in (1, 2)
    assert called.text


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def job(: pass",
        "job = 5",
        "def job(): return 5",
        "raise SystemExit(3)",
        "\0",
        "import nothing_of_that_name",
        "def job(): raise KeyError('x\\x1b[2J')",
        "def job(x: 'Nothing'): pass",
        "x" * 100_000,
        "(" * 5_000,
    ],
)
def test_a_job_file_that_is_none_is_refused(source: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(source)
    for command in (["plan"], ["package", "--out", "p"], ["dead-letters", "list"], ["ledger", "show"], ["state"]):
        words = (
            [*command[:2], str(tmp_path / "job.py"), *command[2:]]
            if command[0] != "package"
            else ["package", str(tmp_path / "job.py"), "--out", "p"]
        )
        called = call(*words, *(["step"] if command == ["state"] else []), cwd=tmp_path)
        assert called.status == 2, called.text
        assert "where:" in called.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x=",
        "=",
        "n=" + "9" * 5_000,
        "n=1e999",
        "n=\ud800",
        "d=9999999999 weeks",
        "d=" + "9" * 5_000 + " s",
        "t=9999-12-31T23:59:59+00:00",
        "t=0001",
        "e=²",
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "from datetime import datetime, timedelta\n"
        "def job(n: int = 1, d: timedelta = None, t: datetime = None, e: float = 0):\n"
        "    raise ValueError(f'{n} {d} {t} {e}')\n"
    )
    called = call("plan", tmp_path / "job.py", "-p", text, cwd=tmp_path)
    assert called.status == 2
    assert "where:" in called.text
