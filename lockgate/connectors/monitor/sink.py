"""MonitorSink: rows as a metric of Prometheus, scraped from the driver.

    gauge     shows the last row of each label set; a repeated epoch sets the same values again
    counter   adds up the rows of each label set; an epoch that the same driver repeats is not added again. If the next
              driver repeats it, it is, because nothing remembers what the dead driver has shown

Which row is last: the rows of a label set are taken in the order of arrival, as one source partition was read. Rows of
several partitions, and windows that close in one epoch, have no order. `latest` names a column that gives them one: the
row with the greatest value is shown, and an older one never replaces it.

All values pass through the driver and stay in its memory. After a restart a counter starts at 0, as Prometheus expects,
and a label set of a gauge is missing until its next row. An epoch can be seen before other sinks have decided it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.connectors.collecting import collect_rows
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.dataflow.locations import Metric
from lockgate.dataflow.origin import caller
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob, BadMachine, Failed, InvariantBroken
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from lockgate.connectors.monitor.scraping import Labels, Share

KINDS = ("gauge", "counter")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass
class _Showing:
    """What a sink has shown since its run began."""

    share: Share
    epoch: int = -1
    places: dict[Labels, Any] = field(default_factory=dict)  # of `latest`, by label set


@explain_wrong_calls('MonitorSink(metric="orders_total", value="n", kind="counter")')
@dataclass(frozen=True, init=False)
class MonitorSink(Sink):
    """A metric for Prometheus and the dashboard: one number for each combination of label values.

    Args:
        metric: the name of the metric.
        value: the column of the number.
        kind: `"gauge"` shows the last number; `"counter"` adds them up.
        labels: the column, or columns, of the labels.
        latest: for a gauge, the column that says which row is the last.
        port: the port of the endpoint. 0 takes a free one and prints it. Sinks with the same host and port share one.
        host: the address of the endpoint.
        label_sets_max: the most combinations of label values.

    Raises:
        BadJob: an argument cannot be valid.

    >>> gauge = MonitorSink(metric="order_amount", value="amount", labels="ip", latest="at")
    """

    metric: str
    value: str
    kind: str
    labels: tuple[str, ...]
    latest: str | None
    port: int
    host: str
    label_sets_max: int
    _showing: list[_Showing] = field(repr=False, compare=False)

    def __init__(
        self,
        *,
        metric: str,
        value: str,
        kind: str = "gauge",
        labels: str | Sequence[str] = (),
        latest: str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        label_sets_max: int = 1_000,
    ) -> None:
        where = f"MonitorSink, declared at {caller()}"
        names = (labels,) if isinstance(labels, str) else tuple(labels)
        if kind not in KINDS:
            raise BadJob(f"kind={kind!r} is not known", where=where, fix=f"use one of {', '.join(KINDS)}")
        _check_names(metric, kind, names, where)
        if not all(isinstance(name, str) and name for name in (value, host)):
            raise BadJob("a MonitorSink needs a value column and a host as text", where=where, fix='value="total"')
        if latest is not None and (kind == "counter" or not latest):
            raise BadJob(
                "latest= names the column that says which row a gauge shows; a counter adds up all of them",
                where=where,
                fix='remove it, or kind="gauge"',
            )
        if type(port) is not int or not 0 <= port <= 65_535:
            raise BadJob(f"port={port!r} is no port", where=where, fix="use 1 to 65535; port=0 takes a free one")
        if type(label_sets_max) is not int or label_sets_max < 1:
            raise BadJob(f"label_sets_max={label_sets_max!r} allows nothing", where=where, fix="allow 1 or more")
        object.__setattr__(self, "metric", metric)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "labels", names)
        object.__setattr__(self, "latest", latest)
        object.__setattr__(self, "port", port)
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "label_sets_max", label_sets_max)
        object.__setattr__(self, "_showing", [])

    @property
    def ability(self) -> SinkAbility:
        if self.kind == "gauge" and self.latest is None:
            return SinkAbility(
                delivery=Delivery.PLAIN,
                reason="a gauge shows the last row of a label set that arrives, and a repeated epoch may bring them in"
                " another order",
                cure='name the column that decides which row is the last, latest="at"; or declare a lower guarantee for'
                " this output alone: .to(name, sink, guarantee=...)",
            )
        if self.kind == "gauge":
            return SinkAbility(
                delivery=Delivery.IDEMPOTENT,
                reason="a repeated epoch sets the same values again; they are in the driver's memory, and end with it",
                cure="if a value must be there after a restart, write to a sink that outlives the driver",
                # Each driver has values and an endpoint of its own. One that slept shows older values at its own
                # address only; it cannot change what the driver that took over shows.
                is_fenced=True,
            )
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="a counter only adds, and an epoch that the next driver repeats is added again",
            cure='keep the count in the job, .rolling(total="sum(...)"), and show it as a gauge; or declare a lower'
            " guarantee for this output alone: .to(name, sink, guarantee=...)",
        )

    @property
    def address(self) -> str | None:
        """The endpoint, when it is open; None before.

        >>> MonitorSink(metric="order_amount", value="amount").address is None
        True
        """
        return self._showing[0].share.address if self._showing else None

    @property
    def location(self) -> Metric:
        return Metric(self.labels, self.latest, is_replaced=self.kind == "gauge")

    def relocate(self, to: Relocation) -> MonitorSink:
        return MonitorSink(  # at a free port of this machine
            metric=self.metric,
            value=self.value,
            kind=self.kind,
            labels=self.labels,
            latest=self.latest,
            label_sets_max=self.label_sets_max,
        )

    @property
    def checks_rows_alone(self) -> bool:
        return True

    @property
    def extra(self) -> str:
        return "monitor"

    def columns_needed(self) -> Sequence[str]:
        return (self.value, *self.labels, *(() if self.latest is None else (self.latest,)))

    def summary(self) -> tuple[str, ...]:
        by = (f"by {', '.join(self.labels)}",) if self.labels else ()
        return ("MonitorSink", f"{self.kind} {self.metric}", *by, "through the driver")

    def check_rows(self, rows: DataFrame, where: str) -> None:
        from pyspark.sql.types import (
            BooleanType,
            DateType,
            NumericType,
            StringType,
            TimestampNTZType,
            TimestampType,
        )

        plain = (BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
        value, *others = rows.select(*map(quote, self.columns_needed())).schema
        if not isinstance(value.dataType, NumericType):
            raise BadJob(
                f"column {self.value!r} is of type {value.dataType.simpleString()}, and the value of a metric is a"
                " number",
                where=where,
                fix=f"select a number: CAST({self.value} AS DOUBLE)",
            )
        for column in others:
            if not isinstance(column.dataType, plain):
                raise BadJob(
                    f"column {column.name!r} is of type {column.dataType.simpleString()}, and labels and latest= take"
                    " text, numbers, booleans and times",
                    where=where,
                    fix="select what distinguishes the rows",
                )

    def check(self, where: str) -> None:
        """Open the endpoint, so that a port that is in use is found before anything runs."""
        try:
            import prometheus_client  # noqa: F401 - an extra
        except ImportError as error:
            raise BadMachine(
                "The Prometheus client library is not installed.",
                where="package prometheus-client",
                fix="pip install 'lockgate[monitor]'",
            ) from error
        from lockgate.connectors.monitor.scraping import Metric, Share

        if self._showing and self._showing[0].share.where != where:
            raise BadJob(
                f"one MonitorSink is given to two outputs, and shows {self.kind} {self.metric} of the other one",
                where=f"{where}; {self._showing[0].share.where}",
                fix="give each output a MonitorSink of its own; end a run before its sink is used in another job",
            )
        self.close()  # what an earlier run has shown
        metric = Metric(name=self.metric, kind=self.kind, labels=self.labels)
        self._showing.append(_Showing(Share(self.host, self.port, metric, where)))

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        return "driver", "all rows pass through the driver"

    def write(self, rows: DataFrame, epoch: int) -> None:
        # All rows are computed, also those of an epoch that is not shown again: state must be kept.
        found = collect_rows(self._chosen(rows))
        if not self._showing:
            raise InvariantBroken(
                f"{self.kind} {self.metric} is written without an endpoint", where="MonitorSink", fix="report this"
            )
        showing = self._showing[0]
        if self.kind == "gauge":
            places = dict(showing.places)
            showing.share.show(self._last(found, places, showing.share.where), most=self.label_sets_max)
            showing.places = places
        elif epoch > showing.epoch:
            showing.share.show(self._sums(found, showing.share.where), most=self.label_sets_max)
            showing.epoch = epoch

    def close(self) -> None:
        """Stop showing the metric, and end the endpoint if no other sink shows one."""
        while self._showing:
            self._showing.pop().share.leave()

    def _chosen(self, rows: DataFrame) -> DataFrame:
        """What a metric needs of the rows: the value, the order, the labels."""
        from pyspark.sql import functions as F

        place = F.lit(0) if self.latest is None else F.col(quote(self.latest))
        # To Prometheus an empty label is a missing one, which is what null means.
        labels = [F.coalesce(F.col(quote(name)).cast("string"), F.lit("")) for name in self.labels]
        columns = [F.col(quote(self.value)).cast("double"), place, *labels]
        return rows.select(*(column.alias(f"column_{at}") for at, column in enumerate(columns)))

    def _last(self, rows: Iterable[Row], places: dict[Labels, Any], where: str) -> dict[Labels, float]:
        """The row to show of each label set; `places` becomes what `latest` says of them."""
        news: dict[Labels, float] = {}
        for value, place, *texts in rows:
            labels = tuple(texts)
            if value is None or place is None:
                raise self._bad_row(self.value if value is None else self.latest, None, labels, where)
            if labels in places and place < places[labels]:
                continue
            places[labels] = place
            news[labels] = value
        return news

    def _sums(self, rows: Iterable[Row], where: str) -> dict[Labels, float]:
        """What each label set gains."""
        news: dict[Labels, float] = {}
        for value, _, *texts in rows:
            labels = tuple(texts)
            if value is None or not 0 <= value < math.inf:  # a NaN would stay forever
                raise self._bad_row(self.value, value, labels, where)
            news[labels] = news.get(labels, 0.0) + value
        return news

    def _bad_row(self, column: str | None, value: float | None, labels: Labels, where: str) -> Failed:
        of = ", ".join(f'{name}="{text}"' for name, text in zip(self.labels, labels, strict=True))
        if value is None:
            what, fix = "null", f'filter such rows: .where("{column} IS NOT NULL")'
        else:
            what, fix = (
                f"{value}, and a counter only grows",
                'show it as a gauge, or filter such rows with .where("...")',
            )
        return Failed(f"column {column!r} is {what}, in a row for {self.metric}{{{of}}}", where=where, fix=fix)


def _check_names(metric: str, kind: str, labels: tuple[str, ...], where: str) -> None:
    if not (isinstance(metric, str) and _METRIC.fullmatch(metric)):
        raise BadJob(
            f"a metric of Prometheus cannot be named {metric!r}",
            where=where,
            fix="use letters, digits, '_' and ':', not beginning with a digit",
        )
    if kind == "counter" and metric.removesuffix("_total") in ("", metric):
        raise BadJob(
            f"a counter cannot be named {metric!r}: Prometheus would show it as {metric}_total",
            where=where,
            fix=f'metric="{metric}_total"',
        )
    for name in labels:
        if not (isinstance(name, str) and _LABEL.fullmatch(name)):
            raise BadJob(
                f"a label of Prometheus cannot be named {name!r}",
                where=where,
                fix="use letters, digits and '_', not beginning with a digit or '__'; .select(name=\"...\") renames",
            )
    if len({name.lower() for name in labels}) < len(labels):
        raise BadJob(f"labels={labels!r} names a column twice", where=where, fix="name each column once")
