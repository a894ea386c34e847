"""What a broker counts, for `$SYS` topics and for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from forelog.errors import MissingExtra

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from forelog.broker.broker import Broker

__all__ = ["FIGURES", "figures_of", "prometheus_collector"]


class Figure(NamedTuple):
    """Something that is counted (it only grows), or measured."""

    topic: str
    """Below $SYS/broker/."""
    counts: bool
    help: str


FIGURES = {
    "uptime_seconds": Figure("uptime", False, "seconds since the start"),
    "clients_connected": Figure("clients/connected", False, "clients that are here"),
    "clients_total": Figure("clients/total", False, "those, and sessions whose clients are away"),
    "clients_disconnected": Figure("clients/disconnected", False, "sessions whose clients are away"),
    "clients_maximum": Figure("clients/maximum", False, "the most clients that were here at a time"),
    "clients_behind": Figure("clients/behind", False, "clients that are here and read older messages"),
    "messages_received": Figure("messages/received", True, "messages that clients published, and wills"),
    "messages_sent": Figure("messages/sent", True, "messages that were sent to subscribers"),
    "messages_dropped": Figure(
        "messages/dropped", True, "messages that couldn't be sent to a subscriber, by a defect"
    ),
    "messages_in_flight": Figure("messages/inflight", False, "messages that subscribers haven't acknowledged yet"),
    "bytes_received": Figure("bytes/received", True, "bytes of all packets from clients"),
    "bytes_sent": Figure("bytes/sent", True, "bytes of all packets to clients"),
    "stored_bytes": Figure("store/messages/bytes", True, "bytes that were written to the log of messages"),
    "log_files": Figure("log/files", False, "files of the log of messages"),
    "log_bytes": Figure("log/bytes", False, "bytes of those"),
    "retention_files": Figure("log/files/removed", True, "files that retention has removed"),
    "retention_kept": Figure("log/files/overdue", False, "files that retention would remove, and somebody needs"),
    "subscriptions": Figure("subscriptions/count", False, "subscriptions of clients that are here"),
    "groups": Figure("shared_subscriptions/count", False, "groups that share a subscription"),
    "retained_messages": Figure("retained messages/count", False, "topics with a retained message"),
    "write_failures": Figure("log/failures", True, "writes to the log that failed"),
    "refused_logins": Figure("refused/logins", True, "clients whose name or password wasn't right"),
    "refused_connects": Figure("refused/connects", True, "clients that were turned away for another reason"),
    "refused_takeovers": Figure("refused/takeovers", True, "clients with the id of another user's client"),
    "refused_publishes": Figure("refused/publishes", True, "messages that clients may not publish"),
    "refused_subscriptions": Figure("refused/subscriptions", True, "filters that clients may not subscribe to"),
    "refused_wills": Figure("refused/wills", True, "wills that may not be published any more"),
}


def figures_of(broker: Broker) -> dict[str, float]:
    """All of them, as of now."""
    sessions = list(broker.memory.sessions.values())
    here = sum(session.connection is not None for session in sessions)
    log_files, log_bytes = broker.keeping.size
    return {
        "uptime_seconds": int(time.monotonic() - broker.system.started),
        "clients_connected": here,
        "clients_total": len(sessions),
        "clients_disconnected": len(sessions) - here,
        "clients_maximum": broker.system.clients_max,
        "clients_behind": sum(session.connection is not None and not session.main.live for session in sessions),
        "messages_received": broker.intake.messages,
        "messages_sent": broker.sender.delivered,
        "messages_dropped": broker.sender.dropped,
        "messages_in_flight": sum(len(session.in_flight) for session in sessions),
        "bytes_received": broker.system.bytes_received,
        "bytes_sent": broker.system.bytes_sent,
        "stored_bytes": broker.stream.metrics.snapshot()["bytes_appended"],
        "log_files": log_files,
        "log_bytes": log_bytes,
        "retention_files": broker.keeping.removed,
        "retention_kept": broker.keeping.overdue,
        "subscriptions": len(broker.routes),
        "groups": len(broker.subscriptions.groups),
        "retained_messages": len(broker.memory.retained),
        "write_failures": broker.failures,
        **{f"refused_{what}": count for what, count in broker.visits.refusals().items()},
    }


def prometheus_collector(broker: Broker) -> Collector:
    """A collector for prometheus_client's `REGISTRY.register()`. The log's own is forelog's."""
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtra.needed("prometheus_client", by="prometheus_collector()", extra="metrics") from error

    class BrokerCollector(Collector):
        def collect(self) -> Iterator[Any]:
            found = figures_of(broker)
            for name, figure in FIGURES.items():
                kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
                family = kind(f"forelog_broker_{name}", figure.help, labels=["log"])
                family.add_metric([broker.path], found[name])
                yield family

    return BrokerCollector()
