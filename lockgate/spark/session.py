"""The Spark session, with every setting that Lockgate relies on set explicitly.

A default that changes between releases, or a cluster's own defaults, must not change what a job means. Spark's messages
go to a log file: the screen belongs to the job.

If Lockgate starts the driver's JVM, it makes all settings. Under `spark-submit` the JVM runs already, with its master,
its memory, its class path and its log: those stay as they are, and all other settings are still ours.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from lockgate.errors import BadMachine, Refused
from lockgate.modulepath import module_path
from lockgate.private import FILE_MODE, make_private, private_opener, warn_if_open
from lockgate.provision.classes import spark_classes
from lockgate.provision.java import find_java
from lockgate.secrets import reveal
from lockgate.spark import shipping, workers
from lockgate.spark.authentication import GUIDE, is_local_master, lack_of, protect
from lockgate.spark.interpreter import local_python
from lockgate.spark.localfiles import LOCAL_FILES, local_files

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

TASK_ATTEMPTS = 4
LOG_FILE_MB, LOG_FILES = 50, 5

# A task that is retried may give other rows, or the same in another order. Spark notices that by a checksum of what the
# task shuffles, and then repeats all that read the rows of the first try: else some would have the first rows and
# others the second ones.
KEEPS_RETRIES_TRUE = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

# The meaning of a job depends on these; they apply to the query's own session.
QUERY_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # Partitions carry meaning here (state, order, one writer for each output partition).
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.sortBeforeRepartition": "true",
    # A value is judged as a whole: a parser that reads only the used columns would miss what does not parse.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.optimizer.enableCsvExpressionOptimization": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    **KEEPS_RETRIES_TRUE,
    # A branch that no event enters stays in the plan, so that its state is found again and its scan is counted.
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    # State lives on disk, and its changes are written with every epoch.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "true",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    # A step with state over a reused exchange never receives the watermark: its windows would never close.
    "spark.sql.exchange.reuse": "false",
    # Windows that the last rows closed are emitted without waiting for more rows.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "100",
    # A file that cannot be read is an error, not an empty file.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # A task that writes large rows holds several times this much, outside of the heap.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}

# Real-time mode requires these: rows that leave at once are not sorted first.
REAL_TIME_SETTINGS = {"spark.sql.execution.sortBeforeRepartition": "false"}

# A test has few rows: to compile code that evaluates them takes longer than to evaluate them.
FEW_ROWS_SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# A job that must not repeat a row has a driver that retries nothing: no task, and no stage whose input was lost.
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
    # Else every call of the DataFrame API sends its own line to the JVM, in eight messages.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # In real-time mode rows go through an exchange in buffers, and one that is not full waits for 50 milliseconds.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    # Wait for an HDFS whose NameNode restarts: a second between tries, two minutes in all.
    "spark.hadoop.dfs.client.retry.policy.enabled": "true",
    "spark.hadoop.dfs.client.retry.policy.spec": "1000,120",
    # To close a file, the client asks whether its bytes have arrived, and asks again after 0.4 seconds, then after
    # twice that, five times. Nine times from 20 milliseconds on is as patient, and an epoch closes several files.
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.retries": "9",
}


@dataclass(frozen=True)
class SessionPlan:
    """The session that a job needs."""

    app: str
    master: str | None
    jars: Sequence[Path]
    log_file: Path
    are_tasks_retried: bool = True
    is_real_time: bool = False
    has_few_rows: bool = False
    job_file: Path | None = None  # whose modules travel to a cluster
    keep_epochs: int | None = None  # how many epochs a checkpoint keeps; None for the default
    must_authenticate: bool = False  # refuse a driver whose ports ask for no secret


def open_session(wanted: SessionPlan) -> SparkSession:
    """A session of its own for a job; reuses the driver of this process if there is one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        context = _start_driver(wanted)
    else:
        _refuse_unfit(context, wanted)
    _report_once()
    session = SparkSession(context).newSession()
    more = REAL_TIME_SETTINGS if wanted.is_real_time else FEW_ROWS_SETTINGS if wanted.has_few_rows else {}
    for name, value in {**QUERY_SETTINGS, **more}.items():
        session.conf.set(name, value)
    if wanted.keep_epochs is not None:
        session.conf.set("spark.sql.streaming.minBatchesToRetain", str(wanted.keep_epochs))
    return session


def _report_once() -> None:
    """Let only us report an error: if the JVM dies, every thread that used it notices."""
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
    return record.msg != "Exception while sending command."  # py4j logs this without a name of its own


