"""What the commands that serve have in common: where they listen, who may come in, and how they end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
from collections.abc import Callable

from chiplog.cli import codes
from chiplog.cli.output import say

_OWN_FILES = 64


def address(port: int) -> Callable[[str], tuple[str, int]]:
    """A parser of HOST:PORT, which shows this port as an example."""

    def parse(text: str) -> tuple[str, int]:
        host, colon, number = text.rpartition(":")
        if not colon or not number.isdecimal() or int(number) > 65535:
            raise argparse.ArgumentTypeError(f"{text!r} is no address: expected HOST:PORT, as in 127.0.0.1:{port}")
        return host.strip("[]") or "0.0.0.0", int(number)

    return parse


def shown(host: str, port: int) -> str:
    """An address as a person writes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def token(path: str | None) -> bytes | None:
    """The token in a file."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            found = file.read(4096).strip()
    except OSError as error:
        raise codes.UsageError(f"{path}: {error.strerror}") from None
    if not found or not all(33 <= byte <= 126 for byte in found):
        raise codes.UsageError(f"{path} has no token: expected one line of ASCII characters without spaces")
    return found


def tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """A server's side of TLS."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise codes.UsageError(f"{certificate} and {key} are no certificate with its key: {error}") from None
    except OSError as error:
        raise codes.UsageError(f"{certificate}, {key}: {error.strerror}") from None
    return context


def client_tls(authorities: str) -> ssl.SSLContext:
    """A client's side of TLS, which trusts the certificates of a file."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise codes.UsageError(f"{authorities} has no certificates: {error}") from None
    except OSError as error:
        raise codes.UsageError(f"{authorities}: {error.strerror}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in ("localhost", "::1") or host.startswith("127.")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def clients_within_limits(wanted: int) -> int:
    """How many clients there can be at a time: as many as wanted, if the system lets us have as many files.

    A connection is a file. Some files are left for the log: without them nothing could be written.
    """
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit - _OWN_FILES >= wanted:
        return wanted
    allowed = max(limit - _OWN_FILES, 1)
    if allowed < wanted // 2:
        say(f"this system allows {limit} files, so that there can be {allowed} clients at a time: see ulimit -n")
    return allowed
