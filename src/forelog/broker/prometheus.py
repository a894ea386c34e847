"""Metrics of a broker for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from forelog.broker.broker import Broker
from forelog.broker.figures import FIGURES
from forelog.errors import MissingExtra

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


def prometheus_collector(broker: Broker) -> Collector:
    """A collector of a broker's figures, for `REGISTRY.register()` of prometheus_client.

    Metrics of the log itself come from `forelog.prometheus_collector(broker.stream.metrics, log=...)`.
    """
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra.needed("prometheus_client", by="prometheus_collector()", extra="metrics") from error

    class BrokerCollector(Collector):
        def collect(self) -> Iterator[Any]:
            found = broker.figures()
            for name, figure in FIGURES.items():
                kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
                family = kind(f"forelog_broker_{name}", figure.help, labels=["log"])
                family.add_metric([broker.path], found[name])
                yield family

    return BrokerCollector()
