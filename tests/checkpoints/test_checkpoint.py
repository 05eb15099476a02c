"""The address of a checkpoint, and files of it that are none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import LocalTree
from lockgate.errors import CheckpointDamaged, Refused
from support.checkpoints import Handmade
from support.cli import call


@pytest.mark.parametrize(
    ("root", "local"),
    [("/in/a b", Path("/in/a b")), ("file:///in/a%20b", Path("/in/a b")), ("hdfs://host:9000/in", None)],
)
def test_a_checkpoint_on_this_disk_has_a_directory(root: str, local: Path | None) -> None:
    assert Checkpoint(root=root).local == local


@pytest.mark.parametrize("root", ["hdfs://[host/in", "file://[a-z]/in"])
def test_an_address_that_means_nothing_is_refused(root: str) -> None:
    with pytest.raises(Refused, match="is not the address of a checkpoint"):
        _ = Checkpoint(root=root).local


PLANTS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda place: place.symlink_to("/dev/zero"),
    "file elsewhere": lambda place: place.symlink_to("/etc/hostname"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("name", ["offsets/0", "offsets/.0.crc"])
def test_what_is_no_file_is_damage_and_not_waited_for(name: str, plant: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1\n{}\n-\n")
    (tmp_path / name).unlink(missing_ok=True)
    plant(tmp_path / name)
    with pytest.raises(CheckpointDamaged, match=r"offsets/0 is damaged: .* not a file"):
        Checkpoint(root=str(tmp_path)).read("offsets/0")
    with pytest.raises(OSError, match="not a file"):
        LocalTree(tmp_path).read(name)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("name", ["commits/1", "offsets/1", "metadata", "lockgate.json"])
def test_commands_end_with_what_is_no_file(name: str, plant: Callable[[Path], None], tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    Handmade(checkpoint).make(range(2))
    (checkpoint / name).unlink(missing_ok=True)
    plant(checkpoint / name)
    for verb in ("list", "show", "verify", "clean"):
        called = call("checkpoints", verb, str(checkpoint), *(["--keep", "1"] if verb == "clean" else []), cwd=tmp_path)
        assert called.status in (0, 1, 2)
        assert called.text
        assert "Unexpected error" not in called.text
