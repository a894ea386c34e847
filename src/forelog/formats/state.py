"""The format of a state log: captain's segments under a magic number of their own, and four kinds of records.

::

    record   | kind 1 | content |

    1 EVENT    an event: its bytes are the codec's (forelog.state.events)
    2 BEGIN    a generation begins: its number, 8 bytes, big-endian
    3 COMMIT   the generation is whole: its number, 8 bytes, big-endian
    4 WRITER   an opening writes from here on: its lineage (forelog.copies.lineage)
"""

from __future__ import annotations

from forelog.formats.captain import Captain

MAGIC = 0x63707374  # "cpst"
FORMAT = Captain(magic=MAGIC, version=1)
EVENT, BEGIN, COMMIT, WRITER = b"\x01", b"\x02", b"\x03", b"\x04"
MARKER_BYTES = 9
"""The size of a BEGIN or COMMIT record."""
RECORD_BYTES = 20
"""About as many bytes as a record takes beside its content."""
