"""A second process with the same state, a moment behind the first, that can take its place.

A follower keeps a copy of the log of its own, and replays what arrives as it arrives. When the connection breaks
it goes on from where it was; when it has missed too much it is given everything again: then `reset` is called, and
the whole state replayed. So it is when a `replay` has raised: what is in memory counts for nothing then, until the
copy has been replayed from its start. Promoted, it has the replica take nothing from the old primary any more,
waits for what the replica has, and goes on as a StateLog with the state as it is in memory.
"""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from forelog.copies.destinations import DestinationHealth
from forelog.copies.identity import Identity
from forelog.copies.server.receiver import Receiver
from forelog.copies.slots import Slots
from forelog.copies.wire import (
    VERSION,
    Fields,
    Kind,
    Link,
    as_tls,
    as_token,
    connect,
    need_msgspec,
    parse_address,
    resume_fields,
)
from forelog.errors import NotReplicated, ReplicaError, Superseded
from forelog.files import disk
from forelog.log.position import Position
from forelog.state.events import Codec, EventCodec
from forelog.state.log import Enumeration, StateLog
from forelog.state.replay import Replayer

__all__ = ["Follower"]

logger = logging.getLogger("forelog")

RETRY_SECONDS = (0.1, 5.0)
_NOWHERE = Position(0, 0)


