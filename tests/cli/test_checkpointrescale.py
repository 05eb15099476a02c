"""What `checkpoints rescale` refuses before anything is looked at, and how it finishes what only a ledger is behind."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockgate.checkpoints.marker import write_marker
from lockgate.checkpoints.tree import LocalTree
from lockgate.cli.main import main
from lockgate.commit.ledger import Entry
from lockgate.connectors.sqlite.sink import SqliteLedger
from support.checkpoints import make_logs

JOB = """
from lockgate import FileSource, Guarantee, Job, SqliteSink, stream

def job(guarantee: str = "END_TO_END_EXACTLY_ONCE", parallel: int = 0, stateless: bool = False) -> Job:
    rows = stream("events", FileSource(path="events", value="k STRING, v INT"))
    keyed = rows.key_by("k").parallel(parallel) if parallel else rows.key_by("k")
    made = rows if stateless else keyed.rolling(name="totals", total="sum(v)")
    return Job("grown", made.to("out", SqliteSink(path="out.db", table="t")), guarantee=Guarantee[guarantee])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--partitions", "0"], "--partitions is 0"),
        (["--partitions", "7", "-p", "stateless=true"], "no step with state"),
        (["--partitions", "7", "-p", "guarantee=AT_MOST_ONCE"], "keeps no checkpoint"),
        (["--partitions", "7", "-p", "parallel=3"], r"the job declares .parallel(3), and would refuse state in 7"),
        (["--partitions", "7"], "there is no checkpoint"),
    ],
)
def test_what_can_mean_nothing_is_refused(options: list[str], told: str, place: Path, capsys: Any) -> None:
    assert main(["checkpoints", "rescale", "job.py", *options]) == 2
    assert told in capsys.readouterr().err
    assert not (place / "out.db").exists()
    assert not (place / ".lockgate").exists()


def test_a_file_that_is_not_there_is_refused(place: Path, capsys: Any) -> None:
    assert main(["checkpoints", "rescale", "grown", "--partitions", "7"]) == 2
    assert "there is no job file 'grown'" in capsys.readouterr().err


def test_a_ledger_that_is_behind_follows_and_one_that_does_not_fit_is_left_alone(place: Path, capsys: Any) -> None:
    checkpoint = make_logs(place / "cp", planned=3, committed=3, query="query", partitions=(4, 4, 7))
    write_marker(LocalTree(place / "cp"), "grown", datetime.now(UTC))
    command = ["checkpoints", "rescale", "job.py", "--partitions", "7", "--checkpoint", "cp"]
    assert main([*command, "--yes"]) == 2  # no ledger says what is out
    sqlite3.connect(place / "out.db").close()
    with closing(SqliteLedger("out.db", "grown", where="test")) as ledger:
        ledger.replace(None, Entry(run="a", query="query", epoch=0, digest=checkpoint.digest(0), at="then"))
        assert main([*command, "--yes"]) == 2
        assert "is at epoch 0" in capsys.readouterr().err
        behind = Entry(run="a", query="query", epoch=1, digest=checkpoint.digest(1), at="then")
        ledger.replace(ledger.peek(), behind)
        assert main(command) == 0
        assert "moves on to epoch 2" in capsys.readouterr().out
        assert ledger.peek() == behind
        assert main([*command, "--yes", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["epoch"], facts["is_written"], facts["done"]) == (2, True, True)
        found = ledger.peek()
        assert found is not None
        assert (found.epoch, found.digest, found.run[:8]) == (2, checkpoint.digest(2), "rescale-")
        assert main([*command, "--yes"]) == 0
        assert "nothing is to be done" in capsys.readouterr().out
        assert ledger.peek() == found
