"""Record batches that any producer may have sent: they are read whole, or not at all, in bounded memory."""

import gzip
import struct
import zlib
from collections.abc import Iterable

import crc32c
import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from kafka.record.default_records import DefaultRecordBatchBuilder

from lockgate.connectors.kafka.batches import UNPACKED_BYTES_MAX, Batch, Record, last_committed, read_batches, split
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import Records, encode
from lockgate.connectors.kafka.wire import Fetched
from lockgate.untrusted import Unreadable
from support.batches import bomb, pack_snappy_zeros, seal, varint

MIB = 1 << 20
VALUES = [b"%d" % number * (number % 50) for number in range(500)]


def ours(values: Iterable[bytes | None], *, codec: Codec = Codec.NONE, at: int = 0) -> bytes:
    """A batch as we write it, at an offset."""
    column = pa.array(list(values), pa.binary())
    made = encode(
        Records(keys=column, values=column), codec=codec, producer_id=7, producer_epoch=0, base_sequence=0, now_ms=9
    )
    return at.to_bytes(8, "big") + made[8:]


def only(content: bytes) -> Batch:
    (batch,) = split(content)
    return batch


def fetched(content: bytes) -> Fetched:
    return Fetched(code=0, high_watermark=99, last_stable_offset=99, records=content, aborted=())


