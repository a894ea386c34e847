"""`forelog append`: records from standard input.

Lines that arrive together are appended together, with one write and one sync. A line that arrives alone is
appended at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import plural, print_json, say
from forelog.errors import LogNotFound, RecordTooLarge
from forelog.formats.captain import MAGIC, VERSION
from forelog.formats.state import MAGIC as STATE_MAGIC
from forelog.log.appender import BATCH_BYTES_MAX, SEGMENT_BYTES, Appender, SyncPolicy
from forelog.log.directory.tenants import JOBS_MAGIC, described
from forelog.log.position import Position
from forelog.log.stream import Stream

READ_BYTES = 1 << 20
FRAME_BYTES_EXTRA = 29  # at most: time, length and checksum around a payload


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "append",
        "Append records from standard input, one per line, without the newline.",
        "examples:\n"
        "  journalctl -f | forelog append journal.log --sync interval\n"
        "  forelog append orders.log --sync always --positions < orders.txt",
    )
    parser.add(f"""
        log LOG               the log's directory; created if it doesn't exist
        --framed              each record comes after its length, in 4 bytes, big-endian
        --sync {"|".join(SyncPolicy)}
                              when to sync: when the OS decides (default), every second, or before continuing
        --segment-bytes SIZE  size at which the next segment begins (default: 64MiB)
    """)
    parser.set_defaults(sync="os", segment_bytes=SEGMENT_BYTES)
    options.add_header(
        parser,
        "the magic number of a new log's segments (default: cptn); an existing log must have it",
        "the version of a new log's content (default: 1); an existing log must have it",
    )
    parser.add_argument("--positions", action="store_true", help="print the position of each record")
    options.add_mode(parser, "a new log's files")
    options.add_timeout(parser, "for another appender to close the log")
    return parser


def run(chosen: argparse.Namespace) -> int:
    stream = _stream(chosen)
    signature = stream.format.signature
    if signature is None:
        raise codes.UsageError(
            f"{chosen.log} is a log in the format {stream.format.name}: its entries aren't lines. CommitLog "
            "writes such, or `forelog convert`"
        )
    if chosen.magic is None and signature[0] in (STATE_MAGIC, JOBS_MAGIC):
        found = described(stream.format)
        raise codes.UsageError(
            f"{chosen.log} is {found.what}, whose records aren't lines: {found.use}. To append anyway, say "
            f"--magic {signature[0]:#x}"
        )
    interrupt = _Interrupt()
    with stream.appender(sync=chosen.sync, segment_bytes=chosen.segment_bytes, timeout=chosen.timeout) as log:
        feed = _Feed(log, chosen.segment_bytes, positions=chosen.positions, as_json=chosen.json)
        try:
            with interrupt.held():
                _pump(feed, interrupt, framed=chosen.framed)
        except KeyboardInterrupt:
            if interrupt.pending_bytes:
                say(f"interrupted: {plural(interrupt.pending_bytes, 'byte')} of an unfinished record not appended")
        except BaseException:
            feed.summarize(say)  # what is in the log is in the log, whatever stopped the rest
            raise
    feed.report()
    return codes.INTERRUPTED if interrupt.happened else codes.FINE


def _stream(chosen: argparse.Namespace) -> Stream:
    """Open the log, with the options that override its files, or create it."""
    try:
        return options.open_log(chosen.log, chosen)
    except LogNotFound:
        if os.path.exists(chosen.log) and not os.path.isdir(chosen.log):
            raise
    return Stream(
        chosen.log,
        magic=MAGIC if chosen.magic is None else chosen.magic,
        version=VERSION if chosen.version_number is None else chosen.version_number,
        mode=chosen.mode,
    )


class _Interrupt:
    """Handles Ctrl-C: it interrupts waiting for input, and never an append."""

    def __init__(self) -> None:
        self.happened = False
        self.waiting = False
        self.pending_bytes = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        try:
            before = signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # not in the main thread: signals are somebody else's
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.happened = True
        if self.waiting:
            raise KeyboardInterrupt

    def read(self, descriptor: int) -> bytes:
        """Wait for input and read it. Returns nothing at the end."""
        self.waiting = True
        try:
            if self.happened:
                raise KeyboardInterrupt
            return os.read(descriptor, READ_BYTES)
        finally:
            self.waiting = False


class _Feed:
    """Appends batches, and keeps count."""

    def __init__(self, log: Appender, segment_bytes: int, *, positions: bool, as_json: bool) -> None:
        self._log = log
        self._segment_bytes = segment_bytes
        self._print_positions = positions
        self._json = as_json
        self._deaf = False
        self.records = 0
        self.first: Position | None = None
        self.last: Position | None = None

    def add(self, payloads: list[bytes]) -> None:
        """Append payloads, in as few batches as segments allow: a batch lies in one segment."""
        start = 0
        while start < len(payloads):
            stop = self._fitting(payloads, start)
            self._append(payloads[start:stop] if stop - start < len(payloads) else payloads)
            start = stop

    def _fitting(self, payloads: list[bytes], start: int) -> int:
        """How many of the payloads fit into the current segment; at least one."""
        offset = self._log.position.offset
        room = self._segment_bytes - offset if offset < self._segment_bytes else self._segment_bytes
        total = sum(map(len, payloads)) + FRAME_BYTES_EXTRA * len(payloads)
        if total <= room:
            return len(payloads)
        stop = start
        while stop < len(payloads) and room > 0:
            room -= len(payloads[stop]) + FRAME_BYTES_EXTRA
            stop += 1
        return max(stop, start + 1)

    def _append(self, payloads: list[bytes]) -> None:
        positions: Sequence[Position] = self._log.append_many(payloads)
        self.records += len(positions)
        self.first = self.first or positions[0]
        self.last = positions[-1]
        if self._print_positions and not self._deaf:
            try:
                self._print(positions)
            except BrokenPipeError:
                self._deaf = True  # nobody wants the positions any more; the records are still to be appended

    def _print(self, positions: Sequence[Position]) -> None:
        if self._json:
            for position in positions:
                print_json({"position": str(position)})
        else:
            print("\n".join(map(str, positions)))
        sys.stdout.flush()

    def report(self) -> None:
        """Report what was appended."""
        if self._json:
            print_json(
                {
                    "records": self.records,
                    "first": None if self.first is None else str(self.first),
                    "last": None if self.last is None else str(self.last),
                    "end": str(self._log.position),
                }
            )
        else:
            self.summarize(say if self._print_positions else print)

    def summarize(self, tell: Any) -> None:
        if self.first is None:
            tell("0 records appended")
        elif self.records == 1:
            tell(f"1 record appended at {self.first}")
        else:
            tell(f"{self.records:,} records appended, from {self.first} to {self.last}")


def _pump(feed: _Feed, interrupt: _Interrupt, *, framed: bool) -> None:
    """Read input and append its complete records, until the end."""
    if sys.stdin is None:
        raise codes.InputError("stdin is closed: there is nothing to append")
    descriptor = sys.stdin.fileno()
    splitter: _Splitter = _Frames() if framed else _Lines()
    while data := interrupt.read(descriptor):
        interrupt.pending_bytes = 0
        if payloads := splitter.split(data):
            feed.add(payloads)
        interrupt.pending_bytes = splitter.pending_bytes
    interrupt.pending_bytes = 0
    if payloads := splitter.finish(feed.records):
        feed.add(payloads)


class _Splitter(ABC):
    """Splits input into payloads. An unfinished payload waits for more input."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def pending_bytes(self) -> int:
        return len(self._rest)

    @abstractmethod
    def split(self, data: bytes) -> list[bytes]:
        """Return the payloads that are complete."""

    @abstractmethod
    def finish(self, records: int) -> list[bytes]:
        """Return the payloads that the end of the input completes. `records` is the number of those before."""


