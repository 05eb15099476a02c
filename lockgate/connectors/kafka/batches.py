"""Read record batches (magic 2) that any producer to the topic may have sent: `encode.py`, in the other direction.

Whatever the bytes are, reading them gives records or Unreadable, and needs a bounded amount of memory:

    a batch unpacks to more than UNPACKED_BYTES_MAX     a few kilobytes can unpack to gigabytes
    a length, a count or an offset is not possible      a reader would read another record's bytes, or never end
    the checksum does not match                         the bytes are not those that the producer sent
    magic 0 or 1                                        Kafka has not written these since version 0.11

The library's own reader unpacks everything, checks no checksum, and trusts all lengths. Others may be able to write to
a topic. If we read such a topic with the library's reader, one small record could fill the memory of the driver.

A batch that is cut off at the end of a piece is skipped: the next piece begins with it. A broker always sends the first
batch whole, so if the first one is cut off, it is Unreadable. Otherwise a reader would take it for the end of the
partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from lockgate.connectors.kafka.checksum import checksum_of
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.wire import Fetched
from lockgate.untrusted import Unreadable

UNPACKED_BYTES_MAX = 64 << 20
"""Our own batches unpack to less than a topic's max.message.bytes, and those of Java producers to a few megabytes."""

_FRAME = struct.Struct(">qi")  # base offset, and the length of the rest
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED_FROM = 21  # the bytes before are set by the broker, or are the checksum itself
_MAGIC = 2
_CODEC_MASK, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_CODECS = {codec.value: codec for codec in Codec}
_OFFSET_MAX = (1 << 63) - 1
_VARINT_BYTES_MAX = 10


@dataclass(frozen=True)
class Record:
    """The part of a record that our readers need: without time and headers."""

    offset: int
    key: bytes | None
    value: bytes | None  # None: a tombstone


@dataclass(frozen=True)
class Batch:
    """A batch by its header; iterating over it unpacks its records."""

    base_offset: int
    last_offset: int
    producer_id: int
    records_count: int  # compaction may have removed others
    is_transactional: bool
    is_control: bool  # it contains the end of a transaction
    _codec: int
    _checksum: int
    _content: memoryview

    def __iter__(self) -> Iterator[Record]:
        """Its records, in order; raises Unreadable at a record that cannot be read."""
        if checksum_of(self._content[_CHECKED_FROM:]) != self._checksum:
            raise Unreadable("its checksum does not fit")
        codec = _CODECS.get(self._codec)
        if codec is None:
            raise Unreadable(f"compression {self._codec} is not known")
        packed = self._content[_HEADER.size :]
        reader = _Reader(codec.decompress(packed, bytes_max=UNPACKED_BYTES_MAX))
        for _ in range(self.records_count):
            yield self._next_record(reader)
        if reader.at != len(reader.content):
            raise Unreadable(f"{len(reader.content) - reader.at} bytes follow its last record")

    def _next_record(self, reader: _Reader) -> Record:
        length = reader.varint()
        end = reader.at + length
        if length < 0 or end > len(reader.content):
            raise Unreadable(f"the length of a record is {length}")
        reader.skip(1)  # attributes, which no version of Kafka uses
        reader.varint()  # its time
        offset = self.base_offset + reader.varint()
        if not self.base_offset <= offset <= self.last_offset:
            raise Unreadable(f"a record has offset {offset}, outside of {self.base_offset} to {self.last_offset}")
        record = Record(offset, key=reader.nullable(), value=reader.nullable())
        if reader.at > end:
            raise Unreadable(f"a record has more bytes than its length, {length}, says")
        # Headers fill the rest. As objects they would take thirty times as much memory as their bytes.
        reader.at = end
        return record


