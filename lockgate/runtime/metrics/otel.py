"""Send the figures of a job to OpenTelemetry over OTLP.

OpenTelemetry's own variables set the address, the interval and the headers (OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_METRIC_EXPORT_INTERVAL, OTEL_RESOURCE_ATTRIBUTES, ...). Metrics have the same names as for Prometheus. Counters
lose their `_total`: a collector that forwards them to Prometheus adds it again. If the collector does not answer, the
job continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from lockgate.errors import BadMachine
from lockgate.runtime.metrics.figures import JOB_LABEL, METRICS, Figure, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider


class Exporter:
    """Sends the figures of a job at every interval, and once more at the end."""

    def __init__(self, job: str, figures: Callable[[], Sequence[Figure]]) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        except ImportError as error:
            raise BadMachine(
                "The OpenTelemetry libraries are not installed.",
                where="--otel, packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http",
                fix="pip install 'lockgate[otel]'",
            ) from error
        self._job, self._figures = job, figures
        ours = Resource({"service.name": "lockgate", "service.instance.id": job})
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        # Attributes from the environment override ours.
        resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
        self._provider = MeterProvider(metric_readers=[reader], resource=resource)
        self._declare(self._provider)

    def stop(self) -> None:
        """Send the figures a last time."""
        self._provider.shutdown()

    def _declare(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("lockgate")
        for metric in METRICS:
            make = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
            name = metric.name.removesuffix("_total")
            make(name, callbacks=[self._observe(metric)], unit=metric.unit, description=metric.help)

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        names = (JOB_LABEL, *metric.labels)

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(figure.value, dict(zip(names, (self._job, *figure.labels), strict=True)))
                for figure in self._figures()
                if figure.name == metric.name
            ]

        return observe
