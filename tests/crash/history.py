"""Histories on a crash disk, and what must hold for every state that a crash can leave of them.

A history is a list of actions, each a word and a number. Running it notes, for every payload, the moment
before its append, the moment it was acknowledged as durable, and its position; and for every clean, what
may be gone since when. `check` then opens a crash state and compares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from forelog import Appender, Position, Stream
from forelog.errors import ForelogError
from forelog.files import BLOCK_BYTES
from forelog.log.appender import Sync
from forelog.testing import CrashDisk, CrashState

NEVER = 10**9
SEGMENT_BYTES = 200
JOURNAL_BYTES = 3 * BLOCK_BYTES

Action = tuple[str, int]


@dataclass
class Written:
    """One payload of a history."""

    payload: bytes
    begun: int
    """The moment before its append: a crash until then can't know it."""
    position: Position | None = None
    returned: int = NEVER
    """The moment at which its position was handed out."""
    durable: int = NEVER
    """From this moment on it must survive."""
    forgotten: int = NEVER
    """From this moment on it may be gone, because cleaning it had begun."""


@dataclass
class History:
    """A disk, and what was written to it."""

    disk: CrashDisk
    written: list[Written] = field(default_factory=list)
    kind: Kind | None = None


def clock() -> int:
    return 1_700_000_000_000_000_000


class Kind:
    """The format that a history is in, and what its appender takes for a payload."""

    def stream(self, disk: CrashDisk) -> Stream:
        return Stream("log", files=disk, clock=clock)

    def item(self, payload: bytes):
        return payload


CAPTAIN = Kind()


def stream_on(disk: CrashDisk) -> Stream:
    return CAPTAIN.stream(disk)


def run(
    actions: list[Action], *, sector_bytes: int = 512, disk: CrashDisk | None = None, kind: Kind = CAPTAIN
) -> History:
    """Do what the actions say. The disk's faults, if any, may make some of them fail."""
    history = History(disk or CrashDisk(sector_bytes=sector_bytes), kind=kind)
    runner = _Runner(history)
    for word, number in actions:
        runner.do(word, number)
    return history


class _Runner:
    def __init__(self, history: History) -> None:
        self.history = history
        self.disk = history.disk
        self.kind = history.kind or CAPTAIN
        self.stream = self.kind.stream(self.disk)
        self.log: Appender | None = None
        self.policy: Sync = "os"
        self.spare = False
        self.may_seal = threading.Event()

    def now(self) -> int:
        return len(self.disk.events)

    def do(self, word: str, number: int) -> None:
        try:
            getattr(self, f"_{word}")(number)
        except (ForelogError, OSError):
            pass  # a fault of the test's: what was not acknowledged needn't be there

    def _open(self, number: int) -> None:
        """0 os, 1 always; 2 more with a spare, 4 more with a journal."""
        self.policy = "always" if number % 2 else "os"
        self.spare = number % 4 >= 2
        self.log = self.stream.appender(
            sync=self.policy,
            segment_bytes=SEGMENT_BYTES,
            spare=self.spare,
            journal_bytes=JOURNAL_BYTES if number >= 4 else 0,
        )
        if self.spare and self.policy == "os":
            self._hold()
        # Opening syncs what it recovered.
        self._acknowledge(self.history.written)

    def _hold(self) -> None:
        """Have every sealing wait for `_seal`, so that there are appends between a swap and the new name."""
        spare = self.log.active.spare
        begin = spare.begin

        def held(work: Callable[[], None]) -> None:
            def wait_and_work() -> None:
                self.may_seal.wait(20)
                work()

            self.may_seal.clear()
            begin(wait_and_work)

        spare.begin = held

    def _seal(self, _: int) -> None:
        """Let what was swapped be sealed, and wait for it."""
        self.may_seal.set()
        self.log.wait_sealed()
        self._acknowledge_before(self.log.position.segment)

    def _append(self, number: int) -> None:
        self._write([self._payload(number)])

    def _many(self, number: int) -> None:
        self._write([self._payload(number) for _ in range(3)])

    def _payload(self, number: int) -> bytes:
        serial = len(self.history.written)
        written = Written(b"%04d" % serial + bytes([65 + serial % 26]) * number, self.now())
        self.history.written.append(written)
        return written.payload

    def _write(self, payloads: list[bytes]) -> None:
        batch = self.history.written[-len(payloads) :]
        if self.spare and self.log.position.offset >= SEGMENT_BYTES:
            self._seal(0)  # a second swap waits for the first
        items = [self.kind.item(payload) for payload in payloads]
        for written, position in zip(batch, self.log.append_many(items), strict=True):
            written.position, written.returned = position, self.now()
        if self.policy == "always":
            self._acknowledge(batch)
        elif not self.spare:
            self._acknowledge_before(position.segment)  # starting a segment synced the one before

    def _acknowledge_before(self, segment: int) -> None:
        self._acknowledge([w for w in self.history.written if w.position and w.position.segment < segment])

    def _acknowledge(self, written: list[Written]) -> None:
        for one in written:
            if one.position is not None:
                one.durable = min(one.durable, self.now())

    def _roll(self, _: int) -> None:
        if self.spare:
            self._seal(0)
        self.log.roll()
        if not self.spare:
            self._acknowledge(self.history.written)

    def _sync(self, _: int) -> None:
        self.may_seal.set()
        self.log.sync()
        self._acknowledge(self.history.written)

    def _close(self, _: int) -> None:
        log, self.log = self.log, None
        self.may_seal.set()
        log.close()
        self._acknowledge(self.history.written)

    def _clean(self, number: int) -> None:
        """Forget every record whose serial number modulo `number` is not 0; all of them for 0."""
        begun = self.now()

        def forget(_: str, record) -> bool:
            return number == 0 or int(record.payload[:4]) % number != 0

        last = self.stream.segments()[-1].number
        for one in self.history.written:
            if one.position and one.position.segment < last and (number == 0 or int(one.payload[:4]) % number):
                one.forgotten = min(one.forgotten, begun)
        with self.stream.cleaner() as cleaner:
            cleaner.clean(forget)


