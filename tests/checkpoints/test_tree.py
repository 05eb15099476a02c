"""One behaviour on every file system: this machine's disk, and Hadoop's view of a disk through Spark's JVM."""

import stat
import zlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.checkpoints.tree import HadoopTree, LocalTree, Tree, open_tree
from lockgate.errors import Refused


@pytest.fixture(params=["local", pytest.param("hadoop", marks=pytest.mark.spark)])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    if request.param == "local":
        return LocalTree(tmp_path / "checkpoint")
    spark: SparkSession = request.getfixturevalue("spark")
    return HadoopTree(f"file:{tmp_path}/checkpoint", spark)


def test_what_is_written_is_listed_and_read(tree: Tree) -> None:
    tree.write("offsets/0", b"one")
    tree.write("state/0/1/1.delta", b"three")
    listed = [(entry.name, entry.bytes) for entry in tree.entries() if not entry.name.endswith(".crc")]
    assert listed == [("offsets/0", 3), ("state/0/1/1.delta", 5)]
    assert tree.read("offsets/0") == b"one"
    assert [entry.name for entry in tree.entries("state") if not entry.name.endswith(".crc")] == ["state/0/1/1.delta"]


def test_a_copy_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    LocalTree(tmp_path / "savepoint").write("state/0/1/1.delta", b"three")
    assert stat.S_IMODE((tmp_path / "savepoint").stat().st_mode) == 0o700


def test_what_is_not_there_is_empty_or_none(tree: Tree) -> None:
    assert tree.entries() == []
    assert tree.read("offsets/0") is None
    assert not tree.exists()
    tree.remove("offsets/0")


def test_a_second_write_replaces_the_first(tree: Tree) -> None:
    tree.write("metadata", b"long content")
    tree.write("metadata", b"short")
    assert tree.read("metadata") == b"short"


def test_a_file_is_replaced_with_its_checksum(tmp_path: Path) -> None:
    tree = LocalTree(tmp_path)  # the session of the tests cannot rename through Hadoop on this disk
    tree.write("offsets/1", b"before")
    tree.write("offsets/.1.crc", b"crc\0\0\0\2\0" + zlib.crc32(b"before").to_bytes(4, "big"))
    tree.replace("offsets/1", b"after")
    assert tree.read("offsets/1") == b"after"
    assert [entry.name for entry in tree.entries()] == ["offsets/1"]


def test_a_folder_goes_with_all_that_is_in_it(tree: Tree) -> None:
    tree.write("state/0/1/1.delta", b"x")
    tree.write("offsets/0", b"y")
    tree.remove("state")
    assert not tree.exists("state")
    assert tree.exists("offsets/0")


def test_a_folder_that_has_to_be_empty_takes_nothing_along(tree: Tree) -> None:
    tree.write("state/0/1.delta", b"x")
    with pytest.raises(OSError, match=r"(?i)not empty"):
        tree.remove_empty("state/0")
    assert tree.read("state/0/1.delta") == b"x"
    tree.remove("state/0/1.delta")
    tree.remove_empty("state/0")
    assert not tree.exists("state/0")


def test_a_folder_moves_but_never_onto_another(tree: Tree) -> None:
    tree.write("a/1", b"x")
    tree.move("a", "deep/b")
    assert tree.read("deep/b/1") == b"x"
    tree.write("c/1", b"z")
    with pytest.raises(FileExistsError):
        tree.move("c", "deep/b")
    assert tree.read("c/1") == b"z"


def test_a_place_elsewhere_needs_spark() -> None:
    with pytest.raises(Refused):
        open_tree("hdfs://host/checkpoint")
