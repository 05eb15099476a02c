"""Faults planted in tables and files are caught; checkers that have nothing to go by there claim nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.history import Fact, Fault, Gap, History, Read, Reader, ReadToEnd, Standing, Start
from lockgate.lab.rig.judge.checkers import check
from lockgate.lab.rig.judge.findings import Finding, Outcome, combine
from lockgate.lab.rig.judge.promises import Keeping, Promise, Row

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
DUE = [("kill postgres", "any moment")]
COUNT = 6

Facts = list[Fact]


def row(reader: Reader, number: int, at_seconds: float, *, key: bytes | None = None, offset: int | None = None) -> Read:
    value = b'{"id":%d}' % (number // 2)  # every row has one that is equal to it, and no trace tells them apart
    return Read(reader, "out", 0, number if offset is None else offset, key, value, None, None, at_seconds)


def added() -> Facts:
    """Rows that come one by one; the database is killed in the middle."""
    facts: Facts = [Start(0, 0.0), Fault(*DUE[0], "postgres", 3.5)]
    facts += [row(Reader.ALONG, number, 1.0 + number) for number in range(COUNT)]
    facts += [row(Reader.AFTER, number, 20.0) for number in range(COUNT)]
    return [*facts, Standing("out", 0, 0, 0, 0, 20.0), ReadToEnd(Reader.ALONG, 20.0), ReadToEnd(Reader.AFTER, 20.0)]


ROWS = tuple(Row(None, b'{"id":%d}' % (number // 2)) for number in range(COUNT))
ADDED = Promise(EXACT, ROWS, is_ordered=True, keeping=Keeping.ADDED)

KEYS = (b'{"k":1}', b'{"k":2}')


def version(reader: Reader, key: bytes, count: int, offset: int, at_seconds: float) -> Read:
    return Read(reader, "out", 0, offset, key, b'{"count":%d}' % count, None, None, at_seconds)


def replaced() -> Facts:
    """Counts that replace each other, of two keys."""
    facts: Facts = [Start(0, 0.0), Fault(*DUE[0], "postgres", 3.5)]
    seen = [(KEYS[0], 1), (KEYS[1], 1), (KEYS[0], 2), (KEYS[0], 3), (KEYS[1], 2)]
    facts += [version(Reader.ALONG, *one, number, 1.0 + number) for number, one in enumerate(seen)]
    facts += [version(Reader.AFTER, KEYS[0], 3, 0, 20.0), version(Reader.AFTER, KEYS[1], 2, 1, 20.0)]
    return [*facts, Standing("out", 0, 0, 0, 0, 20.0), ReadToEnd(Reader.ALONG, 20.0), ReadToEnd(Reader.AFTER, 20.0)]


REPLACED = Promise(
    EXACT,
    (Row(KEYS[0], b'{"count":3}'), Row(KEYS[1], b'{"count":2}')),
    is_ordered=True,
    keeping=Keeping.REPLACED,
)


def findings(facts: Facts, promise: Promise) -> dict[str, Finding]:
    return {one.checker: one for one in check(History(tuple(facts)), {"out": promise}, due=DUE)}


def ends_of(facts: Facts, promise: Promise) -> dict[str, Outcome]:
    told = findings(facts, promise)
    return {name: one.outcome for name, one in told.items() if one.outcome in (Outcome.BROKEN, Outcome.UNKNOWN)}


def not_promised(facts: Facts, promise: Promise) -> set[str]:
    return {name for name, one in findings(facts, promise).items() if one.outcome is Outcome.NOT_PROMISED}


def only(facts: Facts, is_kept: Callable[[Read], bool]) -> Facts:
    return [fact for fact in facts if not isinstance(fact, Read) or is_kept(fact)]


# -- the planted faults -----------------------------------------------------------------------------------------------


def lose(facts: Facts) -> Facts:
    return only(facts, lambda read: read.offset != COUNT - 1)


def double(facts: Facts) -> Facts:
    return [*facts, *(row(reader, 5, 7.0, offset=COUNT) for reader in (Reader.ALONG, Reader.AFTER))]


def invent(facts: Facts) -> Facts:
    return [*facts, *(row(reader, 99, 7.0) for reader in (Reader.ALONG, Reader.AFTER))]


def show_and_take_back(facts: Facts) -> Facts:
    return [*facts, row(Reader.ALONG, 5, 3.0, offset=COUNT)]


def change(facts: Facts) -> Facts:
    return [
        *facts,
        row(Reader.ALONG, 98, 3.0, offset=COUNT),
        row(Reader.ALONG, 5, 6.5, offset=COUNT + 1),
        row(Reader.AFTER, 5, 20.0, offset=COUNT),
    ]


def leave_open(facts: Facts) -> Facts:
    return [replace(fact, open_transactions=1) if isinstance(fact, Standing) else fact for fact in facts]


@pytest.mark.parametrize(
    ("checker", "plant"),
    [
        ("lost", lose),
        ("duplicated", double),
        ("foreign", invent),
        ("aborted seen", show_and_take_back),
        ("open transactions", leave_open),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_what_is_planted_where_rows_are_added_is_caught_by_its_checker_and_by_no_other(
    checker: str, plant: Callable[[Facts], Facts]
) -> None:
    assert ends_of(plant(added()), ADDED) == {checker: Outcome.BROKEN}
    assert findings(plant(added()), ADDED)[checker].reason


def test_a_row_that_has_become_another_one_where_rows_are_added_is_gone() -> None:
    assert ends_of(change(added()), ADDED)["aborted seen"] is Outcome.BROKEN


def test_what_a_clean_history_of_added_rows_shows_and_what_it_does_not() -> None:
    assert ends_of(added(), ADDED) == {}
    assert not_promised(added(), ADDED) == {"disordered", "split epochs", "taken over", "wrong aggregates"}


def test_a_copy_in_a_table_names_no_record_of_a_broker() -> None:
    reason = findings(show_and_take_back(added()), ADDED)["aborted seen"].reason
    assert reason == "row {\"id\":2} was seen in 'out' and is gone"


# -- where rows replace each other ------------------------------------------------------------------------------------


def test_if_rows_replace_each_other_only_the_end_counts() -> None:
    assert ends_of(replaced(), REPLACED) == {}
    loose = {"aborted seen", "disordered", "split epochs", "taken over", "wrong aggregates"}
    assert not_promised(replaced(), REPLACED) == loose


def test_a_key_that_is_not_there_in_the_end_is_lost() -> None:
    facts = only(replaced(), lambda read: read.reader is Reader.ALONG or read.key != KEYS[1])
    assert ends_of(facts, REPLACED) == {"lost": Outcome.BROKEN}


def test_a_key_with_another_value_in_the_end_is_lost_and_foreign() -> None:
    facts = [
        replace(fact, value=b'{"count":4}') if isinstance(fact, Read) and fact.reader is Reader.AFTER else fact
        for fact in replaced()
    ]
    assert ends_of(facts, REPLACED) == {"lost": Outcome.BROKEN, "foreign": Outcome.BROKEN}


def test_a_key_that_is_there_twice_is_duplicated() -> None:
    facts = [*replaced(), version(Reader.AFTER, KEYS[1], 2, 2, 20.0)]
    assert ends_of(facts, REPLACED) == {"duplicated": Outcome.BROKEN}


def test_values_that_give_way_do_not_count_for_rows_that_have_come() -> None:
    # Two rows stay and three had been seen before the fault, but not those that stay.
    facts = only(replaced(), lambda read: read.reader is Reader.AFTER or read.at_seconds < 3.5)
    assert ends_of(facts, REPLACED) == {"recovery": Outcome.UNKNOWN}


def test_no_new_value_is_owed_when_all_that_stay_have_been_seen() -> None:
    facts = [replace(fact, at_seconds=9.0) if isinstance(fact, Fault) else fact for fact in replaced()]
    assert ends_of(facts, REPLACED) == {}


# -- where nothing can be left open -----------------------------------------------------------------------------------


def test_files_have_no_transactions_so_no_reader_looks_for_them() -> None:
    facts: Facts = [fact for fact in added() if not isinstance(fact, Standing)]
    files = replace(ADDED, has_transactions=False)
    assert ends_of(facts, files) == {}
    assert "open transactions" in not_promised(facts, files)
    assert ends_of(facts, ADDED) == {"open transactions": Outcome.UNKNOWN}


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promise", [ADDED, REPLACED])
def test_a_reader_that_did_not_come_to_the_end_never_lets_a_trial_hold(promise: Promise) -> None:
    facts = added() if promise is ADDED else replaced()
    cut = [fact for fact in facts if not (isinstance(fact, ReadToEnd) and fact.reader is Reader.AFTER)]
    told = findings([*cut, Gap(Reader.AFTER, "out: Away: nobody answers", 20.0)], promise)
    assert combine(one.outcome for one in told.values()) is Outcome.UNKNOWN
