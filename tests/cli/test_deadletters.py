"""`lockgate dead-letters` as a user meets it: what is listed, shown and sent back, and clear refusals."""

import json
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from lockgate.cli.jobfile import load_job
from lockgate.cli.main import main
from lockgate.runtime.run import run

JOB = """
    from lockgate import FileSource, Guarantee, Job, SqliteSink, stream

    def job(mended: bool = False) -> Job:
        def half(row):
            return {"k": row.k, "half": 10 // row.v if row.v or not mended else None}

        read = stream("in", FileSource(path="in", value="k STRING, v INT"))
        halves = read.map(half, schema="k STRING, half INT").to("out", SqliteSink(table="halves", path="results.db"))
        kept = SqliteSink(table="letters", path="results.db")
        return Job("halves", halves, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, dead_letters=kept)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    # A whole path: the Spark of this session was started in another directory.
    (tmp_path / "halves.py").write_text(textwrap.dedent(JOB).replace('path="in"', f"path={str(tmp_path / 'in')!r}"))
    (tmp_path / "in").mkdir()
    return "halves.py"


def test_what_has_no_dead_letters_is_refused(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.py").write_text(textwrap.dedent(JOB).replace("dead_letters=kept", "dead_letters=None"))
    for arguments in (["list", "plain.py"], ["show", "plain.py", "a1"], ["replay", "plain.py", "--all"]):
        assert main(["dead-letters", *arguments]) == 2
        assert "job 'halves' has no dead letters: an event that it cannot process stops it" in capsys.readouterr().err
    assert main(["dead-letters", "list", file]) == 2
    assert "there is no file results.db" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_dead_letters_are_listed_shown_and_sent_back(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(["dead-letters", *arguments]) == status
        out, err = capsys.readouterr()
        return out if status < 2 else err

    def halves() -> list[tuple[str, int | None]]:
        with closing(sqlite3.connect("results.db")) as connection:
            return sorted(connection.execute("SELECT * FROM halves"))

    def put(name: str, lines: bytes) -> None:
        (tmp_path / name).write_bytes(lines)
        (tmp_path / name).rename(tmp_path / "in" / name)

    run(load_job(file, []), until_caught_up=True)
    assert told("list", file, status=2).startswith("there is no table 'letters'")
    put("first.json", b'{"k":"a","v":2}')
    run(load_job(file, []), until_caught_up=True)
    assert told("list", file) == "job halves has no dead letters\n"
    assert "0 dead letters sent back" in told("replay", file, "--all")

    lines = b'{"k":"b","v":0}\n{"k":"c","v":0}\n\xffno JSON\x1b[2J'
    put("second.json", lines)
    run(load_job(file, []), until_caught_up=True)

    listed = told("list", file).splitlines()
    assert listed[0].split() == ["ID", "EPOCH", "STEP", "ATTEMPTS", "STANDING", "PLACE", "REASON"]
    assert " ".join(listed[-2].split()).startswith("2 map: ZeroDivisionError: ")
    assert listed[-1].split()[:2] == ["1", "in:"]
    assert len(listed) == 1 + 3 + 1 + 2
    facts = [json.loads(line) for line in told("list", file, "--json", "--step", "map").splitlines()]
    assert [(one["step"], one["standing"], one["attempts"]) for one in facts] == [("map", "waiting", 1)] * 2
    assert sorted(one["value"] for one in facts) == ['{"k":"b","v":0}', '{"k":"c","v":0}']
    assert told("list", file, "--step", "out", status=2).startswith("job 'halves' has no step 'out'")

    shown = told("show", file, facts[0]["id"])
    assert f"value         {facts[0]['value']}" in shown
    assert "reason        ZeroDivisionError" in shown
    (unreadable,) = (json.loads(line) for line in told("list", file, "--json", "--step", "in").splitlines())
    shown = told("show", file, unreadable["id"])
    assert f"value         0x{lines.splitlines()[-1].hex()}" in shown
    assert "\x1b" not in shown
    assert "has no dead letter beef among its 3" in told("show", file, "beef", status=2)

    mended = ("-p", "mended=true")
    first = told("replay", file, "--id", facts[0]["id"], *mended)
    assert f"{facts[0]['id']}  sent" in first
    assert "1 dead letter sent back to job halves, 0 not sent" in first
    assert "not sent: it was sent before" in told("replay", file, "--id", facts[0]["id"], *mended, status=1)
    assert "do not fit" in told("replay", file, "--id", facts[0]["id"], "--step", "in", *mended, status=2)
    rest = told("replay", file, "--all", "--step", "map", *mended)
    assert "passed over: 1 dead letter sent" in rest
    assert "1 dead letter sent back to job halves, 0 not sent" in rest
    run(load_job(file, ["mended=true"]), until_caught_up=True)
    assert halves() == [("a", 5), ("b", None), ("c", None)]
    again = told("replay", file, "--all", "--step", "map", *mended)
    assert "passed over: 2 dead letters sent" in again
    run(load_job(file, ["mended=true"]), until_caught_up=True)
    assert halves() == [("a", 5), ("b", None), ("c", None)]
    assert told("replay", file, "--all", "--checkpoint", "nowhere", status=2).startswith("there is no checkpoint")
