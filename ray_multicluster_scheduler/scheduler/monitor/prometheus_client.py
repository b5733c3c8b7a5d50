"""Renders metrics in the Prometheus text format with the library ``prometheus_client``.

The values are counted elsewhere (``MetricsAggregator``, the machine, the store); one scrape fills one ``Exposition``.
Only a scrape needs the library: import this module where metrics are rendered, not at the start of a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ray_multicluster_scheduler.scheduler.health.metrics_aggregator import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]


class Exposition:
    """The metric families of one scrape: a collector for a registry of its own."""

    def __init__(self) -> None:
        self._families: list[Metric] = []

    def counter(self, name: str, documentation: str, samples: Samples) -> None:
        """Add a counter; one without samples is left out. All samples have the same label names."""
        self._add(CounterMetricFamily, name, documentation, samples)

    def gauge(self, name: str, documentation: str, samples: Samples) -> None:
        """Add a gauge; one without samples is left out. All samples have the same label names."""
        self._add(GaugeMetricFamily, name, documentation, samples)

    def histogram(self, name: str, documentation: str, histogram: Histogram) -> None:
        buckets = [("+Inf" if bound == inf else str(bound), float(count)) for bound, count in histogram.buckets()]
        self._families.append(HistogramMetricFamily(name, documentation, buckets, histogram.sum))

    def collect(self) -> Iterable[Metric]:
        return self._families

    def text(self) -> str:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def _add(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        documentation: str,
        samples: Samples,
    ) -> None:
        rows = list(samples)
        if not rows:
            return
        family = kind(name, documentation, labels=tuple(rows[0][0]))
        for labels, value in rows:
            family.add_metric([_encodable(one) for one in labels.values()], value)
        self._families.append(family)


def _encodable(value: str) -> str:
    """The library raises on what UTF-8 cannot encode (lone surrogates)."""
    return value.encode("utf-8", "replace").decode()
