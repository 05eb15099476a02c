"""The Spark session, with every setting that Lockgate relies on set explicitly.

A default that changes between releases, or a cluster's own defaults, must not change what a job means. Spark's noise
goes to a log file: the screen belongs to the job.

Who starts the driver's JVM decides what can still be said. Under `spark-submit` it runs already, with its master, its
memory, its class path and its log: those are left as they are, and all other settings are ours as ever.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from lockgate.errors import BadMachine, Refused
from lockgate.private import make_private, private_opener, warn_if_open
from lockgate.spark import shipping, workers
from lockgate.spark.classes import spark_classes
from lockgate.spark.interpreter import local_python
from lockgate.spark.java import find_java
from lockgate.spark.localfiles import LOCAL_FILES, local_files

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
LOG_FILE_MB, LOG_FILES = 50, 5

# A task that is tried again may give other rows, or the same in another order. Spark notices that by a checksum of what
# the task shuffles, and repeats all that read the rows of the first try: else some would have these and others those.
KEEPS_RETRIES_TRUE = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

# What a job means hangs on these; they hold for the query's own session.
QUERY_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # Partitions carry meaning here (state, order, one writer for each output partition).
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.sortBeforeRepartition": "true",
    # A value is judged as a whole: a parser that reads only the columns in use would miss what does not parse.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.optimizer.enableCsvExpressionOptimization": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    **KEEPS_RETRIES_TRUE,
    # A branch that no event enters stays in the plan: its state is found again, and its scan is counted.
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    # State lives on disk, and its changes are written with every epoch.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "true",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    # A step with state over a reused exchange is never told the watermark: its windows would never close.
    "spark.sql.exchange.reuse": "false",
    # Windows that the last rows closed are emitted without waiting for more rows.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "100",
    # A file that cannot be read is an error, not an empty file.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

# Real-time mode insists on these; rows that leave at once are not sorted first.
REAL_TIME_SETTINGS = {"spark.sql.execution.sortBeforeRepartition": "false"}

# Rows of a test are few: compiling what evaluates them takes longer than evaluating them.
FEW_ROWS_SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# A job that must not repeat a row has a driver that tries nothing twice: no task, and no stage whose input was lost.
_NO_RETRIES = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",  # else such attempts are not counted
}

# These are fixed when the driver starts.
_PROCESS_SETTINGS = {
    "spark.speculation": "false",  # two attempts of one task would both write
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": workers.MODULE,
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.log.structuredLogging.enabled": "false",
    # Else every call of the DataFrame API tells the JVM on which line it stands, in eight messages..
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # In real-time mode rows go through an exchange in buffers, and one that is not full waits for 50 milliseconds.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    # An HDFS whose NameNode starts again is waited for: a second between tries, two minutes in all.
    "spark.hadoop.dfs.client.retry.policy.enabled": "true",
    "spark.hadoop.dfs.client.retry.policy.spec": "1000,120",
    # Who closes a file there asks whether its bytes have arrived, and asks again after 0.4 seconds, then after twice
    # that, five times. From 20 milliseconds on, nine times, is as patient, and an epoch closes several files.
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "9",
}


@dataclass(frozen=True)
class SessionPlan:
    """What a session must be like for a job."""

    app: str
    master: str | None
    jars: Sequence[Path]
    log_file: Path
    are_tasks_retried: bool = True
    is_real_time: bool = False
    has_few_rows: bool = False
    job_file: Path | None = None  # whose modules travel to a cluster
    keep_epochs: int | None = None  # how many epochs a checkpoint keeps; None for the default


def open_session(wanted: SessionPlan) -> SparkSession:
    """A session of its own for a job; a driver that this process has already is used again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        context = _start_driver(wanted)
    else:
        _refuse_unfit(context, wanted)
    _tell_once()
    session = SparkSession(context).newSession()
    more = REAL_TIME_SETTINGS if wanted.is_real_time else FEW_ROWS_SETTINGS if wanted.has_few_rows else {}
    for name, value in {**QUERY_SETTINGS, **more}.items():
        session.conf.set(name, value)
    if wanted.keep_epochs is not None:
        session.conf.set("spark.sql.streaming.minBatchesToRetain", str(wanted.keep_epochs))
    return session


def _tell_once() -> None:
    """What went wrong is told once, by us: also where the JVM has died, which every thread that spoke to it notices."""
    from pyspark.accumulators import AccumulatorTCPServer

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_is_no_broken_line)  # the same function is never added twice
    AccumulatorTCPServer.handle_error = _handle_error  # type: ignore[method-assign, assignment]


def _handle_error(server: TCPServer, request: Any, address: Any) -> None:
    if not isinstance(sys.exc_info()[1], EOFError | OSError):  # those mean that the other end is gone
        TCPServer.handle_error(server, request, address)


