"""Was the guarantee kept? Decided from what readers saw; nothing here is shared with the code that writes.

    lost                 a row that had to come and is not there when all is over
    duplicated           a copy of such a row beyond those that it has
    foreign              a row that the job undisturbed has not at all: a count that began again from nothing, say
    aborted seen         a row that a reader of committed records was given, at any moment, and that is gone in the end
    disordered           rows of one key, of one source partition, in another order than their events
    split epochs         an epoch that became visible in pieces
    wrong aggregates     a difference to the same computed at once over all events
    open transactions    a transaction left open, which holds back every reader of committed records
    recovery             a fault after which no new row was seen
    tried                a fault that did not strike, or nothing to compare with: such a trial proves nothing

What each guarantee promises; what is not promised is counted, and decides nothing:

                           lost   duplicated   foreign   aborted, split, open
    AT_MOST_ONCE                  never
    AT_LEAST_ONCE          never
    EXACTLY_ONCE (state)   never               never
    END_TO_END             never  never        never     never

Not every output can answer all of it (see Keeping): rows can be followed only if they stay at their place, order and
epochs only if rows name them. Otherwise these checkers say that nothing is promised, and nothing holds.

A checker without enough evidence says unknown, with the reason; it never guesses that something holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.history import Content, Fault, History, Position, Read, Reader, Standing, Trace
from lockgate.lab.rig.judge.canonical import Form, canonical
from lockgate.lab.rig.judge.findings import Finding, Subject, Tally
from lockgate.lab.rig.judge.promises import Keeping, Promise, Promises, Row
from lockgate.lab.rig.judge.recovery import check_recovery
from lockgate.lab.rig.judge.takeover import check_takeover
from lockgate.lab.rig.judge.wholeepochs import check_epochs

Strike = tuple[str, str]
"""A fault that is due: its kind and its point."""

_Identity = tuple[Content, Trace | None]
_NO_TWO_ALIKE = "undisturbed runs of this job differ from each other, so there are no rows to compare with"


def check(history: History, promises: Promises, *, due: Sequence[Strike]) -> tuple[Finding, ...]:
    """Ask every checker."""
    return (check_tried(history, promises, due=due), *(checker(history, promises) for checker in CHECKERS))


def check_tried(history: History, promises: Promises, *, due: Sequence[Strike]) -> Finding:
    """Did all faults strike, and was there something to break?"""
    tally = Tally("tried")
    tally.hold()
    if not due:
        tally.doubt("no fault was due, so none was survived")
    outstanding = Counter(due) - Counter((fault.kind, fault.point) for fault in history.of(Fault))
    if outstanding:
        (kind, point), count = next(iter(outstanding.items()))
        tally.doubt(f"{kind} at {point} was due and did not strike" + (f", {count} times" if count > 1 else ""))
    if not any(promise.rows is None or promise.rows for promise in promises.values()):
        tally.doubt("the job undisturbed gives no rows, so none could be lost")
    strangers = {row.output for row in history.of(Read)} - promises.keys()
    if strangers:
        tally.doubt(f"rows came into {min(strangers)!r}, of which nothing is promised")
    return tally.finding()


def check_lost(history: History, promises: Promises) -> Finding:
    """Is every row there?"""
    tally = Tally("lost")
    for output, promise, difference, doubt in _differences(history, promises):
        if promise.guarantee is Guarantee.AT_MOST_ONCE:
            tally.note(0 if difference is None else difference.missing.total())
        elif difference is None:
            tally.doubt(doubt)
        elif promise.guarantee is Guarantee.AT_LEAST_ONCE and difference.foreign and not difference.has_traces:
            tally.doubt(f"rows of {output!r} have other values than undisturbed, and no trace tells what is in them")
        else:
            tally.hold()
            missing = difference.missing
            if promise.guarantee is Guarantee.AT_LEAST_ONCE and difference.has_traces:
                missing = _unexplained(difference)
            if missing:
                content, trace = next(iter(missing))
                known = trace or _trace_of_lost(content, promise, history, output)
                reason = f"{_row_text(content)} had to come into {output!r} and is not there"
                tally.break_(reason, Subject(output, content, known), count=missing.total())
    return tally.finding()


def _unexplained(difference: _Difference) -> Counter[_Identity]:
    """The missing rows whose events are not in others instead: an event that counted twice changes a row's value."""
    reached = {event for row in (*difference.foreign, *difference.copied) for event in row.trace or ()}
    return Counter(
        {row: count for row, count in difference.missing.items() if not row[1] or not reached.issuperset(row[1])}
    )


def check_duplicated(history: History, promises: Promises) -> Finding:
    """Is no row there more often than it should be?"""
    tally = Tally("duplicated")
    for output, promise, difference, doubt in _differences(history, promises):
        if promise.guarantee not in (Guarantee.AT_MOST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE):
            tally.note(0 if difference is None else difference.extra.total())
            continue
        if difference is None:
            tally.doubt(doubt)
            continue
        tally.hold()
        if promise.guarantee is Guarantee.AT_MOST_ONCE and difference.foreign:
            tally.doubt(f"rows of {output!r} have other values than undisturbed: an event may be in them twice")
        if difference.extra:
            content, trace = next(iter(difference.extra))
            alike = (row for row in difference.copied if row.content == content)
            copies = tuple(row for row in alike if trace is None or _sorted(row.trace) == trace)
            reason = f"{_row_text(content)} is in {output!r} {len(copies)} times"
            tally.break_(reason, Subject(output, content, copies[0].trace, copies), count=difference.extra.total())
    return tally.finding()


