"""The clock of a job, which never goes back, and the internal call that starts a query with this clock.

Spark asks a clock for the time of an epoch and logs the answer with its offsets. Processing time, timers, time to live
and `max_ahead` all use it. Its own clock is that of the machine. That may step back while the job runs, or be behind
when the job continues on another machine: then events would be late for windows that have closed.

    time of an epoch              the time of the machine, and never before the time of the epoch before
    at a start                    the epoch before is the newest that the checkpoint has
    an epoch that is repeated     has the time that is logged with it; Spark does not ask
    the machine is behind         time passes at half speed until the machine has caught up

Time must not stop. Spark asks the same clock how long an epoch took, when the next one is due, and whether an idle
query has to report: without time a healthy job looks stuck, and epochs grow without limit.

The clock is a class in the JVM, because Spark asks it many times in an epoch. Lockgate ships no jar, so Spark's own
compiler for generated code compiles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# `last` is the job's time at the moment `at` of the JVM's timer, which does not step when the machine's clock does.
# Spark interrupts the thread of a query that it stops; like the wait of Spark's own clock, ours then raises.
_JAVA = """
public class %(name)s implements org.apache.spark.util.Clock {
    private org.apache.spark.util.Clock machine = new org.apache.spark.util.SystemClock();
    private long last = 0;
    private long at = System.nanoTime();

    public void setMachine(org.apache.spark.util.Clock clock) { machine = clock; }

    public synchronized void goOnFrom(long millis) {
        if (millis > last) {
            last = millis;
            at = System.nanoTime();
        }
    }

    public synchronized long getTimeMillis() {
        long half = (System.nanoTime() - at) / 2000000L;
        long there = machine.getTimeMillis();
        if (there >= last + half) {
            last = there;
            at = System.nanoTime();
        } else {
            last += half;
            at += half * 2000000L;  // the rest of a millisecond counts the next time
        }
        return last;
    }

    public long nanoTime() { return machine.nanoTime(); }

    public long waitTillTime(long target) throws InterruptedException {
        long now = getTimeMillis();
        while (now < target) {
            Thread.sleep(target - now);
            now = getTimeMillis();
        }
        return now;
    }
}
"""


def job_clock(spark: SparkSession) -> Any:
    """A clock in the JVM that starts with the machine's time; `goOnFrom` moves it to a time that is logged."""
    jvm: Any = spark.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    # Py4J caches the methods of a class by its name, and those of a class of another run do not fit.
    name = f"JobClock{uuid4().hex}"
    compiler.cook(_JAVA % {"name": name})
    return compiler.getClassLoader().loadClass(name).newInstance()


def start_query(
    frame: DataFrame, writer: DataStreamWriter, *, name: str, checkpoint: str, clock: Any
) -> StreamingQuery:
    """Start a query whose writer calls a function for every epoch, as `writer.start()` would, with this clock.

    Spark accepts another clock than its own only through an internal call, which its own tests use.
    """
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql.streaming.query import StreamingQuery

    session = frame.sparkSession
    gateway = session.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm: Any = session.sparkContext._jvm
    made, rows = writer._jwrite, frame._jdf
    sink = jvm.org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink(
        _held(made, "foreachBatchWriter"), rows.exprEnc()
    )
    nothing = jvm.scala.Option.empty()
    query = (
        session._jsparkSession.sessionState()
        .streamingQueryManager()
        .startQuery(
            jvm.scala.Option.apply(name),
            nothing,  # a name of the sink
            jvm.scala.Option.apply(checkpoint),
            rows,
            _held(made, "extraOptions").originalMap(),
            sink,
            _held(made, "outputMode"),
            False,  # no temporary checkpoint
            True,  # continues from the checkpoint
            _held(made, "trigger"),
            clock,
            nothing,
            nothing,
        )
    )
    return StreamingQuery(query)


def _held(thing: Any, name: str) -> Any:
    """The value of a private field of an object in the JVM."""
    field = thing.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(thing)
