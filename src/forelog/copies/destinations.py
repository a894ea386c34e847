"""Where else a log is kept: any number of copies, each updated by a thread of its own.

A destination that is slow or away delays nothing and costs no memory, because its thread reads the log at its own
pace. After an error the destination is unhealthy; its thread tries again, and resumes where it stopped. Updates
wait for a destination only with `ack="received"` or `ack="synced"`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from forelog.bounds import check_number
from forelog.copies.shipping import Owner, Target, View, ship
from forelog.errors import ForelogError, NotReplicated, Superseded
from forelog.log.position import Position

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger("forelog")

ACK_SECONDS = 10.0
STORE_INTERVAL_SECONDS = 10.0
RETRY_SECONDS = (0.1, 5.0)  # before another attempt, at first and at most
STOP_SECONDS = 5.0
Ack = Literal["none", "received", "synced"]


class CopyOptions(TypedDict, total=False):
    """How a copy is kept up to date."""

    ack: Ack
    """What an update waits for: nothing, or until the copy has received it, or synced it."""
    ack_timeout: float | None
    """Seconds to wait before NotReplicated is raised; 10 by default, None to wait for ever."""
    interval: float | None
    """Seconds between two transfers: by default 0, or 10 for an object store."""
    token: str | bytes | None
    """The token for a replica server."""
    tls: ssl.SSLContext | bool | None
    """TLS for a replica server: True, or a context."""
    storage_options: Mapping[str, Any] | None
    """Options for fsspec, where the destination is an object store."""
    mode: int | None
    """Permissions of the files of a new copy in a directory; 0o600 by default."""


@dataclass(frozen=True, slots=True)
class DestinationHealth:
    """The health of one copy."""

    where: str
    """The address of the copy, without its password."""
    state: str
    """`connecting`, `live`, `unhealthy`, or `superseded`, which is final."""
    error: str | None
    """Why the copy isn't live; None if it is, or was never reached."""
    error_seconds: float | None
    """How long the copy has had an error."""
    position: Position | None
    """The position up to which the copy has everything."""
    lag_bytes: int
    """Bytes of the log that the copy lacks."""
    lag_seconds: float
    """How long ago the copy last had everything; 0 if it has everything now."""
    attempts: int
    """Attempts to connect since the destination was added."""

    @property
    def healthy(self) -> bool:
        """Whether the copy has no error."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a log and of its copies."""

    error: str | None
    """The error of the log itself: a failed sync, or an enumeration that raised; None if there is none."""
    destinations: Mapping[str, DestinationHealth] = field(default_factory=dict)
    """The health of each destination, by its name."""

    @property
    def healthy(self) -> bool:
        """Whether neither the log nor a destination has an error."""
        return self.error is None and all(one.healthy for one in self.destinations.values())


class Destination:
    """One copy, and the thread that updates it."""

    def __init__(
        self, source: Owner, where: str, target: Target, *, ack: str, ack_timeout: float | None, interval: float
    ) -> None:
        self.where = where
        self.waits = ack != "none"
        self._source = source
        self._target = target
        self._ack_timeout = ack_timeout
        self._interval = interval
        self._woken = threading.Event()
        self._hurry = threading.Event()
        self._stopping = False
        self._changed = threading.Condition()
        self._position: Position | None = None
        self._state = "connecting"
        self._error: Exception | None = None
        self._error_at = 0.0
        self._caught_up_at = time.monotonic()
        self._resting = False
        """Whether it had everything when the thread last looked, and nothing was appended since."""
        self._attempts = 0
        self._thread = threading.Thread(target=self._run, name=f"forelog-copy-{where}", daemon=True)
        self._thread.start()

    # -- its thread

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        while not self._stopping:
            self._attempts += 1
            before = self._position
            try:
                ship(
                    self._source,
                    self._target,
                    woken=self._woken,
                    stopped=lambda: self._stopping,
                    acknowledged=self._acknowledged,
                    caught_up=self._caught_up,
                    rest=self._rest if self._interval else None,
                )
            except Exception as error:  # no error of a copy may harm the log
                self._failed(error)
                if isinstance(error, Superseded):
                    break
            finally:
                with contextlib.suppress(Exception):
                    self._target.close()
            pause = RETRY_SECONDS[0] if self._position != before else min(pause * 2, RETRY_SECONDS[1])
            self._hurry.wait(pause * random.uniform(0.5, 1))

    def _rest(self) -> None:
        self._hurry.wait(self._interval)

    def _acknowledged(self, position: Position) -> None:
        with self._changed:
            if self._error is not None:
                logger.info("%s: the copy is live again", self.where)
            self._position = position
            self._state, self._error = "live", None
            self._changed.notify_all()

    def _caught_up(self, moment: float) -> None:
        self._caught_up_at = moment
        self._resting = not self._woken.is_set()

    def _failed(self, error: Exception) -> None:
        if self._stopping:
            return
        if not isinstance(error, OSError | ForelogError):
            logger.error("%s: the copy isn't updated", self.where, exc_info=error)
        with self._changed:
            if self._error is None:
                self._error_at = time.monotonic()
            if type(self._error) is not type(error):
                level = logging.ERROR if isinstance(error, Superseded) else logging.WARNING
                logger.log(level, "%s: the copy isn't updated: %s", self.where, error)
            self._state = "superseded" if isinstance(error, Superseded) else "unhealthy"
            self._error = error
            self._changed.notify_all()

    # -- for the log

    def wake(self) -> None:
        """Note that something was appended."""
        if self._resting:  # until now it had everything
            self._caught_up_at, self._resting = time.monotonic(), False
        self._woken.set()

    def check(self) -> None:
        """Raise if nothing may be appended now, because of this copy."""
        error = self._error
        if error is None:
            return
        if isinstance(error, Superseded):
            raise Superseded(str(error)) from error
        if self.waits:
            raise NotReplicated(
                f"{self.where} has to acknowledge updates, and can't be reached: {error}. Nothing was written. "
                "Wait for it, or continue without it by remove_destination()"
            ) from error

    def wait_for(self, position: Position) -> None:
        """Return when the copy has the record at a position."""
        deadline = None if self._ack_timeout is None else time.monotonic() + self._ack_timeout
        with self._changed:
            while self._position is None or self._position <= position:
                left = None if deadline is None else deadline - time.monotonic()
                if self._stopping or self._error is not None or (left is not None and left <= 0):
                    why = str(self._error or "no acknowledgement in time")
                    raise NotReplicated(
                        f"{self.where} didn't acknowledge the update at {position}: {why}. The log has it",
                        position=position,
                    )
                self._changed.wait(left)

    def health(self, view: View | None) -> DestinationHealth:
        """How it is doing now."""
        lag = 0 if view is None else _lag(view, self._position)
        now = time.monotonic()
        error = self._error
        return DestinationHealth(
            self.where,
            self._state,
            None if error is None else f"{type(error).__name__}: {error}",
            None if error is None else now - self._error_at,
            self._position,
            lag,
            now - self._caught_up_at if lag else 0.0,
            self._attempts,
        )

    def stop(self) -> None:
        """Stop the thread once it has caught up; wait only while it makes progress."""
        self._hurry.set()
        self._woken.set()
        seen, deadline = self._position, time.monotonic() + STOP_SECONDS
        while self._error is None and self._thread.is_alive() and self._lag() and time.monotonic() < deadline:
            time.sleep(0.005)
            if self._position != seen:
                seen, deadline = self._position, time.monotonic() + STOP_SECONDS
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._woken.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            self._target.close()  # ends a wait for the other side
            self._thread.join(STOP_SECONDS)

    def _lag(self) -> int:
        view = self._source.view()
        return 0 if view is None else _lag(view, self._position)