def check_foreign(history: History, promises: Promises) -> Finding:
    """Does the job undisturbed have every row that is there?"""
    tally = Tally("foreign")
    for output, promise, difference, doubt in _differences(history, promises):
        if promise.guarantee < Guarantee.EXACTLY_ONCE:
            tally.note(0 if difference is None else len(difference.foreign))
        elif difference is None:
            tally.doubt(doubt)
        else:
            tally.hold()
            for row in difference.foreign:
                reason = f"{_row_text(row.content)} is in {output!r}, and the job undisturbed has no such row"
                tally.break_(reason, _subject(row))
    return tally.finding()


def check_aborted_seen(history: History, promises: Promises) -> Finding:
    """Was every row that the reader saw along the way there to stay?"""
    tally = Tally("aborted seen")
    doubt_after = history.doubt(Reader.AFTER)
    for output, promise in promises.items():
        if promise.keeping is Keeping.REPLACED:
            continue  # that a row gives way to another is what its key is for
        there = {row.place: row.content for row in history.read_by(Reader.AFTER, output)}
        written = {row.place for row in history.read_by(Reader.LOG, output)}
        seen = history.read_by(Reader.ALONG, output)
        gone = [row for row in seen if row.place not in there or there[row.place] != row.content]
        if promise.guarantee is not Guarantee.END_TO_END_EXACTLY_ONCE:
            tally.note(0 if doubt_after else len(gone))
            continue
        if doubt_after:
            tally.doubt(doubt_after)
            continue
        tally.hold()
        missed = there.keys() - {row.place for row in seen}
        if doubt := history.doubt(Reader.ALONG):
            tally.doubt(doubt)
        elif missed:
            tally.doubt(f"the reader 'along' missed {len(missed)} rows of {output!r}")
        has_log = promise.keeping is Keeping.LOG
        if has_log and history.doubt(Reader.LOG) is None and not there.keys() <= written:
            tally.doubt(f"a reader of committed records of {output!r} saw one that is not in the log")
        for row in gone:
            origin = "a transaction that was aborted" if row.place in written else "a record that the broker forgot"
            told = f"{_row_text(row.content)} was seen in {output!r} and is gone"
            tally.break_(f"{told}: {origin}" if has_log else told, _subject(row))
    return tally.finding()


def check_order(history: History, promises: Promises) -> Finding:
    """Did the rows of a key leave in the order of their events?

    A row with a trace that was there before is a copy, and copies are the business of another checker.
    """
    tally = Tally("disordered")
    for output, promise in promises.items():
        if not promise.is_ordered or promise.keeping is not Keeping.LOG:  # a table has no order
            continue
        rows = [row for row in history.read_by(Reader.AFTER, output) if row.key is not None]  # no key, no order
        if doubt := history.doubt(Reader.AFTER):
            tally.doubt(doubt)
        elif any(row.trace is None for row in rows):
            tally.doubt(f"rows of {output!r} have no trace, so the order of their events is not known")
        else:
            tally.hold()
            for before, row in _disordered(rows, promise):
                tally.break_(
                    f"{_row_text(row.content)} stands behind {_row_text(before.content)} in {output!r}, its event"
                    " before",
                    Subject(output, row.content, row.trace, (before, row)),
                )
    return tally.finding()


def _disordered(rows: Iterable[Read], promise: Promise) -> Iterator[tuple[Read, Read]]:
    last: dict[tuple[object, ...], tuple[Position, Read]] = {}
    met: set[tuple[bytes | None, Trace | None]] = set()
    for row in sorted(rows, key=lambda row: row.place):
        if (row.key, row.trace) in met:
            continue
        met.add((row.key, row.trace))
        for position in row.trace or ():
            # If a column chooses the partition, no reader can see an order between two partitions.
            line = (row.key, position.topic, position.partition, None if promise.is_placed_by_key else row.partition)
            before = last.get(line)
            if before is not None and (before[0] > position or before[1].partition != row.partition):
                yield before[1], row
                break
            last[line] = position, row


