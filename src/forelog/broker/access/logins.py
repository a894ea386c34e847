"""Checks passwords one at a time, on a thread. Guessing is slow, and other clients don't wait behind it.

A check costs some 50 ms by design, so waiting clients are served in this order:

1. a name from an address from which it logged in before,
2. then the address with the fewest wrong passwords; of equal ones, the latest.

A wrong password delays the next check of its name from its address, of its address, and of its name from addresses
from which it never logged in. Delays double up to a limit, and decay with time. They never lock anybody out: every
client is served within a few seconds, and a right password that was checked before isn't checked again.

All tables are bounded. When too many checks wait, the address with the most of them loses its oldest one, which is
answered "server busy". A flood from one address therefore costs only that address. Names are kept as digests.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from forelog.broker.access.passwords import Password
from forelog.broker.mqtt.reasons import ReasonCode

WAITING_MAX = 1000
"""Checks that may wait; if there are more, one is refused."""
WAITING_OF_PAIR_MAX = 8
"""Waiting checks of one name from one address."""
PASSWORD_BYTES_MAX = 4096
WAITING_SECONDS_MAX = 30.0
"""How long a check may wait before it is refused."""
REMEMBERED_SECONDS = 86_400.0
"""How long a right password isn't checked again while its user's line stays as it is."""
REMEMBERED_MAX = 50_000
_WRONG_MAX = 4096
_USUAL_MAX = 20_000
_DELAYS_MAX = 20_000
_USUAL_IN_A_ROW = 4
"""Checks of names from usual addresses before the turn of one from elsewhere."""

Pair = tuple[str, bytes]


class Check(NamedTuple):
    """A password to check."""

    address: str
    name: bytes
    """A digest of the user's name."""
    proof: bytes
    known: Password | None
    password: bytes
    since: float
    found: Future[ReasonCode | None]
    """The reason to refuse the client; None if the password is right."""


class Delays:
    """How long keys must wait because of earlier failures."""

    def __init__(self, *, free: int, first: float, most: float, forget_seconds: float) -> None:
        self._free, self._first, self._most, self._forget = free, first, most, forget_seconds
        self._failed: dict[Hashable, tuple[float, float, float]] = {}
        """For each key: failures, the time of the last one, and until when to wait; by the last failure's time."""

    def __len__(self) -> int:
        return len(self._failed)

    def failures(self, key: Hashable, now: float) -> float:
        """The failures of a key, less what has decayed."""
        count, last, _ = self._failed.get(key, (0.0, now, 0.0))
        return max(count - (now - last) / self._forget, 0.0)

    def until(self, key: Hashable) -> float:
        """When the next check of a key may start."""
        found = self._failed.get(key)
        return 0.0 if found is None else found[2]

    def fail(self, key: Hashable, now: float) -> None:
        """Count a failure."""
        count = self.failures(key, now) + 1
        self._failed.pop(key, None)
        if len(self._failed) >= _DELAYS_MAX:
            del self._failed[next(iter(self._failed))]
        over = min(math.ceil(count) - self._free, 32)
        wait = min(self._first * 2 ** (over - 1), self._most) if over > 0 else 0.0
        self._failed[key] = (min(count, 1000.0), now, now + wait)


