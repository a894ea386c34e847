"""The address of a client."""

from __future__ import annotations

import asyncio

__all__ = ["Peer"]


class Peer:
    """The other end of a transport."""

    transport: asyncio.Transport

    @property
    def peer(self) -> str:
        """Its address and port; "a client" for a local socket that has none."""
        address = self.transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a client"

    @property
    def peer_host(self) -> str:
        """Its address; empty for a local socket that has none."""
        address = self.transport.get_extra_info("peername")
        return str(address[0]) if isinstance(address, tuple) else ""
