"""How bytes lie in a segment.

A `Format` names segment files, writes and checks their header, encodes records, and scans buffers for
them with the kernel. It knows nothing of directories, policies or payloads, and does no I/O.

    format.py    Format, Encoder, Checker: what the engine asks of a format
    block.py     Block: some records of a segment, as columns
    columns.py   what all code for Arrow columns shares
    captain.py   Captain's Log, and the default: header, then records with time, length and CRC-32C
    m3/          M3's commit log: chunks of messages, with series and datapoints in them
    messages/    the messages of a broker: msgpack arrays, in files named by their first message's time
    commands/    the commands in the records of a job server's command log
    state.py     a state log: captain, with five kinds of records
"""

from __future__ import annotations

from typing import Literal, get_args

from forelog.errors import UnknownFormat
from forelog.formats.block import Block
from forelog.formats.captain import MAGIC, VERSION, Captain
from forelog.formats.format import Checker, Encoder, Format
from forelog.kernel.types import Scan

__all__ = [
    "FORMATS",
    "Block",
    "Captain",
    "Checker",
    "Encoder",
    "Format",
    "FormatName",
    "Scan",
    "detect",
    "named_format",
]

FormatName = Literal["captain", "m3", "messages"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)


def named_format(name: FormatName | Format = "captain", *, magic: int = MAGIC, version: int = VERSION) -> Format:
    """Return a format by its name; a Format is returned as it is. Only captain has a `magic` and a `version`."""
    if not isinstance(name, str):
        return name
    if name == "captain":
        return Captain(magic, version)
    if name == "m3":
        from forelog.formats.m3 import M3  # only logs in this format pay for it

        return M3()
    if name == "messages":
        from forelog.formats.messages import Messages  # likewise

        return Messages()
    raise UnknownFormat(f"format is {name!r}: expected 'captain', 'm3' or 'messages'")


def detect(name: str, head: bytes) -> Format:
    """The format of a segment file, by its name and first bytes."""
    for known in FORMATS:
        found = named_format(known)
        if found.segment_number(name) is not None and len(head) >= found.header_bytes:
            return found.of_header(head)
    raise UnknownFormat(f"{name} isn't a segment of a format that forelog knows (it starts {head[:8].hex(' ')})")
