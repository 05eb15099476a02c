"""Files of a checkpoint that are not as they were written."""

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.checksums import is_whole
from lockgate.errors import Failed

OFFSETS = b'v1\n{"batchWatermarkMs":1767225600000,"batchTimestampMs":1}\n{"orders":{"0":17}}'


def sums_of(data: bytes, size: int = 512) -> bytes:
    """As Hadoop writes them."""
    made = [struct.pack(">I", zlib.crc32(data[at : at + size])) for at in range(0, len(data), size)]
    return b"crc\0" + struct.pack(">i", size) + b"".join(made)


@given(st.binary(max_size=2000), st.integers(1, 600))
def test_a_file_as_it_was_written_is_whole(data: bytes, size: int) -> None:
    assert is_whole(data, sums_of(data, size))


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_every_flipped_bit_is_found(data: bytes, draw: st.DataObject) -> None:
    place = draw.draw(st.integers(0, len(data) - 1))
    bit = draw.draw(st.integers(0, 7))
    changed = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
    assert not is_whole(changed, sums_of(data))


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_every_cut_is_found(data: bytes, draw: st.DataObject) -> None:
    assert not is_whole(data[: draw.draw(st.integers(0, len(data) - 1))], sums_of(data))


def test_sums_of_another_form_say_nothing() -> None:
    assert is_whole(b"data", b"")
    assert is_whole(b"data", b"sha\0\0\0\2\0....")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(OFFSETS)
    (tmp_path / "offsets" / ".0.crc").write_bytes(sums_of(OFFSETS))
    return Checkpoint(root=str(tmp_path))


def test_a_whole_checkpoint_is_read(checkpoint: Checkpoint) -> None:
    assert checkpoint.past().watermark_ms == 1767225600000
    assert checkpoint.digest(0) is not None


@pytest.mark.parametrize("damaged", [OFFSETS[:40], OFFSETS.replace(b"17", b"16"), b""])
def test_a_damaged_file_is_named(checkpoint: Checkpoint, damaged: bytes) -> None:
    Path(checkpoint.root, "offsets", "0").write_bytes(damaged)
    for ask in (checkpoint.past, lambda: checkpoint.digest(0)):
        with pytest.raises(Failed, match=r"the checkpoint's file offsets/0 is damaged") as told:
            ask()
        assert "from a copy" in told.value.fix


def test_a_cut_file_without_checksum_is_named_too(checkpoint: Checkpoint) -> None:
    Path(checkpoint.root, "offsets", ".0.crc").unlink()
    Path(checkpoint.root, "offsets", "0").write_bytes(OFFSETS[:40])
    with pytest.raises(Failed, match="offsets/0 is damaged"):
        checkpoint.past()


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_metadata_that_is_no_id_is_named(checkpoint: Checkpoint, text: str) -> None:
    Path(checkpoint.root, "metadata").write_text(text)
    with pytest.raises(Failed, match="metadata is damaged"):
        checkpoint.query()
