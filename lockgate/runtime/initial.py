"""The initial state of a step's keys, `.process(fn, initial=...)`, read in the first epoch of a checkpoint.

    a file of JSON lines           {"key": [...], "state": {...}}, as `lockgate state FILE STEP --json` writes them
    Parquet (.parquet, or a local  the key's columns, and `state` as JSON text or as a struct; without such a column
    directory)                     all other columns are the state
    a checkpoint                   of this job or another, with a step of the same name: the result of its get_state

A repeated epoch must begin with the same state. So the run stores a copy in the checkpoint before the first epoch is
planned, and does not read the file again:

    no epoch is planned                  read the file, keep a copy
    the first epoch is not committed     use the copy
    it is committed                      nothing: the state has it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.stateread import find_moment, read_operator
from lockgate.connectors.files.filesystem import is_known, open_system
from lockgate.dataflow.schema import quote
from lockgate.dataflow.steps import Process
from lockgate.errors import LockgateError, Refused
from lockgate.operators.statejson import as_json, key_texts
from lockgate.planner.logical import Node
from lockgate.spark.keyed import state_name
from lockgate.spark.keys import Begun
from lockgate.spark.stateful import Described
from lockgate.untrusted import Unreadable, excerpt, read_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXAMPLE = '{"key": ["a"], "state": {"total": 3}}'


class InitialStates:
    """The initial states of a run's steps; `checkpoint` is None if the run keeps none."""

    def __init__(self, checkpoint: Checkpoint | None, spark: SparkSession, *, is_reset: bool) -> None:
        self._checkpoint = checkpoint
        self._spark = spark
        past = None if is_reset else checkpoint
        self._is_planned = past is not None and bool(past.epochs("offsets"))
        self._is_committed = past is not None and bool(past.epochs("commits"))
        self._read: dict[str, tuple[Node, Sequence[Begun]]] = {}

    def find(self, node: Node, described: Described) -> Sequence[Begun] | None:
        """The initial state of a step's keys for the next epoch; None if there is none."""
        step = node.step
        if not isinstance(step, Process) or step.initial is None or self._is_committed:
            return None
        if self._checkpoint is not None and self._is_planned:
            copy = self._checkpoint.read(_copy(node))
            if copy is None:
                raise Refused(
                    "the first epoch was planned without an initial state, and is not committed",
                    where=f"{node.where}; checkpoint {self._checkpoint.root}",
                    fix="remove initial=; or start from the beginning: lockgate run --new-life",
                )
            try:
                return [_read_copy(line) for line in copy.decode().splitlines()]
            except ValueError as error:
                raise self._checkpoint.damaged(_copy(node), str(error)) from None
        begun = list(_read(step.initial, node, described, self._spark))
        self._read[node.name] = node, begun
        return begun

    def keep(self) -> None:
        """Store a copy of what was read in the checkpoint, before the first epoch is planned."""
        for node, begun in self._read.values() if self._checkpoint is not None else ():
            assert self._checkpoint is not None
            root = self._checkpoint.root
            if not is_known(root):
                raise Refused(
                    f"the checkpoint {root} is on a store whose rename may not be atomic, so it cannot keep the initial"
                    " state",
                    where=node.where,
                    fix="put the checkpoint into a local directory or on hdfs://",
                )
            system = open_system(root, self._spark, node.where)
            system.delete(_copy(node))  # of a run that ended before it planned an epoch
            system.publish(_copy(node), "\n".join(json.dumps([list(texts), state]) for texts, state in begun).encode())


def _read_copy(line: str) -> Begun:
    match read_json(line):
        case [list(texts), str(state)] if all(text is None or isinstance(text, str) for text in texts):
            return texts, state
    raise Unreadable(f"{excerpt(line)} is not a key and its state")


def _copy(node: Node) -> str:
    return f"initial/{state_name(node.name)}"


def _read(place: str, node: Node, described: Described, spark: SparkSession) -> Iterator[Begun]:
    local = Path(place) if not urlparse(place).scheme else None
    if local is not None and not local.exists():
        raise Refused(f"there is no initial state {place!r}", where=node.where, fix=f"check the path {local.resolve()}")
    uri = place if local is None else str(local.resolve())
    checkpoint = Checkpoint(root=uri, spark=spark)
    if not uri.endswith((".json", ".jsonl", ".parquet")) and checkpoint.query() is not None:
        return _read_checkpoint(checkpoint, node, described, spark)
    if uri.endswith(".parquet") or (local is not None and local.is_dir()):
        return _read_parquet(uri, node, described.keys, spark)
    if local is not None:
        # Not by splitlines, which also splits at characters that JSON allows inside a text.
        return _read_lines(local.read_text(encoding="utf-8").split("\n"), uri, node, len(described.keys))
    lines = (row["value"] for row in spark.read.text(uri).toLocalIterator())
    return _read_lines(lines, uri, node, len(described.keys))


def _read_lines(lines: Any, place: str, node: Node, length: int) -> Iterator[Begun]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line, parse_float=Decimal)
            key, state = told["key"], told["state"]
            if not isinstance(key, list) or len(key) != length or not isinstance(state, dict):
                raise ValueError(f"it needs a key of {length} values, and an object as state")
            texts = key_texts(key)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused(
                f"line {number} of the initial state is not a key with its state: {type(error).__name__}: {error}",
                where=f"{node.where}; {place}",
                fix=f"write one key a line: {_EXAMPLE}, as `lockgate state FILE STEP --json` does",
            ) from None
        yield texts, line


def _read_parquet(place: str, node: Node, keys: Mapping[str, str], spark: SparkSession) -> Iterator[Begun]:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    try:
        rows = spark.read.parquet(place)
        names = {name.lower() for name in keys}
        others = [name for name in rows.columns if name.lower() not in names]
        texts = [
            F.base64(quote(name)) if kind == "binary" else F.col(quote(name)).cast("string")
            for name, kind in keys.items()
        ]
        has_state = [name.lower() for name in others] == ["state"]
        state = F.col("state") if has_state else F.struct(*map(quote, others))
        if has_state and isinstance(rows.schema[others[0]].dataType, StringType):
            told = F.concat(F.lit('{"state": '), state, F.lit("}"))
        else:
            told = F.to_json(F.struct(state.alias("state")))
        told = F.when(state.isNotNull(), told)
        found = rows.select(*(text.alias(f"text_{at}") for at, text in enumerate(texts)), told.alias("told"))
        for row in found.toLocalIterator():
            *key, text = row
            if text is None:
                raise Refused(
                    f"key {key} has no state in the initial state: `state` is null",
                    where=f"{node.where}; {place}",
                    fix="omit such keys: a missing key begins without state",
                )
            yield key, text
    except PySparkException as error:
        raise Refused(
            f"the initial state cannot be read: {str(error).splitlines()[0]}",
            where=f"{node.where}; {place}",
            fix=f"give it the columns {', '.join(keys)}, and a column `state`, or other columns for the state",
        ) from error


def _read_checkpoint(checkpoint: Checkpoint, node: Node, described: Described, spark: SparkSession) -> Iterator[Begun]:
    try:
        for key, state in read_operator(spark, checkpoint, node, described, moment=find_moment(checkpoint, None)):
            yield key_texts(key), json.dumps({"state": as_json(state)})
    except LockgateError as error:
        raise Refused(f"the initial state cannot be read: {error.what}", where=error.where, fix=error.fix) from error
