"""Payments as an analyser reads them: what is no payment is left out, and gets no score.

Real-time mode has no dead letters, so an event that cannot be used would stop an analyser, and again whenever it is
started. The analysers therefore read bytes, and say themselves what they take:

    parses            UTF-8, and JSON of the columns; a field of another type is none
    is complete       with an id, a card, a time, and an amount between nothing and a billion (so no NaN either)
    is of its time    no more than half a minute ahead of its record: one from the year 2099 would close all windows

The stamp of the record is what its time is held against, and not the clock: who reads again has to find the same.
What is left out is not lost. The job of the table reads the same topic: it puts aside as a dead letter what does not
parse, has no id or no time or is ahead, and has the rest in its table, with no scores.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockgate.dataflow.schema import parse_ddl
from lockgate.dataflow.stream import Stream

PAYMENT = (
    "id STRING NOT NULL, card STRING, amount DOUBLE, merchant STRING, country STRING, home STRING,"
    " at TIMESTAMP NOT NULL"
)
"""The columns of a payment."""

SCORE = "id STRING NOT NULL, at TIMESTAMP NOT NULL, score DOUBLE"
"""Those of a score: it carries the time of its payment."""

MAX_AHEAD = "30 seconds"
"""How far the clock of whoever sends payments may be ahead.

Less than every lateness: what is ahead moves the watermark, and must not make those late that are in time.
"""


def _is_paid(row: str = "") -> str:
    return f"{row}card IS NOT NULL AND {row}amount BETWEEN 0 AND 1e9"


IS_PAID = _is_paid()
"""What can be summed for a card: no NaN either."""

_PARSED = (
    f"from_json(try_validate_utf8(CAST(bytes AS STRING)), '{PAYMENT.replace(' NOT NULL', '')}, broken STRING',"
    " map('columnNameOfCorruptRecord', 'broken'))"
)
_IS_PAYMENT = (
    f"one.broken IS NULL AND one.id IS NOT NULL AND {_is_paid('one.')}"
    f" AND one.at BETWEEN TIMESTAMP '1970-01-01' AND _timestamp + INTERVAL {MAX_AHEAD}"
)


def only_payments(records: Stream) -> Stream:
    """The payments among records, of which the column `bytes` has the values."""
    # Within one expression: of a condition behind it Spark would make one that parses anew for every field.
    payment = f"get(filter(array({_PARSED}), one -> {_IS_PAYMENT}), 0)"
    fields = {name: f"payment.{name}" for name in parse_ddl(PAYMENT, "a payment").names}
    return records.select(payment=payment).where("payment IS NOT NULL").select(**fields)


def as_rows(table: Mapping[str, str], stream: Stream, **columns: str) -> Stream:
    """What a stream has for a table of these columns and types, which is null for all that are not named."""
    return stream.select("id", "at", **{name: columns.get(name, f"CAST(NULL AS {table[name]})") for name in table})
