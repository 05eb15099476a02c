"""Turn rows, as columns, into one Kafka record batch (magic 2), without a Python loop over records.

A batch is a header of 61 bytes and its records, one after another. A record is numbers and bytes in turn. Every number
is a zigzag varint, and -1 is the length of a null:

    length | 0 | timestamp delta | offset delta | key length    key    value length    value    header count, headers
    '---------------------- front ------------------------'           '-- middle -'            '------- tail -------'

numpy makes front, middle and tail for all records at once, as Arrow columns beside those of the caller. Arrow then
joins the columns row by row in C++. The bytes of the joined column are the records of the batch.

The law: a piece of `cut` is never sent bigger than its limit. `record_sizes` never returns too little, and if
compression makes a batch bigger, the batch is sent uncompressed. Otherwise a broker would refuse a batch in the middle
of a transaction, and refuse it again at every retry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockgate.connectors.kafka.checksum import checksum_of
from lockgate.connectors.kafka.codecs import Codec

Integers: TypeAlias = npt.NDArray[np.int64]

HEADER_BYTES = 61
_UNTIL_CHECKSUM = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum of the rest
_AFTER_CHECKSUM = struct.Struct(">hiqqqhii")
_COUNTED_UNTIL_CHECKSUM = 9  # the length counts what follows it: leader epoch, magic and checksum too
_MAGIC = 2
_TRANSACTIONAL = 0x10
_SEQUENCES = 2**31
_BATCH_BYTES_MAX = 2**31 - 1

_NULL = 1  # the length -1 in zigzag
_NO_SEPARATOR = pa.scalar(b"", type=pa.binary())


class RecordTooLarge(Exception):
    """One record alone is bigger than a batch may be; the caller adds its key and its topic to the error."""

    def __init__(self, index: int, size_bytes: int) -> None:
        super().__init__(index, size_bytes)
        self.index, self.size_bytes = index, size_bytes


class HeaderWithoutKey(Exception):
    """A record has a header whose key is null, which no reader of Kafka accepts."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


@dataclass(frozen=True, eq=False)
class Records:
    """Rows for one partition, as columns; chunked columns are combined."""

    keys: pa.Array | None  # binary; None: all keys are null
    values: pa.Array  # binary; null: a tombstone
    headers: pa.Array | None = None  # list<struct<key: string, value: binary>>; None: no record has any
    timestamps_ms: Integers | None = None  # None: all have the batch's `now_ms`

    def __post_init__(self) -> None:
        for name in ("keys", "values", "headers"):
            column = getattr(self, name)
            if isinstance(column, pa.ChunkedArray):
                object.__setattr__(self, name, column.combine_chunks())
        for column in (self.keys, self.headers, self.timestamps_ms):
            if column is not None and len(column) != len(self.values):
                raise ValueError(f"a column has {len(column)} rows beside {len(self.values)} values")

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Records:
        """The records from `start` up to, not including, `stop`; nothing is copied."""
        return Records(
            keys=None if self.keys is None else self.keys[start:stop],
            values=self.values[start:stop],
            headers=None if self.headers is None else self.headers[start:stop],
            timestamps_ms=None if self.timestamps_ms is None else self.timestamps_ms[start:stop],
        )


def next_sequence(base_sequence: int, count: int) -> int:
    """The sequence number after a batch of `count` records; after 2**31 - 1 the broker continues with 0."""
    return (base_sequence + count) % _SEQUENCES


def record_sizes(records: Records) -> Integers:
    """The most bytes that each record can take inside a batch, whichever record is the first of that batch."""
    times = records.timestamps_ms
    widest_delta_ms = 0 if times is None or len(times) == 0 else int(times.max()) - int(times.min())
    # In zigzag, where a negative delta is the odd number below its positive twin.
    same_for_all = 1 + _varint_bytes(2 * widest_delta_ms) + _varint_bytes(2 * len(records))
    sizes = np.full(len(records), same_for_all, dtype=np.int64)
    headers = _Headers.of(records.headers)
    sizes += 1 if headers is None else headers.byte_counts
    _add_byte_counts(sizes, _nullable(records.keys) + _nullable(records.values))
    sizes += _Varints.of_lengths(sizes).byte_counts
    return sizes


