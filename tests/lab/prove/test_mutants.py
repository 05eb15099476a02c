"""The proof says broken when a law of the commit protocol is switched off: real broker, real Spark, real kills.

What is switched off, and how it gets into drivers and workers, is told in `mutants/sitecustomize.py`. Each trial is one
of the proof's own, judged by its own verdict, and holds where nothing is switched off.

    switched off             what is done                                what the proof finds
    -----------------------  ------------------------------------------  ----------------------------------------------
    ledger                   kill driver at AFTER_END                    duplicated, split epochs
    claim                    a driver is overtaken at BEGIN              taken over: it commits behind the other's back
    claim, ledger            a driver is overtaken at BEGIN              duplicated
    fencing                  kill driver at VOTES                        open transactions
    fencing, stable-offset   a driver is overtaken at BEFORE_END         duplicated
    permits                  kill worker at HALF                         lost
    order                    kill driver at AFTER_END, a rolling sum     lost, foreign: other sums than undisturbed

Why two at a time. An epoch comes twice only if every defence is down that stands in its way:

    claim            the ledger stands at the epoch that was overtaken, and stops the first driver, too
    stable-offset    Kafka answers InitProducerId only when the transaction before it has all its ends, so a ledger that
                     is read behind a fence of the same transactional id has no open transaction in it; the wait is what
                     is left when fencing is not
    fencing          what a driver that was not fenced writes to the ledger does not stand where it should (tail), and
                     what it has written already is waited for (stable-offset)
    permits          a second attempt of a task writes what the first one wrote where a partition gets one batch, and a
                     broker drops what it has; two tasks with rows of one partition do not, and no plan rules that out

Rows are lost without permits, and sums are others without order, whatever is killed: the kill makes it a trial.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from kafka.partitioner.default import murmur2

from lockgate.cli import provenjob
from lockgate.cli.jobfile import load_job
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import delete_ours
from lockgate.connectors.kafka.wire import connect
from lockgate.faultpoints import Fault as Armament
from lockgate.faultpoints import as_environment
from lockgate.lab.prove.proving import PREFIX, Proof
from lockgate.lab.prove.redirect import Site, redirect
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.trial import Run, Stage
from lockgate.lab.prove.verdict import Trial, judge
from lockgate.lab.prove.workload import Workload
from lockgate.lab.rig.drivers import Driver
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.feed import Event
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.lab.rig.judge.promises import Promises
from lockgate.lab.rig.readers import topics
from lockgate.lab.rig.trial import Trial as Observed
from lockgate.lab.rig.troubles.pauses import Pauses
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble
from lockgate.lab.services.stack import Stack
from lockgate.planner.plan import plan

pytestmark = [pytest.mark.system, pytest.mark.spark]

HERE = Path(__file__).parent
PARTITIONS_IN, PARTITIONS_OUT = 2, 3
EVENTS, ROWS_PER_EPOCH = 72, 12


# What is run


def make_workload() -> Workload:
    """Orders in two partitions; in each, the next one always goes into the next of the three partitions of the output.

    So in every epoch both tasks that read have equally many rows for each partition that is written.
    """
    events = []
    for number in range(EVENTS):
        part, place = number % PARTITIONS_IN, number // PARTITIONS_IN % PARTITIONS_OUT
        value = json.dumps({"number": number}).encode()
        events.append(Event("in-0", part, _customer(part, place), value, timestamp_ms=number))
    return Workload(
        events=tuple(events),
        partitions={"in-0": PARTITIONS_IN},
        tables={},
        wave=EVENTS,
        late=(),
        unsure_count=0,
        bad=(),
        origin="as the tests of mutants need it",
    )


def _customer(part: int, place: int) -> bytes:
    """One of those who order in one partition and are written to another."""
    names = (f"customer-{part}-{number}".encode() for number in range(1000))
    return next(name for name in names if (murmur2(name) & 0x7FFFFFFF) % PARTITIONS_OUT == place)


@dataclass(frozen=True)
class Overtaking:
    """A driver stops at a point, another one takes over up to some point, then the first one goes on until it ends."""

    point: str  # where the first one stops
    until: str  # where the second one stops
    hit: int = 1  # at which passing the first one stops
    commits: int = 1  # the first one is killed when it has committed so many epochs, if it comes so far
    is_enough: Callable[[Driver], bool] = lambda second: (
        False
    )  # may the first one go on, though the second is not there?

    @property
    def strike(self) -> Strike:
        """As the proof calls it."""
        return Strike(Kind.PAUSE_DRIVER, self.point, self.hit)


class Overtaken(Trouble):
    """Lets it happen."""

    def __init__(self, how: Overtaking, scene: Scene, tell: Tell) -> None:
        directory = scene.drivers.directory / "marks" / "overtaken" / how.point
        directory.mkdir(parents=True)
        self._how, self._scene, self._tell = how, scene, tell
        self._marks = {name: directory / name for name in ("stop", "die", "until")}
        self._first: Driver | None = None
        self._second: Driver | None = None
        self._is_first_awake = False
        self._goal: int | None = None  # so many epochs are done when the second one has gone on
        self._is_over = False

    def environment(self) -> Mapping[str, str]:
        how = self._how
        if self._first is not None:
            return as_environment([self._armed(how.until, "stop", 1, "until")])
        stop = self._armed(how.point, "stop", how.hit, "stop")
        return as_environment([stop, self._armed("AFTER_END", "kill", how.commits, "die")])

    def step(self) -> None:
        drivers = self._scene.drivers
        if self._second is None or self._first is None:
            driver = drivers.last
            if driver is not None and self._is_standing(driver, "stop"):
                self._first = driver
                driver.is_aside = True
                self._second = drivers.start(self.environment())
                self._tell(self._scene.fact(self._how.strike, f"driver {driver.number}"))
        elif not self._is_first_awake:
            assert self._second.process.poll() is None, self._second.tail()
            if self._is_standing(self._second, "until") or self._how.is_enough(self._second):
                _wake(self._first)
                self._is_first_awake = True
        elif self._goal is None:
            if self._first.process.poll() is not None and self._is_standing(self._second, "until"):
                self._goal = drivers.epochs() + 1
                _wake(self._second)
        else:
            self._is_over = drivers.epochs() >= self._goal or self._second.process.poll() is not None

    def _armed(self, point: str, action: str, hit: int, mark: str) -> Armament:
        return Armament(point=point, action=action, hit=hit, mark=str(self._marks[mark]))

    def _is_standing(self, driver: Driver, mark: str) -> bool:
        if not driver.is_running or not self._marks[mark].exists():
            return False
        return psutil.Process(driver.process.pid).status() == psutil.STATUS_STOPPED

    @property
    def struck(self) -> int:
        return int(self._is_over)

    @property
    def count(self) -> int:
        return 1


def _wake(driver: Driver) -> None:
    os.kill(driver.process.pid, signal.SIGCONT)


@dataclass
class OvertakenRun(Run):
    """A run whose paused drivers are overtaken."""

    overtakings: Sequence[Overtaking] = ()

    def _troubles(self, scene: Scene, trial: Observed) -> Sequence[Trouble]:
        others = [one for one in super()._troubles(scene, trial) if not isinstance(one, Pauses)]
        return [*others, *(Overtaken(how, scene, trial.note) for how in self.overtakings)]


@dataclass(frozen=True)
class Prover:
    """Runs trials of one job."""

    stage: Stage
    settings: Settings
    promises: Promises

    def __call__(self, name: str, *troubles: Strike | Overtaking) -> Trial:
        """One trial, under the mutants that the environment names."""
        strikes = [one.strike if isinstance(one, Overtaking) else one for one in troubles]
        overtakings = [one for one in troubles if isinstance(one, Overtaking)]
        run = OvertakenRun(self.stage, f"{PREFIX}{name}", strikes, overtakings=overtakings)
        began = time.monotonic()
        history, due = run.run(), [one.named for one in strikes]
        seconds = time.monotonic() - began
        trial = judge(history, self.promises, self.settings, seed=0, number=0, due=due, seconds=seconds)
        self.stage.tell(f"{name}: {trial.outcome.value} in {trial.seconds:.0f} s {trial.reason}")
        return trial


# What all of them share


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A broker of these tests' own."""
    stack = Stack(tmp_path_factory.mktemp("services"), brokers=1, is_proxied=True)
    try:
        stack.up(postgres=False)
        yield stack
    finally:
        stack.down()


