"""Formats: how the bytes of records and files become rows, and rows become bytes."""

from collections.abc import Sequence
from enum import StrEnum

from lockgate.errors import BadJob


class Format(StrEnum):
    """How a source reads and a sink writes bytes. The text of a member does as well: `format="json"`.

    | member | what it is | what takes it |
    |---|---|---|
    | `JSON` | one object for each record or line | every source, sink and table that has a format |
    | `CSV` | one line for each row | the same |
    | `TEXT` | one STRING column | every source, and KafkaSink |
    | `BYTES` | one BINARY column, as it is | KafkaSource, MqttSource and KafkaSink |
    | `PARQUET` | files with columns and types | FileSource, FileSink and FileTable |

    >>> Format.JSON == "json", Format("csv")
    (True, <Format.CSV: 'csv'>)
    """

    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    BYTES = "bytes"
    PARQUET = "parquet"


def require_format(format: object, choices: Sequence[Format], where: str) -> None:
    """Refuse a format that is not among the choices of an endpoint."""
    if format in choices:
        return
    known = [one for one in Format if one == format]
    raise BadJob(
        f"format={known[0].value!r} is not possible here" if known else f"format={format!r} is not known",
        where=where,
        fix=f"use one of {', '.join(choices)}",
    )
