"""The address of a client, and its socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket


class Peer:
    """The other end of a transport."""

    transport: asyncio.Transport

    @property
    def peer(self) -> str:
        """The client's address and port; "a client" for a local socket that has none."""
        address = self.transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a client"

    @property
    def peer_host(self) -> str:
        """The client's address; empty for a local socket that has none."""
        address = self.transport.get_extra_info("peername")
        return str(address[0]) if isinstance(address, tuple) else ""

    def prepare_socket(self) -> int:
        """Set the options of its socket; returns the file descriptor, or -1 if it has none."""
        found = self.transport.get_extra_info("socket")
        if found is None:
            return -1
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return int(found.fileno())
