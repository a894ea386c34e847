"""How addresses are written, and which of them are of this machine.

>>> shown("10.0.0.7", 7070), shown("::1", 7070)
('10.0.0.7:7070', '[::1]:7070')
"""

from __future__ import annotations


def shown(host: str, port: int) -> str:
    """An address as a person writes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in ("localhost", "::1") or host.startswith(("127.", "::ffff:127."))
