"""The messages of a broker, in files that any msgpack reader reads.

format.py    Messages: the bytes, file names, and what is written
msgpack.py   the values of properties, to msgpack and back
"""

from forelog.formats.messages.format import (
    NO_PROPERTIES,
    PAYLOAD_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Item,
    Messages,
)

__all__ = ["NO_PROPERTIES", "PAYLOAD_BYTES_MAX", "PROPERTIES_BYTES_MAX", "TOPIC_BYTES_MAX", "Item", "Messages"]