def expectation(history: History, moment: int) -> tuple[int, ...]:
    """What a state is compared with: equal for moments at which the same is expected."""
    return tuple(
        sum(getattr(one, what) <= moment for one in history.written)
        for what in ("begun", "returned", "durable", "forgotten")
    )


def check(history: History, state: CrashState) -> None:
    """Open the state, read it, append to it, reopen it; nothing durable may be lost, nothing may be wrong."""
    kind = history.kind or CAPTAIN
    stream = kind.stream(state.disk)
    with stream.appender(segment_bytes=SEGMENT_BYTES):
        pass
    found = _read(stream)
    _compare(history, state.events, found)
    with stream.appender(sync="always", segment_bytes=SEGMENT_BYTES) as log:
        position = log.append(kind.item(b"after the crash"))
    for one in history.written:
        if one.returned <= state.events:
            assert position > one.position, "a position that was handed out before the crash was used again"
    assert _read(stream) == [*found, (position, b"after the crash")]


def _read(stream: Stream) -> list[tuple[Position, bytes]]:
    with stream.cursor() as cursor:
        records = [(record.position, record.payload) for record in cursor]
    assert cursor.torn is None
    return records


def _compare(history: History, moment: int, found: list[tuple[Position, bytes]]) -> None:
    payloads = [payload for _, payload in found]
    begun = {one.payload: one for one in history.written if one.begun < moment}
    assert len(set(payloads)) == len(payloads), "a record came twice"
    assert set(payloads) <= set(begun), "a payload that was never written"
    order = [one.payload for one in history.written if one.payload in set(payloads)]
    assert payloads == order, "records in another order than they were written"
    for position, payload in found:
        expected = begun[payload].position
        assert expected is None or position == expected, "a record at another position than it was given"
    present = set(payloads)
    for one in history.written:
        if one.durable <= moment < one.forgotten:
            assert one.payload in present, (
                f"lost {one.payload!r}, acknowledged at {one.durable}, crash at {moment}"
            )
    _check_prefix(history, moment, present)


def _check_prefix(history: History, moment: int, present: set[bytes]) -> None:
    """What is there is a prefix of what was written, but for what cleaning may have taken."""
    missing = False
    for one in history.written:
        if one.begun >= moment or one.position is None:
            continue
        if one.payload not in present:
            missing = missing or one.forgotten > moment
        else:
            assert not missing, f"{one.payload!r} is there although one before it is lost"