def prover(name: str, services: Stack, home: Path) -> Prover:
    """Who proves a job, with the rows of its undisturbed run."""
    delete_ours(services.status().kafka.servers or "", PREFIX, where="tests of mutants")
    file = HERE / "mutant_jobs" / f"{name}.py"
    job = load_job(str(file), [])
    stage = Stage(
        environ={},
        job=job,
        source={"file": str(file), "parameters": [], "through_spark": False},
        job_file=Path(provenjob.__file__),
        workload=make_workload(),
        rows_per_epoch=ROWS_PER_EPOCH,
        stack=services,
        cluster=None,
        home=home,
        tell=print,
        go_on=lambda: None,
    )
    settings = Settings(name, job.guarantee, str(file), {}, {}, stage.workload.origin, "", {})
    moved = redirect(job, Site(f"{PREFIX}plan", "localhost:1", home / "nowhere"))
    proof = Proof([stage], plan(job), moved, settings, (), batches={}, reasons=(), seed=0, strikes_per_trial=1)
    return Prover(stage, settings, proof._promises(stage))


@pytest.fixture(scope="module")
def copies(services: Stack, tmp_path_factory: pytest.TempPathFactory) -> Prover:
    """Trials of the job without state."""
    return prover("copies", services, tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="module")
def totals(services: Stack, tmp_path_factory: pytest.TempPathFactory) -> Prover:
    """Trials of the job that goes by order."""
    return prover("totals", services, tmp_path_factory.mktemp("totals"))


