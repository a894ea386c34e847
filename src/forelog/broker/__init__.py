"""Publish and subscribe over MQTT, with a log as the memory: nobody misses a message.

The log by itself:

message_log.py     Message, and what readers and writers share
message_writer.py  MessageLogWriter: buffer, flush, rotate
message_reader.py  MessageLogReader: read on, or from a time
retention.py       which files may go

and the broker in front of it:

broker.py          Broker: turns, and everything below
connection.py      a client's socket: bytes to packets, and what they ask for
intake.py          what publishers sent, into the log
pace.py            when more of what a client has sent is taken
delivery.py        from the log to subscribers; outgoing.py makes the packets that aren't plain
history.py         the log, for those who are behind
batches.py         messages as columns
routes.py          live subscriptions by topic
sessions.py        what is known of a client
clients.py         who comes and goes
subscriptions.py   who wants what
memory.py          what must be known after a crash; session_events.py is what is noted of a session
access.py          who may do what; passwords.py and rules.py read the files that say it
rights.py          what rules mean for a client: what it may publish, read and subscribe to
logins.py          passwords are checked, one at a time, and guessing is slow
wills.py           what lost clients leave behind
visits.py          what operators read about clients
listening.py       where clients come in; door.py counts those that aren't in yet
websocket.py       connections inside of WebSockets
limits.py          how much of anything; shared_buffers.py, holdings.py and caches.py count it
keeping.py         retention, now and then
figures.py         what is counted; system.py publishes it to $SYS topics
mqtt/              the protocol, without I/O
"""

from forelog.broker.access.access import Access
from forelog.broker.broker import Broker
from forelog.broker.figures import prometheus_collector
from forelog.broker.limits import Limits
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
