"""Offsets belong to sources: which changes are told, and in which words."""

import pytest

from lockgate import FileSource, KafkaSource, SensorSource
from lockgate.runtime.sourcelist import Listed, describe_change

ORDERS, PAYMENTS = Listed("orders", "topic orders"), Listed("payments", "topic payments")


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ([ORDERS, PAYMENTS], [ORDERS, PAYMENTS], None),
        ([ORDERS], [Listed("renamed", "topic orders")], None),
        (
            [ORDERS, PAYMENTS],
            [PAYMENTS, ORDERS],
            (
                "they were read in the order 'orders' (topic orders), 'payments' (topic payments), and now in the order"
                " 'payments' (topic payments), 'orders' (topic orders)"
            ),
        ),
        (
            [ORDERS, PAYMENTS],
            [ORDERS, Listed("payments", "topic paid")],
            "'payments' (topic paid) is now in the place of 'payments' (topic payments)",
        ),
        (
            [ORDERS],
            [ORDERS, PAYMENTS],
            "'orders' (topic orders) were read, and now 'orders' (topic orders), 'payments' (topic payments)",
        ),
        (
            [ORDERS],
            [ORDERS, ORDERS],
            "'orders' (topic orders) were read, and now 'orders' (topic orders), 'orders' (topic orders)",
        ),
    ],
)
def test_a_source_continues_with_its_own_offsets_or_the_job_is_refused(
    before: list[Listed], now: list[Listed], told: str | None
) -> None:
    assert describe_change(before, now) == told


def test_addresses_and_schemas_are_no_part_of_what_offsets_are_places_in() -> None:
    one = KafkaSource(topic="orders", servers="a:9092", value="id INT")
    other = KafkaSource(topic="orders", servers="b:9092", value="id INT, price DOUBLE")
    assert one.offsets_of == other.offsets_of == "topic orders"
    assert FileSource(path="in", value="id INT").offsets_of == FileSource(path="./in/../in", value="x INT").offsets_of
    assert SensorSource(seed=1).offsets_of != SensorSource(seed=2).offsets_of
    assert SensorSource(seed=1, events=5).offsets_of == SensorSource(seed=1, events=500).offsets_of
