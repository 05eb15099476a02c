"""What a checkpoint notes of its topics, compared with what several clusters have; the clusters here are a table."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockgate import KafkaSink, KafkaSource
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.errors import Refused, TopicGone
from lockgate.runtime import topicids
from lockgate.runtime.topicids import Ids, TopicIds, used_topics
from support.checkpoints import make_logs

Endpoint = KafkaSource | KafkaSink
EU, US = (KafkaSource(topic="in", servers=f"{name}:9092", value="id INT") for name in ("eu", "us"))
OUT_EU, OUT_US = (KafkaSink(topic="out", servers=f"{name}:9092") for name in ("eu", "us"))
NOTE = "described/topics.json"


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The id of every topic, by the servers where it is."""
    monkeypatch.setattr(topicids, "GONE_SECONDS", 0)
    return {"eu:9092": "EU/1", "us:9092": "US/2"}


class Faked(TopicIds):
    """Topics of clusters that nobody has started."""

    def __init__(self, checkpoint: Checkpoint, clusters: Mapping[str, str], *endpoints: Endpoint) -> None:
        super().__init__(checkpoint, used_topics(endpoints), where="test", accept="--accept-outputs")
        self.clusters = clusters

    def _look_up(self) -> Ids:
        return {used.key: self.clusters[used.servers] for used in self._used if used.servers in self.clusters}


def begin(checkpoint: Checkpoint, clusters: Mapping[str, str], *endpoints: Endpoint) -> None:
    """A start of a job: it compares, and notes."""
    started = Faked(checkpoint, clusters, *endpoints)
    started.check(accepts_outputs=False)
    started.keep()


@pytest.mark.parametrize("now", [[EU, EU], [US, EU], [US, US]], ids=["one moved", "swapped", "the other moved"])
def test_sources_of_one_name_in_two_clusters_are_compared_one_by_one(
    now: list[KafkaSource], clusters: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = make_logs(tmp_path, planned=2, committed=2)
    begin(checkpoint, clusters, EU, US)
    with pytest.raises(Refused, match=r"topic 'in' is in another Kafka cluster \((EU|US)\) than that of the job"):
        begin(checkpoint, clusters, *now)
    begin(checkpoint, clusters, EU, US)


@pytest.mark.parametrize("now", [[OUT_EU, OUT_EU], [OUT_US, OUT_EU]], ids=["one moved", "swapped"])
def test_outputs_of_one_name_in_two_clusters_are_compared_one_by_one(
    now: list[KafkaSink], clusters: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = make_logs(tmp_path, planned=2, committed=2)
    begin(checkpoint, clusters, EU, OUT_EU, OUT_US)
    with pytest.raises(Refused, match="topic 'out' is in another Kafka cluster") as refused:
        begin(checkpoint, clusters, EU, *now)
    assert "--accept-outputs" in refused.value.fix
    Faked(checkpoint, clusters, EU, *now).check(accepts_outputs=True)


def test_notes_of_earlier_versions_are_compared_and_replaced(clusters: dict[str, str], tmp_path: Path) -> None:
    checkpoint = make_logs(tmp_path, planned=2, committed=2)
    (tmp_path / "described").mkdir()
    (tmp_path / NOTE).write_text(json.dumps({"read in": ["EU/1", "US/2"], "write out": ["EU/1"]}))
    with pytest.raises(Refused, match="topic 'in' was deleted and created again"):
        begin(checkpoint, clusters | {"us:9092": "US/3"}, EU, US, OUT_EU)
    with pytest.raises(Refused, match="topic 'out' is in another Kafka cluster"):
        begin(checkpoint, clusters, EU, US, OUT_US)
    begin(checkpoint, clusters, EU, US, OUT_EU)
    with pytest.raises(Refused, match="topic 'in' is in another Kafka cluster"):
        begin(checkpoint, clusters, US, EU, OUT_EU)  # which the earlier note could not tell


def test_a_source_that_was_replaced_after_its_first_epoch_was_planned_is_refused(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = make_logs(tmp_path, planned=0, committed=0)
    begin(checkpoint, clusters, EU, OUT_EU)
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"in":{"0":100}}')  # it may be out; its commit is not logged
    with pytest.raises(Refused, match="topic 'in' was deleted and created again"):
        begin(checkpoint, {"eu:9092": "EU/new"}, EU)
    with pytest.raises(Refused, match="topic 'out' was deleted and created again"):
        begin(checkpoint, {"eu:9092": "EU/new"}, OUT_EU)
    begin(checkpoint, clusters, EU, OUT_EU)


@pytest.mark.parametrize(("first", "is_refused"), [(5, True), (0, False)])
def test_before_an_epoch_is_planned_a_source_counts_if_it_does_not_begin_with_its_first_record(
    first: int, is_refused: bool, clusters: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = make_logs(tmp_path, planned=0, committed=0)
    (tmp_path / "sources" / "0" / "0").write_text(f'\0v1\n{{"in":{{"0":{first}}}}}')
    begin(checkpoint, clusters, EU, OUT_EU)
    begin(checkpoint, {**clusters, "us:9092": "US/new"}, EU, OUT_US)  # nothing is written yet
    if is_refused:  # it would go on behind records that it has never read
        with pytest.raises(Refused, match="topic 'in' was deleted and created again"):
            begin(checkpoint, {"eu:9092": "EU/new"}, EU)
    else:
        begin(checkpoint, {"eu:9092": "EU/new"}, EU)
        assert json.loads((tmp_path / NOTE).read_text())["read in 0"] == "EU/new"


def test_a_query_that_is_watched_ends_when_a_topic_was_replaced(clusters: dict[str, str], tmp_path: Path) -> None:
    watched = Faked(make_logs(tmp_path, planned=1, committed=1), clusters, EU)
    watched.check(accepts_outputs=False)
    watched.keep()
    clusters["eu:9092"] = "EU/new"
    watched.watch()  # it was looked at a moment ago
    watched._looked_at -= 60
    with pytest.raises(TopicGone, match="was deleted and created again"):
        watched.watch()
