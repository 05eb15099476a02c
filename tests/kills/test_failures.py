"""What the failure of a task does at each of its steps, under each guarantee: the table in docs/GUARANTEES.md.

The table is what the tests have observed. `make prove-all` observes all of it again, `make test-all` a sample: `emit`,
where guarantees differ most. A test without a job checks that the page shows what is stored in failures.json. COMMAND
writes both.
"""

import json
import os
from pathlib import Path

import pytest

from kills.kill_cells import (
    COMMAND,
    PROMISED,
    QUESTIONS,
    Cell,
    Cohorts,
    differences,
    judge,
    load,
    save,
    with_table,
)
from kills.kill_failures import CALM, IN_HAND, Failures, make_events
from kills.kill_matrix import STEPS, Case, cases, fail
from kills.kill_workloads import Event
from lockgate.guarantees import Guarantee

PAGE = Path(__file__).parents[2] / "docs" / "GUARANTEES.md"
STORED = Path(__file__).with_name("failures.json")


@cases
def test_a_job_that_is_killed_at_a_step_does_what_the_table_says(case: Case, kafka: str, tmp_path: Path) -> None:
    guarantee = Guarantee[case.workload]
    steps = [step for step in STEPS if fail(step, guarantee) in case.strikes]
    cells = Failures(kafka, guarantee, tmp_path / "job").run(steps)
    assert [cell.step for cell in cells] == steps
    compare(cells, is_written="LOCKGATE_WRITE_DOCS" in os.environ)


def compare(cells: list[Cell], *, is_written: bool) -> None:
    """Cells keep their promises and are as they were before; or they are the new table."""
    for cell in cells:
        require(cell)
    if is_written:
        save(STORED, cells)
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), load(STORED)), encoding="utf-8")
    wrong = differences(load(STORED), cells)
    assert not wrong, "\n".join([*wrong, f"to write it again: {COMMAND}"])


def require(cell: Cell) -> None:
    """What the guarantee promises, and that the failure had the effect that it must have without the promise."""
    assert not cell.broken, f"{cell.broken} in {cell}"
    is_out = cell.step == "emit"
    match cell.guarantee:
        case Guarantee.AT_MOST_ONCE:
            assert max(cell.delivered) <= 1, cell
            assert max(cell.processed) <= 1, cell
            assert cell.delivered[0] > 0, f"nothing was lost: {cell}"
        case Guarantee.AT_LEAST_ONCE | Guarantee.EXACTLY_ONCE:
            assert min(cell.delivered) >= 1, cell
            assert (cell.delivered[2] > 0) == is_out, f"rows that were out have to come out again: {cell}"
            assert (cell.counted, cell.is_state_kept) == (1, True), cell
        case Guarantee.END_TO_END_EXACTLY_ONCE:
            assert set(cell.delivered) == {1}, cell
            assert (cell.counted, cell.is_state_kept) == (1, True), cell
    if cell.guarantee is not Guarantee.AT_MOST_ONCE:
        # Once more than the state and the reader know of, where the first time was in vain.
        assert set(cell.processed) == {1 if cell.step == "receive" else 2}, cell


# -- the table ----------------------------------------------------------------------------------------------------


def test_the_page_shows_what_was_observed_for_every_guarantee_and_step() -> None:
    cells = load(STORED)
    assert [cell.place for cell in cells] == [(one, number) for one in Guarantee for number in range(len(STEPS))]
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page, cells), f"the table was changed by hand; to write it: {COMMAND}"
    assert COMMAND in page


def test_what_was_observed_breaks_no_promise_and_a_no_without_a_promise_is_marked() -> None:
    for cell in load(STORED):
        require(cell)
        line, promised = cell.line(), PROMISED[cell.guarantee]
        assert {line[asked] for asked in promised} == {"no"}, line
        assert {line[asked] for asked in {*QUESTIONS} - promised} <= {"**yes**", "no (not promised)"}, line