class _Reader:
    """Reads the unpacked bytes of a batch from left to right, never beyond their end."""

    __slots__ = ("at", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.content):
            raise Unreadable("a record is cut off")

    def varint(self) -> int:
        """A number in zigzag, seven bits in each byte."""
        content, at = self.content, self.at
        value = shift = 0
        for byte in content[at : at + _VARINT_BYTES_MAX]:
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise Unreadable("a number of a record has no end")

    def nullable(self) -> bytes | None:
        """Bytes after their length, or None for the length -1."""
        length = self.varint()
        if length < 0:
            if length == -1:
                return None
            raise Unreadable(f"the length of a key or a value is {length}")
        begin = self.at
        self.skip(length)
        return self.content[begin : self.at]


def split(content: bytes) -> Iterator[Batch]:
    """The whole batches in a piece of a partition."""
    view = memoryview(content)
    at = 0
    while len(view) - at >= _FRAME.size:
        base_offset, length = _FRAME.unpack_from(view, at)
        end = at + _FRAME.size + length
        if length < _HEADER.size - _FRAME.size:
            raise Unreadable(f"the batch at offset {base_offset} says that its length is {length}")
        if end > len(view):
            break
        yield _batch_of(view[at:end])
        at = end
    if at == 0 and content:
        raise Unreadable(f"its first batch is cut off after {len(content)} bytes")


def _batch_of(content: memoryview) -> Batch:
    base_offset, _, _, magic, checksum, attributes, last_delta, _, _, producer, _, _, count = _HEADER.unpack_from(
        content
    )
    if magic != _MAGIC:
        raise Unreadable(f"the batch at offset {base_offset} has the format {magic}, and not {_MAGIC}")
    if base_offset < 0 or last_delta < 0 or base_offset + last_delta > _OFFSET_MAX:
        raise Unreadable(f"the offsets of a batch are {base_offset} to {base_offset + last_delta}")
    if not 0 <= count <= last_delta + 1:
        raise Unreadable(f"the batch at offset {base_offset} says that it has {count} records in {last_delta + 1}")
    return Batch(
        base_offset=base_offset,
        last_offset=base_offset + last_delta,
        producer_id=producer,
        records_count=count,
        is_transactional=bool(attributes & _TRANSACTIONAL),
        is_control=bool(attributes & _CONTROL),
        _codec=attributes & _CODEC_MASK,
        _checksum=checksum,
        _content=content,
    )


def read_batches(fetched: Fetched) -> Iterator[tuple[Batch, bool]]:
    """The whole batches in a piece of a partition; for each, whether a reader of committed records sees it.

    The piece comes with a list of aborted transactions. The records of each begin at the offset that the list names,
    and end with the control record of their producer.
    """
    aborted = sorted(fetched.aborted, key=lambda one: one[1])
    now_aborted: set[int] = set()
    for batch in split(fetched.records):
        while aborted and aborted[0][1] <= batch.last_offset:
            now_aborted.add(aborted.pop(0)[0])
        if batch.is_control:
            now_aborted.discard(batch.producer_id)
        is_aborted = batch.is_transactional and batch.producer_id in now_aborted
        yield batch, not (batch.is_control or is_aborted)


@dataclass(frozen=True)
class Last:
    """The last committed record with a key: its value, or why it cannot be read."""

    offset: int
    value: bytes
    trouble: str = ""


def last_committed(fetched: Fetched, *, key: bytes, below: int) -> tuple[Last | None, int]:
    """The last committed record with this key in a piece of a partition, and the offset to read on from.

    Records with other keys are skipped: others may be able to write to the topic. A batch that cannot be read may
    contain a record with the key, so it counts as one.
    """
    last: Last | None = None
    position = -1
    batches = read_batches(fetched)
    while True:
        try:
            batch, is_committed = next(batches)
        except StopIteration:
            break
        except Unreadable as error:  # the beginning of the next batch is unknown
            return Last(max(position, 0), b"", f"a batch after it cannot be decoded ({error})"), position
        if batch.base_offset >= below:
            break
        position = batch.last_offset + 1
        try:
            for record in batch if is_committed else ():
                if record.key == key and record.value is not None:
                    last = Last(record.offset, record.value)
        except Unreadable as error:
            last = Last(batch.base_offset, b"", f"its batch cannot be decoded ({error})")
    return last, position