SwitchOff = Callable[..., None]


@pytest.fixture
def switch_off(monkeypatch: pytest.MonkeyPatch) -> SwitchOff:
    """Switches laws off in the drivers that are started from now on, and in their workers."""

    def switch(*laws: str) -> None:
        monkeypatch.setenv("LOCKGATE_MUTANTS", ",".join(laws))
        monkeypatch.setattr(sys, "path", [str(HERE / "mutants"), *sys.path])

    return switch


def assert_holds(trial: Trial) -> None:
    assert trial.outcome is Outcome.HOLDS, trial.reason
    assert trial.checks["taken over"].outcome is Outcome.HOLDS


def assert_broken(trial: Trial, *wanted: str) -> None:
    """These checkers found something, after everything struck that was due."""
    assert trial.checks["tried"].outcome is Outcome.HOLDS, trial.checks["tried"].reason
    found = {name for name, check in trial.checks.items() if check.outcome is Outcome.BROKEN}
    assert found >= set(wanted), trial.checks
    assert trial.outcome is Outcome.BROKEN


# The trials

DIES_AFTER_END = Strike(Kind.KILL_DRIVER, "AFTER_END")
DIES_WITH_VOTES = Strike(Kind.KILL_DRIVER, "VOTES")
WORKER_DIES = Strike(Kind.KILL_WORKER, "HALF")
# In its second epoch; the first one was begun twice, since its rows turned out not to be partitioned alike.
OVERTAKEN_AT_BEGIN = Overtaking("BEGIN", until="AFTER_END", hit=3, commits=2)
OVERTAKEN_AT_END = Overtaking("BEFORE_END", until="CLAIM")


@pytest.mark.prove
def test_with_all_laws_it_holds(copies: Prover) -> None:
    troubles = (DIES_AFTER_END, DIES_WITH_VOTES, WORKER_DIES, OVERTAKEN_AT_BEGIN, OVERTAKEN_AT_END)
    assert_holds(copies("none", *troubles))


def test_without_the_ledger_an_epoch_comes_twice(copies: Prover, switch_off: SwitchOff) -> None:
    switch_off("ledger")
    assert_broken(copies("ledger", DIES_AFTER_END), "duplicated", "split epochs")


@pytest.mark.prove
def test_without_the_claim_a_driver_that_was_overtaken_continues(copies: Prover, switch_off: SwitchOff) -> None:
    switch_off("claim")
    assert_broken(copies("claim", OVERTAKEN_AT_BEGIN), "taken over")


@pytest.mark.prove
def test_without_claim_and_ledger_it_writes_what_is_committed(copies: Prover, switch_off: SwitchOff) -> None:
    switch_off("claim", "ledger")
    assert_broken(copies("claim-ledger", OVERTAKEN_AT_BEGIN), "taken over", "duplicated", "split epochs")


@pytest.mark.prove
def test_without_fencing_the_dead_hold_readers_back(
    copies: Prover, switch_off: SwitchOff, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off("fencing")
    monkeypatch.setattr(topics, "_SILENCE_SECONDS", 3.0)  # nothing more comes: that is what is shown
    assert_broken(copies("fencing", DIES_WITH_VOTES), "open transactions")


@pytest.mark.prove
def test_without_fencing_an_end_that_is_outstanding_is_waited_for(copies: Prover, switch_off: SwitchOff) -> None:
    switch_off("fencing")
    servers = copies.stage.stack.status().kafka.servers or ""
    connection = connect(read_settings(servers, {}, where="test"), where="test")

    def has_begun(second: Driver) -> bool:
        return f"lockgate.{PREFIX}unfenced.{second.process.pid}" in connection.list_transactions()

    assert_holds(copies("unfenced", replace(OVERTAKEN_AT_END, is_enough=has_begun)))


@pytest.mark.prove
def test_without_fencing_and_the_wait_for_it_an_epoch_comes_twice(copies: Prover, switch_off: SwitchOff) -> None:
    switch_off("fencing", "stable-offset")
    assert_broken(copies("stable-offset", OVERTAKEN_AT_END), "duplicated", "split epochs")


@pytest.mark.prove
def test_without_permits_two_tasks_write_to_one_partition(copies: Prover, switch_off: SwitchOff) -> None:
    switch_off("permits")
    assert_broken(copies("permits", WORKER_DIES), "lost")


@pytest.mark.prove
def test_with_all_laws_totals_hold(totals: Prover) -> None:
    assert_holds(totals("totals", DIES_AFTER_END))


@pytest.mark.prove
def test_without_order_totals_are_others(totals: Prover, switch_off: SwitchOff) -> None:
    switch_off("order")
    assert_broken(totals("order", DIES_AFTER_END), "lost", "foreign")
