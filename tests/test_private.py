"""Directories for the owner alone, and files that nobody else may change."""

import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.errors import BadMachine
from lockgate.private import is_open, make_private, own_temporary, private_opener, warn_if_open, who_may_change


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A directory that every user gets to, if its way there is open; pytest closes that to others."""
    directory = tmp_path / "public"
    directory.mkdir(mode=0o755)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_the_owners_and_what_is_there_stays(public: Path) -> None:
    make_private(public / "far" / "down")
    assert mode(public / "far" / "down") == 0o700
    make_private(public)
    assert mode(public) == 0o755
    with open(public / "file", "wb", opener=private_opener):
        assert mode(public / "file") == 0o600


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's directory in the temporary directory is, or will be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"lockgate-{os.getuid()}"


def test_the_temporary_directory_of_a_user_is_made_once_and_closed_to_others(temporary: Path) -> None:
    assert own_temporary() == temporary
    assert mode(temporary) == 0o700
    (temporary / "file").touch()
    assert own_temporary() == temporary


@pytest.mark.parametrize("how", ["a link", "a link to nothing", "a file", "open to all", "of another user"])
def test_a_temporary_directory_that_another_user_controls_is_refused(
    how: str, temporary: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how.startswith("a link"):
        temporary.symlink_to(public / "missing" if how == "a link to nothing" else public)
    elif how == "a file":
        temporary.touch()
    else:
        temporary.mkdir()
        temporary.chmod(0o777 if how == "open to all" else 0o755)
    if how == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        temporary.rename(temporary.with_name("lockgate-12345"))
    with pytest.raises(BadMachine, match="another user can change") as refused:
        own_temporary()
    assert "TMPDIR" in refused.value.fix


def test_a_directory_is_open_when_all_that_leads_to_it_is(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_open(public), "a directory above it is closed"
    assert is_open(Path("/"))
    assert not is_open(public / "missing")


def test_an_open_directory_is_reported_with_the_fix(caplog: pytest.LogCaptureFixture, public: Path) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_open(public, "the checkpoint of job 'j'")
        assert caplog.messages == []
        warn_if_open(Path("/"), "the checkpoint of job 'j'")
    (told,) = caplog.messages
    assert "the checkpoint of job 'j' is in /" in told
    assert "fix: chmod 700 /" in told


def test_who_may_change_a_file(public: Path) -> None:
    file = public / "a.jar"
    file.write_bytes(b"")
    assert who_may_change(file) is None
    file.chmod(0o666)
    assert who_may_change(file) == f"every user may write to {file}"
    file.chmod(0o644)
    public.chmod(0o777)
    assert who_may_change(file) == f"every user may write to {public}"
    public.chmod(0o1777)
    assert who_may_change(file) is None, "as in /tmp: nobody may replace what another one owns"
    link = public / "link.jar"
    link.symlink_to(file)
    file.chmod(0o666)
    assert who_may_change(link) == f"every user may write to {file}"
    file.chmod(0o644)
    public.chmod(0o755)
    shared = public.parent / "shared"
    shared.mkdir()
    (shared / "cache").symlink_to(public)
    assert who_may_change(shared / "cache" / "a.jar") is None
    shared.chmod(0o777)
    assert who_may_change(shared / "cache" / "a.jar") == f"every user may write to {shared}", "the link may be replaced"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_files_of_other_users_and_groups_are_reported(public: Path) -> None:
    file = public / "a.jar"
    file.write_bytes(b"")
    os.chown(file, 12_345, 0)
    assert who_may_change(file) == f"{file} belongs to user 12345"
    os.chown(file, 0, 12_345)
    file.chmod(0o664)
    assert who_may_change(file) == f"group 12345 may write to {file}"
    os.chown(file, 0, 0)
    assert who_may_change(file) is None, "root is trusted, as a user and as a group"
