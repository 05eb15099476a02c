"""A workload is the same for a seed, looks like a stream, and still has one answer."""

import itertools
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka.partitioner.default import murmur2

from lockgate import (
    FileSink,
    FileSource,
    FileTable,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    stream,
    table,
    windows,
)
from lockgate.dataflow.stream import Stream
from lockgate.errors import Refused
from lockgate.lab.prove.redirect import Redirected, Site, redirect
from lockgate.lab.prove.workload import Shape, Workload, make_workload

VALUE = "id BIGINT, k STRING, v INT, at TIMESTAMP"
EVERY_TYPE = (
    "a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g DECIMAL(10,2), h STRING, i VARCHAR(5), j CHAR(3),"
    " l BINARY, m BOOLEAN, n DATE, o TIMESTAMP, p TIMESTAMP_NTZ, q ARRAY<STRUCT<x: INT, y: DECIMAL(4,1)>>,"
    " r MAP<STRING, ARRAY<STRING>>, s STRUCT<x: INT, t: TIMESTAMP>, sent_at_ms BIGINT, made_at STRING"
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site("proof-1", "127.0.0.1:5555", tmp_path / "site")


def source(name: str = "in", value: str = VALUE, **more: Any) -> Stream:
    return stream(name, KafkaSource(topic=name, servers="h:1", value=value, **more))


def moved(site: Site, *streams: Stream, **more: Any) -> Redirected:
    outputs = [
        one.to(f"out-{number}", KafkaSink(topic=f"out-{number}", servers="h:1")) for number, one in enumerate(streams)
    ]
    return redirect(Job("job", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, **more), site)


def rows(made: Workload, label: str = "in-0") -> list[dict[str, Any]]:
    return [json.loads(event.value or b"{}") for event in made.events if event.topic == label]


def minute_counts() -> Stream:
    timed = source().event_time("at", lateness="10 seconds").key_by("k")
    return timed.window(windows.tumbling("1 minute")).aggregate(n="count(*)")


def test_a_seed_gives_the_same_bytes(site: Site) -> None:
    job = moved(site, source(value=EVERY_TYPE))
    one, same, other = (make_workload(job, Shape(events=300, seed=seed)) for seed in (1, 1, 2))
    assert one == same
    assert one.events != other.events


def test_every_type_has_values_that_json_can_carry(site: Site) -> None:
    made = rows(make_workload(moved(site, source(value=EVERY_TYPE)), Shape(events=50)))
    assert all(row.keys() == {*"abcdefghijlmnopqrs", "sent_at_ms", "made_at"} for row in made)
    assert all(len(row["i"]) <= 5 and len(row["j"]) <= 3 and 0 <= row["g"] < 10**8 for row in made)
    assert any(row["q"] and row["q"][0].keys() == {"x", "y"} for row in made)
    sent = [datetime.fromtimestamp(row["sent_at_ms"] / 1000, UTC) for row in made]
    assert [at.isoformat(timespec="milliseconds") for at in sent] == [row["made_at"] for row in made]


def test_fractions_add_up_exactly_in_any_order(site: Site) -> None:
    made = [row["f"] for row in rows(make_workload(moved(site, source(value="f DOUBLE")), Shape(events=500)))]
    assert sum(made) == sum(reversed(made)) == sum(sorted(made))


def test_a_type_without_values_is_refused_with_the_way_out(site: Site) -> None:
    with pytest.raises(Refused, match="column 'x'") as told:
        make_workload(moved(site, source(value="x MAP<INT, INT>")), Shape())
    assert "line by line" in told.value.fix


def test_hot_keys_have_most_events_and_a_key_stays_in_its_partition(site: Site) -> None:
    made = make_workload(moved(site, source().key_by("k").rolling(n="count(*)")), Shape(events=2000))
    counts = Counter(row["k"] for row in rows(made))
    hot = sum(count for _, count in counts.most_common(8))
    assert made.partitions == {"in-0": 4}
    assert len(counts) > 40
    assert hot > 800
    where = {(row["k"], event.partition) for row, event in zip(rows(made), made.events, strict=True)}
    assert len(where) == len(counts)
    assert Counter(event.partition for event in made.events) == dict.fromkeys(range(4), 500)


def test_a_record_key_is_in_the_partition_that_kafkas_clients_choose(site: Site) -> None:
    keyed = source(value="v INT", key="k STRING").key_by("k").rolling(n="count(*)")
    for event in make_workload(moved(site, keyed), Shape(events=400)).events:
        assert event.key is not None
        assert (murmur2(event.key) & 0x7FFFFFFF) % 4 == event.partition


@pytest.mark.parametrize(
    ("last", "partitions"),
    [
        # Both keys are drawn together, so each key of either is in one partition.
        (source().key_by("id").rolling(n="count(*)").select("id", "k").key_by("k").rolling(m="count(*)"), 4),
        (source().select(k="lower(k)").key_by("k").rolling(n="count(*)"), 1),
        (source().window(windows.tumbling_count(10)).aggregate(n="count(*)"), 1),
        (source(value="flag BOOLEAN").key_by("flag").rolling(n="count(*)"), 1),
        (
            source()
            .event_time("at", lateness="0 seconds")
            .window(windows.tumbling("1 minute"))
            .aggregate(n="count(*)"),
            1,
        ),
        (
            source().event_time("at", lateness="1 minute").window(windows.tumbling("1 minute")).aggregate(n="count(*)"),
            4,
        ),
    ],
    ids=["two keys", "a computed key", "one for all", "few keys", "no lateness", "lateness"],
)
def test_partitions_are_several_only_if_order_and_time_allow_it(last: Stream, partitions: int, site: Site) -> None:
    assert make_workload(moved(site, last), Shape()).partitions == {"in-0": partitions}


def test_streams_that_read_one_topic_each_find_their_columns(site: Site) -> None:
    other = stream("other", KafkaSource(topic="in", servers="h:1", value="v INT, w STRING"))
    raw = stream("raw", KafkaSource(topic="in", servers="h:1", value="line STRING", format="text"))
    made = rows(make_workload(moved(site, raw, source(value="k STRING, v INT"), other), Shape(events=5)))
    assert len(made) == 5
    assert all(row.keys() == {"k", "v", "w"} for row in made)


def test_events_are_out_of_order_within_lateness_and_a_few_are_surely_late(site: Site) -> None:
    shape = Shape(events=4000, rows_per_epoch=100, late_share=0.02)
    made = make_workload(moved(site, minute_counts()), shape)
    times = [datetime.fromisoformat(row["at"]) for row in rows(made)]
    span = max(times) - times[0]
    assert span > timedelta(minutes=5)
    assert 30 < len(made.late) < 200
    greatest, late, disorder = times[0], list[int](), 0
    for number, at in enumerate(times):
        if at < greatest - timedelta(seconds=10):
            late.append(number)
            before = max(times[: number - 2 * shape.rows_per_epoch])
            assert at + timedelta(minutes=1) <= before - timedelta(seconds=10)
        elif at < greatest:
            disorder += 1
            assert greatest - at <= timedelta(seconds=5)
        greatest = max(greatest, at)
    assert tuple(late) == made.late
    assert disorder > 1000
    assert 4 <= made.wave <= 5 / 0.05


def test_without_a_share_nothing_is_late(site: Site) -> None:
    assert make_workload(moved(site, minute_counts()), Shape(events=3000, late_share=0.0)).late == ()


def test_bad_events_are_drawn_only_if_the_job_has_dead_letters(site: Site) -> None:
    keyed = source(value="v INT", key="k STRING")
    assert make_workload(moved(site, keyed), Shape()).bad == ()
    made = make_workload(
        moved(site, keyed, dead_letters=KafkaSink(topic="letters", servers="h:1")), Shape(bad_share=0.1)
    )
    kinds = Counter(
        "no value"
        if event.value is None
        else "no key"
        if event.key is None
        else "bad"
        if b"\xff" in event.value
        else "good"
        for event in made.events
    )
    assert all(kinds[kind] > 10 for kind in ("no value", "no key", "bad"))
    assert len(made.bad) == 1000 - kinds["good"]


def test_bad_events_of_a_topic_without_keys_have_a_value_for_a_client_to_send(site: Site) -> None:
    letters = KafkaSink(topic="letters", servers="h:1")
    made = make_workload(moved(site, source(value="v INT"), dead_letters=letters), Shape(bad_share=0.1))
    assert len(made.bad) > 30
    assert all(b"\xff" in (made.events[number].value or b"") for number in made.bad)
    assert all(event.value is not None for event in made.events)


def test_joined_streams_and_tables_find_partners(site: Site) -> None:
    names = FileTable(path="/srv/names", format="csv", schema="k STRING, name STRING, n INT")
    left = source("left").event_time("at", lateness="10 seconds")
    right = source("right", "k STRING, w DOUBLE, then TIMESTAMP").event_time("then", lateness="10 seconds")
    joined = left.join(right, on="k", within="1 minute")
    job = moved(site, joined, source("third").join(table("names", names, refresh="1 hour"), on="k"))
    made = make_workload(job, Shape(events=1200))
    theirs = {row["k"] for row in made.tables["names"]}
    third = [row["k"] in theirs for row in rows(made, "in-2")]
    assert 0.5 < sum(third) / len(third) < 1
    assert all(row.keys() == {"k", "name", "n"} for row in made.tables["names"])
    others = [(row["k"], datetime.fromisoformat(row["then"])) for row in rows(made, "in-1")]
    pairs = [
        sum(k == row["k"] and abs(at - datetime.fromisoformat(row["at"])) <= timedelta(minutes=1) for k, at in others)
        for row in rows(made, "in-0")
    ]
    assert sum(pairs) > 100
    assert sum(pairs) < 20 * len(pairs)


def test_what_conditions_speak_of_comes_up(site: Site) -> None:
    wanted = source(value="kind STRING, speed INT, k STRING").where("kind = 'lorry' AND speed >= 5000 AND k IN ('x')")
    made = rows(make_workload(moved(site, wanted), Shape(events=300)))
    assert 30 < sum(row["kind"] == "lorry" for row in made) < 270
    assert {4999, 5000, 5001} <= {row["speed"] for row in made}


def test_patterns_and_nulls_that_conditions_speak_of_come_up(site: Site) -> None:
    told = "a RLIKE '^[A-Z]{3}-[0-9]+$' AND b LIKE 'x%_z' AND c BETWEEN 70000 AND 80000 AND d IS NOT NULL AND e < -5"
    wanted = source(value="a STRING, b STRING, c INT, d STRING, e DOUBLE, f STRING NOT NULL").where(
        f"{told} OR f IS NULL"
    )
    made = rows(make_workload(moved(site, wanted), Shape(events=300)))
    assert sum(re.search("^[A-Z]{3}-[0-9]+$", row["a"]) is not None for row in made) > 50
    assert sum(re.fullmatch("x.*.z", row["b"]) is not None for row in made) > 50
    assert {70_000, 80_000} <= {row["c"] for row in made}
    assert 50 < sum(row["d"] is None for row in made) < 250
    assert min(row["e"] for row in made) == -6
    assert all(row["f"] is not None for row in made)


def test_a_key_that_may_be_null_is_null_in_one_partition(site: Site) -> None:
    made = make_workload(moved(site, source().where("k IS NOT NULL").key_by("k").rolling(n="count(*)")), Shape())
    where = {event.partition for event, row in zip(made.events, rows(made), strict=True) if row["k"] is None}
    assert len(where) == 1


def test_what_functions_look_for_in_a_text_comes_up(site: Site) -> None:
    def numbered(row: Any) -> tuple[str]:
        """A docstring; it is nothing to look for."""
        return (row.k.split("::")[1],) if row.v > 70_000 else (re.findall(r"<(\d+)>", row.k)[0],)

    made = rows(
        make_workload(moved(site, source(value="k STRING, v INT, w STRING").map(numbered, schema="x STRING")), Shape())
    )
    assert sum("::" in row["k"] for row in made) > 50
    assert sum(re.search(r"<\d+>", row["k"]) is not None for row in made) > 50
    assert 70_001 in {row["v"] for row in made}
    assert all(row["w"].startswith("w-") for row in made)
    assert not any("docstring" in row["k"] for row in made)


def test_keys_rest_where_there_are_sessions(site: Site) -> None:
    keyed = source().event_time("at", lateness="1 minute").key_by("k")
    made = rows(
        make_workload(moved(site, keyed.window(windows.session(gap="10 minutes")).aggregate(n="count(*)")), Shape())
    )
    times: dict[str, list[datetime]] = {}
    for row in made:
        times.setdefault(row["k"], []).append(datetime.fromisoformat(row["at"]))
    busy = [sorted(some) for some in times.values() if len(some) > 20]
    assert len(busy) > 5
    assert all(any(two - one > timedelta(minutes=10) for one, two in itertools.pairwise(some)) for some in busy)


def test_nothing_is_late_where_an_epoch_may_have_any_number_of_lines(site: Site) -> None:
    read = stream("in", FileSource(path="/srv/in", value=VALUE)).event_time("at", lateness="10 seconds")
    counted = read.window(windows.tumbling("1 minute")).aggregate(n="count(*)")
    job = redirect(Job("job", counted.to("out", FileSink(path="/srv/out")), guarantee=Guarantee.AT_LEAST_ONCE), site)
    assert make_workload(job, Shape(events=2000, rows_per_epoch=20, late_share=0.1)).late == ()


def test_files_get_lines(site: Site, tmp_path: Path) -> None:
    read = stream("in", FileSource(path="/srv/in", value="k STRING, v INT, b BOOLEAN", format="csv"))
    job = redirect(
        Job("job", read.to("out", FileSink(path="/srv/out")), guarantee=Guarantee.AT_LEAST_ONCE),
        Site("proof-1", "127.0.0.1:1", tmp_path / "site"),
    )
    made = make_workload(job, Shape(events=3))
    assert made.partitions == {"in-0": 1}
    assert all((event.value or b"").count(b",") == 2 for event in made.events)


def test_given_lines_are_taken_as_they_are(site: Site, tmp_path: Path) -> None:
    given, bad = tmp_path / "in.jsonl", tmp_path / "bad.jsonl"
    given.write_text('{"k": 7, "v": 1}\n\n{"k": 8, "v": 2}\n')
    bad.write_text("7\n")
    job = moved(site, source(value="v INT", key="k BIGINT"))
    made = make_workload(job, Shape(), {"in": given})
    assert [(event.key, event.value) for event in made.events] == [
        (bytes(7) + b"\x07", b'{"v":1}'),
        (bytes(7) + b"\x08", b'{"v":2}'),
    ]
    assert made.origin == "as given"
    for name, path, match in [("in", bad, "line 1"), ("other", given, "other"), ("in", tmp_path / "none", "read")]:
        with pytest.raises(Refused, match=match):
            make_workload(job, Shape(), {name: path})


def test_given_events_that_may_be_late_are_counted(site: Site, tmp_path: Path) -> None:
    given = tmp_path / "in.jsonl"
    seconds = (0, 30, 25, 15, 40, 31)  # 15 is behind 30 by more than ten seconds
    given.write_text("\n".join(json.dumps({"k": "a", "at": f"2026-01-01T00:00:{one:02}Z"}) for one in seconds))
    made = make_workload(moved(site, minute_counts()), Shape(), {"in": given})
    assert (made.unsure_count, made.partitions) == (1, {"in-0": 1})
    assert make_workload(moved(site, minute_counts()), Shape()).unsure_count == 0


@pytest.mark.parametrize(
    "example", ["order_volume", "requests_per_ip", "smoke_alarm", "system_usage", "crossings", "app_tracking"]
)
def test_the_examples_have_a_workload(example: str, site: Site) -> None:
    from lockgate.cli.jobfile import load_job

    job = load_job(str(Path(__file__).parents[3] / "examples" / f"{example}.py"), [])
    made = make_workload(redirect(job, site), Shape(events=500))
    assert len(made.events) == 500