def with_attempts(master: str, attempts: int) -> str:
    """A local master that tries a task this often; `local[2]` alone never retries.

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
    try:
        _require_registered(context, wanted)
        # Workers of another environment are forked from a process of their own. Spark sets this for SQL, and not for
        # state.
        context.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
        keep_names(context._jvm)
        if not is_local(context):
            _ship(context, wanted)
    except Exception as error:
        if isinstance(error, Refused) or not context._jsc.sc().isStopped():
            raise
        raise _not_let_in(context, wanted) from error
    return context


def _require_registered(context: SparkContext, wanted: SessionPlan) -> None:
    """Refuse a driver that the Master of a standalone cluster has not registered.

    Spark starts such a context like any other and stops it in another thread. So each later call can fail, or not. Only
    the Master gives the application its name; the scheduler invents one if there is none.
    """
    if str(context.master).startswith("spark://") and str(context.applicationId).startswith("spark-application-"):
        raise _not_let_in(context, wanted)


def _not_let_in(context: SparkContext, wanted: SessionPlan) -> BadMachine:
    return BadMachine(
        "the cluster does not let this driver in",
        where=f"master {context.master}",
        fix=f"see {wanted.log_file}; check that the cluster has the secret and the settings of {GUIDE}",
    )


def _start_own(wanted: SessionPlan) -> SparkContext:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    java = find_java()  # refused here with the fix, before Spark's own scripts fail
    attempts = TASK_ATTEMPTS if wanted.are_tasks_retried else 1
    master = with_attempts(wanted.master or "local[*]", attempts)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local_master(master):
        os.environ["PYSPARK_PYTHON"] = local_python()
    elif not os.environ.get("PYSPARK_PYTHON"):  # other machines may have theirs in another place
        os.environ["PYSPARK_PYTHON"] = sys.executable
    # Even if the job runs on a cluster, Spark asks a worker on this machine for the columns of a step with state, and
    # that worker may be another Python: PYSPARK_PYTHON.
    os.environ["PYTHONPATH"] = module_path()
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
            # A session of its own: Ctrl-C goes to us, and we stop the JVM when the query has ended. If we die, the JVM
            # notices the end of its standard input.
            popen = {"stdout": log, "stderr": log, "stdin": subprocess.PIPE, "start_new_session": True}
            gateway = launch_gateway(conf=conf, popen_kwargs=popen)  # type: ignore[no-untyped-call]
            _protect(conf, gateway, wanted)  # not earlier: earlier settings are on the command line of the JVM
            return SparkContext(conf=conf, gateway=gateway)
        except Refused:
            assert gateway.proc.stdin is not None
            gateway.proc.stdin.close()  # its JVM ends with it
            raise
        except Exception as error:
            raise BadMachine(
                f"Spark does not start: {str(error).splitlines()[0]}",
                where=f"master {master}",
                fix=f"see {wanted.log_file}; for a cluster check its address, and that it has the secret and the"
                f" settings of {GUIDE}; for this machine `lockgate doctor`",
            ) from error


def _protect(conf: SparkConf, gateway: JavaGateway, wanted: SessionPlan) -> None:
    """Let Spark's ports ask for a secret; say so, or refuse, if they cannot."""
    from pyspark import SparkConf

    master = str(conf.get("spark.master"))
    told = dict(SparkConf(_jvm=gateway.jvm).getAll())
    protection = protect(master, told, os.environ)
    for name, value in protection.settings.items():
        conf.set(name, reveal(value))
    _report_lack(protection.lack, must_authenticate=wanted.must_authenticate)


def _report_lack(lack: Refused | None, *, must_authenticate: bool) -> None:
    if lack is None:
        return
    if must_authenticate:
        raise lack
    log.warning("%s (%s); %s", lack.what, lack.where, lack.fix)


def warn_of_open_ports(context: SparkContext, *, must_authenticate: bool = False) -> None:
    """Warn of a driver that the user has started, and whose ports ask for no secret; or refuse it."""
    _report_lack(lack_of(dict(context.getConf().getAll()), str(context.master)), must_authenticate=must_authenticate)


