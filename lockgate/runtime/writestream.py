"""write_stream: for plain PySpark programs, in which only the last three lines change.

    query = (
        write_stream(frame, to=KafkaSink(topic="out", servers=servers), name="orders", checkpoint="/data/orders")
        .trigger(processingTime="1 second")
        .start()
    )

It returns Spark's own DataStreamWriter. A frame with the columns of Spark's Kafka sink (value, and key, topic,
partition, headers) is written as it is, any other one as JSON. The commit protocol is the same as for a Job. The
program itself replaces the other parts of a Job (a plan, a supervisor): it restarts a query that ends with an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lockgate.checkpoints.checkpoint import Checkpoint, RunningQuery, running_query
from lockgate.checkpoints.locking import CheckpointLock, lock_shared
from lockgate.checkpoints.marker import mark_if_missing
from lockgate.checkpoints.tree import open_tree
from lockgate.connectors.kafka.epoch import EpochRows, KafkaEpochs, RecordColumns
from lockgate.connectors.kafka.settings import about_connecting, read_settings
from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.kafka.wire import hosts_of
from lockgate.dataflow.deletes import DELETED
from lockgate.dataflow.job import is_job_name
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob, BadMachine, RecordsGone, Refused
from lockgate.runtime.gaps import Gaps
from lockgate.runtime.topicids import TopicIds, UsedTopic, used_topics
from lockgate.spark.interpreter import local_python
from lockgate.spark.machines import check_machines
from lockgate.spark.nondeterminism import find_nondeterminism, find_repeated_nondeterminism, find_stored_above_state
from lockgate.spark.session import is_local, refuse_mixed_retries, refuse_speculation, warn_of_open_ports

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

_open: dict[str, KafkaEpochs] = {}
_RESET = "start the query with a new checkpoint and another name="
_RECORD_COLUMNS = ("value", "key", "topic", "partition", "headers")
_HEADERS = "array<struct<key: string, value: binary>>"
# Steps without memory: the rows after them can be computed a second time within an epoch.
_STATELESS = frozenset(
    {
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "PythonMapInArrow",
        "Repartition",
        "RepartitionByExpression",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
    }
)


def write_stream(
    dataframe: DataFrame, *, to: KafkaSink, name: str, checkpoint: str, adopt: bool = False
) -> DataStreamWriter:
    """Write a streaming DataFrame of your own program to Kafka, end-to-end exactly-once.

    Args:
        dataframe: a stream of a classic Spark session.
        to: the topic.
        name: the permanent name of the query. Its ledger, transactions and consumer group have it.
        checkpoint: the directory of the checkpoint.
        adopt: take over a checkpoint that ran with another sink. What that sink wrote of its last epoch can be written
            again, once.

    Raises:
        BadJob: the DataFrame is not a stream, or has columns that the sink cannot write.
        Refused: its steps cannot be replayed exactly, or the session is not fit.

    >>> sink = KafkaSink(topic="counts", servers="localhost:9092", key="ip")
    >>> query = write_stream(counts, to=sink, name="counts", checkpoint="/data/counts").start()  # doctest: +SKIP
    """
    where = f"write_stream {name!r}, called at {caller()}"
    if not hasattr(dataframe, "_jdf"):
        raise Refused(
            "this DataFrame belongs to a Spark Connect session, whose driver Lockgate cannot reach",
            where=where,
            fix="use a classic session: SparkSession.builder.master(...).getOrCreate(), without remote(...)",
        )
    if not dataframe.isStreaming:
        raise BadJob("this DataFrame is not a stream", where=where, fix="make it with spark.readStream")
    if not isinstance(to, KafkaSink):
        raise BadJob(f"to= takes a KafkaSink, not {type(to).__name__}", where=where, fix="to=KafkaSink(...)")
    if not is_job_name(name):
        raise BadJob(
            f"a stream cannot be named {name!r}",
            where=where,
            fix="use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 200",
        )
    _records(dataframe, to, where)  # refuses columns and types that cannot be written, before anything runs
    remembering = [name for name in _step_names(dataframe) if name not in _STATELESS]
    can_repeat = not remembering
    _refuse_what_cannot_be_replayed(dataframe, len(remembering), where)
    _warn_of_uncommitted(dataframe, name)
    spark = dataframe.sparkSession
    refuse_speculation(spark.sparkContext, where=where)
    if not is_local(spark.sparkContext):
        warn_of_open_ports(spark.sparkContext)
    _let_workers_find_us(spark.sparkContext, where)
    refuse_mixed_retries(spark, where=where)
    kafka = KafkaEpochs(name, [to.location], spark=spark, where=where, is_adopting=adopt)
    # A program that restarts its query calls this function again; the old writer is not needed any more.
    if name in _open:
        _open[name].close()
    _open[name] = kafka
    held: dict[str, CheckpointLock | None] = {}  # the lock of each start of the query on its checkpoint
    marked: set[str] = set()  # checkpoints that have the marker of this query
    topics: dict[str, TopicIds] = {}  # by start of the query, once it has done an epoch
    read = [*_topics_read(dataframe, where)]
    used = [*read, *used_topics([to])]
    is_own_cluster = bool(hosts_of(to.servers) & _source_servers(dataframe))

    def write(rows: DataFrame, epoch: int) -> None:
        query = running_query(spark)
        if query.run not in held:
            held[query.run] = _hold_until_it_ends(query, name, spark)
        try:
            ids = topics.get(query.run)
            if ids is not None:
                ids.look()
            else:
                # Settings may have changed before the query started; since then it has its own session.
                refuse_mixed_retries(rows.sparkSession, where=where)
                ids = TopicIds(query.checkpoint, used, where=where, accept="adopt=True", reset=_RESET)
                ids.check(accepts_outputs=adopt)
                ids.keep()  # before the first commit: if the driver dies after it, the note already exists
                _gaps(query.checkpoint, read, where).look(epoch)
            planned = query.checkpoint.epoch(epoch, query.id)
            if query.checkpoint.root not in marked:
                # The ledger shows that it is ours. Before the first commit: a rollback may replan a long epoch.
                kafka.claim(planned, query_run=query.run)
                mark_if_missing(open_tree(query.checkpoint.root, spark), name, datetime.now(UTC))
                marked.add(query.checkpoint.root)
            kafka.commit(
                planned,
                EpochRows(
                    records=_records(rows, to, where),
                    can_repeat=can_repeat,
                    offsets=query.checkpoint.kafka_offsets(epoch) if is_own_cluster else {},
                ),
                query_run=query.run,
            )
            if query.run not in topics:
                ids.keep()  # for outputs that were created
                topics[query.run] = ids
        except Exception as error:
            # The query ends with this error. Then a command may change the checkpoint at once.
            if (holding := held[query.run]) is not None:
                holding.close()
            told = kafka.first_error(error)
            if isinstance(told, RecordsGone):
                exact = _gaps(query.checkpoint, read, where).explain(told, epoch)
                raise fit_to_program(exact, where) from None  # Spark advises to skip them in silence
            if told is not None and told is not error:
                raise told from error
            raise

    writer = dataframe.writeStream.queryName(name).option("checkpointLocation", checkpoint)
    return writer.foreachBatch(write)


def _gaps(checkpoint: Checkpoint, read: Iterable[UsedTopic], where: str) -> Gaps:
    """The check for records that are gone before the query read them."""
    sources = (
        (
            f"topic {one.name!r} at {one.servers}",
            KafkaSource(topic=one.name, servers=one.servers, value="value BINARY", client=one.client),
        )
        for one in read
    )
    return Gaps(checkpoint, sources, where=where)


def fit_to_program(error: RecordsGone, where: str) -> RecordsGone:
    """The error with the program's line, and with a fix that needs no command of Lockgate."""
    return RecordsGone(
        error.what,
        where=error.where if where in error.where else f"{error.where}; {where}",
        fix="check the topic, its partitions and their leaders. Then choose: restore the records with their offsets,"
        " from a copy of the topic, and raise its retention; or start the query with a new checkpoint, another name="
        " and the option startingOffsets: the first records that are left, and for all other partitions the"
        " offsets of the old checkpoint. Then its state starts empty",
    )


