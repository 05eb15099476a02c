"""Record batches, read back by kafka-python's own reader, which shares no code with the encoder."""

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import (
    HEADER_BYTES,
    HeaderWithoutKey,
    Records,
    RecordTooLarge,
    cut,
    encode,
    next_sequence,
    record_sizes,
)

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Row:
    """One record, in plain Python."""

    key: bytes | None = None
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    timestamp_ms: int = NOW_MS


def header_array(rows: list[Row]) -> pa.Array:
    lists = [
        None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers] for row in rows
    ]
    return pa.array(lists, HEADERS)


def records_of(rows: list[Row], kind: pa.DataType | None = None) -> Records:
    kind = kind or pa.binary()
    return Records(
        keys=pa.array([row.key for row in rows], kind),
        values=pa.array([row.value for row in rows], kind),
        headers=header_array(rows),
        timestamps_ms=np.array([row.timestamp_ms for row in rows], dtype=np.int64),
    )


def encode_plainly(records: Records, codec: Codec = Codec.NONE, **changes: int) -> bytes:
    given = {"producer_id": 4711, "producer_epoch": 3, "base_sequence": 17, "now_ms": NOW_MS, **changes}
    return encode(records, codec=codec, **given)


def unpack_snappy(batch: bytes) -> bytes:
    """The same batch without compression: kafka-python has no snappy here, so only its blocks are unpacked for it."""
    at, blocks = HEADER_BYTES + 16, []
    while at < len(batch):
        (size,) = struct.unpack_from(">i", batch, at)
        block = batch[at + 4 : at + 4 + size]
        at += 4 + size
        # The size of what a raw snappy block holds stands before it as a varint.
        whole, shift = 0, 0
        for byte in block:
            whole |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        blocks.append(pa.decompress(block, decompressed_size=whole, codec="snappy", asbytes=True))
    (attributes,) = struct.unpack_from(">h", batch, 21)
    return batch[:21] + struct.pack(">h", attributes & ~7) + batch[23:HEADER_BYTES] + b"".join(blocks)


def read(batch: bytes) -> list[Row]:
    """The records of a batch whose checksum holds, offsets counting from 0."""
    (size,) = struct.unpack_from(">i", batch, 8)
    assert size + 12 == len(batch)
    reader = DefaultRecordBatch(batch)
    assert reader.magic == 2
    assert reader.validate_crc()
    if reader.compression_type == Codec.SNAPPY.value:
        reader = DefaultRecordBatch(unpack_snappy(batch))
    read_records = list(reader)
    assert [record.offset for record in read_records] == list(range(len(read_records)))
    assert reader.records_count == len(read_records) == reader.last_offset_delta + 1
    return [Row(record.key, record.value, tuple(record.headers), record.timestamp) for record in read_records]


def without_null_headers(rows: list[Row]) -> list[Row]:
    """Kafka does not tell a record without headers from one with no list of headers."""
    return [Row(row.key, row.value, row.headers or (), row.timestamp_ms) for row in rows]


