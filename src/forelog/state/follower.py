"""A second process with the same state, a moment behind the first, which can take its place.

A follower keeps its own copy of the log, and replays records as they arrive. After a broken connection it resumes
where it stopped. If it has missed too much, the replica server sends everything again: the follower calls `reset`,
then replays the whole state. It does the same after a `replay` that raised, because memory may hold half a change.

When it is promoted, the replica server takes nothing more from the old primary. The follower waits until it has
everything that the server has, and becomes a StateLog with the state in memory.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Self, Unpack

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
from forelog.log.stream import PathLike
from forelog.state.enumeration import Enumeration
from forelog.state.events import Codec, EventCodec
from forelog.state.log import StateLog
from forelog.state.options import OpenOptions
from forelog.state.replay import Replayer

logger = logging.getLogger("forelog")

RETRY_SECONDS = (0.1, 5.0)
_NOWHERE = Position(0, 0)


class Follower:
    """The same state in a second process: `with Follower("replica://10.0.0.2/bank", "copy", ...) as follower:`.

    where    the replica server, and the log there
    path     the directory of the follower's own copy
    replay   called with each event; like `reset`, on a thread of the follower: hold the app's lock in it
    reset    called before the whole state is replayed again: empty the state
    types    the types of events, as for StateLog
    codec    the codec of events, as for StateLog
    token    the token for the replica server
    tls      True, or a context
    mode     permissions of the files of the copy; 0o600 by default
    """

    def __init__(
        self,
        where: str,
        path: PathLike,
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
        self._path = os.fspath(path)
        self._files = disk(None, mode)
        self._replay = replay
        self._reset = reset
        self._codec: Codec = EventCodec(types) if codec is None else codec
        self._token = as_token(token)
        self._tls = as_tls(tls)
        self._slots: Slots | None = None
        self._replayer = self._new_replayer()
        self._replayed: Position | None = _NOWHERE
        """The position up to which memory has the copy; None if unknown, as after a replay that raised."""
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
        """Replay the copy, if there is one, and follow the log from its end."""
        if self._thread is not None:
            raise ValueError("this follower is open")
        self._slots = Slots(self._path, self._files)
        try:
            if self._replayed is None:
                self._reset()  # an earlier opening has left something in memory
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
        """Stop following. The copy stays."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- its thread

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        while not self._stopping.is_set():
            self._attempts += 1
            before = self.position
            try:
                self._follow()
            except Exception as error:  # no error may end the thread: the app still reads
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
        """The slots, opened again if their directory was removed or replaced. Memory keeps the state meanwhile."""
        assert self._slots is not None
        if self._slots.is_gone():
            logger.warning("%s was removed or replaced: a new copy is needed", self._path)
            self._slots.close()
            self._slots = Slots(self._path, self._files)
            if self._slots.whole is None:
                self._replayed = _NOWHERE
        return self._slots

    def _check_going(self) -> None:
        if self._stopping.is_set():  # it may have been set before there was a link to close
            raise ReplicaError("this follower is closed")

    def _hello(self, link: Link, role: str, **fields: Any) -> None:
        link.send_fields(
            Kind.HELLO, version=VERSION, role=role, log=self._address.log, token=self._token or "", **fields
        )

    # -- from the copy to memory, with the lock held: nobody sees one ahead of the other

    def _arrived(self, position: Position, data: memoryview) -> None:
        self._replayed = None
        self._replayer.data(position, data)
        self._replayed = self._copy_end()

    def _begin_again(self) -> None:
        assert self._slots is not None
        logger.info("%s: the whole state is replayed again", self._address)
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
        """Whether memory differs from the copy: a replay raised, or a failed sync cut off what was replayed."""
        return self._replayed != self._copy_end()

    # -- errors

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
        """The position up to which events have been replayed; 0:0 if all of them must be replayed again."""
        with self._lock:
            return _NOWHERE if self._slots is None or self._is_stale() else self._slots.position

    def wait_for(self, position: Position, timeout: float | None = None) -> None:
        """Wait until the update at a position has been replayed; NotReplicated after `timeout` seconds."""
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
        """The state of the connection, its last error, and the position reached."""
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
        **options: Unpack[OpenOptions],
    ) -> StateLog:
        """Become the primary: return an open StateLog over this copy, with the state in memory.

        The replica server takes nothing more from the old primary, and the follower waits until it has what the
        server has. An unreachable server is an error. With `force=True` the follower continues without it, and
        what only the server has is lost. The options are those of StateLog. Add the replica server to the new log
        as a destination.

        Without a whole, replayed copy this raises before it changes anything. A later failure leaves the old
        primary shut out: promote again, after `open()` if the follower is closed.
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
        """Wait until there is something to promote: a whole copy, which memory has."""
        self._wait(
            lambda: self._opened().whole is not None and not self._is_stale(),
            "without a whole copy that has been replayed: there is nothing to promote",
            timeout,
        )

    def _replay_what_broke_off(self) -> None:
        """Replay the whole copy if the last frames, which may have just arrived, couldn't be replayed."""
        if not self._is_stale():
            return
        try:
            self._begin_again()
        except Exception as error:
            self._start()  # it follows again, and can be promoted later
            raise ReplicaError(f"{self._path} can't be promoted, its copy can't be replayed: {error}") from error

    def _fence(self, timeout: float, *, force: bool) -> Identity | None:
        """Shut the old primary out, and wait until everything is here that the replica server has."""
        try:
            with closing(connect(self._address, self._tls, timeout)) as link:
                self._hello(link, "promote")
                answer = Fields(link.who, link.expect(Kind.WELCOME, timeout))
            end = answer.resume()
            if end is not None:
                self._wait(lambda: self.position >= end.position, f"not at {end.position}", timeout)
            return answer.need_identity()
        except (ReplicaError, OSError) as error:
            if not force or isinstance(error, Superseded):
                raise
            logger.warning("%s: promoted without it, at %s: %s", self._address, self.position, error)
            return None
