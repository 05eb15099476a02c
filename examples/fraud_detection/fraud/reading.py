"""Read payments for an analyser: omit records that are not payments; they get no score.

Real-time mode has no dead letters, so an unusable event would stop an analyser, again at each restart. So the analysers
read bytes, and check themselves that a record

    parses            as UTF-8, and as JSON of the columns; a field of another type counts as missing
    is complete       with an id, a card, a time, and an amount between 0 and a billion (so no NaN either)
    is of its time    no more than half a minute ahead of its record: one from the year 2099 would close all windows

The time is compared with the timestamp of the record, not with the clock: a replay must give the same result. Omitted
records are not lost. The job of the table reads the same topic. It makes a dead letter of a record that does not parse,
lacks an id or a time, or is ahead; its table has the rest, without scores.
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
"""The columns of a score; it carries the time of its payment."""

MAX_AHEAD = "30 seconds"
"""How far the clock of a sender of payments may be ahead.

Less than every lateness: a payment that is ahead moves the watermark, and must not make timely payments late.
"""


def _is_paid(row: str = "") -> str:
    return f"{row}card IS NOT NULL AND {row}amount BETWEEN 0 AND 1e9"


IS_PAID = _is_paid()
"""The condition for payments that can be summed for a card; excludes NaN."""

_PARSED = (
    f"from_json(try_validate_utf8(CAST(bytes AS STRING)), '{PAYMENT.replace(' NOT NULL', '')}, broken STRING',"
    " map('columnNameOfCorruptRecord', 'broken'))"
)
_IS_PAYMENT = (
    f"one.broken IS NULL AND one.id IS NOT NULL AND {_is_paid('one.')}"
    f" AND one.at BETWEEN TIMESTAMP '1970-01-01' AND _timestamp + INTERVAL {MAX_AHEAD}"
)


def only_payments(records: Stream) -> Stream:
    """The payments among records whose column `bytes` has the values."""
    # In one expression: with a separate condition Spark would parse again for every field.
    payment = f"get(filter(array({_PARSED}), one -> {_IS_PAYMENT}), 0)"
    fields = {name: f"payment.{name}" for name in parse_ddl(PAYMENT, "a payment").names}
    return records.select(payment=payment).where("payment IS NOT NULL").select(**fields)


def as_rows(table: Mapping[str, str], stream: Stream, **columns: str) -> Stream:
    """Select the columns of a table from a stream; columns that are not named are null."""
    return stream.select("id", "at", **{name: columns.get(name, f"CAST(NULL AS {table[name]})") for name in table})