some_bytes = st.one_of(
    st.binary(max_size=100),
    st.tuples(st.integers(60, 20_000), st.integers(0, 255)).map(lambda pair: bytes([pair[1]]) * pair[0]),
)
some_rows = st.lists(
    st.builds(
        Row,
        key=st.none() | some_bytes,
        value=st.none() | some_bytes,
        headers=st.none() | st.lists(st.tuples(st.text(max_size=70), st.none() | some_bytes), max_size=4).map(tuple),
        timestamp_ms=st.integers(NOW_MS - 100, NOW_MS + 100) | st.integers(0, 2**63 - 1),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=60, deadline=None)
@given(rows=some_rows)
def test_what_is_written_is_read(codec: Codec, rows: list[Row]) -> None:
    assert read(encode_plainly(records_of(rows), codec)) == without_null_headers(rows)


@settings(max_examples=60, deadline=None)
@given(rows=some_rows, is_wide=st.booleans(), data=st.data())
def test_a_slice_holds_its_own_rows_only(rows: list[Row], is_wide: bool, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    whole = records_of(rows, pa.large_binary() if is_wide else pa.binary())
    assert read(encode_plainly(whole.slice(start, stop))) == without_null_headers(rows[start:stop])


@settings(max_examples=60, deadline=None)
@given(rows=some_rows, room=st.integers(0, 30_000))
def test_pieces_keep_the_limit_and_together_are_everything(rows: list[Row], room: int) -> None:
    records = records_of(rows)
    limit_bytes = HEADER_BYTES + int(record_sizes(records).max()) + room
    pieces = cut(records, limit_bytes=limit_bytes)
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
    assert pieces[-1][1] == len(records)
    batches = [encode_plainly(records.slice(start, stop), Codec.LZ4) for start, stop in pieces]
    assert max(map(len, batches)) <= limit_bytes
    assert [row for batch in batches for row in read(batch)] == without_null_headers(rows)


@settings(max_examples=60, deadline=None)
@given(rows=some_rows)
def test_sizes_are_never_too_small_and_hardly_too_big(rows: list[Row]) -> None:
    records = records_of(rows)
    sizes = record_sizes(records)
    assert sizes.dtype == np.int64
    whole = len(encode_plainly(records)) - HEADER_BYTES
    # The timestamps' and offsets' deltas are not known before the pieces are.
    assert whole <= sizes.sum() <= whole + 14 * len(rows)
    for index, size in enumerate(sizes):
        assert len(encode_plainly(records.slice(index, index + 1))) - HEADER_BYTES <= size


@pytest.mark.parametrize("codec", Codec)
def test_many_records_are_read_for_each_codec(codec: Codec) -> None:
    rows = [Row(key=b"%d" % (i % 100), value=b"{%d}" % i * 9, timestamp_ms=NOW_MS - i) for i in range(20_000)]
    batch = encode_plainly(records_of(rows), codec)
    assert read(batch) == without_null_headers(rows)
    assert DefaultRecordBatch(batch).compression_type == codec.value


def test_the_header_of_a_batch_says_which_producer_wrote_it_and_when() -> None:
    rows = [Row(timestamp_ms=NOW_MS), Row(timestamp_ms=NOW_MS + 70), Row(timestamp_ms=NOW_MS - 70)]
    reader = DefaultRecordBatch(encode_plainly(records_of(rows)))
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (4711, 3, 17)
    assert reader.is_transactional
    assert not reader.is_control_batch
    assert (reader.first_timestamp, reader.max_timestamp) == (NOW_MS, NOW_MS + 70)
    assert (reader.base_offset, reader.leader_epoch, reader.timestamp_type) == (0, -1, 0)


def test_batches_stand_one_after_another_as_a_reader_takes_them() -> None:
    batches = [encode_plainly(records_of([Row(value=b"%d" % i)] * 3), Codec.ZSTD) for i in range(3)]
    reader = MemoryRecords(b"".join(batches))
    values = []
    while reader.has_next():
        values += [record.value for record in reader.next_batch()]
    assert values == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3


def test_records_without_timestamps_have_the_time_of_the_batch() -> None:
    records = Records(keys=None, values=pa.array([b"a", b"b"], pa.binary()), headers=None, timestamps_ms=None)
    assert [row.timestamp_ms for row in read(encode_plainly(records, now_ms=5))] == [5, 5]


@pytest.mark.parametrize("keys", [None, pa.nulls(3, pa.binary()), pa.nulls(3)])
def test_no_keys_and_keys_that_are_all_null_are_the_same_bytes(keys: pa.Array | None) -> None:
    values = pa.array([b"a", None, b""], pa.binary())
    batch = encode_plainly(Records(keys=keys, values=values, headers=None, timestamps_ms=None))
    assert [(row.key, row.value) for row in read(batch)] == [(None, b"a"), (None, None), (None, b"")]
    assert batch == encode_plainly(Records(keys=None, values=values, headers=None, timestamps_ms=None))


@pytest.mark.parametrize("keys", [None, pa.array([b"a", b"", b"c"], pa.binary())])
def test_tombstones_alone_make_a_batch(keys: pa.Array | None) -> None:
    batch = encode_plainly(Records(keys=keys, values=pa.nulls(3, pa.binary()), headers=None, timestamps_ms=None))
    expected = [None] * 3 if keys is None else keys.to_pylist()
    assert [(row.key, row.value) for row in read(batch)] == [(key, None) for key in expected]


def test_a_null_is_null_even_if_bytes_lie_under_it() -> None:
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 5, 6], dtype=np.int32)), pa.py_buffer(b"aaXXXb")]
    values = pa.Array.from_buffers(pa.binary(), 3, buffers)
    assert values.to_pylist() == [b"aa", None, b"b"]
    for column in (values, values.cast(pa.large_binary())):
        for keys in (None, column):
            batch = encode_plainly(Records(keys=keys, values=column, headers=None, timestamps_ms=None))
            assert [row.value for row in read(batch)] == [b"aa", None, b"b"]


