"""The kernel: loops over bytes, compiled. It does no I/O but writes of an append, and knows no policy.

    _kernel.pyx    the functions; it includes the *.pxi, which lie in log/, m3/, messages/, jobs/ and broker/
    _kernel.pyi    their signatures, and what each of them does
    types.py       what they take and return
    zipped.py      loads the kernel where the package is a zip
    include        checksums and epoll, in C

Whatever the bytes say, nothing outside of a buffer is read, and nothing larger than it is allocated.
`tests/kernel/oracle` has all of it again in plain Python: an independent opinion for the tests.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("forelog.kernel._kernel") is None:
    raise ImportError(
        "forelog's kernel isn't compiled for this Python: install forelog with it, or in a source tree run "
        "python setup.py build_ext --inplace"
    )

from forelog.kernel._kernel import (
    AppendCore,
    BoundedQueue,
    Gate,
    Inbox,
    KeySet,
    M3Checker,
    M3Decoder,
    M3Encoder,
    SocketSet,
    ascends,
    captain_encode,
    captain_encode_many,
    captain_find,
    captain_hop,
    captain_scan,
    commands_decode,
    compact,
    crc32c,
    crc32c_hardware,
    crc32c_portable,
    even_pieces,
    first_since,
    gather,
    heap_free_bytes,
    heap_trim,
    job_encode,
    keep_since,
    kept_runs,
    m3_chunks,
    m3_find,
    m3_hop,
    m3_message,
    m3_metadata,
    m3_parse_metadata,
    m3_scan,
    m3_time,
    message_columns,
    message_split,
    messages_encode,
    messages_encode_many,
    messages_find,
    messages_flags,
    messages_hop,
    messages_json,
    messages_scan,
    microseconds,
    mqtt_deliver,
    mqtt_encode_publish,
    mqtt_pubacks,
    mqtt_publishes,
    mqtt_split,
    msgpack_array,
    next_line,
    open_first,
    payload_bytes,
    pieces,
    pieces_after,
    read_clock,
    relocate,
    rows_where,
    select,
    socket_send,
    time_run,
    topic_codes,
    uuid_parse,
    uuid_text,
    uuid_texts,
    varint,
)

__all__ = [
    "AppendCore", "BoundedQueue", "Gate", "Inbox", "KeySet", "M3Checker", "M3Decoder", "M3Encoder", "SocketSet",
    "ascends", "captain_encode", "captain_encode_many", "captain_find", "captain_hop", "captain_scan",
    "commands_decode", "compact", "crc32c", "crc32c_hardware", "crc32c_portable", "even_pieces", "first_since",
    "gather", "heap_free_bytes", "heap_trim", "job_encode", "keep_since", "kept_runs", "m3_chunks", "m3_find",
    "m3_hop", "m3_message", "m3_metadata", "m3_parse_metadata", "m3_scan", "m3_time", "message_columns",
    "message_split", "messages_encode", "messages_encode_many", "messages_find", "messages_flags",
    "messages_hop", "messages_json", "messages_scan", "microseconds", "mqtt_deliver", "mqtt_encode_publish",
    "mqtt_pubacks", "mqtt_publishes", "mqtt_split", "msgpack_array", "next_line", "open_first", "payload_bytes",
    "pieces", "pieces_after", "read_clock", "relocate", "rows_where", "select", "socket_send", "time_run",
    "topic_codes", "uuid_parse", "uuid_text", "uuid_texts", "varint",
]  # fmt: skip
