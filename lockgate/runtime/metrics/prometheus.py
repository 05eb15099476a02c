"""The figures of a job as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lockgate.errors import BadMachine
from lockgate.runtime.metrics.figures import JOB_LABEL, METRICS, Figure, Metric


def check_prometheus() -> None:
    """Refuse to start if the client library is missing."""
    try:
        import prometheus_client  # noqa: F401 - an extra
    except ImportError as error:
        raise BadMachine(
            "The Prometheus client library is not installed.",
            where="--metrics, package prometheus-client",
            fix="pip install 'lockgate[monitor]'",
        ) from error


def page_of(
    job: str, figures: Callable[[], Sequence[Figure]], metrics: Sequence[Metric] = METRICS
) -> Callable[[str], tuple[str, bytes]]:
    """A function from what a client accepts to a content type and the figures of a job as text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector

    class Figures(Collector):
        def collect(self) -> Iterator[Family]:
            by_name: dict[str, list[Figure]] = {}
            for figure in figures():
                by_name.setdefault(figure.name, []).append(figure)
            for metric in metrics:
                form = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
                family = form(metric.name, metric.help, labels=(JOB_LABEL, *metric.labels))
                for figure in by_name.get(metric.name, ()):
                    family.add_metric((job, *figure.labels), figure.value)
                if family.samples:
                    yield family

        def describe(self) -> list[Family]:
            return []  # the registry collects nothing before the first scrape

    registry = CollectorRegistry()
    registry.register(Figures())

    def page(accept: str) -> tuple[str, bytes]:
        encode, kind = choose_encoder(accept)
        return kind, encode(registry)

    return page
