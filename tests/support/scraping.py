"""What Prometheus would read of a metric."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from lockgate import MonitorSink

Scraped = dict[tuple[str, ...], float]
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def scrape(sink: MonitorSink) -> Scraped:
    """The samples by name and values of the labels, sorted by label."""
    assert sink.address is not None
    with _DIRECT.open(sink.address, timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
