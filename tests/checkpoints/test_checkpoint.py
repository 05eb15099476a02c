"""The address of a checkpoint."""

from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.errors import Refused


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