def cut(records: Records, *, limit_bytes: int) -> list[tuple[int, int]]:
    """Pieces (start, stop) in order, of about one size; the batch of each, with its header, has <= `limit_bytes`."""
    sizes = record_sizes(records)
    ends = np.cumsum(sizes)
    room = limit_bytes - HEADER_BYTES
    if len(records) and int(ends[-1]) > room > 0:
        # Pieces of one size, not full ones and a small rest: each batch costs the same, whatever is in it.
        share = -(-int(ends[-1]) // -(-int(ends[-1]) // room))
        room = min(room, share + int(sizes.max()))
    pieces = []
    start, begin_bytes = 0, 0
    while start < len(records):
        stop = int(np.searchsorted(ends, begin_bytes + room, side="right"))
        if stop <= start:
            raise RecordTooLarge(index=start, size_bytes=int(ends[start]) - begin_bytes)
        pieces.append((start, stop))
        start, begin_bytes = stop, int(ends[stop - 1])
    return pieces


def encode(
    records: Records, *, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int, now_ms: int
) -> bytes:
    """One record batch of a transaction, for one partition."""
    count = len(records)
    if count == 0:
        raise ValueError("a record batch has at least one record")
    plain = _join_records(records)
    payload: bytes | memoryview = plain
    if codec is not Codec.NONE:
        payload = codec.compress(plain)
        if len(payload) >= len(plain):
            codec, payload = Codec.NONE, plain

    times = records.timestamps_ms
    after_checksum = _AFTER_CHECKSUM.pack(
        codec.value | _TRANSACTIONAL,
        count - 1,  # the last offset delta
        now_ms if times is None else int(times[0]),
        now_ms if times is None else int(times.max()),
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    length = _COUNTED_UNTIL_CHECKSUM + len(after_checksum) + len(payload)
    # The broker sets the base offset and the leader's epoch, so the checksum begins after them.
    until_checksum = _UNTIL_CHECKSUM.pack(0, length, -1, _MAGIC, checksum_of(after_checksum, payload))
    return b"".join((until_checksum, after_checksum, payload))


def _join_records(records: Records) -> memoryview:
    """The records of an uncompressed batch, as the module's drawing shows."""
    count, times = len(records), records.timestamps_ms
    # 1. The parts after the length.
    rest: list[_Part] = [
        0,  # the attributes
        0 if times is None else _Varints.of_deltas(times),
        _Varints(np.arange(0, 2 * count, 2, dtype=np.int64)),
        *_nullable(records.keys),
        *_nullable(records.values),
    ]
    headers = _Headers.of(records.headers)

    # 2. The length. It comes before the joining, because Arrow's joined column has the same limit.
    lengths = np.zeros(count, dtype=np.int64)
    _add_byte_counts(lengths, rest)
    lengths += 1 if headers is None else headers.byte_counts
    if int(lengths.sum()) > _BATCH_BYTES_MAX - HEADER_BYTES - 5 * count:
        raise ValueError(f"{count} records of {int(lengths.sum())} bytes are too many for one batch: cut them first")

    # 3. All parts.
    return _data(_join([_Varints.of_lengths(lengths), *rest, *([0] if headers is None else headers.joined())], count))


class _Varints:
    """One number per row, already in zigzag, and how many bytes each takes as a varint."""

    def __init__(self, zigzag: npt.NDArray[Any]) -> None:
        largest = int(zigzag.max(initial=0))
        # Later passes use the smallest type that fits the numbers: usually one or two bytes.
        self.zigzag = zigzag.astype(np.min_scalar_type(largest), copy=False)
        self.width = _varint_bytes(largest)
        # has_more[i] marks the rows that continue after their byte i.
        self.has_more = [self.zigzag >= (1 << 7 * (i + 1)) for i in range(self.width - 1)]
        self.byte_counts = np.ones(len(zigzag), dtype=np.int8)
        for more in self.has_more:
            self.byte_counts += more

    @classmethod
    def of_lengths(cls, lengths: npt.NDArray[Any]) -> _Varints:
        """Lengths, none of them null."""
        return cls(lengths.astype(np.int64) << 1)

    @classmethod
    def of_deltas(cls, times_ms: Integers) -> _Varints:
        """The distance of each time from the first; it may be negative."""
        deltas = times_ms - times_ms[0]
        return cls(((deltas << 1) ^ (deltas >> 63)).view(np.uint64))

    def put(self, into: npt.NDArray[np.uint8], used: npt.NDArray[np.bool_]) -> None:
        """Write the bytes into columns of a matrix, and mark the used ones."""
        for i in range(self.width):
            byte = (self.zigzag >> 7 * i).astype(np.uint8) & np.uint8(0x7F)
            if i < len(self.has_more):
                byte |= self.has_more[i].view(np.uint8) << np.uint8(7)
            into[:, i] = byte
            if i > 0:
                used[:, i] = self.has_more[i - 1]


@dataclass(frozen=True)
class _Column:
    """The bytes of each row, without the length before them."""

    array: pa.Array
    byte_counts: npt.NDArray[Any]


# A part of a row: a number below 128 that is the same in all rows, a number per row, or bytes per row.
_Part: TypeAlias = "int | _Varints | _Column"


@dataclass(frozen=True)
class _Headers:
    """The headers of all records, flattened."""

    counts: _Varints
    parts: Sequence[_Part]  # of one header
    header_count: int
    offsets: Integers  # the beginning and the end of each record's headers, in the bytes of all headers
    byte_counts: Integers  # of a record, with the number of its headers

    @classmethod
    def of(cls, headers: pa.Array | None) -> _Headers | None:
        """The headers, or None if no record has any."""
        if headers is None or headers.null_count == len(headers):
            return None
        counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy()
        flat = headers.flatten()
        if len(flat) == 0:
            return None
        ends = _running_total(counts)
        keys, values = flat.flatten()
        if keys.null_count:
            first = int(np.flatnonzero(_nulls(keys))[0])
            raise HeaderWithoutKey(index=int(np.searchsorted(ends, first, side="right")) - 1)
        parts = _nullable(keys) + _nullable(values)
        sizes = np.zeros(len(flat), dtype=np.int64)
        _add_byte_counts(sizes, parts)
        offsets = _running_total(sizes)[ends]
        varints = _Varints.of_lengths(counts)
        return cls(
            counts=varints,
            parts=parts,
            header_count=len(flat),
            offsets=offsets,
            byte_counts=offsets[1:] - offsets[:-1] + varints.byte_counts,
        )

    def joined(self) -> list[_Part]:
        """The parts of a record that hold its headers."""
        # The headers of a record are side by side in the bytes of all headers: only the offsets are new.
        everything = _join(self.parts, self.header_count)
        offsets = self.offsets.astype(np.int32)
        array = pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(_data(everything))]
        )
        return [self.counts, _Column(array, offsets[1:] - offsets[:-1])]