class Destinations:
    """All destinations of a log. False while there are none: then they cost updates nothing."""

    def __init__(self, log: Owner) -> None:
        self._log = log
        self._all: dict[str, Destination] = {}
        self._waited: list[Destination] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(
        self,
        where: str | os.PathLike[str],
        *,
        name: str | None = None,
        ack: Ack = "none",
        ack_timeout: float | None = ACK_SECONDS,
        interval: float | None = None,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        mode: int | None = None,
        first: Callable[[], object] | None = None,
    ) -> str:
        """Keep a copy at an address, and return its name. CopyOptions describes the options.

        `first` is called once the options have been checked, before the copy begins.
        """
        # Most logs have no copies: only those that do load what reaches them, about sixty modules.
        from urllib.parse import urlsplit

        from forelog.copies.addresses import make_target
        from forelog.copies.store.bucket import shown

        if ack not in get_args(Ack):
            raise ValueError(f"ack is {ack!r}: expected 'none', 'received' or 'synced'")
        check_number("ack_timeout", ack_timeout, or_none="to wait for ever")
        check_number("interval", interval, or_none="for the usual one")
        where = os.fspath(where)
        shown_where = shown(where)
        chosen = shown_where if name is None else name
        remote = "://" in where and urlsplit(where).scheme not in ("replica", "file")
        target = make_target(
            where,
            self._log,
            synced=ack == "synced",
            token=token,
            tls=tls,
            storage_options=storage_options,
            mode=mode,
        )
        if first is not None:
            first()
        with self._lock:
            if chosen in self._all:
                raise ValueError(f"there is a destination {chosen!r} already: give this one another name")
            destination = Destination(
                self._log,
                shown_where,
                target,
                ack=ack,
                ack_timeout=ack_timeout,
                interval=STORE_INTERVAL_SECONDS if interval is None and remote else interval or 0,
            )
            self._all = {**self._all, chosen: destination}
            self._waited = [one for one in self._all.values() if one.waits]
        return chosen

    def remove(self, name: str) -> None:
        """Stop updating a destination."""
        with self._lock:
            if name not in self._all:
                raise LookupError(f"there is no destination {name!r}: there are {sorted(self._all) or 'none'}")
            destination = self._all[name]
            self._all = {key: value for key, value in self._all.items() if key != name}
            self._waited = [one for one in self._all.values() if one.waits]
        destination.stop()

    def check(self) -> None:
        """Raise if a destination forbids updates now."""
        for destination in self._all.values():
            destination.check()

    def appended(self, position: Position) -> None:
        """Note that an update was appended, and wait for the copies that must acknowledge it."""
        for destination in self._all.values():
            destination.wake()
        for destination in self._waited:
            destination.wait_for(position)

    def wake(self) -> None:
        """Note that something was appended."""
        for destination in self._all.values():
            destination.wake()

    def health(self, error: str | None) -> Health:
        """The health of the log, with its own error, and of all destinations."""
        view = self._log.view()
        return Health(error, {name: one.health(view) for name, one in self._all.items()})

    def close(self) -> None:
        """Stop all destinations."""
        with self._lock:
            everyone, self._all, self._waited = list(self._all.values()), {}, []
        for destination in everyone:
            destination.stop()


def _lag(view: View, position: Position | None) -> int:
    """How many bytes of a log come after a position."""
    first = view.snapshot.begin
    begin = first if position is None or view.stream.segment_bytes(position.segment) is None else position
    total, number, start = 0, begin.segment, begin.offset
    while (found := view.stream.segment_bytes(number)) is not None:
        total += max(found - start, 0)
        number, start = number + 1, first.offset
    return total
