"""The state of real jobs, written in format 1 or made to run code, and then resumed.

Cells of a real checkpoint are replaced where state is dealt out to other partitions: there every cell is written again.
"""

import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, MemorySink, MemorySource, aggregates, get_state, stream
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.stateread import find_moment, read_state_of, stateful_operators
from lockgate.cli.jobfile import load_job
from lockgate.errors import CheckpointDamaged, FunctionFailed
from lockgate.operators.encoding import PLAIN
from lockgate.operators.pagestore import INDEX
from lockgate.spark import repartition
from lockgate.spark.keyed import state_name
from lockgate.spark.staterows import binary_row, cell_of, read_binary
from support.runs import run_to_the_end

from .test_rescaled_state import FILE, Place, events, feed, rows_of, totals

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Change = Callable[[str, bytes], bytes]


def rewrite(place: Place, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal the state out to one partition more, and change every cell, by its name, on the way."""
    deal_out = repartition.deal_out

    def dealt_and_changed(rows: Any, partitions: int, buckets: Any) -> Any:
        dealt, families = deal_out(rows, partitions, buckets), set(buckets.pages)

        def changed(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                made = batch.to_pylist()
                for row in made:
                    if row["column_family_name"] in families:
                        content = change(cell_of(row["key_bytes"]), read_binary(row["value_bytes"]))
                        row["value_bytes"] = binary_row(content)
                yield pa.RecordBatch.from_pylist(made, schema=batch.schema)

        return dealt.mapInArrow(changed, dealt.schema)

    with monkeypatch.context() as patched:
        patched.setattr(repartition, "deal_out", dealt_and_changed)
        assert place.command(3, "--yes") == 0


def cells_of(spark: SparkSession, place: Place, step: str) -> dict[str, bytes]:
    """The cells of a step, of all its partitions."""
    checkpoint = Checkpoint(root=place.checkpoint)
    moment, name = find_moment(checkpoint, None), state_name(step)
    (operator,) = (one for one in stateful_operators(spark, checkpoint) if name in one.states)
    rows = read_state_of(spark, checkpoint, operator.id, name, moment)
    cells = rows.selectExpr("partition_id", "user_map_key.name AS name", "user_map_value.content AS content").collect()
    return {f"{row['name']} of {row['partition_id']}": bytes(row["content"]) for row in cells}


def as_format_1() -> Change:
    """What writes a cell as the version before this format did, with tuples where lists are now."""

    def before(state: Any) -> Any:
        if len(state) < 4:
            return tuple(state)
        values, written, event, wall = state
        return values, written, [tuple(timer) for timer in event], [tuple(timer) for timer in wall]

    def change(cell: str, content: bytes) -> bytes:
        facts = PLAIN.decode(content)
        if cell == INDEX:
            wakes = {begin: (wake, wall) for begin, wake, wall in facts["wakes"]}
            return pickle.dumps({**facts, "format": 1, "wakes": wakes}, 5)
        _, hashes, sizes, times, body = facts
        ends = [0, *np.cumsum(np.frombuffer(sizes, "<u4")).tolist()]
        entries = [PLAIN.decode(body[start:end]) for start, end in itertools.pairwise(ends)]
        pickles = [pickle.dumps((tuple(key), before(state)), 5) for *key, state in entries]
        lengths = np.array([len(one) for one in pickles], "<u4").tobytes()
        return pickle.dumps((hashes, lengths, times, b"".join(pickles)), 5)

    return change


def test_a_job_continues_from_a_checkpoint_of_format_1_and_writes_format_2(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path, "python")
    feed(tmp_path, 0, 200)
    place.run()
    rewrite(place, as_format_1(), monkeypatch)
    for step in ("totals", "silences"):
        assert {content[:1] for content in cells_of(spark, place, step).values()} == {b"\x80"}
    feed(tmp_path, 200, 100)
    place.run()
    assert rows_of(tmp_path, "python", "totals") == totals(events(0, 300))
    # Every team had an event, so every page was written.
    assert b"\x80" not in {content[:1] for content in cells_of(spark, place, "totals").values()}
    (tmp_path / "straight").mkdir()
    straight = Place(tmp_path / "straight", "python")
    for first, count in ((0, 200), (200, 100)):
        feed(straight.root, first, count)
        straight.run()
    found = rows_of(tmp_path, "python", "silences")
    assert found == rows_of(straight.root, "python", "silences")
    assert len(found) > 20


class Runs:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("part", ["page", "key", "index"])
def test_code_in_a_checkpoint_does_not_run(
    part: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place, ran = Place(tmp_path, "python"), tmp_path / "ran"
    feed(tmp_path, 0, 40)
    place.run()
    attack = pickle.dumps(Runs(f"touch {ran}"), 5)
    page = pickle.dumps((bytes(8), len(attack).to_bytes(4, "little"), b"", attack), 5)

    def planted(cell: str, content: bytes) -> bytes:
        if part == "index":
            return attack if cell == "index" else content
        return content if cell == "index" else attack if part == "page" else page

    rewrite(place, planted, monkeypatch)
    feed(tmp_path, 40, 40)
    before = rows_of(tmp_path, "python", "totals")
    with pytest.raises(CheckpointDamaged) as refused:
        place.run()
    assert not ran.exists()
    assert "posix.system, which is no plain data" in refused.value.what
    assert refused.value.what.startswith("cell 'index' of" if part == "index" else "cell 'page ")
    assert "'totals', declared at" in refused.value.where or "'silences', declared at" in refused.value.where
    assert refused.value.where.endswith(f"checkpoint {place.checkpoint}")
    assert "restore the checkpoint from a savepoint" in refused.value.fix
    assert rows_of(tmp_path, "python", "totals") == before
    # Nor if the state is looked at.
    with pytest.raises(CheckpointDamaged, match=r"posix\.system, which is no plain data"):
        get_state(load_job(FILE, [f"root={tmp_path}", "kind=python"]), "totals", checkpoint=place.checkpoint)
    assert not ran.exists()
    pickle.loads(attack)
    assert ran.exists(), "this attack would have run its code"


class Best(NamedTuple):
    name: str
    score: int


def better(one: Any, two: Any) -> Best:
    """The one with the higher score; a value that comes first is what Spark gives, a dict."""
    first, second = (Best(**value) if isinstance(value, dict) else value for value in (one, two))
    return max(first, second, key=attrgetter("score"))


def unsaid(one: Any, two: Any) -> Any:
    return better(one, two)


@pytest.mark.usefixtures("spark")
def test_a_named_tuple_is_kept_if_the_function_says_that_it_gives_it(tmp_path: Path) -> None:
    def bests(function: Callable[[Any, Any], Any], sink: MemorySink, place: Path) -> None:
        rows = [("a", "x", 1), ("a", "y", 3), ("a", "z", 2), ("a", "w", 5)]
        source = stream("rows", MemorySource(rows, value="k STRING, name STRING, score INT", per_epoch=2))
        best = aggregates.combine(
            "named_struct('name', name, 'score', score)", function, "STRUCT<name: STRING, score: INT>"
        )
        rolled = source.key_by("k").rolling(name="bests", best=best)
        job = Job("bests", rolled.select("best").to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
        run_to_the_end(job, place)

    sink = MemorySink()
    bests(better, sink, tmp_path / "said")
    assert [tuple(row.best.values()) for row in sink.rows] == [("x", 1), ("y", 3), ("y", 3), ("w", 5)]
    with pytest.raises(FunctionFailed, match=r"state of key \('a',\) holds a value of type .*Best, which cannot"):
        bests(unsaid, MemorySink(), tmp_path / "unsaid")
