"""The address of a job server, its TLS and token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forelog.errors import ConnectionLost, JobRefused
from forelog.serving.addresses import shown

if TYPE_CHECKING:
    import ssl

PORT = 9922


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and how to connect to it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    token: str | bytes | None

    @classmethod
    def of(cls, server: str, tls: ssl.SSLContext | bool, token: str | bytes | None) -> Endpoint:
        """Make one of what a user gives.

        >>> Endpoint.of("jobs.example:9000", False, None).port, Endpoint.of("[::1]", False, None).host
        (9000, '::1')
        """
        if not isinstance(server, str):
            raise TypeError(f"a server is a text, HOST:PORT, as in '127.0.0.1:{PORT}', not {server!r:.100}")
        host, colon, port = server.rpartition(":")
        if not colon or "]" in port:
            host, port = server, str(PORT)
        if not port.isdecimal() or not 0 < int(port) < 65536 or not host:
            raise JobRefused(f"{server!r:.100} isn't an address: expected HOST:PORT, as in 127.0.0.1:{PORT}")
        if tls is True:
            import ssl

            tls = ssl.create_default_context()
        return cls(host.strip("[]"), int(port), tls or None, token)

    def __str__(self) -> str:
        return shown(self.host, self.port)

    def unreachable(self, error: Exception) -> ConnectionLost:
        """The error for a connection that could not be made."""
        return ConnectionLost(f"no job server answers at {self}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Why a connection broke, or could not be made."""
    if isinstance(error, TimeoutError) and not error.args:
        return "it took too long"
    if type(error).__module__ == "ssl":
        from forelog.serving.tls import explain  # loaded only where TLS is used

        return explain(error)  # type: ignore[arg-type]
    strerror = getattr(error, "strerror", None)
    if isinstance(error, OSError) and error.errno and str(strerror).startswith("Connect call failed"):
        return os.strerror(error.errno)  # asyncio's text repeats the address
    return str(strerror or error) or type(error).__name__
