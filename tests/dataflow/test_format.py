"""Formats and kinds of joins: an enum and its text mean the same."""

from pathlib import Path
from typing import Any

import pytest

from lockgate import FileSink, FileSource, FileTable, Format, JoinKind, KafkaSink, KafkaSource, stream
from lockgate.dataflow.steps import Join
from lockgate.errors import BadJob

HERE = Path(__file__).name


@pytest.mark.parametrize("format", [Format.CSV, "csv"])
def test_a_format_is_a_member_or_its_text(format: Any) -> None:
    source = KafkaSource(topic="o", servers="h:1", value="a INT", format=format)
    assert source == KafkaSource(topic="o", servers="h:1", value="a INT", format="csv")
    assert source.columns("here").names == ("a",)
    assert FileSource(path="d", value="a INT", format=format).summary() == ("FileSource", "csv: d")
    assert FileSink("d", format).summary() == ("FileSink", "csv: d")
    assert FileTable(path="d", format=format, schema="a INT").summary() == ("FileTable", "csv: d")
    assert KafkaSink(topic="o", servers="h:1", format=format).format == "csv"


@pytest.mark.parametrize("format", [Format.PARQUET, "parquet"])
def test_a_format_of_another_endpoint_is_refused_with_those_that_are_possible(format: Any) -> None:
    with pytest.raises(BadJob) as refused:
        KafkaSink(topic="o", servers="h:1", format=format)
    assert refused.value.what == "format='parquet' is not possible here"
    assert refused.value.fix == "use one of json, csv, text, bytes"


@pytest.mark.parametrize("how", [JoinKind.LEFT, "left"])
def test_a_kind_of_join_is_a_member_or_its_text(how: Any) -> None:
    source = KafkaSource(topic="o", servers="h:1", value="a INT")
    step = stream("one", source).join(stream("other", source), on="a", within="1m", how=how).step
    assert isinstance(step, Join)
    assert step.how is JoinKind.LEFT
    assert f"{step.how} join" == "left join", "checkpoints hold this text"


def test_what_is_no_kind_of_join_is_refused_at_the_users_line() -> None:
    source = KafkaSource(topic="o", servers="h:1", value="a INT")
    with pytest.raises(BadJob) as refused:
        stream("one", source).join(stream("other", source), on="a", within="1m", how="outer")
    assert refused.value.what == "how='outer' is not a join"
    assert HERE in refused.value.where
    assert refused.value.fix == "how= one of inner, left, right, full"
