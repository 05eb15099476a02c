"""What users write is documented, runs in an example, and changes only on purpose."""

import difflib
import inspect
import re

import pytest

from lockgate.commit.resource import CommittingSink, Resource
from lockgate.runtime.running import Run
from support.public_names import COMMAND, STORED, PublicName, public_names, text

NAMES = [one for one in public_names() if one.value is not None]
DOCUMENTED = [one for one in NAMES if not hasattr(one.value, "value")]  # not the members of enums

NO_EXAMPLE = {
    # A user writes these classes and Lockgate calls their methods: the examples are of the classes.
    *(f"lockgate.{kind.__name__}.{name}" for kind in (CommittingSink, Resource) for name in vars(kind)),
    *(f"lockgate.StatefulFunction.{name}" for name in ("process", "on_timer", "get_state", "init_state")),
    # One job has to run for all of them, in the example of the class.
    *(f"lockgate.Run.{name}" for name in vars(Run)),
}


def named(one: PublicName) -> str:
    return one.name


@pytest.mark.parametrize("one", DOCUMENTED, ids=named)
def test_a_public_name_says_what_it_does_and_names_its_parameters(one: PublicName) -> None:
    doc = inspect.getdoc(one.value) or ""
    first = doc.partition("\n")[0]
    assert first.endswith((".", "?")), f"{one.name} has no first line that is a sentence: {first!r}"
    expected = [] if one.signature is None else [*one.signature.parameters]
    block = re.search(r"^Args:\n((?:    .*\n?)+)", doc, re.MULTILINE)
    described = re.findall(r"^    (\w+): ", block[1], re.MULTILINE) if block else []
    assert described == expected, f"Args: of {one.name} are not its parameters"


@pytest.mark.parametrize("one", DOCUMENTED, ids=named)
def test_a_public_name_has_an_example(one: PublicName) -> None:
    assert (">>>" in (inspect.getdoc(one.value) or "")) or one.name in NO_EXAMPLE


def test_public_names_and_signatures_change_only_on_purpose() -> None:
    stored, now = STORED.read_text().splitlines(), text().splitlines()
    changes = [line for line in difflib.unified_diff(stored, now, lineterm="", n=0) if not line.startswith("@@")]
    assert not changes, "\n".join(
        [*changes, f"Job files of users break if a name goes. If you mean it: {COMMAND}, and a line in CHANGELOG.md"]
    )


def test_the_names_of_a_job_file_are_among_them() -> None:
    found = {one.name for one in NAMES}
    assert {"lockgate.Job", "lockgate.Stream.where", "lockgate.windows.tumbling", "lockgate.Late.DROP"} <= found
    assert "lockgate.KafkaSink.write" not in found, "Lockgate calls it"
    assert len(DOCUMENTED) > 100
