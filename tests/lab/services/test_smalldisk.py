"""A disk that may be filled, where this machine lets us make one; else the reason is told."""

import errno
import subprocess
from pathlib import Path

import pytest

from lockgate.errors import BadMachine
from lockgate.lab.services import smalldisk
from lockgate.lab.services.smalldisk import remove_left_disks, small_disk, why_no_small_disk


def fill(file: Path) -> int:
    with file.open("wb", buffering=0) as out:
        try:
            while out.tell() < 1 << 24:
                out.write(b"\0" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return out.tell()


def test_a_small_disk_is_small_and_gone_afterwards_or_the_reason_for_its_absence_is_reported(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    if why := why_no_small_disk():
        assert "mount" in why
        with pytest.raises(BadMachine, match="mount"), small_disk(place, size_mib=1):
            raise AssertionError("it was made all the same")
        return
    with small_disk(place, size_mib=1):
        assert fill(place / "filler") <= 1 << 20
        (place / "filler").unlink()
        (place / "file").write_text("fits again")
    assert list(place.iterdir()) == []


def test_a_disk_that_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "a name with blanks" / "disk"
    if why_no_small_disk():
        remove_left_disks(tmp_path)  # there is none
        return
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    (place / "file").write_text("of one who was killed")
    remove_left_disks(tmp_path / "elsewhere")
    assert (place / "file").exists()
    remove_left_disks(tmp_path)
    assert list(place.iterdir()) == []


def test_a_machine_without_mount_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert smalldisk.why_no_small_disk() == "there is no mount on this machine"
