"""The endpoint that Prometheus scrapes: an HTTP server in the driver, and the values that it shows.

Sinks that name the same host and port share one endpoint. It starts with the first of them and ends with the last. The
values of an output change epoch by epoch, under one lock: a scrape sees all of an epoch of an output, or nothing of it.

A metric has one kind and the same labels wherever it is shown; Prometheus could not read anything else. So a second
sink that declares something else is refused.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from lockgate.errors import BadJob, BadMachine, Failed
from lockgate.serving.acceptor import BACKLOG
from lockgate.serving.hosts import Hosts
from lockgate.serving.http import TEXT, HttpServer, Page, Request

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of their names: a label set."""


@dataclass(frozen=True)
class Metric:
    """A metric as Prometheus knows it; `kind` is gauge or counter."""

    name: str
    kind: str
    labels: tuple[str, ...]

    @property
    def family(self) -> str:
        """What OpenMetrics calls it: a counter is named without its suffix there, and no other metric may be."""
        return self.name.removesuffix("_total")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}{{{', '.join(self.labels)}}}"


@dataclass
class _Values:
    """The values of a metric, and the sinks that show it."""

    metric: Metric
    where: str
    sinks: int = 0
    by_labels: dict[Labels, float] = field(default_factory=dict)


class Endpoint(Collector):
    """A server of this process, from the first sink that joins it to the last that leaves."""

    def __init__(self, host: str, port: int, where: str) -> None:
        self._shown: dict[str, _Values] = {}
        self._lock = threading.Lock()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise BadMachine(
                f"Prometheus cannot be served at {host}:{port}: {error.strerror}",
                where=where,
                fix="end what listens there, or choose another port; port=0 takes one that is free",
            ) from error
        pages = make_wsgi_app(registry)
        self._server = HttpServer(
            self._listening,
            lambda request: _page(pages, request),
            name="lockgate-monitor",
            hosts=Hosts.of(self._listening, host),
        )
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._listening.getsockname()[1]}/metrics"

    def collect(self) -> Iterator[Family]:
        """What a scrape gets."""
        with self._lock:
            shown = [(values.metric, dict(values.by_labels)) for values in self._shown.values()]
        for metric, by_labels in shown:
            form = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = form(metric.name, "Rows of a Lockgate job.", labels=metric.labels)
            for labels, value in by_labels.items():
                family.add_metric(labels, value)
            yield family

    def join(self, metric: Metric, where: str) -> None:
        """Show one more metric, or have one more sink for it."""
        with self._lock:
            values = self._shown.get(metric.family)
            if values is not None and values.metric != metric:
                raise BadJob(
                    f"{metric} and {values.metric} cannot be shown at one endpoint, {self.address}",
                    where=f"{where}; {values.where}",
                    fix="give each metric a name of its own, or the same kind and labels to both",
                )
            values = self._shown.setdefault(metric.family, _Values(metric, where))
            values.sinks += 1

    def leave(self, metric: Metric) -> bool:
        """Remove a sink, and its metric with the last one; is nothing shown any more?"""
        with self._lock:
            values = self._shown[metric.family]
            values.sinks -= 1
            if not values.sinks:
                del self._shown[metric.family]
            return not self._shown

    def show(self, metric: Metric, news: Mapping[Labels, float], *, most: int, where: str) -> None:
        """Set a gauge to these values, or add them to a counter; all of them, or none if there are too many."""
        with self._lock:
            values = self._shown[metric.family].by_labels
            count = len(values.keys() | news.keys())
            if count > most:
                raise Failed(
                    f"{metric} has {count:,} label sets, and {most:,} is the most: each is a series that Prometheus"
                    " keeps in memory",
                    where=where,
                    fix="remove the label that has so many values, or group them; or raise label_sets_max",
                )
            for labels, value in news.items():
                values[labels] = value if metric.kind == "gauge" else values.get(labels, 0.0) + value

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()
        self._listening.close()


def _page(pages: Callable[..., Iterable[bytes]], request: Request) -> Page:
    """The answer of the client library, which also knows names to select, and compression."""
    told: list[tuple[str, dict[str, str]]] = []

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        told.append((status, dict(headers)))

    content = b"".join(
        pages(
            {
                "REQUEST_METHOD": "GET",
                "PATH_INFO": request.path,
                "QUERY_STRING": request.query,
                "HTTP_ACCEPT": request.headers.get("Accept") or "",
                "HTTP_ACCEPT_ENCODING": request.headers.get("Accept-Encoding") or "",
            },
            start,
        )
    )
    status, headers = told[0]
    return Page(int(status.split()[0]), headers.pop("Content-Type", TEXT), content, headers)


_open: dict[tuple[str, int], Endpoint] = {}
_opening = threading.Lock()


class Share:
    """The part of an endpoint that one sink has: its metric there, until it leaves."""

    def __init__(self, host: str, port: int, metric: Metric, where: str) -> None:
        self.where = where
        self._place = (host, port)
        self._metric = metric
        with _opening:
            endpoint = _open.get(self._place)
            is_new = endpoint is None
            self._endpoint = endpoint or Endpoint(host, port, where)
            self._endpoint.join(metric, where)  # a new endpoint cannot refuse it
            _open[self._place] = self._endpoint
        if is_new:
            # On the channel for people: standard output may carry lines of JSON.
            print(f"metrics at {self.address}", file=sys.stderr, flush=True)

    @property
    def address(self) -> str:
        """Where to scrape."""
        return self._endpoint.address

    def show(self, news: Mapping[Labels, float], *, most: int) -> None:
        """Set or add the values of an epoch, all at once."""
        self._endpoint.show(self._metric, news, most=most, where=self.where)

    def leave(self) -> None:
        """Remove the metric, and end the endpoint with its last one."""
        with _opening:
            if self._endpoint.leave(self._metric):
                del _open[self._place]
                self._endpoint.close()
