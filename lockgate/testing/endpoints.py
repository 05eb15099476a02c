"""Tests for your own source or sink: does it answer about itself as the rest of the package needs it?

    from lockgate.testing import EndpointContract

    class TestMySink(EndpointContract):
        def endpoint(self):
            return MySink("where/it/writes")

pytest finds the tests of the class. They need neither Spark nor the endpoint's system. What a sink does with an epoch
is tested by `ResourceContract`.
"""

from __future__ import annotations

from abc import abstractmethod
from datetime import UTC, datetime
from pathlib import Path

from lockgate.dataflow.endpoints import POSITION, Encoding, Sink, Source
from lockgate.dataflow.locations import Files, Location, OwnRows, ServerTable, SqliteTable, Topic
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import parse_ddl
from lockgate.errors import Refused

_SITE = Path("/the/site/of/a/proof")
_SERVERS, _DSN = "site:9092", "postgresql://site/proof"
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class EndpointContract:
    """The laws of a source or a sink, as tests. Subclass it, define `endpoint`, and let pytest run it."""

    @abstractmethod
    def endpoint(self) -> Source | Sink:
        """The source or sink, the same at each call."""

    # -- the laws ------------------------------------------------------------------------------------------------------

    def test_it_says_what_it_promises_and_why(self) -> None:
        endpoint = self.endpoint()
        assert endpoint.ability.reason
        assert all(isinstance(line, str) and line for line in endpoint.summary())

    def test_it_tells_its_places_without_its_system_and_always_the_same(self) -> None:
        one, same = self.endpoint(), self.endpoint()
        assert one.location == same.location or isinstance(one.location, OwnRows)
        assert one.places == same.places
        assert one.extra == same.extra

    def test_it_moves_away_from_its_places_or_says_why_it_cannot(self) -> None:
        endpoint, site = self.endpoint(), _Site()
        shown, places = repr(endpoint), endpoint.places
        moved = _relocated(endpoint, site)
        if moved is None:
            return
        assert "relocate" in vars(type(endpoint)), "a proof refuses a class that only inherits `relocate`"
        assert type(moved) is type(endpoint)
        assert (repr(endpoint), endpoint.places) == (shown, places), "the user's own endpoint has changed"
        assert not places & moved.places, "it still uses a place of the user"
        assert _is_there(moved.location), f"{moved.location} is not a place of the site"
        assert moved.ability == endpoint.ability

    def test_it_moves_to_the_same_place_each_time(self) -> None:
        site = _Site()
        one, same = _relocated(self.endpoint(), site), _relocated(self.endpoint(), site)
        assert (one is None) == (same is None)
        assert one is None or same is None or one.places == same.places

    def test_a_source_has_a_position_and_says_what_its_events_are_made_of(self) -> None:
        source = self.endpoint()
        if not isinstance(source, Source):
            return
        names = source.columns("contract").names
        assert POSITION in source.hidden_columns()
        assert not {*names} & {*source.hidden_columns()}
        if source.encoding is not None:
            made = [source.encoding.value, *([] if source.encoding.key is None else [source.encoding.key])]
            assert {name for ddl in made for name in parse_ddl(ddl, "contract").names} == {*names}
            _check_record(source, source.encoding)

    def test_a_sink_needs_only_what_it_names(self) -> None:
        sink = self.endpoint()
        if isinstance(sink, Sink):
            assert all(isinstance(name, str) and name for name in sink.columns_needed())
            assert all(isinstance(name, str) for name in sink.task_modules(is_exact=True))
            replaced_by = () if sink.location is None else sink.location.replaced_by
            assert {*replaced_by} <= {*sink.columns_needed()}


def _relocated(endpoint: Source | Sink, site: _Site) -> Source | Sink | None:
    """The endpoint at the site; None if it says why it cannot move, and the fix."""
    try:
        return endpoint.relocate(site)
    except Refused as error:
        if not error.fix:
            raise AssertionError(f"{error.what}: this names no fix") from error
        return None


def _check_record(source: Source, encoding: Encoding) -> None:
    assert {*encoding.beside} <= {*source.hidden_columns()}
    if encoding.record is not None:
        record = source.record(b"value", None, {}, number=7, now=_NOW)
        assert tuple(record) == parse_ddl(encoding.record, "contract").names
        assert {b"value", 7} <= {one for one in record.values() if isinstance(one, bytes | int)}


class _Site(Relocation):
    """A site that exists in name alone."""

    is_traced = True

    def topic(self, servers: str, name: str) -> tuple[str, str]:
        return _SERVERS, f"site-{name}"

    def path(self, path: str) -> str:
        return str(_SITE / path.replace("/", "-"))

    def table(self, dsn: str, table: str) -> tuple[str, str]:
        return _DSN, f"site_{table.replace('.', '_')}"

    def refusal(self, what: str, *, fix: str) -> Refused:
        return Refused(f"endpoint {what}", where="contract", fix=fix)


def _is_there(location: Location | None) -> bool:
    if isinstance(location, Topic):
        return location.servers == _SERVERS
    if isinstance(location, Files | SqliteTable):
        return _SITE in Path(location.path).parents
    return not isinstance(location, ServerTable) or location.dsn == _DSN
