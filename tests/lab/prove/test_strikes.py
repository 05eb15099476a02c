"""Which faults fit a job, and how they are dealt out to trials."""

from collections import Counter
from typing import Any

from lockgate import DeadLetters, FileSink, Guarantee, Job, KafkaSink, KafkaSource, PostgresSink, Stream, stream
from lockgate.lab.prove.strikes import KINDS, Ground, deal, fitting, known_points, skipped
from lockgate.lab.rig.faults import ANY_MOMENT, Kind, Strike
from lockgate.lab.rig.troubles.outside import DEEDS
from lockgate.planner.plan import plan

SINK = KafkaSink(topic="out", servers="h:1")


def rows() -> Stream:
    return stream("in", KafkaSource(topic="in", servers="h:1", value="k STRING, v INT"))


def faults_of(ends: Stream, sink: Any, guarantee: Guarantee, **wanted: Any) -> set[tuple[str, str]]:
    planned = plan(Job("job", ends.to("out", sink), guarantee=guarantee))
    return {one.named for one in fitting(planned, wanted.get("kinds", Kind), wanted.get("points"))}


def test_a_transaction_has_points_that_a_plain_output_has_not() -> None:
    exact = faults_of(rows(), SINK, Guarantee.END_TO_END_EXACTLY_ONCE)
    plain = faults_of(rows(), SINK, Guarantee.AT_LEAST_ONCE)
    assert {("kill driver", "MARKER"), ("pause driver", "BEFORE_END"), ("lose reply", "END_TXN")} <= exact
    assert ("kill driver", "SENT") not in exact
    assert ("kill driver", "SENT") in plain
    assert not {one for one in plain if one[1] in ("MARKER", "BEFORE_END", "END_TXN", "HALF")}


def test_only_a_step_with_state_updates_it() -> None:
    rolled = rows().key_by("k").rolling(n="count(*)")
    point = ("kill worker", "STATE_UPDATE")
    assert point in faults_of(rolled, SINK, Guarantee.END_TO_END_EXACTLY_ONCE)
    assert point not in faults_of(rows(), SINK, Guarantee.END_TO_END_EXACTLY_ONCE)


def test_files_have_no_point_of_kafkas() -> None:
    found = faults_of(rows(), FileSink(path="out"), Guarantee.AT_LEAST_ONCE, kinds=[Kind.KILL_DRIVER])
    assert found == {("kill driver", "SENT"), ("kill driver", ANY_MOMENT)}


def test_what_is_asked_for_is_all_there_is() -> None:
    exact = Guarantee.END_TO_END_EXACTLY_ONCE
    assert faults_of(rows(), SINK, exact, kinds=[Kind.KILL_DRIVER], points=["MARKER", "HALF"]) == {
        ("kill driver", "MARKER")
    }


def test_a_ground_has_what_some_faults_need_or_they_are_skipped_with_a_word() -> None:
    planned = plan(Job("job", rows().to("out", SINK), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))
    poor = Ground(no_tmpfs="no file system in memory can be mounted here: no right")
    left_out = skipped(planned, Kind, poor)
    assert left_out == {
        "kill machine": "needs a cluster: --cluster",
        "kill leader": "needs three brokers: --brokers 3",
        "kill coordinator": "needs three brokers: --brokers 3",
        "fill disk": "no file system in memory can be mounted here: no right",
    }
    assert {one.kind.value for one in fitting(planned, Kind, None, poor)}.isdisjoint(left_out)
    rich = Ground(brokers=3, is_cluster=True)
    assert skipped(planned, Kind, rich) == {}
    assert {*left_out} <= {one.kind.value for one in fitting(planned, Kind, None, rich)}


def test_every_kind_of_fault_has_an_implementation() -> None:
    letters = DeadLetters(sink=KafkaSink(topic="letters", servers="h:1"))
    read = rows()
    outputs = [
        read.key_by("k").rolling(n="count(*)").to("out", SINK),
        read.to("table", PostgresSink(table="t", dsn="postgresql://h/d")),
    ]
    job = Job("job", *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, dead_letters=letters)
    strikes = fitting(plan(job), Kind, None, Ground(brokers=3, is_cluster=True))
    assert {one.kind for one in strikes} == {*KINDS}
    outside = {one.kind for one in strikes if not one.is_armed and not one.is_pause}
    assert outside - {Kind.POISON} <= {*DEEDS}
    assert {one.point for one in strikes} >= {"STAGED", "PUBLISH", "RECOVERY", "COMMIT", "OFFSETS", "COMMITS", "STATE"}
    assert {one.point for one in strikes} <= {*known_points()}


def test_a_job_that_keeps_no_checkpoint_has_none_to_damage() -> None:
    kinds = [Kind.FILL_DISK, Kind.TRUNCATE_CHECKPOINT, Kind.FLIP_CHECKPOINT, Kind.SECOND_DRIVER, Kind.TIME_OUT]
    assert faults_of(rows(), SINK, Guarantee.AT_MOST_ONCE, kinds=kinds) == set()


def test_poison_is_for_jobs_that_have_a_place_for_it() -> None:
    assert faults_of(rows(), SINK, Guarantee.AT_LEAST_ONCE, kinds=[Kind.POISON]) == set()


def test_every_fault_is_dealt_out_as_often_as_every_other_one_and_alike_by_one_seed() -> None:
    strikes = [Strike(Kind.KILL_DRIVER, point) for point in "abcdefg"]
    dealt = [deal(strikes, seed=3, number=number, count=5) for number in range(7)]
    assert set(Counter(one.point for trial in dealt for one in trial).values()) == {5}
    assert dealt == [deal(strikes, seed=3, number=number, count=5) for number in range(7)]
    assert dealt != [deal(strikes, seed=4, number=number, count=5) for number in range(7)]


def test_what_a_driver_passes_once_strikes_at_the_first_passing() -> None:
    strikes = [Strike(Kind.KILL_DRIVER, point) for point in ("CLAIM", "RECOVERY", "MARKER")]
    dealt = [one for number in range(50) for one in deal(strikes, seed=1, number=number, count=3)]
    hits = {point: {one.hit for one in dealt if one.point == point} for point in ("CLAIM", "RECOVERY", "MARKER")}
    assert hits == {"CLAIM": {1}, "RECOVERY": {1}, "MARKER": {1, 2}}