def test_a_cell_that_differs_is_named_and_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    stored = tmp_path / "cells.json"
    first = [look(counted(ALL)), look(counted(ALL), guarantee=Guarantee.AT_MOST_ONCE)]
    save(stored, first)
    assert load(stored) == first[::-1], "in the order of the guarantees"
    rows = counted(ALL)
    twice = look([*rows, *rows[CALM : CALM + IN_HAND]])
    assert differences(load(stored), first) == []
    assert differences(load(stored), [twice]) == [
        "at-least-once, killed at emit: output twice? '**yes**', the table says 'no (not promised)'",
        "at-least-once, killed at emit: delivered '2x: 8', the table says '1x: 8'",
    ]
    save(stored, [twice])
    assert load(stored) == [first[1], twice]
    assert json.loads(stored.read_text())["command"] == COMMAND


# -- the judge, shown to catch what is planted ----------------------------------------------------------------------

EVENTS = make_events()
COHORTS = Cohorts(*([next(EVENTS) for _ in range(number)] for number in (CALM, IN_HAND, CALM)))
ALL = [*COHORTS.before, *COHORTS.in_hand, *COHORTS.after]
IDS = [event["id"] for event in ALL]


def counted(events: list[Event]) -> list[Event]:
    """The rows of these events, one after the other, in one state."""
    counts = dict.fromkeys("ab", 0)
    rows = []
    for event in events:
        counts[event["name"]] += 1
        rows.append({**event, "count": counts[event["name"]]})
    return rows


def look(rows: list[Event], processed: list[int] = IDS, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE) -> Cell:
    return judge(guarantee, "emit", COHORTS, rows=rows, processed=processed)


def test_without_a_failure_every_event_is_processed_counted_and_delivered_once() -> None:
    cell = look(counted(ALL), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    assert not any(cell.answers.values())
    assert cell.processed == cell.delivered == {1: IN_HAND}
    assert (cell.counted, cell.is_state_kept, cell.broken) == (1, True, [])


def test_events_that_were_never_emitted_are_lost() -> None:
    rows = [row for row in counted(ALL) if row["id"] != COHORTS.in_hand[3]["id"]]
    cell = look(rows)
    assert cell.delivered == {0: 1, 1: IN_HAND - 1}
    assert cell.broken == ["lost?"]


def test_rows_that_were_emitted_again_are_twice_in_outputs_and_once_in_state() -> None:
    rows = counted(ALL)
    again = [row for row in rows if row["id"] in {event["id"] for event in COHORTS.in_hand[:2]}]
    cell = look(rows + again, IDS + [row["id"] for row in again])
    assert cell.answers == {"lost?": False, "state twice?": False, "output twice?": True}
    assert cell.processed == cell.delivered == {1: IN_HAND - 2, 2: 2}


def test_events_that_count_again_are_in_state_twice_although_their_rows_were_emitted_once() -> None:
    rows = counted([*COHORTS.before, *COHORTS.in_hand, *COHORTS.in_hand, *COHORTS.after])
    shown = [row for number, row in enumerate(rows) if not CALM <= number < CALM + IN_HAND]
    cell = look(shown, guarantee=Guarantee.EXACTLY_ONCE)
    assert (cell.counted, cell.is_jumping) == (2, True)
    assert cell.broken == ["state twice?"]


def test_one_count_that_jumps_is_state_twice() -> None:
    rows = counted(ALL)
    rows[CALM + 1]["count"] += 1
    assert look(rows, guarantee=Guarantee.EXACTLY_ONCE).broken == ["state twice?"]


def test_a_state_that_began_empty_is_distinguished_from_one_that_lacks_the_events_in_flight() -> None:
    forgotten = look([*counted([*COHORTS.before]), *counted([*COHORTS.after])])
    assert (forgotten.counted, forgotten.is_state_kept) == (0, False)
    lacking = look(counted([*COHORTS.before, *COHORTS.after]))
    assert (lacking.counted, lacking.is_state_kept) == (0, True)


def test_what_happens_to_events_without_a_failure_is_no_answer() -> None:
    with pytest.raises(AssertionError, match="event 3, which no failure touched"):
        look([row for row in counted(ALL) if row["id"] != 3])
    with pytest.raises(AssertionError, match="processed 2 times"):
        look(counted(ALL), [*IDS, COHORTS.after[0]["id"]])


def test_a_state_that_has_a_part_of_the_events_in_hand_is_no_answer() -> None:
    part = counted([*COHORTS.before, *COHORTS.in_hand[:5], *COHORTS.after])
    with pytest.raises(AssertionError, match="in hand, and"):
        look(part)
