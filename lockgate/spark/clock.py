"""The clock of a job, which never goes back, and the door by which a query takes a clock of ours.

Spark asks a clock for the time of an epoch and logs the answer with its offsets. Processing time, timers, time to live
and `max_ahead` all go by it. Its own clock is that of the machine, which may step back while the job runs, or be behind
when the job goes on elsewhere: events would be late for windows that have closed.

    time of an epoch              the later one of the machine's time and the time of the epoch before
    at a start                    the epoch before is the newest that the checkpoint has
    an epoch that is repeated     has the time that is logged with it; Spark does not ask
    the machine is behind         time stands still until the machine is there; epochs run as often as before

The clock is a class in the JVM, because Spark asks it many times in an epoch. Lockgate ships no jar, so the compiler
that Spark has for its own generated code makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Spark's own clock waits until the machine shows a time: after a step back of an hour it would sleep for an hour. Who
# stops a query interrupts its thread; Spark looks whether it is stopped when the wait is over.
_JAVA = """
public class %(name)s implements org.apache.spark.util.Clock {
    private org.apache.spark.util.Clock machine = new org.apache.spark.util.SystemClock();
    private long last = 0;

    public void setMachine(org.apache.spark.util.Clock clock) { machine = clock; }

    public synchronized void goOnFrom(long millis) { last = Math.max(last, millis); }

    public synchronized long getTimeMillis() {
        last = Math.max(last, machine.getTimeMillis());
        return last;
    }

    public long nanoTime() { return machine.nanoTime(); }

    public long waitTillTime(long target) {
        long end = System.nanoTime() + (target - getTimeMillis()) * 1000000L;
        long left = end - System.nanoTime();
        while (left > 0 && !Thread.interrupted()) {
            java.util.concurrent.locks.LockSupport.parkNanos(left);
            left = end - System.nanoTime();
        }
        return getTimeMillis();
    }
}
"""


def job_clock(spark: SparkSession) -> Any:
    """A clock in the JVM that begins with the machine's time; `goOnFrom` moves it to a time that is logged."""
    jvm: Any = spark.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    # Py4J remembers the methods of a class by its name, and those of a class of another run are no use here.
    name = f"JobClock{uuid4().hex}"
    compiler.cook(_JAVA % {"name": name})
    return compiler.getClassLoader().loadClass(name).newInstance()


def start_query(
    frame: DataFrame, writer: DataStreamWriter, *, name: str, checkpoint: str, clock: Any
) -> StreamingQuery:
    """Start a query whose writer calls a function for every epoch, as `writer.start()` would, with this clock.

    Spark takes another clock than its own only from inside, at the door that its own tests use.
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
            True,  # goes on from the checkpoint
            _held(made, "trigger"),
            clock,
            nothing,
            nothing,
        )
    )
    return StreamingQuery(query)


def _held(thing: Any, name: str) -> Any:
    """What a private field of an object in the JVM holds."""
    field = thing.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(thing)
