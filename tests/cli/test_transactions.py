"""`lockgate transactions`: what a look means is pure; open transactions are those of a real broker."""

import json
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from lockgate.cli import main as cli
from lockgate.cli.target import connected
from lockgate.cli.transactions import Look, describe, span, table
from lockgate.connectors.kafka.ledgeredit import open_transactions
from lockgate.connectors.kafka.ledgertopic import LedgerTopic
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Connection, Producer, TransactionView
from lockgate.errors import EpochFailed

VIEW = TransactionView(
    transactional_id="lockgate.j",
    state="Ongoing",
    producer=Producer(id=7, epoch=3),
    timeout_ms=60_000,
    started_ms=1_000_000,
    partitions=(("out", 0), ("out", 1)),
)


def at(age_ms: int, state: str = "Ongoing") -> Look:
    return Look(view=replace(VIEW, state=state), now_ms=VIEW.started_ms + age_ms)


def test_only_what_is_open_longer_than_its_time_out_is_stuck() -> None:
    assert [at(age).is_stuck for age in (0, 60_000, 60_001)] == [False, False, True]
    assert not at(90_000, "CompleteCommit").is_stuck
    assert at(90_000, "CompleteCommit").age_ms is None
    assert at(90_000, "PrepareCommit").is_stuck
    assert at(-5_000).age_ms == 0  # the clocks of two machines differ


def test_what_it_means_for_readers_is_said() -> None:
    assert "these partitions wait until it ends: by its driver, or by Kafka in 50 s at most" in at(10_000).meaning()
    assert "STUCK" in at(70_000).meaning()
    assert "lockgate transactions abort lockgate.j" in at(70_000).meaning()
    assert "will be committed" in at(0, "PrepareCommit").meaning()
    assert "will be aborted" in at(0, "PrepareAbort").meaning()
    assert "no reader is held back" in at(0, "Empty").meaning()


def test_lines_for_people() -> None:
    header, first, second = table([at(70_000), at(0, "CompleteAbort")])
    assert first.split() == ["lockgate.j", "Ongoing", "7/3", "1.2", "min", "1", "min", "2", "STUCK"]
    assert second.split() == ["lockgate.j", "CompleteAbort", "7/3", "-", "1", "min", "2"]
    assert header.startswith("ID")
    assert "partitions  out-0, out-1" in describe(at(0))
    assert [span(ms) for ms in (0, 4_200, 600_000, 5_400_000)] == ["0 s", "4.2 s", "10 min", "1.5 h"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list"], "name a job's file, or --servers"),
        (["show", "j"], "name a job's file, or --servers"),
        (["abort", "absent.py"], "there is no job file"),
    ],
)
def test_it_has_to_be_said_which_kafka(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["transactions", *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def connection(kafka: str) -> Iterator[Connection]:
    with connected(read_settings(kafka, {}, where="test"), "test") as connection:
        yield connection


@pytest.mark.system
def test_an_open_transaction_is_listed_shown_and_aborted(
    kafka: str, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    job = f"open-{uuid4().hex[:8]}"
    ledger = LedgerTopic(connection, job, where="test")
    ledger.ensure(())
    transactions = open_transactions(connection, job, "test")
    producer = transactions.begin()
    transactions.add(producer, [ledger.place])

    def facts(*arguments: str) -> dict[str, object]:
        assert cli.main(["transactions", *arguments, "--servers", kafka, "--json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    listed = facts("list")["transactions"]
    assert isinstance(listed, list)
    assert listed[0]["is_open"]
    (mine,) = [one for one in listed if one["transactional_id"] == f"lockgate.{job}"]
    assert (mine["state"], mine["is_stuck"]) == ("Ongoing", False)
    assert mine["partitions"] == [{"topic": ledger.name, "partition": 0}]
    assert (mine["producer_id"], mine["producer_epoch"]) == (producer.id, producer.epoch)
    assert 0 <= mine["age_ms"] < 60_000
    assert cli.main(["transactions", "list", "--servers", kafka]) == 0
    assert " open, 0 stuck, of " in capsys.readouterr().out

    assert cli.main(["transactions", "show", f"lockgate.{job}", "--servers", kafka]) == 0
    assert "read_committed readers of this partition wait" in capsys.readouterr().out.lower()

    assert cli.main(["transactions", "abort", job, "--servers", kafka]) == 0
    told = capsys.readouterr().out
    assert "repeats it by itself" in told
    assert told.endswith("nothing was done; add --yes\n")
    assert facts("show", job)["state"] == "Ongoing"

    done = facts("abort", job, "--yes")
    assert done["aborted"] is True
    assert facts("show", job)["is_open"] is False
    with pytest.raises(EpochFailed):  # the driver is fenced for this epoch
        transactions.end(producer, is_commit=True)
    assert facts("abort", job, "--yes")["aborted"] is False  # there is nothing any more


@pytest.mark.system
def test_transactions_of_other_programs_are_shown_and_left_alone(
    kafka: str, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"foreign-{uuid4().hex[:8]}"
    Transactions(connection, name, timeout_ms=60_000, where="test").begin()
    assert cli.main(["transactions", "list", "--servers", kafka]) == 0
    assert name not in capsys.readouterr().out
    assert cli.main(["transactions", "list", "--servers", kafka, "--all"]) == 0
    assert name in capsys.readouterr().out
    assert cli.main(["transactions", "show", name, "--servers", kafka]) == 0
    assert "no reader is held back" in capsys.readouterr().out
    assert cli.main(["transactions", "abort", name, "--servers", kafka, "--yes"]) == 2
    assert "not one of Lockgate's" in capsys.readouterr().err
    assert cli.main(["transactions", "show", f"{name}-x", "--servers", kafka]) == 1
    assert "Kafka knows no transaction of" in capsys.readouterr().err
