"""An audit log with time travel: `python -m examples.audit`.

It records who may open which door, and who granted that. Every change is a message that is on stable storage
before it counts, and no two messages have the same time. So the log answers what a table of the present can't:
who could open the vault at noon, who let them in, and what has changed since. Accidental changes of its bytes
are detected. (Deliberate ones aren't: checksums are not signatures. Keep a copy elsewhere.)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from forelog import Stream, verify
from forelog.broker import MessageLogReader, MessageLogWriter
from forelog.times import parse_time

CHANGES = [
    ("09:00", "vault", "ada", "grant", "the board"),
    ("09:30", "vault", "bob", "grant", "ada"),
    ("12:15", "cellar", "bob", "grant", "ada"),
    ("14:00", "vault", "bob", "revoke", "the board"),
    ("16:45", "vault", "eve", "grant", "ada"),
]


def at(time: str) -> int:
    """That time of the day, in nanoseconds."""
    return parse_time(f"2026-11-13T{time}:00Z")


def write(path: str) -> None:
    """The day, as it happened. A real program leaves the clock to the log."""
    now = at("00:00")
    # Each change is synced as it is written.
    with MessageLogWriter(path, clock=lambda: now, sync="always", buffer_bytes=1, flush_interval_ms=None) as log:
        for time, door, who, what, by in CHANGES:
            now = at(time)
            log.write(f"doors/{door}/{who}", what.encode(), {"by": by})


def may_open(path: str, door: str, as_of: int) -> list[str]:
    """Who could open a door at a time: what had been said until then, in order."""
    allowed: set[str] = set()
    with MessageLogReader(path, filter=lambda topic: topic.startswith(f"doors/{door}/")) as reader:
        for message in reader:
            if message.time_ns > as_of:
                break
            change = allowed.add if message.payload == b"grant" else allowed.discard
            change(message.topic.rpartition("/")[2])
    return sorted(allowed)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/doors"
        write(path)
        for time in ("08:00", "12:00", "15:00", "18:00"):
            print(f"{time}  the vault opens for {' and '.join(may_open(path, 'vault', at(time))) or 'nobody'}")

        print("since noon:")
        with MessageLogReader(path) as reader:
            message = reader.recv_as_of(at("12:00"))
            while message is not None:
                said = f"{message.payload.decode()} by {message.properties['by']}"
                print(f"  {message.time:%H:%M}  {message.topic}  {said}")
                message = reader.recv()

        stream = Stream.open(path)
        report = verify(stream)
        print(f"{report.records} messages were checked, and {len(report.problems())} problems found")
        file = Path(stream.segments()[0].path)
        file.write_bytes(file.read_bytes().replace(b"eve", b"eva"))
        print("somebody writes eva for eve:", *verify(stream).problems(), sep="\n  ")


if __name__ == "__main__":
    main()
