"""A step that a stream does not have: the error says what to write instead."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockgate import KafkaSource, KeyedStream, MemorySink, Stream, WindowedStream, stream, windows
from lockgate.dataflow import slips
from lockgate.errors import BadJob

HERE = Path(__file__).name
ROOT = Path(__file__).parents[2]


def orders() -> Any:
    return stream("orders", KafkaSource(topic="orders", servers="h:1", value="id BIGINT, cents BIGINT"))


def keyed() -> Any:
    return orders().key_by("id")


def windowed() -> Any:
    return keyed().window(windows.tumbling("1 minute"))


@pytest.mark.parametrize(
    ("slip", "what", "fix"),
    [
        (
            lambda: keyed().where("cents > 10"),
            "a stream that is grouped by key has no .where",
            "call .where(...) before .key_by(...), or on the result of",
        ),
        (
            lambda: keyed().to("out", MemorySink()),
            "a stream that is grouped by key has no .to",
            'call .to(...) on a result: .window(windows.tumbling("1 minute")).aggregate(n="count(*)").to(...)',
        ),
        (lambda: keyed().aggregate(n="count(*)"), "a stream that is grouped by key has no .aggregate", ".rolling("),
        (lambda: keyed().key_by("cents"), "a stream that is grouped by key has no .key_by", "all columns in one call"),
        (
            lambda: windowed().to("out", MemorySink()),
            "a stream that is grouped by windows has no .to",
            '.aggregate(n="count(*)").to(...), or .apply(...).to(...)',
        ),
        (lambda: windowed().where("true"), "a stream that is grouped by windows has no .where", "before .window(...)"),
        (lambda: windowed().late, "a stream that is grouped by windows has no .late", ".late from the result"),
        (lambda: orders().aggregate(n="count(*)"), "a stream of single events has no .aggregate", "over which events"),
        (lambda: orders().rolling(n="count(*)"), "a stream of single events has no .rolling", '.key_by("ip").rolling('),
    ],
)
def test_a_slip_says_what_to_write_instead(slip: Callable[[], Any], what: str, fix: str) -> None:
    with pytest.raises(BadJob) as refused:
        slip()
    assert refused.value.what == what
    assert HERE in refused.value.where
    assert fix in refused.value.fix


def steps(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_step_of_one_kind_of_stream_has_a_fix_at_the_others_and_none_at_its_own() -> None:
    kinds = (Stream, KeyedStream, WindowedStream)
    every = set().union(*map(steps, kinds))
    for kind in kinds:
        assert set(slips._FIXES[kind.__name__]) == every - steps(kind) - {"step", "keys", "tasks", "name", "told"}, kind


def test_a_name_that_no_stream_has_is_pythons_own_error() -> None:
    with pytest.raises(AttributeError, match="'KeyedStream' object has no attribute 'wear'") as missing:
        keyed().wear()
    assert not isinstance(missing.value, BadJob)


def test_the_hook_is_in_the_way_of_nothing() -> None:
    assert not hasattr(keyed(), "where")
    assert copy.copy(windowed()).keys == ("id",)
    assert isinstance(pickle.dumps(slips.NoSuchStep("what", "where", "fix")), bytes)


TYPED = """\
from lockgate import KafkaSource, stream, windows

orders = stream("orders", KafkaSource(topic="orders", servers="h:1", value="id BIGINT"))
windowed = orders.key_by("id").window(windows.tumbling("5m"))
windowed.aggregate(n="count(*)").select("id", "n")
orders.key_by("id").where("true")  # wrong
windowed.to("out")  # wrong
windowed.aggregate("count(*)")  # wrong
KafkaSource("orders", "h:1", "id BIGINT")  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_refuses_the_same_slips(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(TYPED)
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", ROOT / ".mypy_cache"]
    checked = subprocess.run([*words, job], cwd=ROOT, capture_output=True, text=True, check=False)
    refused = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if "error:" in line}
    wrong = {number for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
    assert refused == wrong, checked.stdout + checked.stderr
