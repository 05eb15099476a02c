"""A part of a split that is not deterministic: an event is in it for all that reads the part, or for none."""

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Stream, plan, stream
from lockgate.errors import BadJob


def part() -> Stream:
    events = stream("in", KafkaSource(topic="in", servers="h:1", value="id BIGINT"))
    return events.split(red="rand() < 0.5", blue="id > 1")["red"]


def outputs(*rows: Stream) -> Job:
    ends = [one.to(f"out-{number}", KafkaSink(topic=f"out-{number}", servers="h:1")) for number, one in enumerate(rows)]
    return Job("job", *ends, guarantee=Guarantee.AT_LEAST_ONCE)


def test_a_part_with_state_behind_one_of_its_branches_is_refused() -> None:
    red = part()
    with pytest.raises(BadJob, match="part 'red' would be computed 2 times"):
        plan(outputs(red, red.key_by("id").rolling(n="count(*)")))


def test_two_outputs_of_a_part_are_one_pass_over_its_rows() -> None:
    from lockgate.planner.passes import way_of

    red = part()
    planned = plan(outputs(red, red.where("id > 5")))
    ways = [way_of(planned.logical, node) for node in planned.logical.of_kind("sink")]
    assert {way.shared for way in ways if way is not None} == {"red"}
