"""A cluster whose machines cannot do the work is refused, with what they lack."""

from pathlib import Path

import pytest

from lockgate.errors import BadMachine, Refused
from lockgate.runtime.libraries import ALWAYS
from lockgate.spark.machines import Lack, look_here, refusal


def test_a_machine_says_what_it_lacks(tmp_path: Path) -> None:
    assert look_here(ALWAYS, str(tmp_path)).libraries == ()
    found = look_here(("pandas", "nobody_has_me", "nobody_has_me.either"), str(tmp_path / "not-mounted"))
    assert found.libraries == ("nobody_has_me", "nobody_has_me.either")
    assert found.is_blind
    assert not look_here((), None).is_blind


def test_what_is_missing_is_told_once_for_all_machines() -> None:
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


@pytest.mark.parametrize("seen", [None, "/"])
def test_a_machine_that_lacks_nothing_is_no_lack(seen: str | None) -> None:
    found = look_here(("json",), seen)
    assert (found.libraries, found.is_blind) == ((), False)
