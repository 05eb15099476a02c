"""The show can be run again and again, its kills are real, and its verifier does not believe the job."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.cells import cell_len

from lockgate.cli.demo import Screen
from lockgate.guarantees import Guarantee
from lockgate.lab.demo.contender import Kill, plan_kills
from lockgate.lab.demo.payments import Payments
from lockgate.lab.demo.reader import Tally, count_delivered
from lockgate.lab.demo.report import Report, SideReport
from lockgate.lab.demo.show import EPOCHS, Standing
from lockgate.lab.services.stack import Stack

PAYMENTS = Payments(count=2000, seed=3)


def whole_delivery() -> list[bytes]:
    return [PAYMENTS.written(id) for id in PAYMENTS.expected()]


# -- the payments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_what_is_sent_and_what_is_expected_are_the_same_payments(seed: int) -> None:
    payments = Payments(count=3000, seed=seed)
    keys, values = payments.sent(0, payments.count)
    for id, (key, value) in enumerate(zip(keys.to_pylist(), values.to_pylist(), strict=True)):
        sent, written = json.loads(value), json.loads(payments.written(id))
        assert sent["id"] == written["id"] == id
        assert key.decode() == sent["account"] == written["account"]
        assert sent["cents"] == written["cents"] == payments.cents(id)
        assert sent["at"].replace("Z", "000Z") == written["at"]


def test_payments_sent_in_parts_are_those_sent_at_once() -> None:
    whole = PAYMENTS.sent(0, 40)[1].to_pylist()
    parts = [PAYMENTS.sent(number, 40, step=4)[1].to_pylist() for number in range(4)]
    assert sorted(whole) == sorted(value for part in parts for value in part)


def test_another_seed_makes_other_payments_and_about_half_are_large() -> None:
    one, other = Payments(count=2000, seed=1), Payments(count=2000, seed=2)
    assert set(one.expected()) != set(other.expected())
    assert all(800 < len(list(payments.expected())) < 1200 for payments in (one, other))


# -- the verification -------------------------------------------------------------------------------------------------


def test_a_whole_delivery_is_exact() -> None:
    tally = count_delivered(whole_delivery(), PAYMENTS)
    assert tally.is_exact
    assert tally.expected_count == tally.delivered_count == len(whole_delivery()) > PAYMENTS.count // 3
    assert tally.expected_cents == tally.delivered_cents
    assert (tally.lost_count, tally.duplicated_count, tally.foreign_count, tally.examples) == (0, 0, 0, ())


def test_the_order_of_delivery_does_not_matter() -> None:
    assert count_delivered(reversed(whole_delivery()), PAYMENTS).is_exact


def test_the_spelling_of_json_does_not_matter() -> None:
    assert count_delivered((json.dumps(json.loads(value)).encode() for value in whole_delivery()), PAYMENTS).is_exact


def test_a_planted_loss_is_noticed() -> None:
    delivered = whole_delivery()
    lost = json.loads(delivered.pop(17))
    tally = count_delivered(delivered, PAYMENTS)
    assert not tally.is_exact
    assert tally.lost_count == 1
    assert tally.expected_cents - tally.delivered_cents == lost["cents"]
    assert str(lost["id"]) in tally.examples[0]


def test_a_copy_does_not_make_up_for_a_loss() -> None:
    delivered = whole_delivery()
    delivered[17] = delivered[18]
    tally = count_delivered(delivered, PAYMENTS)
    assert not tally.is_exact
    assert (tally.lost_count, tally.duplicated_count) == (1, 1)
    assert tally.delivered_count == tally.expected_count


def test_every_copy_beyond_the_first_is_counted() -> None:
    delivered = whole_delivery()
    tally = count_delivered([*delivered, delivered[0], delivered[0]], PAYMENTS)
    assert not tally.is_exact
    assert tally.duplicated_count == 2
    assert tally.delivered_cents - tally.expected_cents == 2 * json.loads(delivered[0])["cents"]


def test_nothing_delivered_is_everything_lost() -> None:
    tally = count_delivered([], PAYMENTS)
    assert tally.lost_count == tally.expected_count


SMALL = next(id for id in range(PAYMENTS.count) if not PAYMENTS.is_large(id))
LARGE = next(PAYMENTS.expected())
LATER = next(id for id in range(PAYMENTS.count, 2 * PAYMENTS.count) if PAYMENTS.is_large(id))


@pytest.mark.parametrize(
    "value",
    [
        b"no JSON",
        b"\xff",
        b"[1]",
        b"{}",
        b'{"id":' + b"9" * 5000 + b"}",
        PAYMENTS.written(LARGE)[:-1],
        json.dumps({**json.loads(PAYMENTS.written(LARGE)), "cents": PAYMENTS.cents(LARGE) + 1}).encode(),
        json.dumps({**json.loads(PAYMENTS.written(LARGE)), "at": None}).encode(),
        json.dumps({**json.loads(PAYMENTS.written(LARGE)), "id": True}).encode(),
        PAYMENTS.written(SMALL),
        PAYMENTS.written(LATER),
    ],
    ids=[
        *("text", "bytes", "array", "empty", "endless", "cut", "damaged"),
        *("null", "wrong-type", "below-the-limit", "never-sent"),
    ],
)
def test_a_record_that_no_payment_explains_is_noticed(value: bytes) -> None:
    tally = count_delivered([*whole_delivery(), value], PAYMENTS)
    assert not tally.is_exact
    assert (tally.foreign_count, tally.lost_count, tally.duplicated_count) == (1, 0, 0)


# -- the kills --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_executor_is_killed_before_the_driver_and_both_before_the_last_epochs(seed: int) -> None:
    executor, driver = plan_kills(random.Random(seed), epochs=8, rows_per_epoch=1000)
    assert (executor.target, driver.target) == ("executor", "driver")
    assert 1 <= executor.epoch < driver.epoch <= 6
    assert all(0 < kill.rows <= 500 for kill in (executor, driver))


def test_a_seed_plans_the_same_kills_again() -> None:
    first, again = (plan_kills(random.Random(9), epochs=8, rows_per_epoch=1000) for _ in range(2))
    assert first == again


# -- what is told -----------------------------------------------------------------------------------------------------


def tally(*, lost: int = 0, duplicated: int = 0) -> Tally:
    return Tally(
        expected_count=500_000,
        delivered_count=500_000 - lost + duplicated,
        lost_count=lost,
        duplicated_count=duplicated,
        foreign_count=0,
        expected_cents=1_000_000,
        delivered_cents=1_000_000 + 100 * (duplicated - lost),
        examples=(),
    )


def report(*, spark: Tally, lockgate: Tally) -> Report:
    sides = [
        SideReport(
            label=label,
            guarantee=guarantee,
            topic_out="large",
            epoch_count=8,
            driver_starts=2,
            kills=(Kill(target="driver", pid=4711, epoch=5, rows=20_000, is_epoch_committed=False),),
            run_seconds=60.0,
            tally=one,
            log="spark.log",
        )
        for label, guarantee, one in (
            ("Spark's own sink", Guarantee.AT_LEAST_ONCE, spark),
            ("Lockgate", Guarantee.END_TO_END_EXACTLY_ONCE, lockgate),
        )
    ]
    return Report(
        kafka_servers="127.0.0.1:9092",
        kafka_log="broker.log",
        are_services_left_running=False,
        spark_workers=2,
        topic_in="payments",
        partitions=4,
        seed=1,
        sent_count=1_000_000,
        phases={"sending": 4.0},
        total_seconds=120.0,
        spark=sides[0],
        lockgate=sides[1],
    )


def test_the_table_says_what_became_of_both() -> None:
    told = report(spark=tally(duplicated=31_250), lockgate=tally())
    assert told.holds
    assert told.table(100) == [
        "                       sent  expected  delivered  lost  duplicated",
        "Spark's own sink  1,000,000   500,000    531,250     0      31,250",
        "Lockgate          1,000,000   500,000    500,000     0           0",
    ]
    assert "31,250 delivered again: a reader of the topic books 31,250.00 EUR too much" in "\n".join(told.lines(100))


def test_on_a_narrow_terminal_the_table_is_a_list() -> None:
    lines = report(spark=tally(duplicated=31_250), lockgate=tally()).table(40)
    assert max(map(len, lines)) <= 40
    assert "  duplicated  31,250" in lines


@pytest.mark.parametrize("ours", [tally(lost=1), tally(duplicated=1)], ids=["lost", "duplicated"])
def test_a_broken_promise_of_ours_is_reported(ours: Tally) -> None:
    told = report(spark=tally(), lockgate=ours)
    assert not told.holds
    assert not told.as_json()["holds"]
    assert "NOT as promised" in "\n".join(told.lines(100))


def test_duplicates_of_spark_are_no_failure_of_ours_and_none_are_invented() -> None:
    assert report(spark=tally(lost=3, duplicated=5), lockgate=tally()).holds
    assert "every expected payment once" in report(spark=tally(), lockgate=tally()).spark.verdict()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


SIDES = [Standing(label="Lockgate", events=500, events_total=1000, epoch=4, state="running")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def test_kills_are_red_on_a_terminal_and_plain_elsewhere(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    for out in (terminal, file):
        Screen(out, clock=lambda: 0.0).alarm("killed executor 12345 (-9)")
    assert "\x1b[1;31mkilled executor 12345 (-9)\x1b[0m" in terminal.getvalue()
    assert file.getvalue() == "killed executor 12345 (-9)\n"


def test_a_line_is_neither_wrapped_nor_obeyed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = f"[red]quoted[/red] :boom: {'x' * 100}"
    file = io.StringIO()
    for out in (terminal, file):
        Screen(out, clock=lambda: 0.0).tell(f"{line}\x1b[2J")
    assert file.getvalue() == f"{line}\\x1b[2J\n"
    assert terminal.getvalue() == f"  0.0 s  {line}\\x1b[2J\n"


@pytest.mark.parametrize("columns", ["30", "60", "200"])
def test_the_live_lines_fit_the_terminal_and_lines_that_stay_are_above_them(
    columns: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    times = iter(range(100))
    screen = Screen(terminal, clock=lambda: float(next(times)))
    screen.follow(SIDES)
    (live,) = set(lines_of(terminal))
    assert live.startswith("Loc")
    assert cell_len(live) <= int(columns)
    assert ("500 events  epoch 4  running" in live) is (columns != "30")
    screen.tell("something happened")
    assert lines_of(terminal)[-2:] == ["  3.0 s  something happened", live]
    screen.clear()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
    screen.clear()
    assert "\x1b[?25h" in terminal.getvalue()  # and the cursor is back


def lines_of(terminal: Terminal) -> list[str]:
    """What was drawn, one after the other, without the sequences that move a cursor or set a colour."""
    plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", terminal.getvalue())
    return [line for line in re.split(r"[\r\n]", plain) if line]


def test_elsewhere_progress_is_a_line_now_and_then_and_only_if_it_is_new() -> None:
    out, times = io.StringIO(), iter([0.0, *(float(second) for second in range(100))])
    screen = Screen(out, clock=lambda: next(times))
    for _ in range(40):
        screen.follow(SIDES)
    assert out.getvalue() == "Lockgate: 500 of 1,000 events, epoch 4, running\n"


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


def processes_of(home: Path) -> list[str]:
    """The processes that have something to do with a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in f"{process.cmdline()} {process.environ()}" and process.pid != os.getpid():
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:300]}")
        except psutil.Error:
            continue
    return found


