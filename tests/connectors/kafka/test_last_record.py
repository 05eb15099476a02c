"""The last record of a ledger topic, out of bytes that others may have sent: no broker is needed."""

import pyarrow as pa
import pytest

from lockgate.connectors.kafka.batches import Last, last_committed
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import Records, encode
from lockgate.connectors.kafka.wire import Fetched

_ATTRIBUTES = 22  # the low byte; its first three bits name the codec
_GZIP, _SNAPPY, _UNKNOWN = 1, 2, 7


def batch(key: bytes, value: bytes, *, at: int) -> bytes:
    """One record, as a broker stores it at an offset."""
    records = Records(
        keys=pa.array([key], pa.binary()), values=pa.array([value], pa.binary()), headers=None, timestamps_ms=None
    )
    made = encode(records, codec=Codec.NONE, producer_id=-1, producer_epoch=-1, base_sequence=-1, now_ms=0)
    return at.to_bytes(8, "big") + bytes(made)[8:]


def last(*batches: bytes) -> tuple[Last | None, int]:
    fetched = Fetched(code=0, high_watermark=9, last_stable_offset=9, records=b"".join(batches), aborted=())
    return last_committed(fetched, key=b"ledger", below=9)


def test_records_with_another_key_are_passed_over() -> None:
    found, position = last(batch(b"ledger", b"ours", at=3), batch(b"x", b"forged", at=4), batch(b"Ledger", b"", at=5))
    assert (found, position) == (Last(3, b"ours"), 6)


@pytest.mark.parametrize("codec", [_GZIP, _SNAPPY, _UNKNOWN])
def test_a_batch_that_cannot_be_decoded_counts_as_the_last_record_until_one_stands_behind_it(codec: int) -> None:
    broken = bytearray(batch(b"ledger", b"ours", at=4))
    broken[_ATTRIBUTES] |= codec
    found, position = last(batch(b"ledger", b"before", at=3), bytes(broken))
    assert position == 5
    assert found is not None
    assert (found.offset, found.value) == (4, b"")
    assert "cannot be decoded" in found.trouble
    assert last(bytes(broken), batch(b"ledger", b"set", at=5))[0] == Last(5, b"set")
