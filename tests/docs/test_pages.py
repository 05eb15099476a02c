"""The blocks of these pages run as they stand there, and every stream in them plans."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from lockgate import FileSink, Guarantee, Job, Plan, Stream, explain, plan
from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.schema import parse_ddl
from lockgate.dataflow.steps import LateEvents, Step, Timed
from lockgate.operators.fanout import Ending, Joined, Score, Tally
from lockgate.testing import prove

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("JOINS.md", "PATTERNS.md", "STATE.md", "TIME.md", "WINDOWS.md")


def plans_of(page: str) -> dict[str, Plan]:
    """Run the blocks of a page one after the other; a plan for every stream that they name."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # noqa: S102 - the pages are ours
    streams = {name: one for name, one in names.items() if isinstance(one, Stream)}
    late = [one for one in streams.values() if isinstance(one.step, LateEvents)]
    # Beside each the late events of the same time: where they are declared, a job has to take them.
    taken = {
        name: [other for other in late if times_of(other.step) & times_of(one.step)] for name, one in streams.items()
    }
    return {
        name: plan(
            Job(
                "page",
                one.to("out", FileSink(path="out")),
                *(
                    other.to(f"late {number}", FileSink(path=f"late {number}"))
                    for number, other in enumerate(taken[name])
                ),
                guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
            )
        )
        for name, one in streams.items()
    }


def times_of(step: Step) -> set[Step]:
    """The steps before this one that tell the time."""
    return {step} if isinstance(step, Timed) else {time for before in step.inputs for time in times_of(before)}


def forms_of(page: str) -> dict[str, str]:
    """How the keyed step of each stream of a page runs."""
    kinds = ("window", "rolling", "process", "detect")
    return {
        name: step.execution
        for name, planned in plans_of(page).items()
        for node in planned.logical.nodes
        for step in planned.physical.steps
        if node.kind in kinds and step.name == node.name
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_stream_of_a_page_reaches_what_it_declares(page: str) -> None:
    planned = plans_of(page)
    assert len(planned) >= 3
    assert [name for name, one in planned.items() if one.refusal() is not None] == []


def test_the_windows_run_natively_and_in_python_as_the_page_says() -> None:
    forms = forms_of("WINDOWS.md")
    native = {name for name, execution in forms.items() if execution == "native"}
    assert native == {"minutes", "last_hour", "bursts"}
    assert forms.keys() - native >= {"hundreds", "latest", "cycles", "medians", "spread", "early", "often", "corrected"}


@pytest.mark.parametrize("page", ["STATE.md", "PATTERNS.md"])
def test_state_and_patterns_run_in_python(page: str) -> None:
    assert {*forms_of(page).values()} == {"Python"}


def test_the_page_of_dead_letters_names_every_column_of_a_dead_letter_and_its_job_plans() -> None:
    page = (DOCS / "DEAD_LETTERS.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "DEAD_LETTERS.md", "exec"), names)  # noqa: S102 - the pages are ours
    assert plan(names["job"]).refusal() is None
    table = page.partition("\n## A dead letter\n")[2].partition("\n## ")[0]
    told = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert told == list(parse_ddl(LETTER, "page").names)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_test_of_the_page_about_tests_passes() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "TESTING.md").read_text(), re.DOTALL):
        exec(compile(block, "TESTING.md", "exec"), names)  # noqa: S102 - the page is ours
    asked: list[inspect.BoundArguments] = []

    def note(*args: Any, **kwargs: Any) -> None:
        asked.append(inspect.signature(prove).bind(*args, root=DOCS, **kwargs))

    tests = {name: one for name, one in names.items() if name.startswith("test_")}
    assert tests.keys() == {"test_a_minute_is_added_up_when_it_is_over", "test_payments_keep_their_promise"}
    tests["test_a_minute_is_added_up_when_it_is_over"]()
    # Proofs have tests of their own; here it is enough that the page asks for one as it is asked for.
    tests["test_payments_keep_their_promise"](lockgate_prove=note)
    assert [one.arguments["kills"] for one in asked] == [12]


def test_the_job_of_the_page_about_fan_outs_plans_and_its_functions_give_what_their_schema_says() -> None:
    page = (DOCS / "FAN_OUT.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "FAN_OUT.md", "exec"), names)  # noqa: S102 - the page is ours
    planned = plan(names["job"])
    assert (planned.refusal(), planned.reached) == (None, Guarantee.END_TO_END_EXACTLY_ONCE)
    step = names["scores"].step
    assert isinstance(step, FanOut)
    payment = Row(id="p-1", amount=500.0, country="NO", home="DK")
    assert {name: function(payment) for name, function in step.functions.items()} == {
        "amount_score": 0.05,
        "place_score": 0.8,
    }
    (told,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    tally = Tally()
    tally.count(Joined({"amount_score": Score(Ending.ANSWERED)}, 0.001))
    keys = {*tally.report(), *tally.report()["functions"]["amount_score"]}
    assert {name for name in keys if f'"{name}":' not in told} == set()


@pytest.mark.parametrize("page", [*PAGES, "ACKS.md", "DEAD_LETTERS.md", "EXAMPLES.md", "FAN_OUT.md", "TESTING.md"])
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (DOCS / page).read_text())
    assert targets
    assert [target for target in targets if not (DOCS / target).exists()] == []


def test_the_exchanges_of_joins_are_as_the_page_says() -> None:
    told = re.findall(r"```text\n(.*?)```", (DOCS / "JOINS.md").read_text(), re.DOTALL)
    planned = plans_of("JOINS.md")
    assert len(told) == 2
    for name, exchanges in zip(("paid", "with_country"), told, strict=True):
        assert exchanges in explain(planned[name].job)


def test_the_job_of_the_page_about_acks_is_tracked_as_the_page_says() -> None:
    page = (DOCS / "ACKS.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (told,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "ACKS.md", "exec"), names)  # noqa: S102 - the page is ours
    assert plan(names["job"]).refusal() is None
    assert told in explain(names["job"])
