"""`lockgate ledger` and what it prints, against a real broker, real databases and real files."""

import json
import textwrap
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint, SourceRange, source_ranges
from lockgate.cli import main as cli
from lockgate.cli.ledger import count_records, describe, describe_ranges, describe_waiting, read_epoch
from lockgate.commit.ledger import Entry, Gap
from lockgate.commit.repair import keep_staged
from lockgate.connectors.files.filesystem import LocalSystem
from lockgate.connectors.files.store import FileStore
from lockgate.errors import Failed, Refused
from support.checkpoints import make_logs
from support.filesjob import FilesJob
from support.ledgers import Place, in_files, in_sqlite

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
QUERY = "0b7c4b8e-query"


def entry(epoch: int | None, *, query: str | None = QUERY, digest: str | None = None) -> Entry:
    told = digest or (None if epoch is None else f"digest-{epoch}")
    return Entry(run="a-run", query=query, epoch=epoch, digest=told, at=NOW.isoformat())


def written(checkpoint: Checkpoint, epoch: int) -> Entry:
    """The entry that the commit of this epoch has left."""
    return entry(epoch, digest=checkpoint.digest(epoch))


def test_gaps_that_were_accepted_are_shown() -> None:
    gap = Gap("orders", 1, start=200, end=1250, epoch=7, at="2026-01-31T12:00:00")
    assert describe(replace(entry(9), gaps=(gap,)))[-1] == (
        "gap         topic 'orders', partition 1: offsets [200, 1250), at most 1,050 records, skipped after epoch 7,"
        " accepted at 2026-01-31T12:00:00"
    )


def test_only_a_number_or_none_is_an_epoch() -> None:
    assert (read_epoch("0"), read_epoch("12"), read_epoch("None")) == (0, 12, None)
    for text in ("-1", "1.5", "latest", ""):
        with pytest.raises(Refused, match="is not an epoch"):
            read_epoch(text)


