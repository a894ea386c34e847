"""Which connections are open, and which groups exist: all that reads what is published."""

from __future__ import annotations

from forelog.broker.sessions.group import Group
from forelog.broker.sessions.session import Cursor, Link


class Presence:
    """Open connections and groups."""

    def __init__(self) -> None:
        self.connections: set[Link] = set()
        """Every open connection, accepted or not."""
        self.groups: dict[str, Group] = {}
        """Groups by filter as it was sent, `$share/` included."""

    def cursors(self) -> list[Cursor]:
        """All cursors that may be live."""
        found: list[Cursor] = list(self.groups.values())
        for connection in self.connections:
            if connection.session is not None:
                found += connection.session.cursors.values()
        return found
