"""The demo can be run again and again, and its verifier does not believe the job."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lockgate.demo import LIMIT_CENTS, cents_of, count_delivered, large_payment
from lockgate.services.stack import Stack

SENT = 2000


def whole_delivery() -> list[bytes]:
    return [json.dumps(large_payment(id)).encode() for id in range(SENT) if cents_of(id) > LIMIT_CENTS]


def test_a_whole_delivery_holds() -> None:
    tally = count_delivered(whole_delivery(), SENT)
    assert tally.holds
    assert tally.expected_count == tally.delivered_count == len(whole_delivery()) > SENT // 3
    assert tally.expected_cents == tally.delivered_cents
    assert (tally.lost_count, tally.duplicated_count, tally.foreign_count, tally.examples) == (0, 0, 0, ())


def test_the_order_of_delivery_does_not_matter() -> None:
    assert count_delivered(reversed(whole_delivery()), SENT).holds


def test_a_planted_loss_is_noticed() -> None:
    delivered = whole_delivery()
    lost = json.loads(delivered.pop(17))
    tally = count_delivered(delivered, SENT)
    assert not tally.holds
    assert tally.lost_count == 1
    assert tally.expected_cents - tally.delivered_cents == lost["cents"]
    assert str(lost["id"]) in tally.examples[0]


def test_a_copy_does_not_make_up_for_a_loss() -> None:
    delivered = whole_delivery()
    delivered[17] = delivered[18]
    tally = count_delivered(delivered, SENT)
    assert not tally.holds
    assert (tally.lost_count, tally.duplicated_count) == (1, 1)
    assert tally.delivered_count == tally.expected_count


def test_copies_are_counted_and_allowed() -> None:
    delivered = whole_delivery()
    tally = count_delivered([*delivered, delivered[0], delivered[0]], SENT)
    assert tally.holds
    assert tally.duplicated_count == 2


def test_nothing_delivered_is_everything_lost() -> None:
    tally = count_delivered([], SENT)
    assert not tally.holds
    assert tally.lost_count == tally.expected_count


SMALL = next(id for id in range(SENT) if cents_of(id) <= LIMIT_CENTS)
LARGE = next(id for id in range(SENT) if cents_of(id) > LIMIT_CENTS)


@pytest.mark.parametrize(
    "value",
    [
        b"no JSON",
        b"\xff",
        b"[1]",
        b"{}",
        json.dumps({**large_payment(LARGE), "cents": cents_of(LARGE) + 1}).encode(),
        json.dumps({**large_payment(LARGE), "at": None}).encode(),
        json.dumps(large_payment(SMALL)).encode(),
        json.dumps({**large_payment(LARGE), "id": True}).encode(),
        json.dumps(large_payment(next(id for id in range(SENT, 2 * SENT) if cents_of(id) > LIMIT_CENTS))).encode(),
    ],
    ids=["text", "bytes", "array", "empty", "damaged", "null", "below-the-limit", "wrong-type", "never-sent"],
)
def test_a_record_that_no_payment_explains_is_noticed(value: bytes) -> None:
    tally = count_delivered([*whole_delivery(), value], SENT)
    assert not tally.holds
    assert (tally.foreign_count, tally.lost_count) == (1, 0)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory whose services are down when the test ends, however it ends."""
    yield tmp_path
    Stack(tmp_path / ".lockgate" / "services").down()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lockgate.cli.main", "demo", *arguments]


def environment() -> dict[str, str]:
    return {key: text for key, text in os.environ.items() if key != "LOCKGATE_HOME"}


@pytest.mark.system
def test_the_demo_can_be_run_again(home: Path) -> None:
    topics = set()
    for _ in range(2):
        done = subprocess.run(
            command("--events", "20000", "--json"),
            cwd=home,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert facts["holds"]
        assert facts["sent_count"] == 20_000
        expected = sum(cents_of(id) > LIMIT_CENTS for id in range(20_000))
        tally = facts["tally"]
        assert (tally["expected_count"], tally["delivered_count"]) == (expected, expected)
        assert (tally["lost_count"], tally["duplicated_count"], tally["foreign_count"]) == (0, 0, 0)
        assert (facts["declared"], facts["reached"]) == ("AT_LEAST_ONCE", "AT_LEAST_ONCE")
        assert facts["epoch_count"] >= 8
        assert Path(facts["log"]).exists()
        assert not Stack(home / ".lockgate" / "services").status().kafka.running
        topics.add(facts["topic_out"])
    assert len(topics) == 2


@pytest.mark.system
@pytest.mark.parametrize(("moment", "number"), [("sent ", signal.SIGINT), ("epoch ", signal.SIGTERM)])
def test_an_interrupted_demo_stops_what_it_started(moment: str, number: signal.Signals, home: Path) -> None:
    with subprocess.Popen(
        command("--events", "100000", "--json"), cwd=home, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if line.startswith(moment))
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, told
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not Stack(home / ".lockgate" / "services").status().kafka.running
    assert psutil.wait_procs(children, timeout=30)[1] == []


@pytest.mark.parametrize("events", ["0", "-5"])
def test_a_demo_without_events_is_refused(events: str, tmp_path: Path) -> None:
    done = subprocess.run(
        command("--events", events), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "fix:   send at least one" in done.stderr
