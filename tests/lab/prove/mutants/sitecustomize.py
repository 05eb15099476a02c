"""Switch laws of Lockgate off in every Python process that has this directory on its path: drivers and workers.

Python imports this file when it starts. Those that `LOCKGATE_MUTANTS` names, with commas between them, are switched off
in the modules that keep them, as soon as somebody imports these; the product knows nothing of it.

    fencing         who begins has a transactional id of its own, and no older writer is stopped
    claim           a run does not claim the ledger, and does not ask in whose hands it is
    ledger          an epoch is written without asking whether it is out
    stable-offset   the ledger is read without waiting for transactions that are still open in it
    tail            nobody checks that an entry stands right behind what was read of the ledger
    permits         every task may write to every partition, and votes are not compared with permits
    order           rows of a key are taken as they come, not by their source position
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

VARIABLE = "LOCKGATE_MUTANTS"

Change = Callable[[Any], None]

_CHANGES: dict[str, list[tuple[str, Change]]] = {}  # by mutant: a module, and what is changed in it


def _off(mutant: str, module: str) -> Callable[[Change], Change]:
    def note(change: Change) -> Change:
        _CHANGES.setdefault(mutant, []).append((module, change))
        return change

    return note


@_off("fencing", "lockgate.connectors.kafka.ledgertopic")
def _begin_alone(module: Any) -> None:
    module.transactional_id = lambda job: f"lockgate.{job}.{os.getpid()}"


@_off("claim", "lockgate.commit.coordinator")
def _do_not_claim(module: Any) -> None:
    module.Coordinator._claim = lambda coordinator, epoch: None


@_off("claim", "lockgate.commit.protocol")
def _ask_for_no_run(module: Any) -> None:
    decide = module.decide

    def decide_for_any(entry: Any, epoch: Any, *, run: str, where: str, job: str) -> Any:
        if entry is None and epoch.number == 0:
            return module.Step.WRITE
        return decide(None if entry is None else replace(entry, run=run), epoch, run=run, where=where, job=job)

    module.decide = decide_for_any
    module.check_run = lambda entry, **_: None


@_off("ledger", "lockgate.commit.protocol")
def _always_write(module: Any) -> None:
    def decide(entry: Any, epoch: Any, *, run: str, where: str, job: str) -> Any:
        module.check_run(entry, run=run, where=where, job=job)
        return module.Step.WRITE

    module.decide = decide


@_off("stable-offset", "lockgate.connectors.kafka.ledgertopic")
def _do_not_wait(module: Any) -> None:
    fetch = module.LedgerTopic._fetch

    def fetch_as_stable(ledger: Any, deadline: float) -> Any:
        fetched = fetch(ledger, deadline)
        return None if fetched is None else replace(fetched, last_stable_offset=fetched.high_watermark)

    module.LedgerTopic._fetch = fetch_as_stable


@_off("tail", "lockgate.connectors.kafka.ledgertopic")
def _check_no_tail(module: Any) -> None:
    module.LedgerTopic._check_tail = lambda ledger, offset: None


@_off("permits", "lockgate.commit.permits")
def _grant(module: Any) -> None:
    module.Permits.ask = lambda permits, name, *, task, attempt, places: None


@_off("permits", "lockgate.commit.protocol")
def _count(module: Any) -> None:
    module.tally = lambda granted, votes, *, rows, where: sum(vote.records for vote in votes)


@_off("order", "lockgate.spark.bucket")
def _take_as_they_come(module: Any) -> None:
    def group(run: Any, values: Sequence[bytes]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        batches = [pa.ipc.read_record_batch(pa.py_buffer(value), run.schema) for value in values]
        table = pa.Table.from_batches(batches, schema=run.schema).combine_chunks()
        return table.take(pc.sort_indices(table.column(module.HASH)))  # it is stable

    module.BucketRun._in_order = group


class _Changing(MetaPathFinder):
    """Finds the modules that are to be changed where they are, and changes them when they have been loaded."""

    def __init__(self, mutants: Sequence[str]) -> None:
        self._changes: dict[str, list[Change]] = {}
        for mutant in mutants:
            for module, change in _CHANGES[mutant]:
                self._changes.setdefault(module, []).append(change)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        changes = self._changes.get(fullname)
        spec = None if changes is None else PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_changed(module: ModuleType) -> None:
            load(module)
            for change in changes or ():
                change(module)

        spec.loader.exec_module = load_changed  # type: ignore[method-assign]
        return spec


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, _Changing(os.environ[VARIABLE].split(",")))
