"""The commands that change a checkpoint, over one made by hand and the ledgers of every system beside Kafka."""

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.locking import lock_shared
from lockgate.checkpoints.marker import write_marker
from lockgate.checkpoints.savepoints import lay_out
from lockgate.checkpoints.tree import LocalTree
from lockgate.cli import main as cli
from lockgate.commit.ledger import Entry
from support.checkpoints import make_checkpoint
from support.ledgers import Place


class JobAndLedger:
    """A job with twelve epochs, all of them out, and its ledger."""

    def __init__(self, place: Place, directory: Path) -> None:
        self.place = place
        self.tree = make_checkpoint(directory / "checkpoint", job=place.job)
        self.checkpoint = Checkpoint(root=self.tree.root)
        self.target = [place.job, *place.option, "--checkpoint", self.tree.root]
        self.set(11)

    def set(self, epoch: int) -> None:
        with closing(self.place.open()) as ledger:
            ledger.replace(ledger.peek() if ledger.exists else None, self.entry(epoch))

    def entry(self, epoch: int) -> Entry:
        return Entry(run="r", query="q", epoch=epoch, digest=self.checkpoint.digest(epoch), at="2026-01-31")

    def out(self) -> int | None:
        with closing(self.place.open()) as ledger:
            entry = ledger.peek()
            return None if entry is None else entry.epoch

    def run(self, command: str, *options: str) -> int:
        return cli.main(["checkpoints", command, *self.target, *options])


@pytest.fixture
def site(place: Place, tmp_path: Path) -> JobAndLedger:
    return JobAndLedger(place, tmp_path)


