"""Access control: which clients may come in, and what they may publish and subscribe to.

Without a file of users, every client on this machine may come in, and clients from elsewhere only with
`anonymous`. Names are ignored then, and sessions have no owner. With a file of users, a client needs a name and
its password; with `anonymous` it may also come without a name. Without rules, every client may do everything.

A session belongs to the user whose client created it. A client of another user can't use its id. All clients
without a name count as one user.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future

from forelog.broker.access.logins import Logins
from forelog.broker.access.passwords import Password, read_users
from forelog.broker.access.rights import EVERYTHING, NOTHING, CurrentRights, Rights, Ruleset, Verdicts
from forelog.broker.access.rules import Rules
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.serving.addresses import is_loopback


class Access:
    """What clients may do, by a file of users and a file of rules.

    With `anonymous`, clients without a name may come in, from anywhere. With `user_from_certificate`, a client
    with a TLS certificate is the user that the certificate's subject names. The user must be in the file, and
    needs no password. With `shared_client_ids`, a client takes over the session of its id even if that is another
    user's, as the standard says.
    """

    def __init__(
        self,
        *,
        users: str | os.PathLike[str] | None = None,
        rules: str | os.PathLike[str] | None = None,
        anonymous: bool = False,
        shared_client_ids: bool = False,
        user_from_certificate: bool = False,
    ) -> None:
        if user_from_certificate and users is None:
            raise ValueError("user_from_certificate needs users: names in certificates are looked up there")
        self.user_from_certificate = user_from_certificate
        self._anonymous = anonymous
        self._users_path = None if users is None else os.fspath(users)
        self._rules_path = None if rules is None else os.fspath(rules)
        self._shared_client_ids = shared_client_ids
        self._logins = None if users is None else Logins()
        self.edition = 0
        """How often the files were read."""
        self.reload()

    def reload(self) -> None:
        """Read the files again. Raises BadAccessFile if one is invalid; then nothing changes.

        Connected clients keep their rights until `Broker.reload`, which calls this, gives them new ones.
        """
        users = None if self._users_path is None else read_users(self._users_path)
        rules = None if self._rules_path is None else Rules.read(self._rules_path)
        self._users, self._rules = users, rules
        self.edition += 1
        self._rulesets: dict[str | None, Ruleset] = {}
        self.verdicts = Verdicts()

    def close(self) -> None:
        """Stop the thread that checks passwords."""
        if self._logins is not None:
            self._logins.close()

    # -- logins

    def admit(
        self, user: str | None, password: bytes | None, host: str
    ) -> ReasonCode | Future[ReasonCode | None] | None:
        """The reason to refuse a client, or None; or a future of that while its password is checked."""
        if user is None or self._users is None:
            if self._anonymous or (self._users is None and (not host or is_loopback(host))):
                return None
            return ReasonCode.NOT_AUTHORIZED
        if password is None:
            return ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert self._logins is not None
        return self._logins.check(user, password, self._users.get(user), host)

    def password_of(self, user: str | None) -> Password | None:
        """The entry of a user in the file of users. A client is disconnected when its user's entry changes."""
        return None if user is None or self._users is None else self._users.get(user)

    def knows(self, user: str | None) -> bool:
        """Whether clients of this user may come in, with the right password."""
        return self._users is None or (self._anonymous if user is None else user in self._users)

    # -- sessions

    def owner(self, user: str | None) -> str | None:
        """The owner of sessions that this user creates: empty without a name, None if names are ignored."""
        return None if self._users is None else user or ""

    def may_take(self, user: str | None, owner: str | None) -> bool:
        """Whether a user's client may take over, or end, a session."""
        return self._shared_client_ids or None in (owner, self._users) or self.owner(user) == owner

    def is_orphan(self, owner: str | None) -> bool:
        """Whether the owner of a session can't come in any more."""
        return owner is not None and not self.knows(owner or None)

    # -- rights

    def rights(self, user: str | None, client_id: str) -> Rights:
        """The rights of a client, by the current rules."""
        if self._rules is None:
            return EVERYTHING
        name = None if self._users is None else user  # without users, names aren't checked
        if not self.knows(name):
            return Rights()
        own = self._rulesets.get(name)
        if own is None:
            own = Ruleset(self._rules.of_user(name))
            if len(own):
                self._rulesets[name] = own
        patterns = list(self._rules.of_patterns(name, client_id))
        return Rights(own, Ruleset(patterns) if patterns else None)

    def current_rights(self, user: str | None, client_id: str) -> Rights:
        """The rights of a connected client, by the rules of each moment."""
        return self._current(lambda: self.rights(user, client_id))

    def current_rights_of_owner(self, owner: str | None, client_id: str) -> Rights:
        """The rights that the client of a session will have when it comes back, by the rules of each moment."""
        return self._current(lambda: self.rights_of_owner(owner, client_id))

    def no_rights(self) -> Rights:
        """The rights of a client that has lost its login."""
        return self._current(lambda: NOTHING)

    def _current(self, find: Callable[[], Rights]) -> Rights:
        if self._rules_path is None and self._users_path is None:
            return EVERYTHING  # nothing can change them
        return CurrentRights(lambda: self.edition, find)

    def rights_of_owner(self, owner: str | None, client_id: str) -> Rights:
        """The rights that the client of a session will have when it comes back; all rights if that isn't known."""
        if owner is None and self._users is not None:
            return EVERYTHING
        return self.rights(owner or None, client_id)

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        """Whether a client may publish to a topic."""
        return self.rights(user, client_id).may_publish(topic)

    def may_read(self, user: str | None, client_id: str, topic: str) -> bool:
        """Whether a client may receive messages of a topic."""
        return self.rights(user, client_id).may_read(topic)

    def may_subscribe(self, user: str | None, client_id: str, filter: str) -> bool:  # noqa: A002
        """Whether a client may subscribe to a filter: whether it may receive some topic that matches."""
        return self.rights(user, client_id).may_subscribe(filter)
