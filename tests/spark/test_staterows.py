"""Rows of state have the bytes that Spark gives them; these were taken out of a checkpoint of Spark's."""

import pytest

from lockgate.errors import InvariantBroken
from lockgate.spark.staterows import binary_row, bucket_key, cell_key, cell_of, read_binary, timer_of

INDEX_OF_6 = bytes.fromhex(
    "00000000000000001000000018000000180000002800000000000000000000000600000000000000"
    "00000000000000000500000010000000696e646578000000"
)
PAGE_OF_6 = bytes.fromhex(
    "00000000000000001000000018000000300000002800000000000000000000000600000000000000"
    "0000000000000000190000001000000070616765202d3932323333373230333638353437373538303800000000000000"
)


def test_keys_of_cells_are_written_and_read_as_spark_does() -> None:
    assert cell_key(6, "index") == INDEX_OF_6
    assert cell_of(INDEX_OF_6) == "index"
    assert cell_key(6, f"page {-(2**63)}") == PAGE_OF_6
    assert cell_of(PAGE_OF_6) == f"page {-(2**63)}"


def test_values_and_buckets_are_written_and_read_as_spark_does() -> None:
    assert bucket_key(12) == bytes.fromhex("00000000000000000c00000000000000")
    assert binary_row(b"totals") == bytes.fromhex("00000000000000000600000010000000746f74616c730000")
    assert read_binary(binary_row(b"")) == b""
    assert read_binary(binary_row(b"12345678")) == b"12345678"


def test_a_timer_moves_to_another_bucket_and_keeps_its_time() -> None:
    key = bytes.fromhex("000000000000000010000000180000000102030405060708" + "0000000000000000" + "0600000000000000")
    assert timer_of(key, 9) == key[:32] + bytes([9, 0, 0, 0, 0, 0, 0, 0])
    with pytest.raises(InvariantBroken, match="48 bytes"):
        timer_of(key + bytes(8), 9)