class Follower:
    """`with Follower("replica://10.0.0.2/bank", "copy", replay=..., reset=...) as follower: ...`.

    `replay(event)` and `reset()` are called on a thread of the follower's: hold the app's lock in them.
    """

    def __init__(
        self,
        where: str,
        path: str,
        *,
        replay: Callable[[Any], object],
        reset: Callable[[], object],
        types: Iterable[type] = (),
        codec: Codec | None = None,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool | None = None,
        mode: int | None = None,
    ) -> None:
        need_msgspec()
        self._address = parse_address(where)
        self._path = path
        self._files = disk(None, mode)
        self._replay = replay
        self._reset = reset
        self._codec: Codec = EventCodec(types) if codec is None else codec
        self._token = as_token(token)
        self._tls = as_tls(tls)
        self._slots: Slots | None = None
        self._replayer = self._new_replayer()
        self._replayed: Position | None = _NOWHERE
        """Up to where memory has the whole copy; None if there is no telling, as after a replay that broke off."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._link: Link | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._error_at = 0.0
        self._attempts = 0

    def _new_replayer(self) -> Replayer:
        return Replayer(self._path, self._codec, self._replay)

    # -- opening and closing

    def open(self) -> Self:
        """Replay the copy that is here, if any, and follow from there on."""
        if self._thread is not None:
            raise ValueError("this follower is open")
        self._slots = Slots(self._path, self._files)
        try:
            if self._replayed is None:
                self._reset()  # of what an earlier opening has left in memory
            self._replay_copy(self._slots)
        except BaseException:
            self._let_go()
            raise
        self._start()
        return self

    def _start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="forelog-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Follow no longer. The copy stays."""
        self._stop()
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._slots is not None:
            slots, self._slots = self._slots, None
            self._replayed = None
            slots.close()

    def _stop(self) -> None:
        self._stopping.set()
        if self._link is not None:
            self._link.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- its thread

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        while not self._stopping.is_set():
            self._attempts += 1
            before = self.position
            try:
                self._follow()
            except Exception as error:  # the app may read on, whatever it is
                self._failed(error)
            finally:
                if self._link is not None:
                    self._link.close()
            pause = RETRY_SECONDS[0] if self.position != before else min(pause * 2, RETRY_SECONDS[1])
            self._stopping.wait(pause * random.uniform(0.5, 1))

    def _follow(self) -> None:
        with self._lock:
            slots = self._copies_in_place()
            if self._is_stale():
                self._begin_again()
                self._changed.notify_all()
        self._link = link = connect(self._address, self._tls)
        with self._lock:
            resume = slots.growing.resume()
        self._hello(link, "follower", **resume_fields(resume))
        welcome = Fields(link.who, link.expect(Kind.WELCOME))
        with self._lock:
            slots.adopt(welcome.need_identity())
        self._recovered()
        Receiver(
            link,
            slots,
            self._lock,
            arrived=self._arrived,
            renewed=self._begin_again,
            changed=self._changed.notify_all,
        ).run(self._check_going)
        raise ReplicaError(f"{link.who} closed the connection")

    def _copies_in_place(self) -> Slots:
        """The copies; opened anew if their directory was removed or replaced. Memory has the state until then."""
        assert self._slots is not None
        if self._slots.is_gone():
            logger.warning("%s was removed or replaced: a new copy is needed", self._path)
            self._slots.close()
            self._slots = Slots(self._path, self._files)
            if self._slots.whole is None:
                self._replayed = _NOWHERE
        return self._slots

    def _check_going(self) -> None:
        if self._stopping.is_set():  # also where that came before there was a link to cut
            raise ReplicaError("this follower is closed")

    def _hello(self, link: Link, role: str, **fields: Any) -> None:
        link.send_fields(
            Kind.HELLO, version=VERSION, role=role, log=self._address.log, token=self._token or "", **fields
        )

    # -- from the copy to memory; with the lock held, so that nobody sees one ahead of the other

    def _arrived(self, position: Position, data: memoryview) -> None:
        self._replayed = None
        self._replayer.data(position, data)
        self._replayed = self._copy_end()

    def _begin_again(self) -> None:
        assert self._slots is not None
        logger.info("%s: the state is replayed anew", self._address)
        self._replayed = None
        self._reset()
        self._replay_copy(self._slots)

    def _replay_copy(self, slots: Slots) -> None:
        self._replayed = None
        self._replayer = self._new_replayer()
        if slots.whole is not None and slots.whole.snapshot is not None:
            for block in slots.whole.stream().blocks(start=slots.whole.snapshot.begin):
                self._replayer.block(block)
        self._replayed = self._copy_end()

    def _copy_end(self) -> Position:
        whole = None if self._slots is None else self._slots.whole
        return _NOWHERE if whole is None or whole.position is None else whole.position

    def _is_stale(self) -> bool:
        """Whether memory isn't what the copy says: a replay broke off, or a failed sync cut what was replayed."""
        return self._replayed != self._copy_end()

    # -- how it goes

    def _recovered(self) -> None:
        with self._lock:
            if self._error is not None:
                logger.info("%s: following again", self._address)
            self._error = None

    def _failed(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        with self._lock:
            if self._error is None:
                self._error_at = time.monotonic()
                logger.warning("%s: not following: %s", self._address, error)
            self._error = error
            self._changed.notify_all()

    # -- for the app

    @property
    def position(self) -> Position:
        """Up to where everything has been replayed; 0:0 while everything is to be replayed again."""
        with self._lock:
            return _NOWHERE if self._slots is None or self._is_stale() else self._slots.position

    def wait_for(self, position: Position, timeout: float | None = None) -> None:
        """Return when the update at a position has been replayed; NotReplicated after `timeout` seconds."""
        self._wait(lambda: self.position > position, f"not past {position}", timeout)

    def _wait(self, reached: Callable[[], bool], otherwise: str, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not reached():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    why = f": {type(self._error).__name__}: {self._error}" if self._error is not None else ""
                    raise NotReplicated(f"{self._address}: at {self.position}, {otherwise} after {timeout} s{why}")
                self._changed.wait(left)

    def health(self) -> DestinationHealth:
        """How following goes."""
        with self._lock:
            error = self._error
            return DestinationHealth(
                str(self._address),
                "live" if error is None and self.position != _NOWHERE else "connecting",
                None if error is None else f"{type(error).__name__}: {error}",
                None if error is None else time.monotonic() - self._error_at,
                self.position,
                0,
                0.0,
                self._attempts,
            )

    def promote(
        self,
        enumerate: Callable[[Enumeration], object],  # noqa: A002 - the name that users know
        *,
        timeout: float = 10.0,
        force: bool = False,
        **options: Any,
    ) -> StateLog:
        """Be the primary: an open StateLog over this copy, with the state as it is in memory.

        The replica is told to take nothing from the old primary any more, and what it has is waited for. If it
        can't be reached that is an error, unless `force` says to go on with what is here; what only the replica
        has is lost then. Options are those of StateLog; add the replica to it as a destination.

        Without a whole copy here, all of it replayed, nobody is told anything. What fails later has shut the old
        primary out already: promote again, after `open()` if the follower is closed by then.
        """
        self._wait_for_copy(timeout)
        identity = self._fence(timeout, force=force)
        self._stop()
        with self._lock:
            slots = self._opened()
            self._replay_what_broke_off()
            assert slots.identity is not None
            self._let_go()
            log = StateLog(
                self._path,
                replay=self._replay,
                enumerate=enumerate,
                codec=self._codec,
                promote=identity or slots.identity.next_term(),
                **options,
            )
        return log.open(replay=False)

    def _opened(self) -> Slots:
        if self._slots is None:
            raise ReplicaError(f"the follower of {self._address} is not open: open it before it is promoted")
        return self._slots

    def _wait_for_copy(self, timeout: float) -> None:
        """Return when there is something to promote: a whole copy, and memory as it says."""
        self._wait(
            lambda: self._opened().whole is not None and not self._is_stale(),
            "without a whole copy that has been replayed: there is nothing to promote",
            timeout,
        )

    def _replay_what_broke_off(self) -> None:
        """For the last frames, which may have come after memory was last looked at."""
        if not self._is_stale():
            return
        try:
            self._begin_again()
        except Exception as error:
            self._start()  # it follows on, and can be promoted another time
            raise ReplicaError(f"{self._path} can't be promoted, its copy can't be replayed: {error}") from error

    def _fence(self, timeout: float, *, force: bool) -> Identity | None:
        """Shut the old primary out, and wait for what the replica has."""
        try:
            link = connect(self._address, self._tls, timeout)
            try:
                self._hello(link, "promote")
                answer = Fields(link.who, link.expect(Kind.WELCOME, timeout))
            finally:
                link.close()
            end = answer.resume()
            if end is not None:
                self._wait(lambda: self.position >= end.position, f"not at {end.position}", timeout)
            return answer.need_identity()
        except (ReplicaError, OSError) as error:
            if not force or isinstance(error, Superseded):
                raise
            logger.warning("%s: promoted without it, at %s: %s", self._address, self.position, error)
            return None
