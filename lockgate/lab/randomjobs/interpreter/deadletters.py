"""Compare the dead letters of a run with those of the answer (docs/DEAD_LETTERS.md), under their guarantee.

A dead letter of a topic names its partition and offset, so its event is known. Dead letters of other sources are
counted by source. One behind an aggregate or a join has no position, and equal ones are one dead letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockgate.guarantees import Guarantee
from lockgate.lab.randomjobs.interpreter.answer import Answer
from lockgate.lab.randomjobs.interpreter.rows import Letter

_Form = tuple[Any, ...]


def compare_letters(answer: Answer, seen: Sequence[Mapping[str, Any]], level: Guarantee) -> Iterator[tuple[str, bool]]:
    """What is wrong with the dead letters, and whether it is only unknown."""
    if answer.letters is None:
        yield "random or unknown rows say which events are dead letters", True
        return
    if level < Guarantee.EXACTLY_ONCE and any(letter.is_stateful for letter in answer.letters):
        yield "state may have counted otherwise, and dead letters follow from it", True
        return
    # An event that reaches a step twice, as by a merge, is one dead letter if its rows are equal.
    least = Counter(_form(answer, letter) for letter in {(one.step, one.place): one for one in answer.letters}.values())
    most = Counter(_form(answer, letter) for letter in answer.letters)
    there = Counter(_form_seen(answer, letter) for letter in seen)
    if level > Guarantee.AT_MOST_ONCE:
        for form, count in (least - there).items():
            yield f"{count} dead letters are missing of {_shown(form)}", False
    is_once = level in (Guarantee.AT_MOST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE)
    for form, count in there.items():
        if count > most[form] and (is_once or most[form] == 0):
            yield f"{count} dead letters, and not {most[form]}, are of {_shown(form)}", False


def _form(answer: Answer, letter: Letter) -> _Form:
    """The event of a dead letter, as far as dead letters name it."""
    if letter.place is None:
        return (None,)
    source, partition, number = letter.place[:3]
    offset = answer.offsets.get((source, number))
    return (source,) if offset is None else (source, partition, offset)


def _form_seen(answer: Answer, letter: Mapping[str, Any]) -> _Form:
    source = letter["source"]
    if source is None or not any(source == name for name, _ in answer.offsets):
        return (source,)
    return (source, int(str(letter["part"]).rpartition("-")[2]), letter["at"])  # topic, partition


def _shown(form: _Form) -> str:
    if form == (None,):
        return "rows that have no place in a source"
    return f"source {form[0]}" if len(form) == 1 else f"source {form[0]}, partition {form[1]}, offset {form[2]}"