def check_aggregates(history: History, promises: Promises) -> Finding:
    """Are the rows those of the same computation at once over all events?"""
    tally = Tally("wrong aggregates")
    for output, promise in promises.items():
        if promise.batch is None:
            continue
        if doubt := history.doubt(Reader.AFTER):
            if promise.guarantee >= Guarantee.EXACTLY_ONCE:
                tally.doubt(doubt)
            continue
        there = history.read_by(Reader.AFTER, output)
        # By what they mean and not by their bytes, because two programs wrote them.
        meant = partial(canonical, form=Form.TYPED if promise.keeping is Keeping.LOG else Form.TOLD)
        wanted, found = (Counter(meant(row.content) for row in rows) for rows in (promise.batch, there))
        if promise.guarantee is not Guarantee.END_TO_END_EXACTLY_ONCE:
            wanted, found = Counter(wanted.keys()), Counter(found.keys())  # another checker counts copies
        missing, beyond = wanted - found, found - wanted
        if promise.guarantee < Guarantee.EXACTLY_ONCE:
            tally.note(missing.total() + beyond.total())
            continue
        tally.hold()
        if beyond:
            content = next(iter(beyond))
            reads = tuple(row for row in there if meant(row.content) == content)
            first = reads[0]
            reason = (
                f"{_row_text(first.content)} is in {output!r} {len(reads)} times, in a batch over all events"
                f" {wanted[content]}"
            )
            tally.break_(reason, Subject(output, first.content, first.trace, reads), count=beyond.total())
        if missing:
            content = next(iter(missing))
            lost = next(row for row in promise.batch if meant(row.content) == content)
            reason = f"{_row_text(lost.content)} is in a batch over all events, and not in {output!r}"
            tally.break_(reason, Subject(output, lost.content, lost.trace), count=missing.total())
    return tally.finding()


def check_open_transactions(history: History, promises: Promises) -> Finding:
    """Is every transaction ended, now that the job has recovered?"""
    tally = Tally("open transactions")
    for output, promise in promises.items():
        if not promise.has_transactions:
            continue
        standings = [standing for standing in history.of(Standing) if standing.output == output]
        left = [one for one in standings if one.open_transactions or one.last_stable_offset < one.high_watermark]
        if promise.guarantee is not Guarantee.END_TO_END_EXACTLY_ONCE:
            tally.note(len(left))
            continue
        written = {row.partition for row in history.read_by(Reader.AFTER, output)}
        if not standings or not written <= {one.partition for one in standings}:
            tally.doubt(f"not all partitions of {output!r} were checked for open transactions")
        tally.hold()
        for one in left:
            if promise.keeping is not Keeping.LOG:
                told = f"{one.open_transactions} transactions, or stagings of rows, are left behind in {output!r}"
                tally.break_(told, subject=None)
                continue
            tally.break_(
                f"partition {one.partition} of {output!r} has {one.open_transactions} open transactions: readers of"
                f" committed records stop at {one.last_stable_offset} of {one.high_watermark}",
                subject=None,
            )
    return tally.finding()


CHECKERS: tuple[Callable[[History, Promises], Finding], ...] = (
    check_lost,
    check_duplicated,
    check_foreign,
    check_aborted_seen,
    check_order,
    check_epochs,
    check_aggregates,
    check_open_transactions,
    check_takeover,
    check_recovery,
)


# -- what several checkers ask ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Difference:
    """The rows that are there against those that had to come."""

    missing: Counter[_Identity]
    extra: Counter[_Identity]  # copies of rows that had to come
    copied: list[Read]  # such rows with all their copies
    foreign: list[Read]
    has_traces: bool


def _differences(history: History, promises: Promises) -> Iterator[tuple[str, Promise, _Difference | None, str]]:
    """For every output its difference, or why there is none."""
    doubt = history.doubt(Reader.AFTER)
    for output, promise in promises.items():
        if doubt is not None or promise.rows is None:
            yield output, promise, None, doubt or _NO_TWO_ALIKE
        else:
            yield output, promise, _difference(promise.rows, history.read_by(Reader.AFTER, output)), ""


def _difference(rows: Sequence[Row], there: Sequence[Read]) -> _Difference:
    # Equal bytes may come of different events: where one of them is lost and another doubled, only traces tell.
    has_traces = all(row.trace is not None for row in rows) and all(row.trace is not None for row in there)

    def identify(row: Row | Read) -> _Identity:
        return row.content, _sorted(row.trace) if has_traces else None

    contents = {row.content for row in rows}
    wanted = Counter(identify(row) for row in rows)
    found = Counter(identify(row) for row in there if row.content in contents)
    extra = found - wanted
    return _Difference(
        missing=wanted - found,
        extra=extra,
        copied=[row for row in there if identify(row) in extra],
        foreign=[row for row in there if row.content not in contents],
        has_traces=has_traces,
    )


def _trace_of_lost(content: Content, promise: Promise, history: History, output: str) -> Trace | None:
    """Where a lost row comes from: the undisturbed run may say so, or what an aborted transaction left in the log."""
    said = [row.trace for row in promise.rows or () if row.content == content]
    left = [row.trace for row in history.read_by(Reader.LOG, output) if row.content == content]
    return next((trace for trace in (*said, *left) if trace is not None), None)


def _subject(row: Read) -> Subject:
    return Subject(row.output, row.content, row.trace, (row,))


def _sorted(trace: Trace | None) -> Trace | None:
    return None if trace is None else tuple(sorted(trace))


def _row_text(content: Content) -> str:
    """A row in words, short enough for a line."""
    key, value = (None if part is None else part.decode("utf-8", "backslashreplace") for part in content)
    text = f"{key}: {value}" if key is not None else f"{value}"
    return f"row {text if len(text) <= 80 else text[:77] + '...'}"
