"""Who may come in, and what they may publish and subscribe to.

Without a file of users anyone on this machine may come in, and from elsewhere only if that is said; names count
for nothing then. With one, who comes needs a name and its password, unless `anonymous` says otherwise. Without
rules, who is in may do anything.

Checking a password takes its time, so it happens on a thread of its own, one at a time: who guesses slows down
others who come for the first time, and nobody else. That a name and a password go together is remembered for some
minutes, not as a password but as a digest with a key that only this process has.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from chiplog.broker.mqtt import ReasonCode
from chiplog.broker.passwords import Password, read_users
from chiplog.broker.rules import Rules, may_publish, may_publish_all, may_subscribe

__all__ = ["Access"]

REMEMBERED_SECONDS = 600
_REMEMBERED_MAX = 100_000
_WAITING_MAX = 1000
"""Passwords to be checked; beyond that clients are told that the server is busy."""
_TOPICS_MAX = 65_536


class Access:
    """Who may do what. `users` and `rules` are files; `reload` reads them again."""

    def __init__(self, *, users: str | None = None, rules: str | None = None, anonymous: bool = False) -> None:
        self._anonymous = anonymous
        self._paths = users, rules
        self._key = secrets.token_bytes(32)
        self._nobody = Password.of(secrets.token_bytes(16)) if users is not None else None
        self._remembered: dict[bytes, float] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._lock = threading.Lock()
        self.reload()

    def reload(self) -> None:
        """Read the files again. If one makes no sense that is raised, and everything stays as it was."""
        users_path, rules_path = self._paths
        users = None if users_path is None else read_users(users_path)
        rules = None if rules_path is None else Rules.read(rules_path)
        self._users, self._rules = users, rules
        self._remembered = {}
        self._publish: dict[tuple[str | None, str, str], bool] = {}

    def knows(self, user: str | None) -> bool:
        """Whether someone who is in could come in today, as far as the name goes."""
        return user is None or self._users is None or user in self._users

    def close(self) -> None:
        """Let the thread go."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # -- coming in

    def admit(
        self, user: str | None, password: bytes | None, host: str
    ) -> ReasonCode | Future[ReasonCode | None] | None:
        """Why a client may not come in; None if it may. If that takes a while to find out: what will tell it."""
        if user is None or self._users is None:
            if self._anonymous or (self._users is None and _is_loopback(host)):
                return None
            return ReasonCode.NOT_AUTHORIZED
        if password is None:
            return ReasonCode.BAD_USER_NAME_OR_PASSWORD
        known = self._users.get(user)
        proof = self._proof(user, password, known)
        if self._remembered.get(proof, 0.0) > time.monotonic():
            return None
        with self._lock:
            if self._waiting >= _WAITING_MAX:
                return ReasonCode.SERVER_BUSY
            self._waiting += 1
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="chiplog-passwords")
        check = self._executor.submit(self._check, known, password, proof)
        check.add_done_callback(self._checked)
        return check

    def _proof(self, user: str, password: bytes, known: Password | None) -> bytes:
        parts = (user.encode(), password, b"" if known is None else known.salt + known.hash)
        told = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, told, hashlib.sha256)

    def _check(self, known: Password | None, password: bytes, proof: bytes) -> ReasonCode | None:
        """On the thread. For a user that there isn't it takes as long as for one that there is."""
        found = known or self._nobody
        if found is None or not found.is_of(password) or known is None:
            return ReasonCode.BAD_USER_NAME_OR_PASSWORD
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered = {}
        self._remembered[proof] = time.monotonic() + REMEMBERED_SECONDS
        return None

    def _checked(self, _: object) -> None:
        """Also if its client has left, and nobody wants to know any more."""
        with self._lock:
            self._waiting -= 1

    # -- and then

    def may_publish_all(self, user: str | None, client_id: str) -> bool:
        """Whether a client may publish to every topic: then none has to be looked at."""
        return self._rules is None or may_publish_all(self._rules.of(self._name(user), client_id))

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        """Whether a client may publish to a topic."""
        if self._rules is None:
            return True
        key = (user, client_id, topic)
        allowed = self._publish.get(key)
        if allowed is None:
            if len(self._publish) >= _TOPICS_MAX:
                self._publish.clear()
            allowed = self._publish[key] = may_publish(self._rules.of(self._name(user), client_id), topic)
        return allowed

    def may_subscribe(self, user: str | None, client_id: str, filter: str) -> bool:  # noqa: A002
        """Whether a client may get everything that a filter matches."""
        return self._rules is None or may_subscribe(self._rules.of(self._name(user), client_id), filter)

    def _name(self, user: str | None) -> str | None:
        """Nobody has checked a name where there are no users."""
        return None if self._users is None else user


def _is_loopback(host: str) -> bool:
    return host in ("", "localhost", "::1") or host.startswith(("127.", "::ffff:127."))
