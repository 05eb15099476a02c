"""What a task refuses of its rows before it sends them."""

import numpy as np
import pyarrow as pa
import pytest

from lockgate.connectors.kafka.encode import Records
from lockgate.connectors.kafka.task import refuse_times
from lockgate.connectors.kafka.topics import OutputTopic, TimeLimits
from lockgate.errors import TimeRefused

NOW_MS = 1_700_000_000_000


def look(limits: TimeLimits, *ahead_ms: int) -> None:
    keys = pa.array([f"k{number}".encode() for number in range(len(ahead_ms))], pa.binary())
    records = Records(keys=keys, values=keys, timestamps_ms=NOW_MS + np.array(ahead_ms))
    topic = OutputTopic("t", partitions=1, max_message_bytes=1000, id="id", times=limits)
    refuse_times(records, topic, ("t", 0), columns=["at"], now_ms=NOW_MS, where="job 'j', declared at j.py:1")


def is_refused(limits: TimeLimits, *ahead_ms: int) -> bool:
    try:
        look(limits, *ahead_ms)
    except TimeRefused:
        return True
    return False


def test_times_within_the_limits_of_a_topic_are_sent() -> None:
    assert not is_refused(TimeLimits(ahead_ms=1000, behind_ms=2000), 1000, -2000, 0)
    assert is_refused(TimeLimits(ahead_ms=1000, behind_ms=2000), 1001)
    assert not is_refused(TimeLimits(), 10**14, -(10**14))


@pytest.mark.parametrize(
    ("ahead_ms", "told", "setting"),
    [
        (1001, "2023-11-14T22:13:21.001Z, is too far ahead of the clock: the topic takes 1000 ms", "after"),
        (10**15, "33712-08-11T00:00:00.000Z, is too far ahead of the clock: the topic takes 1000 ms", "after"),
        (-2001, "2023-11-14T22:13:17.999Z, is too far behind the clock: the topic takes 2000 ms", "before"),
    ],
)
def test_a_time_beyond_them_is_refused_with_its_row_its_column_and_the_limit(
    ahead_ms: int, told: str, setting: str
) -> None:
    with pytest.raises(TimeRefused) as refused:
        look(TimeLimits(ahead_ms=1000, behind_ms=2000), 0, ahead_ms)
    assert refused.value.what == f"the time of a record with key 'k1', {told}"
    assert refused.value.where == "column at, topic 't', partition 0, job 'j', declared at j.py:1"
    assert f"raise message.timestamp.{setting}.max.ms of the topic" in refused.value.fix
    # The job may have dead letters already: they go by the clock of the epoch, which may be old.
    assert "lockgate checkpoints rollback FILE --uncommitted" in refused.value.fix
    assert "compare the clocks" in refused.value.fix
