"""One epoch end to end: the rows of every output into its sink.

Spark calls this with the rows of an epoch after it has logged their offsets, and logs the commit after it returns. A
crash in between repeats the epoch, with the same number and the same rows.

    declared end-to-end exactly-once   one decision for all such outputs; an epoch that is out is not written again
    declared less                      written whenever the epoch runs, before it is decided
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from lockgate.runtime.checkpoints import running_query
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.kafkaepoch import EpochRows, KafkaEpochs, RecordColumns
from lockgate.sinks.resourceepoch import ResourceEpochs
from lockgate.spark.compile import TAG, CompiledOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass
class EpochWriter:
    """Writes the epochs of one job."""

    spark: SparkSession
    outputs: tuple[CompiledOutput, ...]
    commits: KafkaEpochs | ResourceEpochs | None = None
    resources: Mapping[str, Sequence[CompiledOutput]] = field(default_factory=dict)  # beside Kafka, by name
    can_repeat: bool = False
    is_alike: bool = False
    source_topics: frozenset[str] = frozenset()  # those that lie in the cluster of the outputs
    first_error: list[Exception] = field(default_factory=list)
    busy: threading.Lock = field(default_factory=threading.Lock)  # held while an epoch is written

    def write(self, rows: DataFrame, epoch: int) -> None:
        """Write the rows of one epoch; returning means that every sink has its part."""
        try:
            with self.busy:
                self._write(rows, epoch)
        except Exception as error:
            told = self.commits.first_error(error) if self.commits is not None else None
            self.first_error.append(told or error)  # before Spark wraps it
            raise

    def _write(self, rows: DataFrame, epoch: int) -> None:
        plain = [output for output in self.outputs if not output.is_exact]
        staged = sum(map(len, self.resources.values()))
        # Each of these is an action of its own, and Kafka's transaction is one for all its outputs. An action that
        # recomputes would read the source, and update the state, once more.
        has_several_actions = len(plain) + staged + isinstance(self.commits, KafkaEpochs) > 1
        if has_several_actions:
            rows = rows.persist()
        try:
            for output in plain:
                output.sink.write(output.rows_of(rows), epoch)
            if self.commits is not None:
                self._commit(rows, epoch, self.commits)
        finally:
            if has_several_actions:
                rows.unpersist()

    def _commit(self, rows: DataFrame, number: int, commits: KafkaEpochs | ResourceEpochs) -> None:
        query = running_query(self.spark)
        epoch = query.checkpoint.epoch(number, query.id)
        staged = {
            name: {output.name: output.rows_of(rows) for output in outputs} for name, outputs in self.resources.items()
        }
        if isinstance(commits, ResourceEpochs):
            commits.commit(epoch, rows, staged, can_repeat=self.can_repeat, query_run=query.run)
            return
        kafka = [output for output in self.outputs if output.is_exact and isinstance(output.sink, KafkaSink)]
        commits.commit(
            epoch,
            EpochRows(
                records=records_of(kafka, rows),
                can_repeat=self.can_repeat,
                is_alike=self.is_alike,
                # Offsets can be committed only in the cluster that they belong to.
                offsets={
                    place: offset
                    for place, offset in query.checkpoint.kafka_offsets(number).items()
                    if place[0] in self.source_topics
                },
                staged=staged,
            ),
            query_run=query.run,
        )


def records_of(outputs: Sequence[CompiledOutput], rows: DataFrame) -> RecordColumns:
    """The records of all these outputs as one frame, made in one pass over the rows."""
    from pyspark.sql import functions as F

    made = [
        (output, cast("KafkaSink", output.sink).columns(rows, within=output.struct, where=output.where))
        for output in outputs
    ]
    if outputs[0].tag is None:
        return RecordColumns(frame=rows, columns=made[0][1])
    tags = [output.tag for output in outputs]
    names = list(dict.fromkeys(name for _, columns in made for name in columns))

    def pick(name: str) -> Column:
        chosen: Column = F.lit(None)
        for output, columns in made:
            if name in columns:
                chosen = F.when(F.col(TAG).eqNullSafe(F.lit(output.tag)), columns[name]).otherwise(chosen)
        return chosen

    return RecordColumns(
        frame=rows.where(F.col(TAG).isin(tags)),
        columns={name: pick(name) for name in names},
    )
