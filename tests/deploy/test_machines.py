"""A cluster whose machines cannot do the work is refused, with what they lack."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockgate.errors import BadMachine, Refused
from lockgate.runtime.libraries import ALWAYS
from lockgate.spark import machines
from lockgate.spark.machines import Lack, check_machines, look_here, refusal


def test_a_machine_says_what_it_lacks(tmp_path: Path) -> None:
    assert look_here(ALWAYS, str(tmp_path)).libraries == ()
    found = look_here(("pandas", "nobody_has_me", "nobody_has_me.either"), str(tmp_path / "not-mounted"))
    assert found.libraries == ("nobody_has_me", "nobody_has_me.either")
    assert found.is_blind
    assert not look_here((), None).is_blind


def test_what_is_missing_is_reported_once_for_all_machines() -> None:
    lacks = [Lack("one", ("pandas",), is_blind=False), Lack("two", ("pandas", "kafka"), is_blind=True)]
    told = refusal(lacks, master="spark://host:7077", checkpoint=Path("/checkpoint"))
    assert isinstance(told, BadMachine)
    assert told.what == "the Python of the cluster's machines lacks kafka, pandas"
    assert told.where == "one, two; master spark://host:7077"


def test_state_on_a_disk_that_others_do_not_see_is_refused_for_a_person() -> None:
    told = refusal([Lack("two", (), is_blind=True)], master="spark://host:7077", checkpoint=Path("/checkpoint"))
    assert isinstance(told, Refused)
    assert not isinstance(told, BadMachine)
    assert "/checkpoint lies on a disk that other machines" in told.what


class Busy:
    """A context whose master has no free workers: its tasks wait, until somebody cancels them."""

    def __init__(self) -> None:
        self.master, self.pythonExec, self.defaultParallelism = "spark://host:7077", "python3", 2
        self.tags: set[str] = set()
        self.is_cancelled = threading.Event()

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's own names
        self.tags.add(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        assert self.tags == {tag}
        self.is_cancelled.set()

    def parallelize(self, numbers: Any, count: int) -> Any:
        return SimpleNamespace(mapPartitions=lambda look: SimpleNamespace(collect=self._collect))

    def _collect(self) -> list[Lack]:
        assert self.is_cancelled.wait(timeout=60), "it would wait for ever"
        raise RuntimeError("the job was cancelled")


def test_a_master_without_free_workers_is_reported_and_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "ANSWER_SECONDS", 0.1)
    context = Busy()
    with pytest.raises(BadMachine, match="the master has no free workers"):
        check_machines(cast("Any", context), libraries=(), checkpoint=None)
    assert not context.tags


@pytest.mark.parametrize("seen", [None, "/"])
def test_a_machine_that_lacks_nothing_is_no_lack(seen: str | None) -> None:
    found = look_here(("json",), seen)
    assert (found.libraries, found.is_blind) == ((), False)