def _is_no_broken_line(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."  # of py4j's, which logs it in nobody's name


def with_attempts(master: str, attempts: int) -> str:
    """A local master that tries a task so often; `local[2]` alone never tries again.

    >>> with_attempts("local[2]", 4), with_attempts("local", 4), with_attempts("spark://host:7077", 4)
    ('local[2,4]', 'local[1,4]', 'spark://host:7077')
    """
    found = re.fullmatch(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?", master)
    return master if found is None else f"local[{found.group(1) or '1'},{attempts}]"


def is_submitted() -> bool:
    """Was this process started by `spark-submit`, so that the driver's JVM runs already?"""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _start_driver(wanted: SessionPlan) -> SparkContext:
    from lockgate.spark.names import keep_names  # needs py4j, which a command without Spark does not load

    context = _join_submitted(wanted) if is_submitted() else _start_own(wanted)
    # Workers of another environment are forked from a process of their own. Spark sets this for SQL, and not for state.
    context.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    keep_names(context._jvm)
    if not is_local(context):
        _ship(context, wanted)
    return context


def _start_own(wanted: SessionPlan) -> SparkContext:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    java = find_java()  # refused here with the cure, before Spark's own scripts stumble
    attempts = TASK_ATTEMPTS if wanted.are_tasks_retried else 1
    master = with_attempts(wanted.master or "local[*]", attempts)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local_master(master):
        os.environ["PYSPARK_PYTHON"] = local_python()
    elif not os.environ.get("PYSPARK_PYTHON"):  # other machines may have theirs elsewhere
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(_python_path())
    conf = SparkConf().setAppName(wanted.app).setMaster(master)
    for name, value in process_settings(are_tasks_retried=wanted.are_tasks_retried).items():
        conf.set(name, value)
    if is_local_master(master):
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    jars = list(wanted.jars)
    if (own := local_files(java)) is not None:
        jars.append(own)
        conf.setAll(list(LOCAL_FILES.items()))
    if jars:
        conf.set("spark.jars", ",".join(map(str, jars)))
    make_private(wanted.log_file.parent)
    warn_if_open(wanted.log_file.parent, "Spark's log")
    told_java = [f"-Dlog4j2.configurationFile={_log_settings(wanted.log_file).as_uri()}"]
    told_java += spark_classes().options(java)
    conf.set("spark.driver.extraJavaOptions", " ".join(f'"{option}"' for option in told_java))
    with open(wanted.log_file, "ab", opener=private_opener) as log:
        try:
            # A session of its own: Ctrl-C is for us, and we stop the JVM when the query has ended. When we die, the end
            # of its standard input tells it.
            popen = {"stdout": log, "stderr": log, "stdin": subprocess.PIPE, "start_new_session": True}
            gateway = launch_gateway(conf=conf, popen_kwargs=popen)  # type: ignore[no-untyped-call]
            return SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            raise BadMachine(
                f"Spark does not start: {str(error).splitlines()[0]}",
                where=f"master {master}",
                fix=f"see {wanted.log_file}; for a cluster check its address, for this machine `lockgate doctor`",
            ) from error


def _python_path() -> list[str]:
    """Where workers on this machine find the modules that the driver finds, those beside a job file among them.

    An editable install is found by a hook of this very Python and stands on no path. Spark asks a worker here for the
    columns of a step with state also where the job runs on a cluster, and it may be another Python: PYSPARK_PYTHON.
    """
    places = [place for place in sys.path if place]
    home = str(Path(__file__).parents[2])
    return places if home in places else [*places, home]


def _join_submitted(wanted: SessionPlan) -> SparkContext:
    """A context in the JVM that spark-submit has started, with its master and its jars."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    submitted = str(gateway.jvm.System.getProperty("spark.master"))
    if wanted.master is not None and wanted.master != submitted:
        raise Refused(
            f"master {wanted.master} is asked for, but spark-submit was told {submitted}",
            where="command line",
            fix="say it to spark-submit alone: spark-submit --master ...",
        )
    attempts = TASK_ATTEMPTS if wanted.are_tasks_retried else 1
    conf = SparkConf().setAppName(wanted.app).setMaster(with_attempts(submitted, attempts))
    for name, value in process_settings(are_tasks_retried=wanted.are_tasks_retried).items():
        conf.set(name, value)
    try:
        return SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise BadMachine(
            f"Spark does not start: {str(error).splitlines()[0]}",
            where=f"master {submitted}, told by spark-submit",
            fix="see the log of spark-submit; check the address of the cluster, and what it has left",
        ) from error


def process_settings(*, are_tasks_retried: bool) -> dict[str, str]:
    """The settings that are fixed when the driver starts."""
    retries = {"spark.task.maxFailures": str(TASK_ATTEMPTS)} if are_tasks_retried else _NO_RETRIES
    return {**_PROCESS_SETTINGS, **retries}


def _ship(context: SparkContext, wanted: SessionPlan) -> None:
    """Let the Python of other machines find this package, and the modules beside the job file."""
    context.environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (shipping.PYTHON_PATH, context.environment.get("PYTHONPATH")))
    )
    if is_submitted():
        return  # spark-submit has sent them
    from pyspark import SparkFiles

    # A directory that goes with the application, whoever kills this process.
    place = Path(SparkFiles.getRootDirectory()) / "shipped"
    place.mkdir()
    sent = [shipping.pack_package(place)]
    if wanted.job_file is not None and wanted.job_file.is_file():
        sent += filter(None, [shipping.pack_modules(wanted.job_file, place)])
    for archive in sent:
        context.addFile(str(archive))


def _log_settings(log_file: Path) -> Path:
    """Spark's log4j settings: everything into the file, which begins anew when it is large; a few are kept."""
    settings = log_file.with_suffix(".log4j2.properties")
    settings.write_text(
        "\n".join(
            [
                "rootLogger.level = warn",
                "rootLogger.appenderRef.file.ref = file",
                "appender.file.type = RollingFile",
                "appender.file.name = file",
                f"appender.file.fileName = {log_file}",
                "appender.file.filePermissions = rw-------",
                f"appender.file.filePattern = {str(log_file).replace('%', '%%')}.%i",
                "appender.file.policies.type = Policies",
                "appender.file.policies.size.type = SizeBasedTriggeringPolicy",
                f"appender.file.policies.size.size = {LOG_FILE_MB}MB",
                "appender.file.strategy.type = DefaultRolloverStrategy",
                "appender.file.strategy.fileIndex = min",  # .1 is the newest
                f"appender.file.strategy.max = {LOG_FILES - 1}",
                # One line for every new key would drown the rest.
                "logger.state.name = org.apache.spark.sql.execution.python.streaming",
                "logger.state.level = error",
                "appender.file.layout.type = PatternLayout",
                "appender.file.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex",
                "",
            ]
        )
    )
    return settings.resolve()


def find_dead_jvm(*, within: float) -> str | None:
    """How the JVM of this process has ended, in words; None where it lives, or where there never was one.

    Its connections break before it is dead, so it is given these seconds.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(timeout=within)
    except subprocess.TimeoutExpired:
        return None
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def is_local(context: SparkContext) -> bool:
    """Is the driver the only executor?"""
    return is_local_master(str(context.master))


def is_local_master(master: str) -> bool:
    """Does this master mean the driver's own process?"""
    return bool(re.match(r"local($|\[)", master))


def refuse_mixed_retries(session: SparkSession, *, where: str) -> None:
    """Refuse a session in which a task that is tried again may mix its rows with those of the first try."""
    # Spark reads "TRUE" and " true " as true.
    off = [name for name in KEEPS_RETRIES_TRUE if str(session.conf.get(name)).strip().lower() != "true"]
    if off:
        raise Refused(
            f"{off[0]} is off: a task that is tried again and gives other rows would go unnoticed, and rows be lost or"
            " doubled",
            where=where,
            fix=f'leave it on: spark.conf.set("{off[0]}", "true")',
        )


def refuse_speculation(context: SparkContext, *, where: str) -> None:
    """Refuse a driver that starts a task a second time while the first attempt still runs."""
    if str(context.getConf().get("spark.speculation", "false")).strip().lower() == "true":
        raise Refused(
            "speculation is on: two attempts of one task could both write",
            where=where,
            fix="set spark.speculation=false before the session is made",
        )


def _refuse_unfit(context: SparkContext, wanted: SessionPlan) -> None:
    """A driver that runs already keeps its settings, so those that break a promise are refused."""
    where = f"Spark driver of this process, master {context.master}"
    conf = context.getConf()
    refuse_speculation(context, where=where)
    if wanted.master is not None and with_attempts(wanted.master, 1) != with_attempts(str(context.master), 1):
        raise Refused(
            f"master {wanted.master} is asked for, but this process has a driver with another one",
            where=where,
            fix="stop that session first, or leave master= away",
        )
    if not wanted.are_tasks_retried and any(conf.get(name, "") != value for name, value in _NO_RETRIES.items()):
        raise Refused(
            "an at-most-once job must not try a task or a stage twice, but the driver of this process does",
            where=where,
            fix="stop that session first, or run the job in a process of its own: lockgate run FILE",
        )
    loaded = conf.get("spark.jars", "") or ""
    missing = [jar.name for jar in wanted.jars if jar.name not in loaded]
    if missing:
        raise Refused(
            f"the Spark session of this process was started without the jars of Kafka ({missing[0]}, ...)",
            where=where,
            fix="stop that session first, so that a fitting one is started: SparkSession.getActiveSession().stop()",
        )
