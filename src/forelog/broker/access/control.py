"""Who may come in, and what they may publish and subscribe to.

Without a file of users anyone on this machine may come in, and from elsewhere only if that is said; names count
for nothing then. With one, whoever comes needs a name and its password, unless `anonymous` says otherwise. Without
rules, whoever is in may do anything.

A session belongs to the user whose client made it: another user's client can't have the same id. Clients without
a name are one user of their own. Without a file of users nobody's name is known, and nobody owns a session.

Checking passwords is in `logins`, and what rules mean in `rights`.
"""

from __future__ import annotations

from concurrent.futures import Future

from forelog.broker.access.logins import Logins
from forelog.broker.access.passwords import Password, read_users
from forelog.broker.access.rights import EVERYTHING, Rights, Ruleset, Verdicts
from forelog.broker.access.rules import Rules
from forelog.broker.mqtt import ReasonCode

__all__ = ["Access"]


class Access:
    """Who may do what. `users` and `rules` are files; `reload` reads them again.

    With `user_from_certificate` a client that shows a certificate is the user whom its subject names. That user
    must be in the file, and no password is asked for. With `shared_client_ids` a client takes over the session of
    its id whoever it belongs to, as MQTT has it.
    """

    def __init__(
        self,
        *,
        users: str | None = None,
        rules: str | None = None,
        anonymous: bool = False,
        shared_client_ids: bool = False,
        user_from_certificate: bool = False,
    ) -> None:
        if user_from_certificate and users is None:
            raise ValueError("user_from_certificate needs users: the names in certificates are looked up there")
        self.user_from_certificate = user_from_certificate
        self._anonymous = anonymous
        self._paths = users, rules
        self._shared_client_ids = shared_client_ids
        self._logins = None if users is None else Logins()
        self.reload()

    def reload(self) -> None:
        """Read the files again. If one makes no sense that is raised, and everything stays as it was.

        Rights that were given out before are those of before: `Broker.reload` gives every client new ones.
        """
        users_path, rules_path = self._paths
        users = None if users_path is None else read_users(users_path)
        rules = None if rules_path is None else Rules.read(rules_path)
        self._users, self._rules = users, rules
        self._rulesets: dict[str | None, Ruleset] = {}
        self.verdicts = Verdicts()

    def close(self) -> None:
        """Let the thread go."""
        if self._logins is not None:
            self._logins.close()

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
        assert self._logins is not None
        return self._logins.check(user, password, self._users.get(user), host)

    def password_of(self, user: str | None) -> Password | None:
        """What the file of users has for a user now. While it stays the same, whoever came in with it may stay."""
        return None if user is None or self._users is None else self._users.get(user)

    def knows(self, user: str | None) -> bool:
        """Whether a client of this user could come in today, as far as the name goes."""
        return self._users is None or (self._anonymous if user is None else user in self._users)

    # -- sessions

    def owner(self, user: str | None) -> str | None:
        """Whose a session is that this user makes: empty for clients without a name, None if it is nobody's."""
        return None if self._users is None else user or ""

    def may_take(self, user: str | None, owner: str | None) -> bool:
        """Whether a user's client may take over, or end, a session."""
        return self._shared_client_ids or None in (owner, self._users) or self.owner(user) == owner

    def is_orphan(self, owner: str | None) -> bool:
        """Whether a session's owner can't come back any more."""
        return owner is not None and not self.knows(owner or None)

    # -- and then

    def rights(self, user: str | None, client_id: str) -> Rights:
        """What a client may do, by the rules of now."""
        if self._rules is None:
            return EVERYTHING
        name = None if self._users is None else user  # nobody has checked a name where there are no users
        if not self.knows(name):
            return Rights()
        own = self._rulesets.get(name)
        if own is None:
            own = Ruleset(self._rules.of_user(name))
            if len(own):
                self._rulesets[name] = own
        patterns = list(self._rules.of_patterns(name, client_id))
        return Rights(own, Ruleset(patterns) if patterns else None)

    def rights_of_owner(self, owner: str | None, client_id: str) -> Rights:
        """What the client of a session will be able to do when it comes back; anything, if that can't be known."""
        if owner is None and self._users is not None:
            return EVERYTHING
        return self.rights(owner or None, client_id)

    def may_publish_all(self, user: str | None, client_id: str) -> bool:
        """Whether a client may publish to every topic: then none has to be looked at."""
        return self.rights(user, client_id).publishes_all

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        """Whether a client may publish to a topic."""
        return self.rights(user, client_id).may_publish(topic)

    def may_read(self, user: str | None, client_id: str, topic: str) -> bool:
        """Whether a client may get messages of a topic."""
        return self.rights(user, client_id).may_read(topic)

    def may_subscribe(self, user: str | None, client_id: str, filter: str) -> bool:  # noqa: A002
        """Whether there may be something that a client gets by a subscription."""
        return self.rights(user, client_id).may_subscribe(filter)


def _is_loopback(host: str) -> bool:
    return host in ("", "localhost", "::1") or host.startswith(("127.", "::ffff:127."))