def _nullable(array: pa.Array | None) -> list[_Part]:
    """Bytes after their length, or only the length of a null."""
    if array is None or array.null_count == len(array):
        return [_NULL]
    offsets = _offsets(array)
    lengths = offsets[1:] - offsets[:-1]
    zigzag = lengths.astype(np.int64) << 1
    if array.null_count:
        nulls = _nulls(array)
        lengths[nulls] = 0  # Arrow may keep any bytes for a null
        zigzag[nulls] = _NULL
    return [_Varints(zigzag), _Column(array, lengths)]


def _add_byte_counts(sizes: Integers, parts: Iterable[_Part]) -> None:
    for part in parts:
        sizes += 1 if isinstance(part, int) else part.byte_counts


def _running_total(sizes: npt.NDArray[Any]) -> Integers:
    """The beginning of each row if rows of these sizes are put end to end, and the end of the last one."""
    total = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=total[1:])
    return total


def _join(parts: Iterable[_Part], count: int) -> pa.Array:
    """A column whose rows are the parts of each row, end to end."""
    columns: list[pa.Array | pa.Scalar] = []
    numbers: list[int | _Varints] = []
    for part in parts:
        if not isinstance(part, _Column):
            numbers.append(part)
            continue
        columns += (_pack(numbers, count), _narrow(part.array))
        numbers = []
    if numbers:
        columns.append(_pack(numbers, count))
    return pc.binary_join_element_wise(*columns, _NO_SEPARATOR, null_handling="replace", null_replacement="")


def _pack(numbers: Sequence[int | _Varints], count: int) -> pa.Array | pa.Scalar:
    """Numbers that follow each other, as one column of bytes."""
    constants = [number for number in numbers if isinstance(number, int)]
    if len(constants) == len(numbers):
        return pa.scalar(bytes(constants), type=pa.binary())
    # A matrix as wide as the longest possible row. Then we remove the bytes that shorter rows do not use.
    width = sum(1 if isinstance(number, int) else number.width for number in numbers)
    matrix = np.empty((count, width), dtype=np.uint8)
    used = np.ones((count, width), dtype=np.bool_)
    sizes = np.zeros(count, dtype=np.int64)
    _add_byte_counts(sizes, numbers)
    at = 0
    for number in numbers:
        if isinstance(number, int):
            matrix[:, at] = number
            at += 1
        else:
            number.put(matrix[:, at : at + number.width], used[:, at : at + number.width])
            at += number.width
    offsets = _running_total(sizes).astype(np.int32)
    data = matrix if offsets[-1] == matrix.size else matrix[used]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _narrow(array: pa.Array) -> pa.Array:
    """The column as binary with offsets of 32 bits, as the packed numbers have."""
    if array.type == pa.binary():
        return array
    if _is_wide(array.type):
        # Arrow's own cast checks the offsets, which are too big if a small slice is near the end of a big column.
        array = array.fill_null(b"") if array.null_count else array
        offsets = _offsets(array)
        data = array.buffers()[2]
        if data is not None:
            data = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        narrow = (offsets - offsets[0]).astype(np.int32)
        return pa.Array.from_buffers(pa.binary(), len(array), [None, pa.py_buffer(narrow), data])
    return pa.Array.from_buffers(pa.binary(), len(array), array.buffers(), offset=array.offset)


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def _offsets(array: pa.Array) -> npt.NDArray[Any]:
    """The beginning of the bytes of each row, and the end of the last one's."""
    kind: type[np.int64] | type[np.int32]
    if _is_wide(array.type):
        kind = np.int64
    elif pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        kind = np.int32
    else:
        raise TypeError(f"keys, values and headers contain bytes or text, not {array.type}")
    begin = array.offset * np.dtype(kind).itemsize
    return np.frombuffer(array.buffers()[1], dtype=kind, count=len(array) + 1, offset=begin)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _data(array: pa.Array) -> memoryview:
    """The bytes of all rows, end to end; the column must come directly from Arrow's join."""
    buffer = array.buffers()[2]
    return memoryview(b"" if buffer is None else buffer)[: int(_offsets(array)[-1])]


def _varint_bytes(zigzag: int) -> int:
    """The bytes of a number as a varint: seven bits in each."""
    return max(1, -(-zigzag.bit_length() // 7))