@pytest.mark.parametrize(
    "headers", [None, pa.nulls(2, HEADERS), pa.array([[], None], HEADERS), pa.array([[], []], HEADERS)]
)
def test_no_headers_in_any_form_are_the_same_bytes(headers: pa.Array | None) -> None:
    values = pa.array([b"a", b"b"], pa.binary())
    batch = encode_plainly(Records(keys=None, values=values, headers=headers, timestamps_ms=None))
    assert batch == encode_plainly(Records(keys=None, values=values, headers=None, timestamps_ms=None))
    assert [row.headers for row in read(batch)] == [(), ()]


def test_headers_keep_null_values_and_unicode_keys() -> None:
    rows = [Row(headers=(("schlüssel-鍵", None), ("", b""), ("k", b"v" * 300))), Row(), Row(headers=(("k", b"\x00"),))]
    assert read(encode_plainly(records_of(rows))) == without_null_headers(rows)


def test_headers_under_a_null_list_are_not_sent() -> None:
    structs = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), structs, mask=pa.array([True, False]))
    batch = encode_plainly(
        Records(keys=None, values=pa.array([b"x", b"y"], pa.binary()), headers=lists, timestamps_ms=None)
    )
    assert [row.headers for row in read(batch)] == [(), (("b", b"2"),)]


@pytest.mark.parametrize("header", [{"key": None, "value": b"1"}, None])
def test_a_header_without_a_key_names_its_record(header: dict[str, Any] | None) -> None:
    headers = pa.array([[], [{"key": "a", "value": b"1"}], None, [{"key": "a", "value": None}, header]], HEADERS)
    records = Records(keys=None, values=pa.array([b""] * 4, pa.binary()), headers=headers, timestamps_ms=None)
    with pytest.raises(HeaderWithoutKey) as refusal:
        cut(records, limit_bytes=1_000)
    assert refusal.value.index == 3


def test_chunked_columns_are_made_whole() -> None:
    rows = [Row(key=b"%d" % i, value=b"v%d" % i, headers=(("h", b"%d" % i),)) for i in range(5)]
    whole = records_of(rows)
    chunked = Records(
        keys=pa.chunked_array([whole.keys[:2], whole.keys[2:]]),
        values=pa.chunked_array([whole.values[:1], whole.values[1:4], whole.values[4:]]),
        headers=pa.chunked_array([whole.headers[:3], whole.headers[3:]]),
        timestamps_ms=whole.timestamps_ms,
    )
    assert encode_plainly(chunked) == encode_plainly(whole)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_text_and_wide_columns_are_the_same_bytes(kind: pa.DataType) -> None:
    values = pa.array(["é", None, "", "x" * 100], pa.string())
    plain = Records(keys=values.cast(pa.binary()), values=values.cast(pa.binary()), headers=None, timestamps_ms=None)
    other = Records(keys=values.cast(kind), values=values.cast(kind), headers=None, timestamps_ms=None)
    assert encode_plainly(other) == encode_plainly(plain)
    assert encode_plainly(other.slice(1, 4)) == encode_plainly(plain.slice(1, 4))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8_191, 8_192, 16_384, 1_048_575, 1_048_576])
def test_lengths_around_each_size_of_a_varint_are_read(size: int) -> None:
    rows = [Row(key=b"k", value=os.urandom(size)), Row(key=os.urandom(size), value=b"v")]
    assert read(encode_plainly(records_of(rows))) == without_null_headers(rows)


