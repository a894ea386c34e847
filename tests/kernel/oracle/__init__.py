"""The kernel once more, in plain Python: the same functions with the same results, written to be read.

The tests of `tests/kernel` and `make sanitize` call both with good, random and hostile bytes, and hold the kernel
to what the oracle says. `forelog/kernel/_kernel.pyi` tells what the functions do. A module here is the oracle for:

    alone          LoneWriter: an append with its sync
    append         AppendCore: an append while nothing special is due
    broker         messages of a log to packets
    captain        records of the captain format
    columns        what is done with columns of records
    commands       commands of a job server
    crc            CRC-32C
    figures        counts and histograms
    inbox          packets to messages of a log
    keys           locks for the writers of keys
    m3             chunks of M3's commit log, and entries to messages
    m3_entries     messages of M3's commit log to entries
    messages       messages of a broker's log
    messages_json  properties of messages to JSON
    mqtt           packets of MQTT
    msgpack        many values as one
    queue          a bounded queue, gates, and a lock
    shared         payloads, clocks, numbers
    sockets        sockets that are read together
"""

from __future__ import annotations

from tests.kernel.oracle.alone import LoneWriter
from tests.kernel.oracle.append import AppendCore
from tests.kernel.oracle.broker import message_columns, messages_flags, mqtt_deliver, rows_where, topic_codes
from tests.kernel.oracle.captain import (
    captain_encode,
    captain_encode_many,
    captain_find,
    captain_hop,
    captain_scan,
)
from tests.kernel.oracle.columns import (
    KeySet,
    ascends,
    compact,
    even_pieces,
    first_since,
    gather,
    keep_since,
    kept_runs,
    microseconds,
    pieces,
    pieces_after,
    relocate,
    select,
    time_run,
)
from tests.kernel.oracle.commands import commands_decode, job_encode, next_line, uuid_parse, uuid_text, uuid_texts
from tests.kernel.oracle.crc import crc32c, crc32c_hardware, crc32c_portable
from tests.kernel.oracle.figures import Distribution
from tests.kernel.oracle.inbox import Inbox
from tests.kernel.oracle.keys import Held, KeyLocks
from tests.kernel.oracle.m3 import (
    M3Checker,
    M3Decoder,
    M3Encoder,
    m3_chunks,
    m3_find,
    m3_hop,
    m3_message,
    m3_metadata,
    m3_parse_metadata,
    m3_scan,
    m3_time,
)
from tests.kernel.oracle.memory import heap_free_bytes, heap_trim
from tests.kernel.oracle.messages import (
    message_split,
    messages_encode,
    messages_encode_many,
    messages_find,
    messages_hop,
    messages_scan,
)
from tests.kernel.oracle.messages_json import messages_json
from tests.kernel.oracle.mqtt import mqtt_encode_publish, mqtt_pubacks, mqtt_publishes, mqtt_split
from tests.kernel.oracle.msgpack import msgpack_array
from tests.kernel.oracle.queue import BoundedQueue, Gate, OwnedLock, open_first
from tests.kernel.oracle.shared import payload_bytes, read_clock, varint
from tests.kernel.oracle.sockets import SocketSet, socket_send

__all__ = [
    "AppendCore", "BoundedQueue", "Distribution", "Gate", "Held", "Inbox", "KeyLocks", "KeySet", "LoneWriter",
    "M3Checker", "M3Decoder", "M3Encoder", "OwnedLock", "SocketSet", "ascends", "captain_encode",
    "captain_encode_many", "captain_find", "captain_hop", "captain_scan", "commands_decode", "compact",
    "crc32c", "crc32c_hardware", "crc32c_portable", "even_pieces", "first_since", "gather", "heap_free_bytes",
    "heap_trim", "job_encode", "keep_since", "kept_runs", "m3_chunks", "m3_find", "m3_hop", "m3_message",
    "m3_metadata", "m3_parse_metadata", "m3_scan", "m3_time", "message_columns", "message_split",
    "messages_encode", "messages_encode_many", "messages_find", "messages_flags", "messages_hop",
    "messages_json", "messages_scan", "microseconds", "mqtt_deliver", "mqtt_encode_publish", "mqtt_pubacks",
    "mqtt_publishes", "mqtt_split", "msgpack_array", "next_line", "open_first", "payload_bytes", "pieces",
    "pieces_after", "read_clock", "relocate", "rows_where", "select", "socket_send", "time_run",
    "topic_codes", "uuid_parse", "uuid_text", "uuid_texts", "varint",
]  # fmt: skip
