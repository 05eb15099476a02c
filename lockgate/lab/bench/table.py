"""Table: rows into PostgreSQL, PostgresSink exactly-once and Spark's own JDBC append at-least-once, in turn.

Both sides are the same job over the same files, on the same server; only the sink differs, and with it the guarantee.
The rival is at its best: large batches, which its driver rewrites into statements of many rows. Each run has its own
table, and SQL counts afterwards whether every row is there, and none twice.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.connectors.files.source import BYTES_PER_ROW, FileSource
from lockgate.connectors.postgres.connect import connect
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Delivery, Guarantee
from lockgate.lab.bench.counting import GoOn
from lockgate.lab.bench.payments import Payments
from lockgate.lab.bench.ratios import Throughput
from lockgate.lab.bench.runs import driver, watch
from lockgate.lab.bench.settings import SIDES, Settings
from lockgate.lab.bench.site import Tell
from lockgate.lab.bench.throughput import Delivered, time_in_turn
from lockgate.lab.services import ports
from lockgate.lab.services.postgres import DATABASE, USER, Postgres
from lockgate.runtime.run import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lockgate.connectors.postgres.connect import Connection

VALUE = "id BIGINT, card STRING, cents INT, at BIGINT, shop STRING"
_COLUMNS = "id bigint, card text, cents integer, at bigint, shop text"
_BATCH_ROWS = "10000"
_WHERE = "the table of the benchmark"


def measure_table(
    settings: Settings,
    payments: Payments,
    server: Postgres,
    jars: Sequence[Path],
    *,
    home: Path,
    tell: Tell,
    go_on: GoOn,
) -> Throughput:
    """Time both sides as often as requested.

    Args:
        jars: PostgreSQL's JDBC driver, for the rival.
        home: a directory for the input, checkpoints and the log.
    """
    files, checkpoints = home / "payments", home / "checkpoints"
    shutil.rmtree(files, ignore_errors=True)
    rows_per_epoch = write_files(payments, settings, files)
    tell(f"wrote {payments.count:,} events into files")
    names = (f"bench_{number}" for number in itertools.count(1))

    def deliver(side: Guarantee) -> Delivered:
        name = next(names)
        with connect(server.dsn, where=_WHERE, name="lockgate bench") as connection:
            connection.autocommit = True  # for CHECKPOINT
            connection.execute(f"CREATE TABLE {name} ({_COLUMNS})")
            connection.execute("CHECKPOINT")  # so that no side flushes the pages of the other
            began = time.monotonic()
            started = run(
                job(side, files=files, table=name, server=server),
                checkpoint=str(checkpoints / name),
                until_caught_up=True,
                rows_per_epoch=rows_per_epoch,
                log_file=home / "bench.spark.log",
                wait=False,
            )
            epochs = watch(started, go_on)
            seconds = time.monotonic() - began
            count = count_rows(connection, name, payments.count)
            connection.execute(f"DROP TABLE {name}")
        shutil.rmtree(checkpoints / name, ignore_errors=True)
        return Delivered(seconds=seconds, epochs=epochs, count=count)

    with driver(jars, log=home / "bench.spark.log", tell=tell):
        timings = time_in_turn(settings, deliver, tell)
    return Throughput(
        expected_count=payments.count,
        client={
            SIDES[0].name: {"writer": "Spark's JDBC append", "batchsize": _BATCH_ROWS, "reWriteBatchedInserts": "true"},
            SIDES[1].name: {"writer": "PostgresSink"},
        },
        timings=timings,
        delivered="rows",
        counted="by SQL",
    )


def write_files(payments: Payments, settings: Settings, files: Path) -> int:
    """Write the events as files, several to an epoch; the limit that lets an epoch have as many rows as asked for."""
    import pyarrow.parquet as pq

    files.mkdir(parents=True)
    per_file = max(1, min(settings.rows_per_epoch, payments.count) // settings.partitions)
    sizes = []
    for start in range(0, payments.count, per_file):
        file = files / f"{start:012}.parquet"
        rows = payments.rows(start, min(payments.count, start + per_file))
        # Of one size for the same number of rows, because an epoch over files is limited by bytes.
        pq.write_table(rows, file, compression="none", use_dictionary=False)
        sizes.append(file.stat().st_size)
    return -(-max(sizes) * settings.partitions // BYTES_PER_ROW)


def count_rows(connection: Connection, table: str, expected: int) -> int:
    """How many rows a table has; if rows are missing, the number of distinct ones, because duplicates would hide it."""
    found = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}").fetchone()
    assert found is not None
    there, different = found
    return int(there if different == expected else different)


def job(side: Guarantee, *, files: Path, table: str, server: Postgres) -> Job:
    """The job that both sides run: all payments into a table."""
    rows = stream("payments", FileSource(path=str(files), value=VALUE, format="parquet"))
    sink = JdbcSink(table, server) if side is SIDES[0] else PostgresSink(table=table, dsn=server.dsn)
    return Job(table, rows.to("out", sink), guarantee=side)


@dataclass(frozen=True)
class JdbcSink(Sink):
    """Spark's own append by JDBC: a task writes its rows in a transaction of its own."""

    table: str
    server: Postgres = field(repr=False)  # it contains a password

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="Spark's own writer adds the rows of a repeated task or epoch once more",
            cure="write with a PostgresSink",
        )

    def columns_needed(self) -> Sequence[str]:
        return ()

    def write(self, rows: DataFrame, epoch: int) -> None:
        address = f"{ports.HOST}:{self.server.port}/{DATABASE}"
        options = {
            "url": f"jdbc:postgresql://{address}?reWriteBatchedInserts=true",
            "driver": "org.postgresql.Driver",
            "user": USER,
            "password": self.server.password,
            "dbtable": self.table,
            "batchsize": _BATCH_ROWS,
        }
        rows.write.format("jdbc").options(**options).mode("append").save()


@contextlib.contextmanager
def own_server(home: Path, tell: Tell) -> Iterator[Postgres]:
    """A PostgreSQL of our own on the loopback interface, deleted afterwards."""
    (port,) = ports.choose(1, random.Random())
    server = Postgres(directory=home / "postgres", port=port, password=secrets.token_hex(16))
    _remove(server)  # of a measurement that was killed
    server.directory.mkdir(parents=True)
    tell("starting PostgreSQL")
    try:
        server.start()
        server.wait()
        yield server
    finally:
        _remove(server)


def version_of(server: Postgres) -> str:
    """The version of PostgreSQL."""
    with connect(server.dsn, where=_WHERE, name="lockgate bench") as connection:
        return connection.info.parameter_status("server_version") or "unknown"


def _remove(server: Postgres) -> None:
    server.stop()
    shutil.rmtree(server.directory, ignore_errors=True)
