"""The marker, and who holds a checkpoint: nothing is deleted in a stranger's directory, nor under a driver's feet."""

import json
import os
import signal
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, MemorySink, MemorySource, stream
from lockgate.checkpoints.locking import is_locked, lock_exclusively, lock_shared
from lockgate.checkpoints.marker import (
    FILE,
    is_marked,
    mark_if_missing,
    mark_if_new,
    read_marker,
    refuse_other_job,
    refuse_unmarked,
    require_marker,
    write_marker,
)
from lockgate.checkpoints.tree import LocalTree, open_tree
from lockgate.errors import Refused, Unreachable
from lockgate.runtime.restarts import Ended, Restarts
from support.process import running
from support.runs import run_to_the_end

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_place_where_nothing_is_gets_the_marker_and_one_with_files_does_not(tmp_path: Path) -> None:
    new = LocalTree(tmp_path / "new")
    assert mark_if_new(new, "payments", NOW)
    assert json.loads((new.path / FILE).read_text()) == {
        "job": "payments",
        "made": "2026-01-31T12:00:00.000+00:00",
        "format": 1,
    }
    assert mark_if_new(new, "payments", NOW)
    old = LocalTree(tmp_path / "old")
    old.write("metadata", b"{}")
    assert not mark_if_new(old, "payments", NOW)
    assert read_marker(old) is None
    mark_if_missing(old, "payments", NOW)
    assert is_marked(old, "payments")
    mark_if_missing(old, "another", NOW)
    assert is_marked(old, "payments"), "what is marked stays whose it is"
    refuse_other_job(old, "payments")
    refuse_other_job(LocalTree(tmp_path / "nothing"), "payments")
    with pytest.raises(Refused, match="checkpoint of job 'payments', and not of 'another'"):
        refuse_other_job(old, "another")


def test_only_the_checkpoint_of_the_job_itself_may_be_changed(tmp_path: Path) -> None:
    tree = LocalTree(tmp_path / "checkpoint")
    tree.write("state/0/0/1.delta", b"x")
    with pytest.raises(Refused, match="carries no marker"):
        require_marker(tree, "payments")
    write_marker(tree, "payments", NOW)
    assert require_marker(tree, "payments").job == "payments"
    with pytest.raises(Refused, match="is the checkpoint of job 'payments'"):
        require_marker(tree, "orders")
    with pytest.raises(Refused, match="carries no marker") as inside:
        require_marker(tree.below("state"), "payments")
    assert f"a part of the checkpoint {tree.path}" in inside.value.fix
    with pytest.raises(Refused, match="carries no marker"):
        require_marker(LocalTree(tmp_path), "payments")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"job": "payments", "made": "", "format": 2}'])
def test_a_marker_that_cannot_be_read_belongs_to_no_job(tmp_path: Path, content: bytes) -> None:
    tree = LocalTree(tmp_path)
    tree.write(FILE, content)
    with pytest.raises(Refused, match="cannot be read"):
        require_marker(tree, "payments")
    refuse_other_job(tree, "payments")  # a run goes on
    assert mark_if_new(tree, "payments", NOW), "and leaves it as it is"
    mark_if_missing(tree, "payments", NOW)
    assert tree.read(FILE) == content


def test_a_root_a_home_and_a_link_are_refused_whatever_they_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "people" / "me"
    checkpoint = LocalTree(home / "checkpoint")
    write_marker(checkpoint, "payments", NOW)
    monkeypatch.setenv("HOME", str(home))
    for place in (home, home.parent, tmp_path):
        write_marker(LocalTree(place), "payments", NOW)
        with pytest.raises(Refused, match="a home, or above one"):
            require_marker(LocalTree(place), "payments")
    with pytest.raises(Refused, match="the root of a file system"):
        require_marker(LocalTree(Path("/")), "payments")
    link = tmp_path / "link"
    link.symlink_to(checkpoint.path)
    with pytest.raises(Refused, match="a link"):
        require_marker(LocalTree(link), "payments")
    require_marker(checkpoint, "payments")


@pytest.mark.parametrize("spelt", ["link", "link/", "link/.", "file:{0}/link", "file://{0}/link", "linked/../link"])
def test_a_link_is_seen_as_one_however_it_is_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelt: str) -> None:
    target = LocalTree(tmp_path / "disk" / "checkpoint")
    write_marker(target, "payments", NOW)
    (tmp_path / "link").symlink_to(target.path)
    (tmp_path / "linked").mkdir()
    (tmp_path / "parent").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="is a link") as refused:
        require_marker(open_tree(spelt.format(tmp_path)), "payments")
    assert str(target.path) in refused.value.fix
    assert is_marked(open_tree(spelt.format(tmp_path)), "payments"), "it may be looked at"
    require_marker(open_tree("parent/checkpoint"), "payments")
    assert open_tree("disk/checkpoint/..").root == str(tmp_path / "disk")


