"""The models of sinks: what they show when an epoch comes twice, and when a driver dies or sleeps."""

import pytest

from lockgate.commit.ledger import Entry
from lockgate.errors import Moved
from lockgate.lab.randomjobs.world import Died, ModelResource, Table, World


def entry(epoch: int, run: str = "one") -> Entry:
    return Entry(run=run, query="q", epoch=epoch, digest=str(epoch), at="now")


def staged(world: World, name: str, number: int) -> str:
    world.staged[name] = ("table", {"out": [{"n": number}]})
    return name


def test_rows_without_a_key_stand_twice_and_with_one_the_last_stands() -> None:
    plain, keyed = Table(), Table(("k",), is_keyed=True)
    for table in (plain, keyed):
        table.apply([{"k": "a", "n": 1}, {"k": "a", "n": 2}])
        table.apply([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
    assert [row["n"] for row in plain.rows] == [1, 2, 1, 2]
    assert keyed.rows == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]


def test_a_row_that_deletes_removes_its_key_and_latest_decides_what_a_gauge_shows() -> None:
    table, gauge = Table(("k",), is_keyed=True), Table((), "at", is_keyed=True)
    table.apply([{"k": "a", "__deleted": False}, {"k": "a", "__deleted": True}])
    gauge.apply([{"at": 2, "n": 1}, {"at": 1, "n": 2}])
    assert table.rows == []
    assert gauge.rows == [{"at": 2, "n": 1}]


def test_a_topic_shows_a_row_that_deletes_as_a_record() -> None:
    topic = Table()
    topic.apply([{"k": "a", "__deleted": True}, {"k": "a", "__deleted": False}])
    assert [row["__deleted"] for row in topic.rows] == [True, False]


def test_a_driver_dies_at_its_point_and_does_nothing_more() -> None:
    world, table = World(points_left=1), Table()
    with pytest.raises(Died):
        world.add(table, [{"n": 1}, {"n": 2}])
    assert table.rows == [{"n": 1}]
    assert world.died_at == "half"
    with pytest.raises(Died):
        world.add(table, [{"n": 3}])
    world.revive()
    world.add(table, [{"n": 1}, {"n": 2}])
    assert [row["n"] for row in table.rows] == [1, 1, 2]


def test_an_upsert_that_slept_overwrites_what_is_newer() -> None:
    world, table = World(points_left=0, sleeps=True), Table(("k",), is_keyed=True)
    with pytest.raises(Died):
        world.act("computed", lambda: table.apply([{"k": "a", "n": 1}]))
    world.revive()
    world.act("computed", lambda: table.apply([{"k": "a", "n": 2}]))
    world.wake()
    assert table.rows == [{"k": "a", "n": 1}]


def test_a_transaction_that_slept_is_stopped_by_the_ledger() -> None:
    world = World(tables={"out": Table()}, points_left=0, sleeps=True)
    first, second = (ModelResource(world, "table", "here") for _ in range(2))
    with pytest.raises(Died):
        first.publish(staged(world, "x", 1), entry(0), after=None)
    world.revive()
    second.publish(None, entry(-1, "two"), after=None)
    second.publish(staged(world, "y", 1), entry(0, "two"), after=entry(-1, "two"))
    world.wake()
    assert world.tables["out"].rows == [{"n": 1}]
    assert second.read() == entry(0, "two")
    assert second.leftovers() == ["x"]
    with pytest.raises(Moved):
        second.publish("x", entry(1, "two"), after=None)


def test_a_decision_stays_if_the_driver_dies_before_it_knows() -> None:
    world = World(tables={"out": Table()}, points_left=1)
    resource = ModelResource(world, "table", "here")
    with pytest.raises(Died):
        resource.publish(staged(world, "x", 1), entry(0), after=None)
    world.revive()
    assert resource.read() == entry(0)
    assert world.tables["out"].rows == [{"n": 1}]