@pytest.mark.parametrize("delta_ms", [0, 1, -1, 63, -64, 64, -65, 2**31, -(2**31), NOW_MS, -NOW_MS])
def test_timestamps_may_go_back_and_forth(delta_ms: int) -> None:
    rows = [Row(), Row(timestamp_ms=NOW_MS + delta_ms), Row()]
    assert read(encode_plainly(records_of(rows))) == without_null_headers(rows)


def test_an_empty_batch_is_refused_and_nothing_is_cut_into_nothing() -> None:
    nothing = records_of([])
    with pytest.raises(ValueError, match="at least one record"):
        encode_plainly(nothing)
    assert cut(nothing, limit_bytes=100) == []
    assert len(record_sizes(nothing)) == 0


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows beside 2 values"):
        Records(pa.nulls(3, pa.binary()), pa.array([b"a", b"b"], pa.binary()), headers=None, timestamps_ms=None)


def test_columns_of_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="not int64"):
        encode_plainly(Records(None, pa.array([1, 2]), headers=None, timestamps_ms=None))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("value", [b"short", os.urandom(200_000)], ids=["short", "random"])
def test_what_compression_would_make_bigger_is_sent_as_it_is(codec: Codec, value: bytes) -> None:
    records = records_of([Row(value=value)])
    batch = encode_plainly(records, codec)
    assert batch == encode_plainly(records, Codec.NONE)
    assert DefaultRecordBatch(batch).compression_type == Codec.NONE.value
    assert [row.value for row in read(batch)] == [value]


def test_a_changed_byte_breaks_the_checksum() -> None:
    batch = bytearray(encode_plainly(records_of([Row()])))
    batch[-2] ^= 1
    assert not DefaultRecordBatch(bytes(batch)).validate_crc()


def test_a_record_too_large_names_its_index_and_size() -> None:
    records = records_of([Row(value=b"a"), Row(value=b"b"), Row(value=b"c" * 500), Row(value=b"d")])
    with pytest.raises(RecordTooLarge) as refusal:
        cut(records, limit_bytes=400)
    assert refusal.value.index == 2
    assert refusal.value.size_bytes == record_sizes(records)[2] > 500


def test_a_record_that_just_fits_is_let_pass() -> None:
    records = records_of([Row(value=b"c" * 500)])
    limit_bytes = HEADER_BYTES + int(record_sizes(records)[0])
    assert cut(records, limit_bytes=limit_bytes) == [(0, 1)]
    assert len(encode_plainly(records)) == limit_bytes
    with pytest.raises(RecordTooLarge):
        cut(records, limit_bytes=limit_bytes - 1)


@pytest.mark.parametrize(
    ("base_sequence", "count", "following"),
    [(0, 1, 1), (0, 500, 500), (2**31 - 2, 1, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 10, 25, 15)],
)
def test_sequence_numbers_wrap_as_kafka_counts_them(base_sequence: int, count: int, following: int) -> None:
    assert next_sequence(base_sequence, count) == following
    # The reader's own count, of the last record in the batch.
    reader = DefaultRecordBatch(encode_plainly(records_of([Row()] * count), base_sequence=base_sequence))
    assert next_sequence(reader.last_sequence, 1) == following


def test_a_small_slice_far_back_in_a_big_column_is_read() -> None:
    far = 2**31 + 10
    memory = mmap.mmap(-1, far + 20)  # the system gives pages only for what is touched
    memory[far:] = b"0123456789" * 2
    offsets = np.array([0, far, far + 10, far + 20], dtype=np.int64)
    column = pa.Array.from_buffers(pa.large_binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(memory)])
    records = Records(keys=None, values=column, headers=None, timestamps_ms=None)
    assert record_sizes(records)[0] > far
    assert [row.value for row in read(encode_plainly(records.slice(1, 3)))] == [b"0123456789"] * 2
    with pytest.raises(ValueError, match="cut them first"):
        encode_plainly(records)
    with pytest.raises(RecordTooLarge):
        cut(records, limit_bytes=2**20)