def test_a_reset_puts_nothing_aside_that_is_not_the_jobs(tmp_path: Path) -> None:
    tree = LocalTree(tmp_path / "theirs")
    refuse_unmarked(tree, "payments")
    tree.path.mkdir()
    refuse_unmarked(tree, "payments")
    tree.write("offsets/0", b"v1")
    with pytest.raises(Refused, match="carries no marker of job 'payments'") as refused:
        refuse_unmarked(tree, "payments")
    assert "move it aside yourself" in refused.value.fix
    write_marker(tree, "payments", NOW)
    refuse_unmarked(tree, "payments")
    with pytest.raises(Refused, match="carries no marker of job 'orders'"):
        refuse_unmarked(tree, "orders")


@pytest.mark.spark
def test_a_reset_leaves_the_checkpoint_of_another_job_where_it_is(spark: SparkSession, tmp_path: Path) -> None:
    tree = LocalTree(tmp_path / "theirs")
    tree.write("metadata", b'{"id":"theirs"}')
    tree.write("offsets/0", b"v1")
    rows = stream("rows", MemorySource([(1,)], value="id INT"))
    job = Job("payments", rows.to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(Refused, match="carries no marker"):
        run_to_the_end(job, tmp_path, checkpoint=tree.root, new_life=True)
    assert [one.name for one in tmp_path.iterdir() if one.is_dir()] == ["theirs"]
    assert [entry.name for entry in tree.entries()] == ["metadata", "offsets/0"]


def test_drivers_share_a_checkpoint_and_a_command_wants_it_alone(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    one, two = lock_shared(place, "payments"), lock_shared(place, "payments")
    assert one is not None
    assert two is not None
    assert is_locked(place)
    with pytest.raises(Refused, match="a driver of job 'payments' runs"), lock_exclusively(place, "payments"):
        pass
    one.close()
    two.close()
    with lock_exclusively(place, "payments"), pytest.raises(Unreachable, match="a command is changing") as met:
        lock_shared(place, "payments")
    ended = Ended.by(met.value, Ended(why="", place="epoch 3", epochs=3))
    assert isinstance(Restarts().after(ended, 0.0), float), "the supervisor tries again: a command ends in time"
    assert not is_locked(place)
    assert not is_locked(tmp_path / "nothing")


def test_a_checkpoint_is_made_for_its_owner_alone_and_an_open_one_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "checkpoint"
    held = lock_shared(place, "payments")
    assert held is not None
    held.close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert caplog.messages == []
    place.chmod(0o755)
    with open_to_all(tmp_path):
        held = lock_shared(place, "payments")
    assert held is not None
    held.close()
    (told,) = caplog.messages
    assert "the checkpoint of job 'payments' is in" in told
    assert f"fix: chmod 700 {place}" in told
    assert stat.S_IMODE(place.stat().st_mode) == 0o755, "its owner may share it on purpose"


def open_to_all(place: Path) -> ExitStack:
    """Let all users pass through a directory of a test, until it is closed: pytest shuts them out."""
    closing = ExitStack()
    for above in (place, *place.parents):
        before = above.stat().st_mode
        if not before & stat.S_IXOTH:
            above.chmod(before | stat.S_IXOTH)
            closing.callback(above.chmod, stat.S_IMODE(before))
    return closing


def test_a_driver_waits_for_a_command_that_ends_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        with lock_exclusively(tmp_path, "payments"):
            waiting = threads.submit(lock_shared, tmp_path, "payments")
            with pytest.raises(FutureTimeoutError):
                waiting.result(timeout=0.05)
        held = waiting.result()
    assert held is not None
    held.close()


def test_a_child_that_outlives_its_driver_holds_nothing(tmp_path: Path) -> None:
    held = lock_shared(tmp_path, "payments")
    assert held is not None
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:  # as a job's own code may do
        ours.close()
        theirs.send(b".")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    with ours:
        assert ours.recv(1) == b"."
        held.close()
        assert not is_locked(tmp_path)
    os.waitpid(child, 0)


@pytest.mark.process
def test_what_a_killed_driver_held_is_free(tmp_path: Path) -> None:
    code = (
        "import signal, sys; from pathlib import Path; from lockgate.checkpoints.locking import lock_shared;"
        "held = lock_shared(Path(sys.argv[1]), 'payments'); print('held', flush=True); signal.pause()"
    )
    place = tmp_path / "checkpoint"
    with running(sys.executable, "-c", code, place, cwd=tmp_path) as driver:
        driver.wait_for("the hold", lambda: driver.printed == "held\n")
        assert is_locked(place)
        driver.end(signal.SIGKILL)
        assert not is_locked(place)


def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used"):
        lock_shared(tmp_path / "file", "payments")
