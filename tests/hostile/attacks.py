"""The list of attacks, and what each of them may cost."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.site import Site

__all__ = ["Attack", "all_attacks", "attack"]

MIB = 1 << 20
MODULES = (
    "broker_door",
    "broker_filters",
    "broker_retained",
    "broker_messages",
    "broker_sessions",
    "broker_access",
    "broker_limits",
    "jobs_attacks",
    "jobs_limits",
    "replica_attacks",
    "replica_limits",
)
_found: dict[str, Attack] = {}


@dataclass(slots=True)
class Attack:
    """What one hostile client does, and what that may cost the others."""

    name: str
    server: str
    """broker, jobs or replica."""
    run: Callable[[Site], None]
    about: str
    prepare: Callable[[Site], None] | None = None
    """What others have at the server before it comes."""
    flags: Callable[[Path], Sequence[str]] = field(default=lambda _: ())
    """Options of the server, given a folder for files that they name."""
    ports: int = 1
    secret: bool = False
    """Whether the server asks for a password or a token. The probe has it."""
    tls: bool = False
    """Whether the probe must use TLS."""
    memory_mib: float = 48
    """That the server may grow by."""
    left_mib: float = 32
    """That it may be larger by when the attack is over."""
    disk: float = 3.0
    """Times what was sent, that the server may write."""
    disk_mib: float = 8
    """On top of that: what the probe writes, whole pages, and files of a size of their own."""
    latency_ms: float = 100
    """That another client's round trip may take, less what the machine made it wait."""
    newcomer_ms: float = 1000
    """That a client which comes now may have to wait."""
    full: bool = False
    """Whether the server has no room for newcomers meanwhile, as documented."""
    idle_cpu: float = 0.05
    """Of a processor that the server may use when nobody asks for anything."""
    files: int = 8
    """More files that may be open when the attack is over."""
    seconds: float = 40
    restart: bool = False
    """Whether the server must start again on what the attack has left, in less than `restart_seconds`."""
    restart_seconds: float = 15
    check: Callable[[Site], None] | None = None
    """What must hold after it is over, and after that restart."""
    limits: bool = False
    """Whether this tries a documented limit from both sides, rather than a load."""
    short: float = 0
    """In the short form: the part of the load to use; 0 leaves the attack out."""


def attack(name: str, **bounds: Any) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """Put a function on the list. The server's name is the first word of the attack's: `broker half-connects`."""

    def put(run: Callable[[Site], None]) -> Callable[[Site], None]:
        assert name not in _found, name
        about = (run.__doc__ or "").strip().partition("\n")[0]
        assert about, f"{name} doesn't say what it does"
        _found[name] = Attack(name, name.partition(" ")[0], run, about, **bounds)
        return run

    return put


def all_attacks() -> list[Attack]:
    """All of them, in the order of the modules."""
    for module in MODULES:
        importlib.import_module(f"tests.hostile.{module}")
    return list(_found.values())