def _let_workers_find_us(context: SparkContext, where: str) -> None:
    """Choose a Python for workers. Spark's default is `python3` from PATH; only this one surely has Lockgate."""
    told = os.environ.get("PYSPARK_PYTHON")
    if is_local(context) and (not told or told in (sys.executable, local_python())):
        context.pythonExec = told or sys.executable
        return
    try:
        check_machines(context, libraries=("lockgate", "pyarrow"), checkpoint=None)
    except BadMachine as error:
        raise BadMachine(
            f"the Python of Spark's workers cannot write this stream: {error.what}",
            where=f"{where}; {error.where}",
            fix="install lockgate[kafka] for that Python, or name one that has it before the session starts:"
            f" PYSPARK_PYTHON={sys.executable} on this machine",
        ) from error


def _hold_until_it_ends(query: RunningQuery, name: str, spark: SparkSession) -> CheckpointLock | None:
    """Lock the checkpoint of a running query against commands that change it."""
    held = lock_shared(query.checkpoint.local, name)
    if held is None:
        return None
    running = spark._jsparkSession.streams().get(query.id)

    def let_go() -> None:
        with contextlib.suppress(Exception):  # the program receives the error itself
            running.awaitTermination()
        held.close()

    threading.Thread(target=let_go, name=f"lockgate-hold-{name}", daemon=True).start()
    return held