class _Lines(_Splitter):
    """Splits input into lines. The last line may lack its newline."""

    def split(self, data: bytes) -> list[bytes]:
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += tail
        if len(self._rest) > BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"a line on stdin is longer than {BATCH_BYTES_MAX} bytes: for records with newlines in them, "
                "use --framed"
            )
        return lines

    def finish(self, records: int) -> list[bytes]:  # noqa: ARG002
        return [bytes(self._rest)] if self._rest else []


class _Frames(_Splitter):
    """Splits input into records, each after its length in four bytes."""

    def split(self, data: bytes) -> list[bytes]:
        rest = self._rest
        rest += data
        payloads, place = [], 0
        view = memoryview(rest)
        try:
            while len(rest) - place >= 4:
                size = int.from_bytes(view[place : place + 4], "big")
                if size > BATCH_BYTES_MAX:
                    raise RecordTooLarge(
                        f"a record on stdin says that it has {size} bytes: the limit is {BATCH_BYTES_MAX}. "
                        "Is the input framed?"
                    )
                if len(rest) - place - 4 < size:
                    break
                payloads.append(bytes(view[place + 4 : place + 4 + size]))
                place += 4 + size
        finally:
            view.release()
        del rest[:place]
        return payloads

    def finish(self, records: int) -> list[bytes]:
        if self._rest:
            if len(self._rest) < 4:
                found = f"{len(self._rest)} of the 4 bytes of a length"
            else:
                found = f"{len(self._rest) - 4} of the {int.from_bytes(self._rest[:4], 'big')} bytes of a record"
            raise codes.InputError(
                f"stdin ends in the middle of a record, after {found}: it was not appended, the "
                f"{plural(records, 'record')} before it {'was' if records == 1 else 'were'}"
            )
        return []
