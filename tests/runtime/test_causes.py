"""What Spark says at length is told in the line that helps; what it means is read from its classes, not its text."""

from pathlib import Path

import pytest

from lockgate import ConsoleSink, Guarantee, Job, KafkaSource, plan, stream
from lockgate.errors import CheckpointDamaged, Failed, LockgateError, Refused
from lockgate.failures import first_cause
from lockgate.runtime.denials import find_denial
from lockgate.runtime.translating import is_damage, translate
from lockgate.throwables import Throwable, throwables

WRAPPED = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: aborted
\tat org.apache.spark.Some(Thing.java)
Caused by: java.io.IOException: disk
\tat org.apache.spark.Other(Thing.java)
Caused by: java.io.Full: No space left on device
"""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\n1 / 0", "[DIVIDE_BY_ZERO] Division by zero."),
        (WRAPPED, "java.io.Full: No space left on device"),
        (
            "An error occurred while calling o1.save.\n: java.lang.IllegalState: closed",
            "java.lang.IllegalState: closed",
        ),
        (
            "Caused by: org.apache.spark.SparkException: Python worker exited\nCaused by: java.io.EOFException",
            "org.apache.spark.SparkException: Python worker exited",
        ),
        ("Caused by: java.io.EOFException", "java.io.EOFException"),
        ("", "it did not say why"),
    ],
)
def test_the_line_that_says_what_happened_is_reported(message: str, told: str) -> None:
    assert first_cause(message) == told


SPARK = "org.apache.spark.SparkException"
NO_STATE = Throwable(SPARK, "the state store cannot be loaded", "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED")
END = Throwable("java.io.EOFException")
SOURCE = KafkaSource(topic="orders", servers="127.0.0.1:9", value="id INT")
PLAN = plan(Job("j", stream("in", SOURCE).to("out", ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE))
EVENT = "CANNOT_LOAD_STATE_STORE java.io.EOFException Stream is corrupted"


@pytest.mark.parametrize(
    ("raised", "damaged"),
    [
        ([Throwable(SPARK, "Job aborted"), NO_STATE, END], True),
        ([NO_STATE, Throwable(SPARK), Throwable("java.io.IOException", "Stream is corrupted")], True),
        ([NO_STATE, Throwable("org.apache.hadoop.fs.ChecksumException", "at 512")], True),
        ([NO_STATE], False),
        ([END, NO_STATE], False),  # what came of it, and not its cause
        ([Throwable(SPARK, EVENT), END], False),
        ([Throwable("org.apache.spark.SparkNumberFormatException", EVENT, "CAST_INVALID_INPUT"), END], False),
        ([NO_STATE, Throwable("org.apache.spark.api.python.PythonException", EVENT)], False),
        ([], False),
    ],
)
def test_damage_is_known_by_the_classes_of_its_causes_and_their_order(raised: list[Throwable], damaged: bool) -> None:
    assert is_damage(raised) is damaged


METADATA = Throwable(
    "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorMismatch",
    "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
)
SOURCES = Throwable(
    "java.lang.AssertionError",
    "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the"
    " query. Cannot continue.",
)


@pytest.mark.parametrize(
    ("raised", "error", "what"),
    [
        ([Throwable(SPARK, "Job aborted"), NO_STATE, END], CheckpointDamaged, "a file of the state in the checkpoint"),
        ([METADATA], Refused, "steps with state were added to the job"),
        ([Throwable(SPARK), SOURCES], Refused, "sources were added to the job"),
        ([Throwable(SPARK, SOURCES.message)], Failed, "Job 'j' stopped: org.Spark: {here}"),
        ([], Failed, "Job 'j' stopped: org.Spark: {here}"),
    ],
)
def test_the_patterns_of_sparks_failures_name_the_job_the_checkpoint_and_the_fix(
    raised: list[Throwable], error: type[LockgateError], what: str
) -> None:
    causes = [(RuntimeError("Caused by: org.Spark: {here}"), raised)]
    found = translate(causes, PLAN, checkpoint="/c", log_file=Path("spark.log"), deaths="2x with step 'map'")
    assert type(found) is error
    assert found.what.startswith(what)
    assert "/c" in found.where
    assert "lockgate run --new-life" in found.fix or "continues where it stopped" in found.fix
    assert ("Python workers died 2x" in found.what) is (error is Failed)


def test_an_error_of_ours_is_reported_as_it_is() -> None:
    ours = Refused("no", where="here", fix="do")
    assert translate([(ours, [SOURCES])], PLAN, checkpoint="/c", log_file=Path("l"), deaths=None) is ours


def test_a_denial_is_known_by_its_class_and_not_by_what_an_event_says() -> None:
    denied = "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [orders]"
    assert find_denial([Throwable(SPARK, denied), Throwable("java.lang.IllegalStateException", denied)], PLAN) is None


def test_an_error_without_a_jvm_has_no_throwables() -> None:
    assert throwables(None) == throwables(ValueError(EVENT)) == ()