def _records(rows: DataFrame, to: KafkaSink, where: str) -> RecordColumns:
    """The records of a frame: its own columns if it has those of Spark's sink, otherwise as the KafkaSink declares."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    is_made = set(kinds) <= set(_RECORD_COLUMNS) and kinds.get("value") in ("string", "binary")
    for column in to.columns_needed():
        if column not in kinds:
            raise BadJob(f"there is no column {column!r}", where=where, fix=f"columns: {', '.join(kinds)}")
    if is_made and (to.key not in ((), ("key",)) or to.partition not in (None, "partition")):
        raise BadJob(
            "the frame has the columns of a record, and the sink names others for key or partition",
            where=where,
            fix="omit key= and partition=, or rename the frame's columns: then it is written as JSON",
        )
    rows = to.prepare(rows)
    if not is_made:
        return RecordColumns(frame=rows, columns=to.columns(rows, within=None, where=where))
    _check_kinds(kinds, where)
    value: Column = F.col("value").cast("binary")
    if to.deleted is not None:
        value = F.when(~F.col(DELETED), value)
    columns = {"topic": F.lit(to.topic) if to.topic is not None else F.col(str(to.route)), "value": value}
    if "key" in kinds:
        columns["key"] = F.col("key").cast("binary")
    if "partition" in kinds:
        columns["partition"] = F.col("partition")
    if "headers" in kinds:
        columns["headers"] = F.col("headers").cast(_HEADERS)
    return RecordColumns(frame=rows, columns=columns)


def _check_kinds(kinds: dict[str, str], where: str) -> None:
    allowed = {
        "value": ("string", "binary"),
        "key": ("string", "binary"),
        "topic": ("string",),
        "partition": ("int",),
        "headers": ("array<struct<key:string,value:binary>>",),
    }
    for name, kind in kinds.items():
        if kind not in allowed[name]:
            raise BadJob(
                f"column {name!r} is of type {kind}; records take {' or '.join(allowed[name])}",
                where=where,
                fix=f"cast it, or rename it: then the whole row is written as JSON, {name!r} included",
            )


def _plan(dataframe: DataFrame) -> Any:
    return dataframe._jdf.queryExecution().analyzed()


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _step_names(dataframe: DataFrame) -> Iterator[str]:
    return (str(node.nodeName()) for node in _nodes(_plan(dataframe)))


def _sources(dataframe: DataFrame) -> Iterator[Any]:
    """The options of every Kafka source that the frame reads."""
    for node in _nodes(_plan(dataframe)):
        if node.nodeName() == "StreamingRelationV2" and node.extraOptions().containsKey("kafka.bootstrap.servers"):
            yield node.extraOptions()


def _source_servers(dataframe: DataFrame) -> frozenset[str]:
    servers = (str(options.get("kafka.bootstrap.servers")) for options in _sources(dataframe))
    return frozenset(host for one in servers for host in hosts_of(one))


def _topics_read(dataframe: DataFrame, where: str) -> Iterator[UsedTopic]:
    """The topics that the frame reads by name, as far as we can look at them.

    Topics that it finds by a pattern are unknown before. The program chooses the settings of its sources, and Spark's
    connector accepts some that we do not (such as Kerberos): these topics are not compared.
    """
    for options in _sources(dataframe):
        found = {str(name): str(options.get(name)) for name in options.keySet().toArray()}
        client = {name.removeprefix("kafka."): text for name, text in found.items() if name.startswith("kafka.")}
        servers = client.pop("bootstrap.servers")
        connecting = about_connecting(client)
        try:
            read_settings(servers, connecting, where=where, is_lookup=True)
        except BadJob as error:
            log.warning("%s: the topics of a source cannot be compared with the checkpoint: %s", where, error.what)
            continue
        for topic in filter(None, found.get("subscribe", "").split(",")):
            yield UsedTopic(topic.strip(), servers, connecting, is_read=True)


def _refuse_what_cannot_be_replayed(dataframe: DataFrame, remembering_count: int, where: str) -> None:
    """Refuse what the planner would refuse in a job, as far as Spark's plan shows it.

    Args:
        remembering_count: how many steps of the frame have memory.
    """
    for node in _nodes(_plan(dataframe)):
        if node.nodeName() == "StreamingRelationV2" and node.sourceName() == "socket":
            raise BadJob(
                "a socket cannot be read again after a failure, so the events of the current epoch would be lost",
                where=where,
                fix="read from a log that can be replayed: Kafka, or files",
            )
    for options in _sources(dataframe):
        if str(options.get("failOnDataLoss")).lower() == "false":
            raise BadJob(
                "failOnDataLoss=false lets the source skip records that expired before they were read",
                where=where,
                fix="omit it, so that the query stops instead of losing them",
            )
    # A step that depends on the order of rows, such as dropDuplicates, does harm only if another step has memory.
    chance = find_nondeterminism(dataframe, feeds_state=remembering_count > 1) if remembering_count else None
    if chance is not None:
        raise BadJob(
            f"{chance} is not deterministic and feeds state: after a crash Spark rebuilds the state from other values"
            " than those that are committed",
            where=where,
            fix="make it deterministic (derive ids and random values from the event), or write to a topic in between",
        )
    repeated = find_repeated_nondeterminism(dataframe)
    if repeated is not None:
        raise BadJob(
            f"{repeated} is computed again for each branch that takes its rows, and may give each branch other rows: a"
            " row could be in none of two branches that exclude each other, or in both",
            where=where,
            fix="let one branch take its rows: a CASE in place of a union, dropDuplicates or limit after the union;"
            " or derive random values from the event (hash(id)), and add DECIMAL in place of fractions; or write its"
            " rows to a topic, and continue from there in a second query",
        )
    stored = find_stored_above_state(dataframe)
    if stored is not None:
        raise BadJob(
            f"rows of a file or a table feed state: {stored}. They may change before an epoch is repeated, and then the"
            " state differs from rows that are committed",
            where=where,
            fix='join it after the step with state; or use a Job, whose table("name", ...) shows a repeated epoch the'
            " rows that it saw before; or make the table a stream of changes",
        )


def _warn_of_uncommitted(dataframe: DataFrame, name: str) -> None:
    for options in _sources(dataframe):
        if options.get("kafka.isolation.level") != "read_committed":
            log.warning(
                "write_stream %s: the source reads records of transactions that may be aborted later;"
                " .option('kafka.isolation.level', 'read_committed') reads only committed records",
                name,
            )
