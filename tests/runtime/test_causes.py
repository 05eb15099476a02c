"""What Spark says at length is told in the line that helps."""

import pytest

from lockgate.failures import first_cause

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
def test_the_line_that_says_what_happened_is_told(message: str, told: str) -> None:
    assert first_cause(message) == told