def test_clean_says_first_what_would_go(site: JobAndLedger, capsys: pytest.CaptureFixture[str]) -> None:
    aside = make_checkpoint(Path(f"{site.tree.root}.before-20260131T120000Z"), job=site.place.job, epochs=1)
    assert site.run("clean", "--keep", "2") == 0
    told = capsys.readouterr().out
    assert "2 epochs to go back to, 10 to 11" in told
    assert "stays, without --lives" in told
    assert told.endswith("nothing was removed; add --yes\n")
    assert look_at(site.tree).planned == list(range(12))
    assert site.run("clean", "--keep", "2", "--yes", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["removed"]
    assert facts["kept"] == [10, 11]
    assert look_at(site.tree).planned == [9, 10, 11]
    assert aside.exists()
    assert site.run("clean", "--keep", "2", "--yes", "--lives") == 0
    assert not aside.exists()
    assert site.tree.exists()


def test_links_lead_no_command_that_deletes_out_of_the_checkpoint(site: JobAndLedger, tmp_path: Path) -> None:
    outside = make_checkpoint(tmp_path / "outside", job=site.place.job)
    before = [entry.name for entry in outside.entries()]
    life = Path(f"{site.tree.root}.before-20260131T120000Z")
    life.symlink_to(outside.path)  # another directory that carries the marker of the job
    state = site.tree.path / "state" / "0" / "7"
    state.symlink_to(outside.path / "state" / "0" / "0")
    (site.tree.path / "offsets" / "0").unlink()
    (site.tree.path / "offsets" / "0").symlink_to(outside.path / "offsets" / "0")
    assert site.run("clean", "--keep", "2", "--lives", "--yes") == 0
    assert site.run("rollback", "--to", "10", "--outputs", "again", "--yes") == 0
    assert [entry.name for entry in outside.entries()] == before
    assert life.is_symlink()
    assert state.is_symlink()


def test_rollback_to_an_epoch_asks_what_becomes_of_committed_rows(
    site: JobAndLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.run("rollback", "--to", "8", "--yes") == 2
    told = capsys.readouterr().err
    assert "epochs 9 to 11 are committed; going back would deliver their rows a second time" in told
    assert "--outputs again" in told
    assert site.run("rollback", "--to", "8", "--outputs", "skip", "--yes") == 2
    assert "Spark repeats only the last epoch over the same events" in capsys.readouterr().err
    assert site.run("rollback", "--to", "8", "--outputs", "again") == 0
    told = capsys.readouterr().out
    assert "30 offsets in all" in told
    assert told.endswith("nothing was changed; add --yes\n")
    assert (look_at(site.tree).committed[-1], site.out()) == (11, 11)
    assert site.run("rollback", "--to", "8", "--outputs", "again", "--yes", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["out"], facts["records_at_most"], facts["done"]) == (11, 30, True)
    assert (look_at(site.tree).planned[-1], look_at(site.tree).committed[-1], site.out()) == (8, 8, 8)
    assert site.run("rollback", "--to", "8", "--outputs", "again", "--yes") == 2
    assert "epoch 8 is already the last one" in capsys.readouterr().err


def test_one_epoch_can_be_computed_again_without_being_delivered(site: JobAndLedger) -> None:
    assert site.run("rollback", "--to", "10", "--outputs", "skip", "--yes") == 0
    assert (look_at(site.tree).planned[-1], look_at(site.tree).committed[-1], site.out()) == (11, 10, 11)
    assert cli.main(["ledger", "show", *site.target]) == 0


def test_an_epoch_whose_offsets_the_checkpoint_does_not_have_is_not_skipped(
    site: JobAndLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    site.tree.remove("offsets/11")  # an older copy, and the job has gone on
    site.tree.remove("commits/11")
    assert site.run("rollback", "--to", "10", "--outputs", "skip", "--yes") == 2
    told = capsys.readouterr().err
    assert "epoch 11 is committed, and the checkpoint does not have its offsets" in told
    assert "--outputs again" in told
    assert site.run("rollback", "--to", "10", "--yes") == 2
    assert "--outputs skip" not in capsys.readouterr().err
    assert site.out() == 11
    assert site.run("rollback", "--to", "10", "--outputs", "again", "--yes") == 0
    assert look_at(site.tree).last == site.out() == 10


def test_the_epoch_of_a_rescaling_is_not_skipped(site: JobAndLedger, capsys: pytest.CaptureFixture[str]) -> None:
    offsets = site.tree.read("offsets/11") or b""
    site.tree.write(
        "offsets/11", offsets.replace(b'"spark.sql.shuffle.partitions": "2"', b'"spark.sql.shuffle.partitions": "1"')
    )
    site.set(11)
    assert site.run("rollback", "--to", "10", "--outputs", "skip", "--yes") == 2
    assert "epoch 11 was added by a rescaling" in capsys.readouterr().err
    assert site.run("rollback", "--to", "10", "--outputs", "again", "--yes") == 0
    assert look_at(site.tree).last == site.out() == 10


def test_a_rollback_that_died_halfway_is_given_again(site: JobAndLedger, capsys: pytest.CaptureFixture[str]) -> None:
    site.set(8)  # the ledger was set, and nothing removed
    assert site.run("rollback", "--to", "8", "--yes") == 0
    assert "No epoch after epoch 8 is committed" in capsys.readouterr().out
    assert look_at(site.tree).planned[-1] == 8


def test_an_epoch_that_is_gone_names_the_oldest(site: JobAndLedger, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("clean", "--keep", "2", "--yes") == 0
    assert site.run("rollback", "--to", "3", "--outputs", "again", "--yes") == 2
    assert "go back to epoch 10, the oldest one that is complete" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [("clean", "--keep", "2", "--yes"), ("rollback", "--to", "8", "--outputs", "again", "--yes")],
    ids=["clean", "rollback"],
)
def test_nothing_is_removed_beside_a_driver_or_in_a_strangers_directory(
    site: JobAndLedger, command: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = [entry.name for entry in site.tree.entries()]
    held = lock_shared(site.tree.path, site.place.job)
    assert held is not None
    with closing(held):
        assert site.run(*command) == 2
        assert "runs: it holds the checkpoint" in capsys.readouterr().err
    marker = site.tree.read("lockgate.json") or b""
    site.tree.remove("lockgate.json")
    assert site.run(*command) == 2
    assert "carries no marker" in capsys.readouterr().err
    site.tree.write("lockgate.json", marker.replace(site.place.job.encode(), b"strangers"))
    assert site.run(*command) == 2
    assert "is the checkpoint of job 'strangers'" in capsys.readouterr().err
    site.tree.write("lockgate.json", marker)
    assert [entry.name for entry in site.tree.entries()] == before
    assert site.out() == 11

    for option, told in (("/", "the root of a file system"), (str(tmp_path), "carries no marker")):
        target = [site.place.job, *site.place.option, "--checkpoint", option]
        assert cli.main(["checkpoints", command[0], *target, *command[1:]]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "gone",
    [("9.changelog", "10.zip", "6.zip", "2.zip"), ("SSTs/10.sst", "SSTs/6.sst", "SSTs/2.sst")],
    ids=["changes and snapshots", "tables"],
)
@pytest.mark.parametrize(
    "command",
    [
        ("clean", "--keep", "2", "--yes"),
        ("rollback", "--to", "8", "--outputs", "again", "--yes"),
        ("rollback", "--to", "10", "--outputs", "skip", "--yes"),
        ("savepoint", "--to", "saved"),
    ],
    ids=["clean", "rollback", "skip", "savepoint"],
)
def test_nothing_is_removed_from_a_broken_checkpoint_nor_copied(
    site: JobAndLedger,
    command: tuple[str, ...],
    gone: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in gone:
        site.tree.remove(f"state/0/1/{name}")
    before = [entry.name for entry in site.tree.entries()]
    assert site.run(*command) in (1, 2)
    assert "epoch" in capsys.readouterr().err
    assert [entry.name for entry in site.tree.entries()] == before
    assert site.out() == 11
    assert not (tmp_path / "saved").exists()


def test_the_last_whole_snapshot_stays_where_a_newer_one_lacks_a_table(
    site: JobAndLedger, capsys: pytest.CaptureFixture[str]
) -> None:
    site.tree.remove("state/0/1/SSTs/10.sst")
    before = [entry.name for entry in site.tree.entries()]
    assert site.run("clean", "--keep", "1", "--yes") == 1
    assert (
        "the snapshot state/0/1/10.zip cannot be loaded: it lists 10.sst, which is missing" in capsys.readouterr().err
    )
    assert [entry.name for entry in site.tree.entries()] == before
    assert site.run("rollback", "--to", "10", "--outputs", "skip", "--yes") == 0
    assert site.run("clean", "--keep", "1", "--yes") == 0
    left = {entry.name.removeprefix("state/0/1/") for entry in site.tree.entries("state/0/1")}
    assert left == {"6.zip", "SSTs/6.sst", *(f"{version}.changelog" for version in range(6, 12))}


def test_what_destroys_is_refused_through_a_link(
    site: JobAndLedger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(site.tree.path)
    saved = str(tmp_path / "saved")
    target = [site.place.job, *site.place.option, "--checkpoint", str(link)]
    before = [entry.name for entry in site.tree.entries()]
    assert cli.main(["checkpoints", "savepoint", *target, "--to", saved]) == 0, "a copy harms nobody"
    for words in (
        ["clean", *target, "--keep", "2", "--yes"],
        ["rollback", *target, "--to", "8", "--outputs", "again", "--yes"],
        ["restore", saved, *target, "--put-aside"],
    ):
        assert cli.main(["checkpoints", *words]) == 2
        told = capsys.readouterr().err
        assert f"{link} is a link, not a checkpoint" in told
        assert f"name the target of the link: {site.tree.path}" in told
    site.tree.write("offsets/12", site.tree.read("offsets/11") or b"")
    assert cli.main(["checkpoints", "rollback", *target, "--uncommitted", "--yes"]) == 2
    assert "is a link" in capsys.readouterr().err
    site.tree.remove("offsets/12")
    assert [entry.name for entry in site.tree.entries()] == before
    assert link.is_symlink()


def test_a_savepoint_is_restored_under_its_old_name_only_if_nothing_comes_twice(
    site: JobAndLedger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "saved")
    assert site.run("savepoint", "--to", place, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["job"], facts["epoch"], facts["was_running"]) == (site.place.job, 11, False)
    restore = ["checkpoints", "restore", place, *site.target]
    assert cli.main(restore) == 2
    assert "has a checkpoint already" in capsys.readouterr().err
    assert cli.main([*restore, "--put-aside"]) == 0
    assert look_at(site.tree).reachable == [11]
    assert site.out() == 11
    assert cli.main(["ledger", "show", *site.target]) == 0
    assert "the checkpoint's next epoch is 12" in capsys.readouterr().out

    with closing(site.place.open()) as ledger:  # the job has gone on
        ledger.replace(ledger.peek(), Entry(run="r", query="q", epoch=14, digest="of-14", at="2026-01-31"))
    elsewhere = [*restore[:-1], str(tmp_path / "elsewhere")]
    assert cli.main(elsewhere) == 2
    assert "what was committed after it would be delivered again" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
    assert cli.main([*elsewhere, "--outputs", "again"]) == 0
    assert "TWICE" in capsys.readouterr().out
    assert site.out() == 11


def test_a_savepoint_begins_the_ledger_of_another_name(
    site: JobAndLedger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "saved")
    held = lock_shared(site.tree.path, site.place.job)  # the job runs on
    assert held is not None
    with closing(held):
        assert site.run("savepoint", "--to", place, "--json") == 0
    assert json.loads(capsys.readouterr().out)["was_running"]
    target = [f"{site.place.job}-two", *site.place.option, "--checkpoint", str(tmp_path / "two")]
    assert cli.main(["checkpoints", "restore", place, *target]) == 0
    assert f"Rows that job '{site.place.job}' has committed stay under that name" in capsys.readouterr().out
    assert site.out() == 11
    assert cli.main(["ledger", "show", *target, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["entry"]["epoch"], facts["next_epoch"], facts["fits"]) == (11, 12, True)
    assert Checkpoint(root=str(tmp_path / "two")).query() != "q"
    assert cli.main(["checkpoints", "clean", *target, "--keep", "1"]) == 0


def test_a_place_where_a_run_only_began_may_be_restored_to_and_one_that_is_in_use_may_not(
    site: JobAndLedger, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, job = str(tmp_path / "saved"), f"{site.place.job}-two"
    assert site.run("savepoint", "--to", saved) == 0
    two = LocalTree(tmp_path / "two")
    target = [job, *site.place.option, "--checkpoint", two.root]

    def start_meanwhile(*arguments: Any, **more: Any) -> None:
        two.write("offsets/0", b"of a driver that was started meanwhile")
        lay_out(*arguments, **more)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("lockgate.checkpoints.restoring.lay_out", start_meanwhile)
        assert cli.main(["checkpoints", "restore", saved, *target]) == 1
    assert "could not be put in place" in capsys.readouterr().err
    assert [entry.name for entry in two.entries()] == ["offsets/0"]
    assert not [one.name for one in tmp_path.iterdir() if "restoring" in one.name]
    two.remove("offsets")
    write_marker(two, job, datetime(2026, 1, 31, tzinfo=UTC))
    assert cli.main(["checkpoints", "restore", saved, *target]) == 0
    assert look_at(two).last == 11


def test_rescaling_wants_the_marker_and_to_be_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counts.py").write_text(
        "from lockgate import ConsoleSink, FileSource, Guarantee, Job, stream\n"
        "def job() -> Job:\n"
        "    rows = stream('rows', FileSource(path='/data/in', value='id INT'))\n"
        "    counts = rows.key_by('id').rolling(name='counts', total='count(*)')\n"
        "    return Job('counts', counts.to('out', ConsoleSink()), guarantee=Guarantee.AT_LEAST_ONCE)\n"
    )
    monkeypatch.chdir(tmp_path)
    tree = make_checkpoint(tmp_path / ".lockgate" / "checkpoints" / "counts", job="counts")
    rescale = ["checkpoints", "rescale", "counts.py", "--partitions", "3"]
    assert cli.main(rescale) == 0
    capsys.readouterr()
    held = lock_shared(tree.path, "counts")
    assert held is not None
    with closing(held):
        assert cli.main([*rescale, "--yes"]) == 2
    assert "runs: it holds the checkpoint" in capsys.readouterr().err
    tree.remove("lockgate.json")
    assert cli.main([*rescale, "--yes"]) == 2
    assert "carries no marker" in capsys.readouterr().err
    assert look_at(tree).planned[-1] == 11


def test_a_directory_that_is_no_savepoint_is_refused(site: JobAndLedger, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoints", "restore", site.tree.root, *site.target]) == 2
    assert "this is not a savepoint" in capsys.readouterr().err
    assert LocalTree(site.tree.path).exists("lockgate.json")


def test_a_job_without_a_ledger_says_that_rows_come_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(
        "from lockgate import ConsoleSink, FileSource, Guarantee, Job, stream\n"
        "def job(guarantee: str = 'AT_LEAST_ONCE') -> Job:\n"
        "    rows = stream('rows', FileSource(path='/data/in', value='id INT'))\n"
        "    return Job('plain', rows.to('out', ConsoleSink()), guarantee=Guarantee[guarantee])\n"
    )
    monkeypatch.chdir(tmp_path)
    tree = make_checkpoint(tmp_path / ".lockgate" / "checkpoints" / "plain", job="plain")
    for epoch in range(12):
        tree.write(f"offsets/{epoch}", f'v1\n{{}}\n{{"logOffset":{epoch}}}'.encode())
    rollback = ["checkpoints", "rollback", "plain.py", "--to", "8"]
    assert cli.main([*rollback, "--yes"]) == 2
    assert "the job has no ledger" in capsys.readouterr().err
    assert cli.main([*rollback, "--outputs", "skip"]) == 2
    assert "has no ledger" in capsys.readouterr().err
    assert cli.main([*rollback, "--outputs", "again", "--yes"]) == 0
    assert "Readers of out see these rows TWICE" in capsys.readouterr().out
    assert look_at(tree).planned[-1] == 8
    assert cli.main(["checkpoints", "clean", "plain.py", "-p", "guarantee=AT_MOST_ONCE", "--keep", "1"]) == 2
    assert "keeps no checkpoint" in capsys.readouterr().err