class Logins:
    """Waiting checks, and the results of earlier ones."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._nobody = Password.of(secrets.token_bytes(16))
        """A password for unknown names, so that their checks take as long."""
        self._ready = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waiting: dict[Pair, deque[Check]] = {}
        self._counts: dict[str, int] = {}
        self.waiting = 0
        """The number of waiting checks."""
        self._remembered: dict[bytes, float] = {}
        self._wrong: dict[bytes, None] = {}
        self._usual: dict[Pair, None] = {}
        self._in_a_row = 0
        self._of_pair = Delays(free=3, first=0.25, most=2.0, forget_seconds=60)
        self._of_address = Delays(free=10, first=0.1, most=2.0, forget_seconds=10)
        self._of_name = Delays(free=10, first=0.1, most=1.0, forget_seconds=10)

    def check(
        self, user: str, password: bytes, known: Password | None, host: str
    ) -> ReasonCode | Future[ReasonCode | None] | None:
        """The reason to refuse a password, or None; or a future of that while it is checked."""
        if len(password) > PASSWORD_BYTES_MAX:
            return ReasonCode.BAD_USER_NAME_OR_PASSWORD
        name = hmac.digest(self._key, user.encode(), hashlib.sha256)[:16]
        parts = (user.encode(), password, b"" if known is None else known.salt + known.hash)
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        proof = hmac.digest(self._key, framed, hashlib.sha256)
        check = Check(network_of(host), name, proof, known, password, self._clock(), Future())
        with self._ready:
            if self._remembered.get(proof, 0.0) > self._clock():
                self._came_in(check)
                return None
            self._wait(check)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="forelog-passwords", daemon=True)
                self._thread.start()
            self._ready.notify()
        check.found.add_done_callback(lambda _: self._forget(check))
        return check.found

    def close(self) -> None:
        """Check nothing more, and stop the thread."""
        with self._ready:
            self._closed = True
            left = [check for bucket in self._waiting.values() for check in bucket]
            self._ready.notify()
        for check in left:
            check.found.cancel()
        if self._thread is not None:
            self._thread.join()

    # -- the queue

    def _wait(self, check: Check) -> None:
        pair = (check.address, check.name)
        bucket = self._waiting.get(pair)
        dropped: Check | None = None
        if bucket is not None and len(bucket) >= WAITING_OF_PAIR_MAX:
            dropped = bucket[0]
        elif self.waiting >= WAITING_MAX:
            most = max(self._counts, key=self._counts.__getitem__)
            dropped = next(those[0] for (address, _), those in self._waiting.items() if address == most)
        if dropped is not None:
            self._take(dropped)
            _answer(dropped, ReasonCode.SERVER_BUSY)
        self._waiting.setdefault(pair, deque()).append(check)
        self._counts[check.address] = self._counts.get(check.address, 0) + 1
        self.waiting += 1

    def _take(self, check: Check) -> bool:
        """Remove a check from the queue; False if it wasn't there."""
        pair = (check.address, check.name)
        bucket = self._waiting.get(pair)
        if bucket is None or not any(one is check for one in bucket):
            return False
        self._waiting[pair] = deque(one for one in bucket if one is not check)
        if not self._waiting[pair]:
            del self._waiting[pair]
        self.waiting -= 1
        self._counts[check.address] -= 1
        if not self._counts[check.address]:
            del self._counts[check.address]
        return True

    def _forget(self, check: Check) -> None:
        """Forget a check that is done, or whose client has left."""
        with self._ready:
            self._take(check)

    def _turn_away(self, before: float) -> None:
        """Refuse checks that have waited since before a time."""
        late = [one for bucket in self._waiting.values() for one in bucket if one.since < before]
        for check in late:
            self._take(check)
            _answer(check, ReasonCode.SERVER_BUSY)

    def _next(self, now: float) -> Check | float | None:
        """The check whose turn it is, or the time at which one may start; None if none waits."""
        best: Check | None = None
        best_key: tuple[bool, int, int] | None = None
        soonest: float | None = None
        usual_first = self._in_a_row < _USUAL_IN_A_ROW
        for order, (pair, bucket) in enumerate(self._waiting.items()):
            usual = pair in self._usual
            until = self._of_pair.until(pair)
            if not usual:
                until = max(until, self._of_address.until(pair[0]), self._of_name.until(pair[1]))
            if until > now:
                soonest = until if soonest is None else min(soonest, until)
                continue
            key = (usual != usual_first, math.ceil(self._of_address.failures(pair[0], now)), -order)
            if best_key is None or key < best_key:
                best, best_key = bucket[-1], key
        if best is None:
            return soonest
        self._in_a_row = self._in_a_row + 1 if (best.address, best.name) in self._usual else 0
        return best

    # -- on the thread

    def _run(self) -> None:
        for check in self._checks():
            right = check.proof not in self._wrong and self._is_right(check)
            with self._ready:
                same = [one for bucket in self._waiting.values() for one in bucket if one.proof == check.proof]
                for one in same:
                    self._take(one)
                self._note(check, right)
            for one in (check, *same):
                _answer(one, None if right else ReasonCode.BAD_USER_NAME_OR_PASSWORD)

    def _checks(self) -> Iterator[Check]:
        while True:
            with self._ready:
                found = self._next(self._clock())
                while not self._closed and not isinstance(found, Check):
                    self._ready.wait(None if found is None else max(found - self._clock(), 0.001))
                    found = self._next(self._clock())
                self._turn_away(self._clock() - WAITING_SECONDS_MAX)
                if self._closed or not isinstance(found, Check):
                    return
                if not self._take(found):
                    continue  # it was refused or cancelled
            yield found

    def _is_right(self, check: Check) -> bool:
        found = check.known or self._nobody
        try:
            return found.is_of(check.password) and check.known is not None
        except (ValueError, MemoryError):
            return False

    def _note(self, check: Check, right: bool) -> None:
        now = self._clock()
        if right:
            if len(self._remembered) >= REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[check.proof] = now + REMEMBERED_SECONDS
            self._came_in(check)
            return
        if len(self._wrong) >= _WRONG_MAX:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[check.proof] = None
        self._of_pair.fail((check.address, check.name), now)
        self._of_address.fail(check.address, now)
        if (check.address, check.name) not in self._usual:
            self._of_name.fail(check.name, now)

    def _came_in(self, check: Check) -> None:
        pair = (check.address, check.name)
        self._usual.pop(pair, None)
        if len(self._usual) >= _USUAL_MAX:
            del self._usual[next(iter(self._usual))]
        self._usual[pair] = None


def _answer(check: Check, reason: ReasonCode | None) -> None:
    if check.found.set_running_or_notify_cancel():
        check.found.set_result(reason)


def network_of(host: str) -> str:
    """An address, or its /64 network for IPv6, because one client usually has all addresses of one.

    >>> network_of("10.1.2.3"), network_of("2001:db8::1:2"), network_of("::ffff:10.1.2.3")
    ('10.1.2.3', '2001:db8::/64', '10.1.2.3')
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return host
