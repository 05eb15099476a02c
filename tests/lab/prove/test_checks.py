"""The independent reader catches what it is there for, each planted by hand in a log of the model."""

import pytest

from lockgate.commit.ledger import Entry
from lockgate.connectors.kafka.wire import Producer
from lockgate.lab.prove.simulation.broker import Broker
from lockgate.lab.prove.simulation.checks import Broken, Checks
from lockgate.lab.prove.simulation.connection import ModelLedger

LEDGER = ("ledger", 0)
OUTPUTS = [("out", 0), ("out", 1)]
ENDS = [4, 6]  # epoch 0 has rows 0 to 3, epoch 1 has 4 and 5; even ones belong to partition 0
NAME = "id"


class Case:
    """A broker that is written to without any protocol."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.checks = Checks(LEDGER, OUTPUTS)

    def transaction(
        self, *, ledger: tuple[str, int | None] | None = None, is_commit: bool = True, **rows: list[int]
    ) -> None:
        producer = self.begin()
        for name, values in rows.items():
            self.write(producer, int(name[-1]), values)
        if ledger is not None:
            entry = Entry(run=ledger[0], query="query", epoch=ledger[1], digest="", at="")
            data = ModelLedger._encode(None, entry.to_bytes(), producer, now_ms=0)  # type: ignore[arg-type]
            self.broker.add_partitions(NAME, producer, [LEDGER])
            assert self.broker.produce(NAME, LEDGER, producer, sequence=0, count=1, payload=data)[0] == 0
        assert self.broker.end_transaction(NAME, producer, is_commit=is_commit) == 0
        self.settle()

    def begin(self) -> Producer:
        while True:
            code, producer = self.broker.init_producer(NAME, 60_000)
            if not code:
                return producer
            self.settle()

    def write(self, producer: Producer, partition: int, rows: list[int]) -> None:
        place = OUTPUTS[partition]
        self.broker.add_partitions(NAME, producer, [place])
        code, _ = self.broker.produce(NAME, place, producer, sequence=0, count=len(rows), payload=tuple(rows))
        assert code == 0

    def settle(self) -> None:
        while self.broker.unwritten:
            self.broker.write_end(self.broker.unwritten[0])

    def finish(self) -> None:
        self.checks.finish(self.broker, ENDS)


def require_all_holds(case: Case) -> None:
    try:
        case.finish()
    except Broken as broken:
        pytest.fail(str(broken))


def whole() -> Case:
    case = Case()
    case.transaction(ledger=("a", None))
    case.transaction(p0=[2, 0], p1=[1, 3], ledger=("a", 0))
    return case


def test_whole_epochs_in_order_hold_and_aborted_rows_are_not_seen() -> None:
    case = whole()
    case.transaction(p0=[4], ledger=("a", 1), is_commit=False)
    case.checks.look(case.broker, ENDS)
    case.transaction(p0=[4], p1=[5], ledger=("a", 1))
    require_all_holds(case)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({"p0": [4, 2], "p1": [5]}, "row 2 of epoch 0 is visible twice"),
        ({"p0": [4], "p1": [4]}, r"row 4 is visible in \('out', 1\), where it does not belong"),
        ({"p1": [5]}, r"rows \[4\] of epoch 1 are not visible in \('out', 0\)"),
    ],
)
def test_rows_that_are_doubled_misplaced_or_missing_are_reported(rows: dict[str, list[int]], told: str) -> None:
    case = whole()
    case.transaction(ledger=("a", 1), **rows)
    with pytest.raises(Broken, match=told):
        case.finish()


def test_half_an_epoch_in_a_partition_is_reported_at_once() -> None:
    case = Case()
    case.transaction(p0=[0])
    with pytest.raises(Broken, match=r"epoch 0 is visible in \('out', 0\) without its rows \[2\]"):
        case.checks.look(case.broker, ENDS)


def test_epochs_out_of_order_are_reported() -> None:
    case = Case()
    case.transaction(p0=[4])
    with pytest.raises(Broken, match=r"rows \[0, 2\] of epoch 0 are not visible"):
        case.checks.look(case.broker, ENDS)


def test_a_run_that_comes_back_after_another_took_over_is_reported() -> None:
    case = whole()
    case.transaction(ledger=("b", 0))
    case.transaction(p0=[4], p1=[5], ledger=("a", 1))
    with pytest.raises(Broken, match="run a writes the ledger, from which another one had taken over"):
        case.finish()


def test_a_run_that_only_claimed_may_claim_again() -> None:
    case = Case()
    for run in ("a", "b", "a"):
        case.transaction(ledger=(run, None))
    case.transaction(p0=[0, 2], p1=[1, 3], ledger=("a", 0))
    case.transaction(p0=[4], p1=[5], ledger=("a", 1))
    require_all_holds(case)


@pytest.mark.parametrize("epoch", [None, 2])
def test_a_ledger_that_goes_back_or_leaps_is_reported(epoch: int | None) -> None:
    case = whole()
    case.transaction(ledger=("a", epoch))
    with pytest.raises(Broken, match=f"the ledger goes from epoch 0 to {epoch}"):
        case.checks.look(case.broker, ENDS)


def test_a_ledger_that_stays_behind_is_reported() -> None:
    case = whole()
    case.transaction(p0=[4], p1=[5])
    with pytest.raises(Broken, match="all 2 epochs are done, and the ledger is at 0"):
        case.finish()


def test_a_transaction_that_is_left_open_is_reported() -> None:
    case = whole()
    case.transaction(p0=[4], p1=[5], ledger=("a", 1))
    case.write(case.begin(), 0, [9])
    with pytest.raises(Broken, match="left Ongoing"):
        case.finish()
