"""The checker of the kills, shown to catch what is planted."""

import json

import pytest
from kill_checker import Row, judge


def rows(*numbers: int, key: str = "a") -> list[Row]:
    return [Row("out", 0, offset, key, json.dumps({"id": number})) for offset, number in enumerate(numbers)]


def position(row: Row) -> int:
    return int(json.loads(row.value)["id"])


EXPECTED = [row.content for row in rows(1, 2, 3)]


def test_what_came_out_once_and_in_order_holds() -> None:
    verdict = judge(EXPECTED, seen=rows(1, 2, 3), scanned=rows(1, 2, 3), in_log=rows(1, 2, 3, 4), position=position)
    assert verdict.holds
    assert verdict.rows == 3
    assert verdict.aborted_in_log == 1


def test_a_lost_row_is_found() -> None:
    verdict = judge(EXPECTED, seen=rows(1, 3), scanned=rows(1, 3), position=position)
    assert [content[2] for content in verdict.lost] == ['{"id": 2}']
    assert not verdict.duplicated
    assert not verdict.holds


def test_a_doubled_row_is_found() -> None:
    verdict = judge(EXPECTED, seen=rows(1, 2, 2, 3), scanned=rows(1, 2, 2, 3), position=position)
    assert [content[2] for content in verdict.duplicated] == ['{"id": 2}']
    assert not verdict.lost
    assert not verdict.holds


def test_a_row_with_another_value_is_lost_and_too_much() -> None:
    verdict = judge(EXPECTED, seen=rows(1, 2, 4), scanned=rows(1, 2, 4), position=position)
    assert len(verdict.lost) == len(verdict.duplicated) == 1


@pytest.mark.parametrize("later", [[], [3]], ids=["nothing", "another row"])
def test_a_row_that_was_seen_and_is_gone_was_of_an_aborted_transaction(later: list[int]) -> None:
    verdict = judge([row.content for row in rows(1, 2, *later)], seen=rows(1, 2, 9), scanned=rows(1, 2, *later))
    assert [row.offset for row in verdict.aborted] == [2]
    assert not verdict.lost
    assert not verdict.duplicated
    assert not verdict.holds


def test_a_broken_order_within_a_key_is_found() -> None:
    verdict = judge(EXPECTED, seen=rows(1, 3, 2), scanned=rows(1, 3, 2), position=position)
    assert [(position(one), position(two)) for one, two in verdict.disordered] == [(3, 2)]
    assert not verdict.holds


def test_the_order_of_different_keys_does_not_matter() -> None:
    mixed = [Row("out", 0, 0, "a", '{"id": 5}'), Row("out", 0, 1, "b", '{"id": 1}')]
    assert judge([row.content for row in mixed], seen=mixed, scanned=mixed, position=position).holds


def test_a_key_in_two_partitions_has_no_order() -> None:
    apart = [Row("out", 0, 0, "a", '{"id": 1}'), Row("out", 1, 0, "a", '{"id": 2}')]
    verdict = judge([row.content for row in apart], seen=apart, scanned=apart, position=position)
    assert len(verdict.disordered) == 1


def test_a_reader_that_did_not_keep_up_proves_nothing() -> None:
    verdict = judge(EXPECTED, seen=rows(1, 2), scanned=rows(1, 2, 3), position=position)
    assert verdict.unknown
    assert not verdict.holds


def test_a_reader_that_was_given_a_row_twice_proves_nothing() -> None:
    verdict = judge(EXPECTED, seen=[*rows(1, 2, 3), *rows(1)], scanned=rows(1, 2, 3), position=position)
    assert verdict.unknown
    assert not verdict.holds
