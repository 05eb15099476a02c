"""Read a record: the id of a transaction, and the score if it is a score. Pure.

Any program may write to a topic, so a record may hold anything. An unusable record is counted and skipped. No record
may end the presenter, or be published as something that others cannot read.

    id       text, or a whole number, which is read as text; UTF-8 of limited length, because it becomes a key
    score    a finite number, or null if an analyser has none
"""

from __future__ import annotations

import json
import math
from typing import Any

ID_BYTES_MAX = 1024
"""The memory holds hundreds of thousands of ids, and an answer must fit into a record."""


class Unreadable(ValueError):
    """A record that does not have the expected form."""


def read_transaction(value: bytes | None) -> str:
    """The id of a transaction.

    >>> read_transaction(b'{"id": 7, "card": "c1"}')
    '7'
    """
    return _id_of(_object(value))


def read_score(value: bytes | None) -> tuple[str, float | None]:
    """The id of a transaction, and its score from an analyser.

    >>> read_score(b'{"id": "t1", "score": 0.5}')
    ('t1', 0.5)
    """
    event = _object(value)
    if "score" not in event:
        raise Unreadable("there is no score")
    score = event["score"]
    if score is None:
        return _id_of(event), None
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise Unreadable("a score is a number")
    try:
        number = float(score)
    except OverflowError as error:
        raise Unreadable("the score is too large") from error
    if not math.isfinite(number):
        raise Unreadable("a score is finite")
    return _id_of(event), number


def _object(value: bytes | None) -> dict[str, Any]:
    try:
        event = json.loads((value or b"").decode())
    except (ValueError, RecursionError) as error:  # thousands of nested brackets are too deep to read
        raise Unreadable("it is not JSON that can be read") from error
    if not isinstance(event, dict):
        raise Unreadable("it is not an object")
    return event


def _id_of(event: dict[str, Any]) -> str:
    id = event.get("id")
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise Unreadable("an id is text or a whole number")
    text = str(id)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:  # half of a pair, as "\ud800" in JSON
        raise Unreadable("the id is not text that can be encoded") from error
    if size > ID_BYTES_MAX:
        raise Unreadable(f"the id has more than {ID_BYTES_MAX} bytes")
    return text