@pytest.mark.parametrize("codec", Codec)
def test_what_we_write_is_read(codec: Codec) -> None:
    batch = only(ours([*VALUES, None], codec=codec, at=40))
    assert (batch.base_offset, batch.last_offset, batch.records_count, batch.producer_id) == (40, 540, 501, 7)
    assert [one.value for one in batch] == [*VALUES, None]
    assert list(batch)[3] == Record(43, VALUES[3], VALUES[3])  # it can be read again


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_what_another_producer_writes_is_read_with_its_headers_passed_over(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec.value,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for number, value in enumerate(VALUES):
        builder.append(number, 1_000 * number, b"k", value, [("a", b"b"), ("c", None)] * (number % 3))
    batch = only(bytes(builder.build()))
    assert [(one.key, one.value) for one in batch] == [(b"k", value) for value in VALUES]


def test_streams_in_a_row_are_one_text_as_in_java() -> None:
    assert Codec.GZIP.decompress(gzip.compress(b"ab") + gzip.compress(b"c"), bytes_max=3) == b"abc"
    frames = zstandard.compress(b"ab") + zstandard.compress(b"c")
    assert Codec.ZSTD.decompress(frames, bytes_max=3) == b"abc"
    raw = pa.Codec("snappy").compress(b"abc", asbytes=True)
    assert Codec.SNAPPY.decompress(raw, bytes_max=3) == b"abc"


@pytest.mark.parametrize("codec", Codec)
def test_a_limit_is_a_limit(codec: Codec) -> None:
    data = codec.compress(b"x" * 100_000)
    assert codec.decompress(data, bytes_max=100_000) == b"x" * 100_000
    with pytest.raises(Unreadable, match="more than 99,999 bytes"):
        codec.decompress(data, bytes_max=99_999)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_whose_records_are_cut_off_or_damaged_is_unreadable(codec: Codec) -> None:
    records = ours(VALUES)[61:]
    data = codec.compress(records)
    whole = seal(data, codec=codec.value, count=len(VALUES), last_delta=len(VALUES) - 1)
    assert [one.value for one in only(whole)] == VALUES
    for broken in [*(data[:cut] for cut in (0, 1, 5, 17, len(data) // 2, len(data) - 8)), b"\xff" * 40]:
        with pytest.raises(Unreadable):
            list(only(seal(broken, codec=codec.value, count=len(VALUES), last_delta=len(VALUES) - 1)))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x80\x80\x80\x10" + b"\0" * 20,  # 4 GiB, says one block
        b"\xff\xff\xff\xff\xff\xff",
        b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", -4) + b"\0" * 20,
        b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", 1 << 30) + b"\0" * 20,
        b"\x82SNAPPY\0" + bytes(8) + b"\0\0",
        b"\x82SNAPPY\0",
    ],
)
def test_lengths_in_snappy_are_not_believed(data: bytes) -> None:
    with pytest.raises(Unreadable):
        Codec.SNAPPY.decompress(data, bytes_max=MIB)


def test_the_size_that_a_frame_claims_is_not_believed() -> None:
    frame = bytearray(lz4.frame.compress(b"abc", store_size=True))
    frame[6:14] = struct.pack("<Q", 1 << 40)
    for header_checksum in range(256):  # one of them fits
        frame[14] = header_checksum
        with pytest.raises(Unreadable):
            Codec.LZ4.decompress(bytes(frame), bytes_max=MIB)
    single = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"
    with pytest.raises(Unreadable):
        Codec.ZSTD.decompress(single, bytes_max=MIB)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_unpacks_to_gigabytes_is_unreadable_and_others_are_read(codec: Codec) -> None:
    packed = bomb(codec, 2 * UNPACKED_BYTES_MAX)
    assert len(packed) < UNPACKED_BYTES_MAX / 8
    hostile = seal(packed, codec=codec.value, at=1)
    content = ours([b"before"]) + hostile + ours([b"after"], at=2)
    first, second, third = split(content)
    with pytest.raises(Unreadable, match="unpacks to more than 67,108,864 bytes"):
        list(second)
    assert [one.value for batch in (first, third) for one in batch] == [b"before", b"after"]
    found, position = last_committed(fetched(content[: len(content) - 1]), key=b"before", below=99)
    assert position == 2
    assert found is not None
    assert "unpacks to more than" in found.trouble


def test_a_batch_inside_a_batch_is_a_value() -> None:
    inner = ours([b"x" * 1000] * 1000, codec=Codec.GZIP)
    assert [one.value for one in only(ours([inner], codec=Codec.ZSTD))] == [inner]


RECORD = varint(6) + b"\0" + varint(0) * 2 + varint(-1) * 2 + varint(0)


def test_a_small_hand_written_record_is_read() -> None:
    assert list(only(seal(RECORD))) == [Record(0, None, None)]


@pytest.mark.parametrize(
    "content",
    [
        seal(b""),
        seal(RECORD + b"x"),
        seal(RECORD[:-1]),
        seal(varint(-1) + RECORD[1:]),
        seal(varint(1 << 40) + RECORD[1:]),
        seal(varint(4) + RECORD[1:]),
        seal(b"\xff" * 30),
        seal(varint(20) + b"\0" + varint(0) * 2 + varint(-2) + b"\0" * 16),
        seal(varint(9) + b"\0" + varint(0) * 2 + varint(1 << 60) + b"\0" * 16),
        seal(varint(6) + b"\0" + varint(0) + varint(-1) + varint(-1) * 2 + varint(0)),
        seal(varint(6) + b"\0" + varint(0) + varint(1) + varint(-1) * 2 + varint(0)),
        seal(RECORD, codec=5),
        seal(RECORD, codec=1),
        seal(RECORD, checksum=1),
        seal(RECORD * 2),
        seal(RECORD, count=2, last_delta=1),
    ],
)
def test_records_that_lie_are_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        list(only(content))


@pytest.mark.parametrize(
    "content",
    [
        seal(RECORD, count=2),
        seal(RECORD, count=-1),
        seal(RECORD, last_delta=-1),
        seal(RECORD, at=-5),
        seal(RECORD, at=(1 << 63) - 1, last_delta=1),
        seal(RECORD, magic=1),
        seal(RECORD, length=-12),
        seal(RECORD, length=0),
        seal(RECORD, length=48),
        seal(RECORD, length=1 << 30),
        seal(RECORD)[:20],
        b"\0",
    ],
)
def test_batches_that_lie_end_the_piece(content: bytes) -> None:
    with pytest.raises(Unreadable):
        list(split(content))
    found, position = last_committed(fetched(content), key=b"ledger", below=99)
    assert position == -1
    assert found is not None
    assert found.trouble


def test_a_batch_that_is_cut_off_at_the_end_is_left_for_the_next_piece() -> None:
    whole = ours(VALUES)
    assert [batch.last_offset for batch in split(whole + ours(VALUES, at=500)[:-1])] == [499]
    assert list(split(b"")) == []


def test_aborted_records_are_not_seen() -> None:
    content = ours([b"aborted"]) + seal(RECORD, at=1, control=True, producer=7) + ours([b"committed"], at=2)
    piece = Fetched(code=0, high_watermark=9, last_stable_offset=9, records=content, aborted=((7, 0),))
    assert [one.value for batch, is_seen in read_batches(piece) if is_seen for one in batch] == [b"committed"]


def test_the_checksum_is_the_one_of_kafka_and_not_the_one_of_zip() -> None:
    content = ours([b"x"])
    assert struct.unpack_from(">I", content, 17)[0] == crc32c.crc32c(content[21:]) != zlib.crc32(content[21:])
    assert len(pack_snappy_zeros(MIB)) < MIB / 16