def _join_submitted(wanted: SessionPlan) -> SparkContext:
    """A context in the JVM that spark-submit has started, with its master and its jars."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    submitted = str(gateway.jvm.System.getProperty("spark.master"))
    if wanted.master is not None and wanted.master != submitted:
        raise Refused(
            f"master {wanted.master} is asked for, but spark-submit was given {submitted}",
            where="command line",
            fix="give it to spark-submit alone: spark-submit --master ...",
        )
    attempts = TASK_ATTEMPTS if wanted.are_tasks_retried else 1
    conf = SparkConf().setAppName(wanted.app).setMaster(with_attempts(submitted, attempts))
    for name, value in process_settings(are_tasks_retried=wanted.are_tasks_retried).items():
        conf.set(name, value)
    _protect(conf, gateway, wanted)
    try:
        return SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise BadMachine(
            f"Spark does not start: {str(error).splitlines()[0]}",
            where=f"master {submitted}, given to spark-submit",
            fix="see the log of spark-submit; check the address of the cluster, and its free resources",
        ) from error


def process_settings(*, are_tasks_retried: bool) -> dict[str, str]:
    """The settings that are fixed when the driver starts."""
    retries = {"spark.task.maxFailures": str(TASK_ATTEMPTS)} if are_tasks_retried else _NO_RETRIES
    return {**_PROCESS_SETTINGS, **retries}


def _ship(context: SparkContext, wanted: SessionPlan) -> None:
    """Let the Python of other machines find this package, and the modules beside the job file."""
    if is_submitted():  # spark-submit has sent them
        _let_find(context, shipping.sent_archives())
        return
    from pyspark import SparkFiles

    # A directory that is removed with the application, even if this process is killed.
    place = Path(SparkFiles.getRootDirectory()) / "shipped"
    place.mkdir()
    sent = [shipping.pack_package(place)]
    if wanted.job_file is not None and wanted.job_file.is_file():
        sent += filter(None, [shipping.pack_modules(wanted.job_file, place)])
    for archive in sent:
        context.addFile(str(archive))
    _let_find(context, [archive.name for archive in sent])


def _let_find(context: SparkContext, archives: Sequence[str]) -> None:
    known = context.environment.get("PYTHONPATH")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (shipping.python_path(archives), known)))


def _log_settings(log_file: Path) -> Path:
    """Spark's log4j settings: everything into the file, which is rotated when it is large; a few old ones are kept.

    Messages and exceptions quote events, so all control characters in them are written as in JSON: an event cannot
    forge a line. Only the line ends that log4j puts between the frames of a trace stay line ends. To tell them from
    others they are first marked with a token that no event can know.
    """
    token = secrets.token_hex(16)
    trace = f"%enc{{%ex{{full}}{{separator({token})}}}}{{JSON}}"
    trace = f"%replace{{%replace{{{trace}}}{{{token}.tat }}{{\\n\\tat }}}}{{{token}}}{{\\n}}"
    line = "%d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %enc{%m}{JSON}%n"
    settings = log_file.with_suffix(".log4j2.properties")
    settings.unlink(missing_ok=True)
    settings.touch(mode=FILE_MODE)  # a reader of the token can forge lines
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
                # One line for every new key would hide all others.
                "logger.state.name = org.apache.spark.sql.execution.python.streaming",
                "logger.state.level = error",
                "appender.file.layout.type = PatternLayout",
                "appender.file.layout.alwaysWriteExceptions = false",  # else it writes them again, unescaped
                f"appender.file.layout.pattern = {line}{trace}",
                "",
            ]
        )
    )
    return settings.resolve()


def find_dead_jvm(*, within: float) -> str | None:
    """How the JVM of this process ended, in words; None if it lives, or if there never was one.

    Its connections break before it is dead, so we wait this number of seconds.
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


def refuse_mixed_retries(session: SparkSession, *, where: str) -> None:
    """Refuse a session in which a task that is retried may mix its rows with those of the first try."""
    # Spark reads "TRUE" and " true " as true.
    off = [name for name in KEEPS_RETRIES_TRUE if str(session.conf.get(name)).strip().lower() != "true"]
    if off:
        raise Refused(
            f"{off[0]} is off: if a retried task gave other rows, nothing would notice, and rows would be lost or"
            " doubled",
            where=where,
            fix=f'leave it on: spark.conf.set("{off[0]}", "true")',
        )


def refuse_speculation(context: SparkContext, *, where: str) -> None:
    """Refuse a driver that starts a second attempt of a task while the first one still runs."""
    if str(context._conf.get("spark.speculation", "false")).strip().lower() == "true":
        raise Refused(
            "speculation is on: two attempts of one task could both write",
            where=where,
            fix="set spark.speculation=false before the session is made",
        )


def _refuse_unfit(context: SparkContext, wanted: SessionPlan) -> None:
    """Refuse a driver that runs already, if its settings break a promise: they cannot be changed."""
    where = f"Spark driver of this process, master {context.master}"
    conf = context._conf  # getConf() copies all settings, one call to the JVM for each
    refuse_speculation(context, where=where)
    if wanted.master is not None and with_attempts(wanted.master, 1) != with_attempts(str(context.master), 1):
        raise Refused(
            f"master {wanted.master} is asked for, but this process has a driver with another one",
            where=where,
            fix="stop that session first, or omit master=",
        )
    if not wanted.are_tasks_retried and any(conf.get(name, "") != value for name, value in _NO_RETRIES.items()):
        raise Refused(
            "an at-most-once job must not retry a task or a stage, but the driver of this process does",
            where=where,
            fix="stop that session first, or run the job in a process of its own: lockgate run FILE",
        )
    if wanted.must_authenticate:
        warn_of_open_ports(context, must_authenticate=True)
    loaded = conf.get("spark.jars", "") or ""
    missing = [jar.name for jar in wanted.jars if jar.name not in loaded]
    if missing:
        raise Refused(
            f"the Spark session of this process was started without the jars of Kafka ({missing[0]}, ...)",
            where=where,
            fix="stop that session first, so that a fitting one is started: SparkSession.getActiveSession().stop()",
        )
