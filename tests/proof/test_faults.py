"""Which faults fit a job, and how they are dealt out to trials."""

from collections import Counter
from typing import Any

from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, Stream, stream
from lockgate.planner.plan import plan
from lockgate.proof.faults import ANY_MOMENT, Kind, Strike, deal, fitting


def rows() -> Stream:
    return stream("in", KafkaSource(topic="in", servers="h:1", value="k STRING, v INT"))


def faults_of(ends: Stream, sink: Any, guarantee: Guarantee, **wanted: Any) -> set[tuple[str, str]]:
    planned = plan(Job("job", ends.to("out", sink), guarantee=guarantee))
    return {one.named for one in fitting(planned, wanted.get("kinds", Kind), wanted.get("points"))}


def test_a_transaction_has_points_that_a_plain_output_has_not() -> None:
    sink = KafkaSink(topic="out", servers="h:1")
    exact = faults_of(rows(), sink, Guarantee.END_TO_END_EXACTLY_ONCE)
    plain = faults_of(rows(), sink, Guarantee.AT_LEAST_ONCE)
    assert {("kill driver", "MARKER"), ("pause driver", "BEFORE_END"), ("lose reply", "END_TXN")} <= exact
    assert ("kill driver", "SENT") not in exact
    assert ("kill driver", "SENT") in plain
    assert not {one for one in plain if one[1] in ("MARKER", "BEFORE_END", "END_TXN", "HALF")}


def test_only_a_step_with_state_updates_it() -> None:
    sink = KafkaSink(topic="out", servers="h:1")
    rolled = rows().key_by("k").rolling(n="count(*)")
    point = ("kill worker", "STATE_UPDATE")
    assert point in faults_of(rolled, sink, Guarantee.END_TO_END_EXACTLY_ONCE)
    assert point not in faults_of(rows(), sink, Guarantee.END_TO_END_EXACTLY_ONCE)


def test_files_have_no_point_of_kafkas() -> None:
    found = faults_of(rows(), FileSink(path="out"), Guarantee.AT_LEAST_ONCE, kinds=[Kind.KILL_DRIVER])
    assert found == {("kill driver", "SENT"), ("kill driver", ANY_MOMENT)}


def test_what_is_asked_for_is_all_there_is() -> None:
    sink = KafkaSink(topic="out", servers="h:1")
    exact = Guarantee.END_TO_END_EXACTLY_ONCE
    assert faults_of(rows(), sink, exact, kinds=[Kind.KILL_DRIVER], points=["MARKER", "HALF"]) == {
        ("kill driver", "MARKER")
    }


def test_every_fault_is_dealt_out_as_often_as_every_other_one_and_alike_by_one_seed() -> None:
    strikes = [Strike(Kind.KILL_DRIVER, point) for point in "abcdefg"]
    dealt = [deal(strikes, seed=3, number=number, count=5) for number in range(7)]
    assert set(Counter(one.point for trial in dealt for one in trial).values()) == {5}
    assert dealt == [deal(strikes, seed=3, number=number, count=5) for number in range(7)]
    assert dealt != [deal(strikes, seed=4, number=number, count=5) for number in range(7)]
