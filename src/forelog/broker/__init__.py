"""Publish and subscribe over MQTT, with a log as memory: a subscriber that was away misses no message.

The packages, each importing only from those before it:

    mqtt/         the protocol, without I/O
    access/       which clients may come in, and what they may publish and read
    log/          the log of messages, as the broker reads it
    sessions/     what the broker knows of its clients, and keeps through a crash
    flow/         the way of a message into the log, and from the log to subscribers
    clients/      what clients ask for: CONNECT, SUBSCRIBE, acknowledgements, wills
    connections/  sockets, TLS, WebSockets: bytes to packets

and beside them:

    broker.py      Broker: builds the parts, starts and stops them
    limits.py      Limits: how much of anything there may be
    notices.py     log lines about clients
    retention.py   removes old files
    figures.py     figures about the broker
    system.py      publishes them to $SYS topics
    prometheus.py  and as metrics
    upkeep.py      what is done now and then
    tasks.py       background tasks
    traffic.py     counts bytes
"""

from forelog.broker.access.control import Access
from forelog.broker.broker import Broker
from forelog.broker.limits import Limits
from forelog.broker.prometheus import prometheus_collector
from forelog.messages.message import Message
from forelog.messages.reader import MessageLogReader
from forelog.messages.retention import Retained
from forelog.messages.writer import MessageLogWriter

__all__ = [
    "Access",
    "Broker",
    "Limits",
    "Message",
    "MessageLogReader",
    "MessageLogWriter",
    "Retained",
    "prometheus_collector",
]