@pytest.mark.system
def test_both_sides_are_killed_and_ours_has_lost_and_doubled_nothing(home: Path) -> None:
    done = subprocess.run(
        command("--events", "20000", "--seed", "5", "--json"),
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    expected = len(list(Payments(count=20_000, seed=5).expected()))
    assert facts["holds"]
    assert (facts["sent_count"], facts["spark_workers"], facts["seed"]) == (20_000, 2, 5)
    for name, guarantee in (("spark", "AT_LEAST_ONCE"), ("lockgate", "END_TO_END_EXACTLY_ONCE")):
        side = facts[name]
        counted = side["tally"]
        assert side["guarantee"] == guarantee
        assert [kill["target"] for kill in side["kills"]] == ["executor", "driver"], done.stderr
        assert all(f"killed {kill['target']} {kill['pid']} (-9)" in done.stderr for kill in side["kills"])
        assert side["driver_starts"] == 2
        assert side["epoch_count"] >= EPOCHS
        assert counted["expected_count"] == expected
        assert (counted["lost_count"], counted["foreign_count"]) == (0, 0)
        assert counted["delivered_count"] == expected + counted["duplicated_count"]
    assert facts["lockgate"]["tally"]["duplicated_count"] == 0
    assert facts["lockgate"]["tally"]["delivered_cents"] == facts["lockgate"]["tally"]["expected_cents"]
    assert not Stack(home / ".lockgate" / "services").status().kafka.running
    assert processes_of(home) == []


@pytest.mark.system
@pytest.mark.parametrize(("moment", "number"), [("sent ", signal.SIGINT), ("Lockgate: driver", signal.SIGTERM)])
def test_an_interrupted_demo_stops_what_it_started(moment: str, number: signal.Signals, home: Path) -> None:
    with subprocess.Popen(
        command("--events", "100000", "--json"), cwd=home, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if line.startswith(moment))
        assert processes_of(home), told
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not Stack(home / ".lockgate" / "services").status().kafka.running
    assert processes_of(home) == []


@pytest.mark.parametrize("events", ["0", "-5"])
def test_a_demo_without_events_is_refused(events: str, tmp_path: Path) -> None:
    done = subprocess.run(
        command("--events", events), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "fix:   send at least one" in done.stderr
