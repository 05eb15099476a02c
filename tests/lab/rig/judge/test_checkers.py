"""Every checker catches what is planted, passes the clean history, and is silent about what is none of its business.

The clean history: two source partitions, three epochs of four events, one row an event, into two partitions of `out`.
The driver is killed in epoch 1: its rows stay in the log, aborted, and the next driver writes them again.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.history import (
    Committed,
    End,
    Fact,
    Fault,
    Gap,
    History,
    Ledger,
    Position,
    Read,
    Reader,
    ReadToEnd,
    Sent,
    Signed,
    Standing,
    Start,
    Trace,
    Up,
)
from lockgate.lab.rig.judge.checkers import check
from lockgate.lab.rig.judge.findings import Finding, Outcome
from lockgate.lab.rig.judge.promises import Promise, Row
from lockgate.lab.rig.judge.recovery import recoveries

DUE = [("kill driver", "VOTES")]
EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
EPOCHS, EACH, PARTITIONS = 3, 2, 2
SEEN_AT = {0: 1.0, 1: 12.0, 2: 13.0}

Facts = list[Fact]


def key(partition: int) -> bytes:
    return b"ab"[partition : partition + 1]


def value(partition: int, offset: int) -> bytes:
    return b'{"id": %d}' % (10 * partition + offset)


def row(reader: Reader, partition: int, event: int, offset: int, epoch: int, at_seconds: float) -> Read:
    trace = (Position("in", partition, event),)
    return Read(reader, "out", partition, offset, key(partition), value(partition, event), trace, epoch, at_seconds)


def clean() -> Facts:
    facts: Facts = [Start(0, 0.0), Up(0, 0.5), Fault("kill driver", "VOTES", "driver 0", 2.0, epoch=1), Start(1, 3.0)]
    for partition in range(PARTITIONS):
        facts += [Sent("in", partition, event, key(partition), b"", 0.1 * event) for event in range(EPOCHS * EACH)]
        offset = 0
        for epoch in range(EPOCHS):
            for is_aborted in [True, False] if epoch == 1 else [False]:
                for event in range(epoch * EACH, (epoch + 1) * EACH):
                    facts.append(row(Reader.LOG, partition, event, offset, epoch, 20.0))
                    if not is_aborted:
                        facts.append(row(Reader.ALONG, partition, event, offset, epoch, SEEN_AT[epoch]))
                        facts.append(row(Reader.AFTER, partition, event, offset, epoch, 20.0))
                    offset += 1
                offset += 1  # the end of the transaction
        facts.append(Standing("out", partition, 0, offset, offset, 21.0))
    for epoch in range(EPOCHS):
        ends = tuple(End("in", partition, (epoch + 1) * EACH) for partition in range(PARTITIONS))
        facts += [Committed(epoch, int(epoch > 0), ends, SEEN_AT[epoch] - 0.1)]
    facts.append(Ledger((Signed("a", 0), Signed("b", 0), Signed("b", 1), Signed("b", 2)), "", 21.0))
    return [*facts, *(ReadToEnd(reader, 22.0) for reader in Reader)]


def rows() -> tuple[Row, ...]:
    places = [(partition, event) for partition in range(PARTITIONS) for event in range(EPOCHS * EACH)]
    return tuple(Row(key(one), value(one, event), (Position("in", one, event),)) for one, event in places)


PROMISE = Promise(EXACT, rows(), is_ordered=True)


def findings(facts: Facts, promise: Promise = PROMISE, due: list[tuple[str, str]] = DUE) -> dict[str, Finding]:
    return {one.checker: one for one in check(History(tuple(facts)), {"out": promise}, due=due)}


def ends_of(facts: Facts, promise: Promise = PROMISE) -> dict[str, Outcome]:
    """What does not hold; nothing that is not promised."""
    told = findings(facts, promise)
    return {name: one.outcome for name, one in told.items() if one.outcome in (Outcome.BROKEN, Outcome.UNKNOWN)}


def is_row(fact: Fact, partition: int, event: int, *readers: Reader) -> bool:
    wanted = readers or (Reader.ALONG, Reader.AFTER)
    return (
        isinstance(fact, Read) and fact.reader in wanted and fact.content == (key(partition), value(partition, event))
    )


def changed(facts: Facts, change: Callable[[Read], Read], partition: int, event: int, *readers: Reader) -> Facts:
    return [
        change(fact) if isinstance(fact, Read) and is_row(fact, partition, event, *readers) else fact for fact in facts
    ]


def without(facts: Facts, kind: type[Fact]) -> Facts:
    return [fact for fact in facts if not isinstance(fact, kind)]


# -- the planted faults -----------------------------------------------------------------------------------------------


def lose(facts: Facts) -> Facts:
    # The last row of its epoch in its partition: a hole in the middle would be two pieces of an epoch as well.
    return [fact for fact in facts if not is_row(fact, 0, 5)]


def double(facts: Facts) -> Facts:
    place = next(fact.offset for fact in facts if isinstance(fact, Read) and is_row(fact, 0, 5, Reader.AFTER))
    return [*facts, *(row(reader, 0, 5, place + 1, 2, 14.0) for reader in Reader)]


def invent(facts: Facts) -> Facts:
    place = next(fact.offset for fact in facts if isinstance(fact, Read) and is_row(fact, 0, 5, Reader.AFTER))
    other = [replace(row(reader, 0, 5, place + 1, 2, 14.0), value=b'{"id": 99}') for reader in Reader]
    return [*facts, *other]


def show_aborted(facts: Facts) -> Facts:
    aborted = next(
        fact
        for fact in facts
        if isinstance(fact, Read)
        and is_row(fact, 0, 2, Reader.LOG)
        and not any(
            isinstance(other, Read) and other.reader is Reader.AFTER and other.place == fact.place for other in facts
        )
    )
    return [*facts, replace(aborted, reader=Reader.ALONG, at_seconds=3.5)]


def disorder(facts: Facts) -> Facts:
    places = {
        event: next(fact.offset for fact in facts if isinstance(fact, Read) and is_row(fact, 0, event, Reader.AFTER))
        for event in (4, 5)
    }
    for_four = changed(facts, lambda one: replace(one, offset=-1), 0, 4)
    for_five = changed(for_four, lambda one: replace(one, offset=places[4]), 0, 5)
    return [
        replace(fact, offset=places[5]) if isinstance(fact, Read) and fact.offset == -1 else fact for fact in for_five
    ]


def split_in_a_partition(facts: Facts) -> Facts:
    return changed(facts, lambda one: replace(one, offset=one.offset + 1), 0, 5, *Reader)


def split_between_drivers(facts: Facts) -> Facts:
    # Half of epoch 1 is visible before the driver that commits it has begun.
    seen_early = changed(facts, lambda one: replace(one, at_seconds=2.5), 1, 2, Reader.ALONG)
    return changed(seen_early, lambda one: replace(one, at_seconds=2.5), 1, 3, Reader.ALONG)


def split_between_epochs(facts: Facts) -> Facts:
    # The last event of epoch 1 comes out with epoch 2 instead.
    return changed(facts, lambda one: replace(one, epoch=2, offset=one.offset + 1), 0, 3, *Reader)


def leave_open(facts: Facts) -> Facts:
    return [replace(fact, open_transactions=1) if isinstance(fact, Standing) else fact for fact in facts]


def hold_back(facts: Facts) -> Facts:
    return [
        replace(fact, last_stable_offset=fact.high_watermark - 2) if isinstance(fact, Standing) else fact
        for fact in facts
    ]


def come_back(facts: Facts) -> Facts:
    back = (Signed("b", 1), Signed("a", 1), Signed("a", 2))
    return [replace(fact, entries=(*fact.entries[:2], *back)) if isinstance(fact, Ledger) else fact for fact in facts]


PLANTED: list[tuple[str, Callable[[Facts], Facts]]] = [
    ("lost", lose),
    ("duplicated", double),
    ("foreign", invent),
    ("aborted seen", show_aborted),
    ("disordered", disorder),
    ("split epochs", split_in_a_partition),
    ("split epochs", split_between_drivers),
    ("split epochs", split_between_epochs),
    ("open transactions", leave_open),
    ("open transactions", hold_back),
    ("taken over", come_back),
]


def test_the_clean_history_holds() -> None:
    told = findings(clean())
    assert {name: one.outcome for name, one in told.items() if one.outcome is not Outcome.HOLDS} == {
        "wrong aggregates": Outcome.NOT_PROMISED
    }
    assert sum(one.count for one in told.values()) == 0


@pytest.mark.parametrize(("checker", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_what_is_planted_is_caught_by_its_checker_and_by_no_other(
    checker: str, plant: Callable[[Facts], Facts]
) -> None:
    assert ends_of(plant(clean())) == {checker: Outcome.BROKEN}
    finding = findings(plant(clean()))[checker]
    assert finding.count > 0
    assert finding.reason


def test_a_wrong_aggregate_is_caught() -> None:
    right = replace(PROMISE, batch=rows())
    assert findings(clean(), right)["wrong aggregates"].outcome is Outcome.HOLDS
    wrong = replace(PROMISE, batch=(*rows()[:-1], Row(b"b", b'{"id": 16}')))
    assert ends_of(clean(), wrong) == {"wrong aggregates": Outcome.BROKEN}
    assert findings(clean(), wrong)["wrong aggregates"].count == 2


@pytest.mark.parametrize(
    ("guarantee", "outcome", "count"),
    [
        (Guarantee.AT_MOST_ONCE, Outcome.NOT_PROMISED, 2),
        (Guarantee.AT_LEAST_ONCE, Outcome.NOT_PROMISED, 2),
        (Guarantee.EXACTLY_ONCE, Outcome.BROKEN, 2),
        (EXACT, Outcome.BROKEN, 2),
    ],
)
def test_a_wrong_aggregate_breaks_what_promises_exact_state(guarantee: Guarantee, outcome: Outcome, count: int) -> None:
    promise = replace(PROMISE, guarantee=guarantee, batch=(*rows()[:-1], Row(b"b", b'{"id": 16}')))
    finding = findings(clean(), promise)["wrong aggregates"]
    assert (finding.outcome, finding.count) == (outcome, count)


@pytest.mark.parametrize(("guarantee", "outcome"), [(Guarantee.EXACTLY_ONCE, Outcome.HOLDS), (EXACT, Outcome.BROKEN)])
def test_a_copy_is_a_wrong_aggregate_only_if_copies_are_not_allowed(guarantee: Guarantee, outcome: Outcome) -> None:
    promise = replace(PROMISE, guarantee=guarantee, batch=rows())
    assert findings(double(clean()), promise)["wrong aggregates"].outcome is outcome


@pytest.mark.parametrize(
    ("guarantee", "outcome"),
    [
        (Guarantee.AT_LEAST_ONCE, Outcome.NOT_PROMISED),
        (Guarantee.EXACTLY_ONCE, Outcome.UNKNOWN),
        (EXACT, Outcome.UNKNOWN),
    ],
)
def test_aggregates_that_no_reader_read_to_the_end_are_unknown(guarantee: Guarantee, outcome: Outcome) -> None:
    promise = replace(PROMISE, guarantee=guarantee, batch=rows()[:3])
    assert findings(no_end(clean(), Reader.AFTER), promise)["wrong aggregates"].outcome is outcome


def test_a_wrong_aggregate_names_the_row_and_its_events() -> None:
    beyond = findings(clean(), replace(PROMISE, batch=rows()[:-1]))["wrong aggregates"].subject
    assert beyond is not None
    assert [read.content for read in beyond.reads] == [rows()[-1].content]
    missing = findings(lose(clean()), replace(PROMISE, batch=rows()))["wrong aggregates"].subject
    assert missing is not None
    assert missing.trace == (Position("in", 0, 5),)


def test_an_output_that_stays_empty_beside_others_is_enough_to_go_by() -> None:
    promises = {"out": PROMISE, "letters": replace(PROMISE, rows=())}
    told = {one.checker: one for one in check(History(tuple(clean())), promises, due=DUE)}
    assert told["tried"].outcome is Outcome.HOLDS
    assert told["lost"].outcome is Outcome.HOLDS
    assert told["open transactions"].outcome is Outcome.UNKNOWN  # nobody looked into the empty one


def test_an_unreadable_ledger_proves_nothing_and_one_that_was_not_read_is_omitted() -> None:
    unread = [replace(fact, doubt="no broker") if isinstance(fact, Ledger) else fact for fact in clean()]
    assert ends_of(unread) == {"taken over": Outcome.UNKNOWN}
    assert findings(without(clean(), Ledger))["taken over"].outcome is Outcome.NOT_PROMISED


def test_a_run_that_comes_back_is_reported_with_the_one_that_took_over() -> None:
    finding = findings(come_back(clean()))["taken over"]
    assert (finding.count, finding.reason) == (2, "run a signed the ledger for epoch 1 after run b took over")


def test_a_fault_that_does_not_strike_proves_nothing() -> None:
    assert ends_of(without(clean(), Fault)) == {"tried": Outcome.UNKNOWN}
    assert "VOTES" in findings(without(clean(), Fault))["tried"].reason


def test_a_trial_without_a_fault_proves_nothing() -> None:
    assert findings(without(clean(), Fault), due=[])["tried"].outcome is Outcome.UNKNOWN


def test_nothing_expected_proves_nothing() -> None:
    nothing: Facts = without(clean(), Read)
    assert findings(nothing, replace(PROMISE, rows=()))["tried"].outcome is Outcome.UNKNOWN


def test_rows_where_nothing_is_promised_prove_nothing() -> None:
    stray = replace(row(Reader.AFTER, 0, 0, 0, 0, 20.0), output="elsewhere")
    assert ends_of([*clean(), stray]) == {"tried": Outcome.UNKNOWN}


# -- what the checkers show --------------------------------------------------------------------------------------------


def test_a_lost_row_names_its_event() -> None:
    subject = findings(lose(clean()))["lost"].subject
    assert subject is not None
    assert subject.trace == (Position("in", 0, 5),)
    assert subject.reads == ()


def test_a_lost_row_without_a_trace_is_looked_up_in_the_log() -> None:
    promise = replace(PROMISE, rows=tuple(one._replace(trace=None) for one in rows()))
    subject = findings(lose(clean()), promise)["lost"].subject
    assert subject is not None
    assert subject.trace == (Position("in", 0, 5),)


def test_a_lost_row_is_not_explained_by_the_trace_of_another() -> None:
    traces = {one.content: one.trace for one in rows()}
    mixed = tuple(one._replace(trace=None) if number == 0 else one for number, one in enumerate(rows()))
    subject = findings(lose(clean()), replace(PROMISE, rows=mixed))["lost"].subject
    assert subject is not None
    assert subject.trace == traces[subject.content] == (Position("in", 0, 5),)


def test_a_doubled_row_names_all_its_places() -> None:
    subject = findings(double(clean()))["duplicated"].subject
    assert subject is not None
    assert len({read.offset for read in subject.reads}) == 2


def test_of_two_rows_with_equal_bytes_one_lost_and_one_doubled_are_distinguished_by_their_traces() -> None:
    def alike(one: Read) -> Read:
        return replace(one, value=b"same")

    facts = changed(changed(clean(), alike, 0, 4, *Reader), alike, 0, 5, *Reader)
    promise = replace(PROMISE, rows=tuple(
        one._replace(value=b"same") if one.content in {(key(0), value(0, 4)), (key(0), value(0, 5))} else one
        for one in rows()
    ))  # fmt: skip
    assert ends_of(facts, promise) == {}
    swapped = [
        replace(fact, trace=(Position("in", 0, 4),)) if isinstance(fact, Read) and fact.value == b"same" else fact
        for fact in facts
    ]
    assert ends_of(swapped, promise) == {"lost": Outcome.BROKEN, "duplicated": Outcome.BROKEN}


def test_several_rows_of_one_event_have_an_order_by_their_children_alone() -> None:
    def ordered(*traces: Trace) -> Outcome:
        given = [
            replace(row(reader, 0, 0, offset, 0, 1.0), value=b"%d" % offset, trace=trace)
            for offset, trace in enumerate(traces)
            for reader in Reader
        ]
        return findings([*without(clean(), Read), *given])["disordered"].outcome

    first, second = Position("in", 0, 0, (0,)), Position("in", 0, 0, (1,))
    assert ordered((first,), (second,), (second._replace(children=(1, 0)),)) is Outcome.HOLDS
    assert ordered((first,), (first, second)) is Outcome.HOLDS
    assert ordered((second,), (first,)) is Outcome.BROKEN


def test_a_key_in_two_partitions_has_no_order_unless_a_column_chose_them() -> None:
    def of_one_key(trace: Trace | None) -> Trace:
        return tuple(Position("in", 0, 10 * one.partition + one.offset) for one in trace or ())

    facts = [
        replace(fact, key=b"a", trace=of_one_key(fact.trace)) if isinstance(fact, Read) else fact
        for fact in without(clean(), Committed)
    ]
    promise = replace(PROMISE, rows=tuple(Row(b"a", one.value, of_one_key(one.trace)) for one in rows()))
    assert ends_of(facts, promise) == {"disordered": Outcome.BROKEN}
    assert ends_of(facts, replace(promise, is_placed_by_key=False)) == {}


def test_an_output_whose_steps_gather_events_owes_no_order() -> None:
    assert findings(disorder(clean()), replace(PROMISE, is_ordered=False))["disordered"].outcome is Outcome.NOT_PROMISED


def test_the_epoch_of_a_row_that_does_not_say_it_is_the_one_that_took_its_event() -> None:
    def forget(facts: Facts) -> Facts:
        return [replace(fact, epoch=None) if isinstance(fact, Read) else fact for fact in facts]

    assert ends_of(forget(clean())) == {}
    assert ends_of(forget(split_in_a_partition(clean()))) == {"split epochs": Outcome.BROKEN}
    assert ends_of(without(forget(clean()), Committed)) == {"split epochs": Outcome.UNKNOWN}


def test_a_ledger_that_does_not_name_the_committing_run_is_no_evidence_against_the_job() -> None:
    facts = [
        replace(fact, driver=None) if isinstance(fact, Committed) else fact for fact in split_between_drivers(clean())
    ]
    assert ends_of(facts) == {}


def test_an_epoch_behind_a_later_one_is_caught() -> None:
    facts = changed(clean(), lambda one: replace(one, epoch=7), 0, 0)
    assert ends_of(without(changed(facts, lambda one: replace(one, epoch=7), 0, 1), Committed)) == {
        "split epochs": Outcome.BROKEN
    }


# -- not enough to go by ----------------------------------------------------------------------------------------------


def no_end(facts: Facts, *readers: Reader) -> Facts:
    return [fact for fact in facts if not (isinstance(fact, ReadToEnd) and fact.reader in readers)]


def test_without_the_reader_at_the_end_next_to_nothing_is_known() -> None:
    unknown = {"lost", "duplicated", "foreign", "aborted seen", "disordered", "split epochs"}
    assert ends_of(no_end(clean(), Reader.AFTER)) == dict.fromkeys(unknown, Outcome.UNKNOWN)


def test_a_reader_that_died_along_the_way_proves_nothing_about_the_way() -> None:
    died: Facts = [*clean(), Gap(Reader.ALONG, "it was killed", 5.0)]
    assert ends_of(died) == {"aborted seen": Outcome.UNKNOWN, "split epochs": Outcome.UNKNOWN}
    assert "it was killed" in findings(died)["aborted seen"].reason


def test_rows_seen_along_the_way_are_not_called_aborted_if_no_reader_read_the_end() -> None:
    cut = [fact for fact in no_end(clean(), Reader.AFTER) if not is_row(fact, 0, 5, Reader.AFTER)]
    finding = findings(cut)["aborted seen"]
    assert (finding.outcome, finding.count) == (Outcome.UNKNOWN, 0)


def test_what_a_reader_saw_before_it_died_still_counts_against_the_job() -> None:
    died: Facts = [*show_aborted(clean()), Gap(Reader.ALONG, "it was killed", 5.0)]
    assert findings(died)["aborted seen"].outcome is Outcome.BROKEN


def test_a_reader_that_missed_a_row_proves_nothing() -> None:
    assert ends_of([fact for fact in clean() if not is_row(fact, 0, 2, Reader.ALONG)]) == {
        "aborted seen": Outcome.UNKNOWN
    }


def test_a_reader_that_was_given_a_row_twice_proves_nothing() -> None:
    again = [fact for fact in clean() if is_row(fact, 0, 2, Reader.ALONG)]
    assert ends_of([*clean(), *again]) == {"aborted seen": Outcome.UNKNOWN, "split epochs": Outcome.UNKNOWN}


def test_a_row_that_the_last_reader_was_given_twice_is_not_taken_for_a_copy() -> None:
    again = [fact for fact in clean() if is_row(fact, 0, 2, Reader.AFTER)]
    assert findings([*clean(), *again])["duplicated"].outcome is Outcome.UNKNOWN


def test_readers_that_contradict_each_other_prove_nothing() -> None:
    assert ends_of([fact for fact in clean() if not is_row(fact, 0, 0, Reader.LOG)]) == {
        "aborted seen": Outcome.UNKNOWN
    }


def test_a_job_of_which_no_run_is_like_another_is_unknown() -> None:
    unknown = dict.fromkeys(("lost", "duplicated", "foreign"), Outcome.UNKNOWN)
    assert ends_of(clean(), replace(PROMISE, rows=None)) == unknown


def test_rows_without_traces_and_epochs_leave_order_and_wholeness_unknown() -> None:
    bare = [replace(fact, trace=None, epoch=None) if isinstance(fact, Read) else fact for fact in clean()]
    assert ends_of(bare) == {"disordered": Outcome.UNKNOWN, "split epochs": Outcome.UNKNOWN}


def test_one_row_without_an_epoch_leaves_wholeness_unknown() -> None:
    facts = changed(clean(), lambda one: replace(one, trace=None, epoch=None), 0, 2, Reader.AFTER)
    assert findings(facts)["split epochs"].outcome is Outcome.UNKNOWN


def test_a_hole_that_a_reader_left_is_no_split_epoch() -> None:
    cut = no_end(split_in_a_partition(clean()), Reader.AFTER)
    assert findings(cut)["split epochs"].outcome is Outcome.UNKNOWN


def test_one_row_without_a_trace_leaves_the_order_unknown() -> None:
    facts = changed(clean(), lambda one: replace(one, trace=None), 0, 2, Reader.AFTER)
    assert findings(facts)["disordered"].outcome is Outcome.UNKNOWN


def test_open_transactions_that_no_reader_looked_for_are_unknown() -> None:
    assert ends_of(without(clean(), Standing)) == {"open transactions": Outcome.UNKNOWN}
    half = [fact for fact in clean() if not (isinstance(fact, Standing) and fact.partition == 1)]
    assert ends_of(half) == {"open transactions": Outcome.UNKNOWN}


# -- below exactly-once -----------------------------------------------------------------------------------------------

AT_MOST, AT_LEAST = (replace(PROMISE, guarantee=one) for one in (Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE))
STATE = replace(PROMISE, guarantee=Guarantee.EXACTLY_ONCE)


@pytest.mark.parametrize(
    ("promise", "plant", "broken"),
    [
        (AT_MOST, lose, {}),
        (AT_MOST, double, {"duplicated": Outcome.BROKEN}),
        (AT_LEAST, lose, {"lost": Outcome.BROKEN}),
        (AT_LEAST, double, {}),
        (STATE, lose, {"lost": Outcome.BROKEN}),
        (STATE, double, {}),
        (STATE, invent, {"foreign": Outcome.BROKEN}),
        (AT_LEAST, show_aborted, {}),
        (AT_LEAST, split_in_a_partition, {}),
        (AT_LEAST, leave_open, {}),
    ],
)
def test_a_lower_guarantee_promises_less(
    promise: Promise, plant: Callable[[Facts], Facts], broken: dict[str, Outcome]
) -> None:
    assert ends_of(plant(clean()), promise) == broken


@pytest.mark.parametrize(("promise", "plant", "checker"), [(AT_MOST, lose, "lost"), (AT_LEAST, double, "duplicated")])
def test_what_is_allowed_is_counted_all_the_same(
    promise: Promise, plant: Callable[[Facts], Facts], checker: str
) -> None:
    finding = findings(plant(clean()), promise)[checker]
    assert finding.outcome is Outcome.NOT_PROMISED
    assert finding.count == 1


def recount(one: Read) -> Read:
    """An event that counted twice: a row with another value instead."""
    return replace(one, value=b'{"id": 99}')


def test_at_least_once_has_not_lost_an_event_that_counts_twice() -> None:
    facts = changed(clean(), recount, 0, 5)
    told = findings(facts, AT_LEAST)
    assert told["lost"].outcome is Outcome.HOLDS
    assert told["foreign"].count == 1


def test_exact_state_has_lost_the_row_of_an_event_that_counts_twice() -> None:
    told = findings(changed(clean(), recount, 0, 5), STATE)
    assert (told["lost"].outcome, told["foreign"].outcome) == (Outcome.BROKEN, Outcome.BROKEN)


def test_at_least_once_has_lost_an_event_that_is_in_no_other_row() -> None:
    facts = changed(lose(clean()), recount, 0, 4)
    told = findings(facts, AT_LEAST)["lost"]
    assert (told.outcome, told.count) == (Outcome.BROKEN, 1)


def test_without_traces_the_content_of_a_changed_row_is_unknown() -> None:
    facts = [replace(one, trace=None) if isinstance(one, Read) else one for one in changed(clean(), recount, 0, 5)]
    assert findings(facts, AT_LEAST)["lost"].outcome is Outcome.UNKNOWN
    assert findings(facts, AT_MOST)["duplicated"].outcome is Outcome.UNKNOWN


def test_copies_of_a_whole_epoch_do_not_break_the_order() -> None:
    copies = [row(reader, 0, event, 20 + event, 2, 14.0) for event in (4, 5) for reader in Reader]
    assert ends_of([*clean(), *copies], AT_LEAST) == {}


# -- recovery ---------------------------------------------------------------------------------------------------------


def test_a_recovery_lasts_from_the_fault_to_the_first_new_row() -> None:
    [(fault, seconds)] = recoveries(History(tuple(clean())))
    assert (fault.point, seconds) == ("VOTES", 10.0)


def test_a_row_that_was_under_way_when_the_fault_struck_is_no_recovery() -> None:
    late = changed(clean(), lambda one: replace(one, at_seconds=2.1), 0, 1, Reader.ALONG)
    worker_only = [fact for fact in late if not isinstance(fact, Start)]
    epoch_unknown = [replace(fact, epoch=None) if isinstance(fact, Fault) else fact for fact in late]
    for facts in (late, worker_only, epoch_unknown):
        assert [seconds for _, seconds in recoveries(History(tuple(facts)))] == [10.0]


def test_a_job_that_does_not_come_back_is_not_called_sound() -> None:
    ended = [
        fact for fact in clean() if not (isinstance(fact, Read) and fact.reader is Reader.ALONG and fact.at_seconds > 2)
    ]
    assert findings(ended, AT_MOST)["recovery"].outcome is Outcome.UNKNOWN


def test_of_rows_whose_epoch_cannot_be_known_nothing_is_said_about_split_epochs() -> None:
    facts = [replace(fact, epoch=None, trace=None) if isinstance(fact, Read) else fact for fact in clean()]
    silent = replace(PROMISE, is_ordered=False, rows=tuple(row._replace(trace=None) for row in rows()))
    assert findings(facts, silent)["split epochs"].outcome is Outcome.UNKNOWN
    assert findings(facts, replace(silent, tells_epochs=False))["split epochs"].outcome is Outcome.NOT_PROMISED


def test_no_new_row_is_owed_after_the_last_one() -> None:
    last = Fault("kill driver", "VOTES", "driver 1", 15.0)
    assert ends_of([*clean(), last]) == {}
    assert recoveries(History((*clean(), last)))[1] == (last, None)


def test_a_start_belongs_to_the_last_fault_before_it() -> None:
    worker = Fault("kill worker", "HALF", "worker", 0.5)
    later = Fault("kill driver", "VOTES", "driver 1", 12.5)
    found = recoveries(History((worker, *clean(), later)))
    assert [seconds for _, seconds in found] == [0.5, 10.0, 0.5]


def test_a_driver_that_has_to_be_started_twice_recovers_with_the_first_new_row() -> None:
    assert [seconds for _, seconds in recoveries(History((*clean(), Start(2, 12.5))))] == [10.0]
