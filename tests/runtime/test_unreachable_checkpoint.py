"""A file system of a checkpoint that does not answer is told as such: whoever starts the job waits for it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files.filesystem import as_os_error
from lockgate.errors import Unreachable
from lockgate.runtime.restarts import Ended
from lockgate.runtime.translating import reaching

HDFS = Checkpoint(root="hdfs://name:8020/checkpoint")
REFUSED = """An error occurred while calling o59.exists.
: java.net.ConnectException: Call From here to name:8020 failed on connection exception: java.net.ConnectException
\tat java.base/jdk.internal.reflect.NativeConstructorAccessorImpl.newInstance0(Native Method)
Caused by: java.net.ConnectException: Connection refused
\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)
"""
DENIED = """An error occurred while calling o59.exists.
: org.apache.hadoop.security.AccessControlException: Permission denied: user=me
\tat java.net.Socket.connect(Socket.java:1)
"""


class JavaError(Py4JJavaError):  # type: ignore[misc] # py4j has no types
    """An error of Java's, as py4j brings it."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self)
        self.text = text
        kind = SimpleNamespace(getSimpleName=lambda: "ConnectException")
        self.java_exception = SimpleNamespace(getClass=lambda: kind, getMessage=lambda: "Call From here to name:8020")

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize("read", [as_os_error, nullcontext])
def test_a_name_node_that_is_away_may_come_back(read: Callable[[], AbstractContextManager[None]]) -> None:
    with pytest.raises(Unreachable) as told, reaching(HDFS), read():
        raise JavaError(REFUSED)
    assert told.value.what == (
        "the file system of the checkpoint does not answer: java.net.ConnectException: Connection refused"
    )
    assert told.value.where == "checkpoint hdfs://name:8020/checkpoint"
    assert Ended.by(told.value, Ended(why="")).is_passing


def test_a_name_that_was_unknown_may_be_known_later() -> None:
    with pytest.raises(Unreachable, match="UnknownHostException: name"), reaching(HDFS):
        raise PySparkException("java.net.UnknownHostException: name")


@pytest.mark.parametrize("error", [JavaError(DENIED), Py4JError("the JVM is gone"), OSError("no space left")])
def test_what_is_no_matter_of_a_connection_is_left_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as told, reaching(HDFS):
        raise error
    assert told.value is error


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(root="/checkpoint")])
def test_a_checkpoint_on_this_disk_is_never_away(checkpoint: Checkpoint | None) -> None:
    with pytest.raises(JavaError), reaching(checkpoint):
        raise JavaError(REFUSED)
