"""Codecs: what Kafka's readers can unpack, by their names and numbers."""

import gzip
import os
import struct
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import pyarrow as pa
import pytest
import zstandard

from lockgate.connectors.kafka.codecs import Codec
from lockgate.errors import BadJob

TEXT = b"".join(b'{"id":%d,"amount":%d}' % (i, i % 97) for i in range(10_000))


def snappy_blocks(data: bytes) -> list[bytes]:
    """The unpacked blocks of a xerial stream, read by its own rules."""
    assert data[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    blocks, at = [], 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        block = data[at + 4 : at + 4 + size]
        at += 4 + size
        blocks.append(pa.decompress(block, decompressed_size=raw_snappy_size(block), codec="snappy", asbytes=True))
    assert at == len(data)
    return blocks


def raw_snappy_size(block: bytes) -> int:
    """A raw snappy block begins with the size of what it holds, as a varint."""
    size = 0
    for index, byte in enumerate(block):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    return size


def test_codecs_have_the_numbers_of_kafka() -> None:
    assert [(codec.name, codec.value) for codec in Codec] == [
        ("NONE", 0),
        ("GZIP", 1),
        ("SNAPPY", 2),
        ("LZ4", 3),
        ("ZSTD", 4),
    ]


@pytest.mark.parametrize("codec", Codec)
def test_a_codec_is_found_by_its_name(codec: Codec) -> None:
    assert Codec.named(codec.name.lower(), where="sink 'counts'") is codec


@pytest.mark.parametrize("text", ["brotli", "", "GZIP", "0"])
def test_an_unknown_name_is_refused_with_the_five_that_are_known(text: str) -> None:
    with pytest.raises(BadJob) as refusal:
        Codec.named(text, where="sink 'counts'")
    assert repr(text) in refusal.value.what
    assert refusal.value.where == "sink 'counts'"
    assert "none, gzip, snappy, lz4, zstd" in refusal.value.fix


@pytest.mark.parametrize("data", [b"", b"a", TEXT, os.urandom(100_000)], ids=["empty", "a", "text", "random"])
@pytest.mark.parametrize("as_view", [False, True])
def test_each_codec_is_unpacked_by_another_library(data: bytes, as_view: bool) -> None:
    given = memoryview(data) if as_view else data
    assert Codec.NONE.compress(given) == data
    assert gzip.decompress(Codec.GZIP.compress(given)) == data
    assert b"".join(snappy_blocks(Codec.SNAPPY.compress(given))) == data
    assert lz4.frame.decompress(Codec.LZ4.compress(given)) == data
    assert zstandard.ZstdDecompressor().decompress(Codec.ZSTD.compress(given)) == data


def test_snappy_blocks_hold_at_most_32_kib() -> None:
    sizes = [len(block) for block in snappy_blocks(Codec.SNAPPY.compress(TEXT))]
    assert set(sizes[:-1]) == {32 * 1024}
    assert 0 < sizes[-1] <= 32 * 1024


def test_lz4_blocks_are_not_linked() -> None:
    assert lz4.frame.get_frame_info(Codec.LZ4.compress(TEXT))["block_linked"] is False


def test_threads_do_not_share_a_compressor() -> None:
    pieces = [TEXT[start:] for start in range(64)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        packed = list(pool.map(Codec.ZSTD.compress, pieces))
    assert [zstandard.ZstdDecompressor().decompress(data) for data in packed] == pieces