def test_what_epochs_read_is_reported_by_partition_as_far_as_it_is_known(tmp_path: Path) -> None:
    checkpoint = make_logs(tmp_path, planned=4, committed=4, query=QUERY)
    ranges = source_ranges(checkpoint, 2, 3)
    assert ranges == (SourceRange("in", 0, 25, 45), SourceRange("in", 1, 25, 45))
    assert count_records(ranges) == 40
    assert describe_ranges(ranges)[0] == "in-0: 25 to 45"
    assert source_ranges(checkpoint, 0, 0)[0] == SourceRange("in", 0, 5, 15)  # where the source began is kept beside
    assert source_ranges(checkpoint, 3, 9) == source_ranges(checkpoint, 3, 3)
    (tmp_path / "offsets" / "0").unlink()  # Spark keeps the last hundred
    assert source_ranges(checkpoint, 1, 1)[0].start is None
    assert describe_ranges(source_ranges(checkpoint, 1, 1)) == ["in-0: up to 25", "in-1: up to 25"]
    assert "not known" in describe_ranges(source_ranges(checkpoint, 8, 9))[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "some-job"], "add --servers"),
        (["show", "absent.py"], "there is no job file"),
        (["show", "not a name", "--servers", "h:1"], "no job can be named so"),
        (["show", "j", "--servers", "h:1", "-p", "a=b"], "-p is for the parameters of a job's file"),
        (["show", "j", "--servers", "h:1", "--client", "oops"], "NAME=VALUE"),
        (["set", "j", "--servers", "h:1", "--epoch", "many"], "is not an epoch"),
        (["set", "j", "--servers", "h:1", "--epoch", "3", "--checkpoint", "absent"], "there is no checkpoint"),
        (["set", "j", "--servers", "h:1", "--epoch", "3", "--checkpoint", "hdfs://h/c"], "this machine's disk"),
        (["show", "j", "--servers", "h:1", "--files", "d"], "said twice where the ledger"),
        (["show", "j", "--files", "d", "--sqlite", "f"], "said twice where the ledger"),
        (["show", "j.py", "--files", "d"], "says where its ledgers are"),
        (["show", "j", "--files", "absent"], "there is no directory"),
        (["show", "j", "--files", "hdfs://h/d"], "_lockgate/j: it has the ledger"),
        (["show", "j", "--files", ".", "-p", "a=b"], "-p is for a job's file"),
        (["show", "j", "--sqlite", ".", "--client", "a=b"], "--client is for Kafka"),
        (["show", "j", "--sqlite", "absent.db"], "there is no file"),
        (["show", "j", "--sqlite", __file__], "file is not a database"),
        (["show", "j", "--postgres", "not a dsn"], "the dsn cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_service_is_asked(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ledger", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_database_that_is_not_there_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lockgate.connectors.postgres.ledger._PATIENCE", timedelta(0))
    assert cli.main(["ledger", "show", "j", "--postgres", "postgresql://u:s3cret@127.0.0.1:1/d"]) == 2
    said = capsys.readouterr().err
    assert "PostgreSQL is not there" in said
    assert "s3cret" not in said


@pytest.mark.system
def test_a_ledger_is_shown_set_and_re_created(kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = f"ledger-{uuid4().hex[:8]}"
    checkpoint = make_logs(tmp_path / "checkpoint", planned=4, committed=3, query=QUERY)
    options = [job, "--servers", kafka, "--checkpoint", checkpoint.root]
    assert cli.main(["ledger", "show", *options]) == 1
    assert f"there is no topic 'lockgate.{job}.ledger'" in capsys.readouterr().err

    assert cli.main(["ledger", "set", *options, "--epoch", "2"]) == 0
    told = capsys.readouterr().out
    assert f"the ledger is gone (there is no topic 'lockgate.{job}.ledger'); it is re-created" in told
    assert "epochs 0..2 will never be written again" in told
    assert "in-0: 5 to 35" in told
    assert "60 offsets in all" in told
    assert told.endswith("nothing was written; add --yes\n")
    assert cli.main(["ledger", "show", *options]) == 1  # it was only said
    capsys.readouterr()

    assert cli.main(["ledger", "set", *options, "--epoch", "2", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("written\n")
    assert cli.main(["ledger", "show", *options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["entry"]["epoch"] == 2
    assert facts["entry"]["digest"] == checkpoint.digest(2)
    assert facts["entry"]["query"] == QUERY
    assert facts["entry"]["run"].startswith("ledger-set-")
    assert (facts["fits"], facts["next_epoch"]) == (True, 3)

    assert cli.main(["ledger", "set", *options, "--epoch", "3", "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["before"]["epoch"], facts["after"]["epoch"]) == (2, 3)
    assert (facts["written_again"], facts["never_written"]) == (None, [3, 3])
    assert "epoch 3 is committed and will be skipped" in facts["then"]
    assert facts["written"] is True
    assert cli.main(["ledger", "show", *options]) == 0
    assert "epoch 3 is committed and will be skipped" in capsys.readouterr().out

    # Back again: what is out will be doubled.
    assert cli.main(["ledger", "set", *options, "--epoch", "2", "--yes"]) == 0
    assert "The ledger is at 3, you set 2: epoch 3 will be written again" in capsys.readouterr().out
    assert cli.main(["ledger", "set", *options, "--epoch", "0", "--yes"]) == 2
    assert "continues with epoch 3" in capsys.readouterr().err


@pytest.mark.system
def test_a_ledger_that_moves_while_a_person_decides_is_left_alone(kafka: str, tmp_path: Path) -> None:
    from lockgate.cli.target import connected
    from lockgate.connectors.kafka.ledgeredit import open_transactions, replace_entry
    from lockgate.connectors.kafka.ledgertopic import LedgerTopic
    from lockgate.connectors.kafka.settings import read_settings

    job = f"moving-{uuid4().hex[:8]}"
    with connected(read_settings(kafka, {}, where="test"), "test") as connection:
        ledger = LedgerTopic(connection, job, where="test")
        ledger.ensure(())
        transactions = open_transactions(connection, job, "test")
        replace_entry(ledger, transactions, None, entry(1))
        replace_entry(ledger, transactions, entry(1), entry(2))
        with pytest.raises(Failed, match="has moved since it was looked at, to epoch 2"):
            replace_entry(ledger, transactions, entry(1), entry(3))
        assert ledger.peek() == entry(2)


HOSTILE = {
    "text": b"not ours",
    "deep": b"[" * 100_000,
    "huge": b'{"format": 1, "epoch": ' + b"9" * 5_000 + b"}",
    "nan": b'{"format": 1, "epoch": NaN}',
    "types": b'{"format": 1, "run": [], "epoch": {}}',
    "long": b'{"format": 1, "run": "' + b"x" * 900_000 + b'"}',
    "bytes": bytes(range(256)),
}


@pytest.mark.system
def test_one_hostile_record_blocks_neither_show_nor_set(
    kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.records import send

    job = f"broken-{uuid4().hex[:8]}"
    checkpoint = make_logs(tmp_path / "checkpoint", planned=2, committed=2, query=QUERY)
    options = [job, "--servers", kafka, "--checkpoint", checkpoint.root]
    assert cli.main(["ledger", "set", *options, "--epoch", "1", "--yes"]) == 0
    capsys.readouterr()
    for value in HOSTILE.values():
        send(kafka, f"lockgate.{job}.ledger", [value], key=lambda value: b"ledger")
        assert cli.main(["ledger", "show", *options]) == 1
        told = capsys.readouterr().err
        assert "the ledger's last entry cannot be read" in told
        assert "where: offset " in told
        assert len(told) < 2_000
        assert cli.main(["ledger", "set", *options, "--epoch", "1", "--yes"]) == 0
        assert "cannot be read" in capsys.readouterr().out
        assert cli.main(["ledger", "show", *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["entry"]["epoch"] == 1


@pytest.mark.system
def test_records_with_another_key_are_not_the_ledger(
    kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.records import send

    job = f"foreign-{uuid4().hex[:8]}"
    checkpoint = make_logs(tmp_path / "checkpoint", planned=2, committed=2, query=QUERY)
    options = [job, "--servers", kafka, "--checkpoint", checkpoint.root]
    assert cli.main(["ledger", "set", *options, "--epoch", "1", "--yes"]) == 0
    forged = entry(9).to_bytes()
    send(kafka, f"lockgate.{job}.ledger", [forged, b"not ours"], key=lambda value: b"x")
    capsys.readouterr()
    assert cli.main(["ledger", "show", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entry"]["epoch"] == 1


# Without Kafka


def test_a_ledger_in_any_system_is_shown_and_set_as_that_of_kafka_is(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_logs(tmp_path / "checkpoint", planned=4, committed=3, query=QUERY)
    options = [place.job, *place.option, "--checkpoint", checkpoint.root]
    assert cli.main(["ledger", "show", *options]) == 1
    told = capsys.readouterr().err
    assert f"job {place.job!r} has no ledger" in told
    assert f"--checkpoint PLACE {place.option[0]} " in told

    assert cli.main(["ledger", "set", *options, "--epoch", "2"]) == 0
    told = capsys.readouterr().out
    assert "it is re-created" in told
    assert "epochs 0..2 will never be written again" in told
    assert told.endswith("nothing was written; add --yes\n")
    with closing(place.open()) as ledger:
        assert not ledger.exists  # it was only said

    assert cli.main(["ledger", "set", *options, "--epoch", "2", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("written\n")
    assert cli.main(["ledger", "show", *options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["entry"]["epoch"], facts["entry"]["digest"]) == (2, checkpoint.digest(2))
    assert facts["entry"]["run"].startswith("ledger-set-")
    assert (facts["fits"], facts["next_epoch"], facts["waiting"], facts["followers"]) == (True, 3, [], [])

    assert cli.main(["ledger", "set", *options, "--epoch", "3", "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["before"]["epoch"], facts["after"]["epoch"]) == (2, 3)
    assert (facts["written_again"], facts["never_written"], facts["written"]) == (None, [3, 3], True)
    assert cli.main(["ledger", "show", *options]) == 0
    told = capsys.readouterr().out
    assert place.name in told
    assert "epoch       3\n" in told
    assert "epoch 3 is committed and will be skipped" in told
    assert "s3cret" not in told

    assert cli.main(["ledger", "set", *options, "--epoch", "2", "--yes"]) == 0
    assert "The ledger is at 3, you set 2: epoch 3 will be written again" in capsys.readouterr().out
    assert cli.main(["ledger", "set", *options, "--epoch", "0", "--yes"]) == 2
    assert "continues with epoch 3" in capsys.readouterr().err


def test_a_ledger_in_any_system_is_left_alone_where_it_moves_while_a_person_decides(place: Place) -> None:
    with closing(place.open()) as ledger, closing(place.open()) as another:
        ledger.replace(None, entry(1))
        with pytest.raises(Failed, match="has moved since it was looked at, to epoch 1"):
            another.replace(None, entry(2))
        another.replace(entry(1), entry(2))
        with pytest.raises(Failed, match="has moved since it was looked at, to epoch 2"):
            ledger.replace(entry(1), entry(3))
        assert ledger.peek() == another.peek() == entry(2)


def test_a_ledger_that_cannot_be_read_can_be_set_in_any_system(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_logs(tmp_path / "checkpoint", planned=2, committed=2, query=QUERY)
    options = [place.job, *place.option, "--checkpoint", checkpoint.root]
    assert cli.main(["ledger", "set", *options, "--epoch", "1", "--yes"]) == 0
    place.spoil()
    capsys.readouterr()
    assert cli.main(["ledger", "show", *options]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["ledger", "set", *options, "--epoch", "1"]) == 0
    assert "cannot be read" in capsys.readouterr().out
    assert cli.main(["ledger", "show", *options]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["ledger", "set", *options, "--epoch", "1", "--yes"]) == 0
    assert cli.main(["ledger", "show", *options]) == 0


def test_what_a_damaged_manifest_gives_up_is_said_and_without_yes_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files_job = FilesJob(tmp_path / "out", job="orders")
    for epoch in range(3):
        files_job.commit(files_job.store(), epoch, [epoch])
    (tmp_path / "out" / "_lockgate" / "orders" / f"{3:020}.json").write_text("{")
    lost = next(name for name in files_job.data() if name.startswith("2-"))
    checkpoint = make_logs(tmp_path / "checkpoint", planned=3, committed=3, query="query")
    words = ["ledger", "set", "orders", "--files", str(files_job.root), "--checkpoint", checkpoint.root, "--epoch", "2"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "Manifest 3 is given up. No reader sees the files of these 1 directories any more:" in told
    assert f"  data/orders/{lost}: 1 files, 9 bytes\n" in told
    assert "The ledger is at 1, you set 2: epoch 2 will never be written again" in told
    assert files_job.manifests() == [1, 2, 3]
    assert cli.main([*words, "--yes"]) == 0
    assert files_job.seen() == [0, 1]


def test_lost_manifests_are_not_re_created_over_existing_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = in_files("lost", tmp_path)
    data = tmp_path / "out" / "data" / "lost" / "0-abc" / "part-0.json"
    data.parent.mkdir(parents=True)
    data.write_text("{}\n")
    checkpoint = make_logs(tmp_path / "checkpoint", planned=2, committed=2, query=QUERY)
    options = ["lost", *place.option, "--checkpoint", checkpoint.root]
    for command in (["show", *options], ["set", *options, "--epoch", "1"], ["set", *options, "--epoch", "1", "--yes"]):
        assert cli.main(["ledger", *command]) == 1
        assert "no manifest names them" in capsys.readouterr().err
    assert not (tmp_path / "out" / "_lockgate").exists()


def test_what_is_staged_and_not_published_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = in_files("staging", tmp_path)
    with closing(place.open()) as ledger:
        ledger.replace(None, entry(0))
    store = FileStore(LocalSystem(tmp_path / "out"), "staging", kind="json", partition_by=(), roll_bytes=1000)
    directory = store.fresh_directory(1)
    (tmp_path / "out" / directory).mkdir(parents=True)
    (tmp_path / "out" / directory / "part-0.json").write_text("{}\n")
    assert cli.main(["ledger", "show", "staging", *place.option]) == 0
    assert f"waiting     1 staged and not published: {directory}\n" in capsys.readouterr().out
    store.publish(store.seal(directory, "n INT"), entry(1), after=entry(0))
    assert cli.main(["ledger", "show", "staging", *place.option]) == 0
    assert "waiting" not in capsys.readouterr().out
    assert describe_waiting(["a", "b", "c", "d"])[0].endswith("4 staged and not published: a, b, c, ...")


def test_what_followers_have_still_to_publish_is_not_forgotten() -> None:
    named = replace(entry(3), staged={"files": "name"})
    assert keep_staged(named, entry(3)).staged == {"files": "name"}
    assert keep_staged(named, entry(2)).staged == {}
    assert keep_staged(named, entry(3, digest="another")).staged == {}
    assert keep_staged(None, entry(3)).staged == {}


SYSTEMS = """
    from lockgate import ConsoleSink, FileSink, FileSource, Guarantee, Job, SqliteSink, stream

    def job(root: str) -> Job:
        events = stream("events", FileSource(path=f"{root}/in", value="id INT"))
        return Job(
            "systems",
            events.to("copies", FileSink(f"{root}/out")),
            events.to("rows", SqliteSink(table="out", path=f"{root}/results.db")),
            events.to("screen", ConsoleSink(), guarantee=Guarantee.AT_LEAST_ONCE),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        )
"""


def test_the_file_of_a_job_says_which_system_decides_and_how_the_others_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "systems.py").write_text(textwrap.dedent(SYSTEMS))
    (tmp_path / "in").mkdir()
    checkpoint = make_logs(tmp_path / "checkpoint", planned=4, committed=3, query=QUERY)
    decides, follows = in_sqlite("systems", tmp_path), in_files("systems", tmp_path)
    options = [str(tmp_path / "systems.py"), "-p", f"root={tmp_path}", "--checkpoint", checkpoint.root]

    def show() -> tuple[int, str, str]:
        assert cli.main(["ledger", "show", *options, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        (one,) = facts["followers"]
        assert one["name"] == "copies"
        return facts["entry"]["epoch"], one["standing"], one["says"]

    at = {number: written(checkpoint, number) for number in range(4)}
    with closing(decides.open()) as deciding, closing(follows.open()) as following:
        deciding.replace(None, at[1])
        assert show() == (1, "new", "nothing at all; it begins with the next epoch")
        following.replace(None, at[1])
        assert show()[:2] == (1, "even")
        deciding.replace(at[1], replace(at[2], staged={"copies": "a name"}))
        assert show()[:2] == (2, "behind")

        # The same epoch again keeps the names; another one shows what has to be set, too.
        assert cli.main(["ledger", "set", *options, "--epoch", "2", "--yes"]) == 0
        assert "Set it, too" not in capsys.readouterr().out
        kept = deciding.peek()
        assert kept is not None
        assert kept.staged == {"copies": "a name"}
        assert cli.main(["ledger", "set", *options, "--epoch", "3", "--yes"]) == 0
        told = capsys.readouterr().out
        assert "The next run will stop at the ledger of copies (epoch 1 is committed" in told
        assert "lockgate ledger set systems --epoch 3 --checkpoint PLACE --files DIR" in told
        assert show()[1] == "elsewhere"
        follower = ["systems", *follows.option, "--checkpoint", checkpoint.root]
        assert cli.main(["ledger", "set", *follower, "--epoch", "3", "--yes"]) == 0
        capsys.readouterr()
        assert show()[:2] == (3, "even")

    assert cli.main(["transactions", "show", *options[:3]]) == 2
    assert "has no Kafka output" in capsys.readouterr().err


def test_of_two_clusters_the_first_is_meant_and_another_has_to_be_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "two.py"
    file.write_text(
        textwrap.dedent("""\
        from lockgate import Guarantee, Job, KafkaSink, MemorySource, stream

        def job() -> Job:
            rows = stream("rows", MemorySource([], value="id INT"))
            sinks = [KafkaSink(topic="t", servers=f"127.0.0.1:{port}") for port in (1, 2)]
            outputs = [rows.to(f"out-{index}", sink) for index, sink in enumerate(sinks)]
            return Job("two", *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
        """)
    )
    assert cli.main(["ledger", "show", str(file), "--servers", "127.0.0.1:3"]) == 2
    assert "127.0.0.1:1; 127.0.0.1:2" in capsys.readouterr().err
    assert cli.main(["ledger", "show", str(file)]) == 2
    assert "no Kafka broker answers at 127.0.0.1:1" in capsys.readouterr().err
    assert cli.main(["checkpoints", "rollback", str(file), "--uncommitted", "--servers", "127.0.0.1:2"]) == 2
    assert "commits in another cluster before this one" in capsys.readouterr().err
