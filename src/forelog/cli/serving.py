"""What the commands that serve share: addresses, TLS, reloading, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import os
import ssl
import sys
from collections.abc import Callable

from forelog.cli import codes
from forelog.cli.output import say
from forelog.errors import ForelogError
from forelog.serving.loops import loop_factory as loop_factory
from forelog.serving.tls import Certificates, client_context

_OWN_FILES = 64


def address(port: int) -> Callable[[str], tuple[str, int]]:
    """A parser of HOST:PORT, which shows this port as an example."""

    def parse(text: str) -> tuple[str, int]:
        host, colon, number = text.rpartition(":")
        if not colon or not number.isdecimal() or int(number) > 65535:
            raise argparse.ArgumentTypeError(
                f"{text!r} isn't an address: expected HOST:PORT, such as 127.0.0.1:{port}"
            )
        return host.strip("[]") or "0.0.0.0", int(number)

    return parse


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


def certificates(certificate: str | None, key: str | None, client_ca: str | None = None) -> Certificates | None:
    """A server's side of TLS, from the options `--tls-cert`, `--tls-key` and `--tls-client-ca`."""
    if (certificate is None) != (key is None):
        raise codes.UsageError("--tls-cert and --tls-key go together")
    if certificate is None:
        if client_ca is not None:
            raise codes.UsageError("--tls-client-ca is for TLS: see --tls-cert and --tls-key")
        return None
    try:
        return Certificates(certificate, key, client_authorities=client_ca)
    except ssl.SSLError as error:
        files = ", ".join(name for name in (certificate, key, client_ca) if name is not None)
        raise codes.UsageError(
            f"{files}: not a certificate with its key, or not certificates of authorities: {error}"
        ) from None
    except OSError as error:
        unreadable = [name for name in (certificate, key, client_ca) if name and not os.access(name, os.R_OK)]
        raise codes.UsageError(f"{', '.join(unreadable or [certificate])}: {error.strerror}") from None


def reload_all(what: str, *reloads: Callable[[], object]) -> None:
    """SIGHUP: read files again. An invalid file is logged and changes nothing; the others take effect."""
    fine = True
    for reload in reloads:
        try:
            reload()
        except (OSError, ForelogError, codes.UsageError) as error:
            say(f"{codes.explain(error)[1]}: what can't be read stays as it was")
            fine = False
    if fine:
        say(f"{what} are read again")
    sys.stderr.flush()


def client_tls(authorities: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """A client's side of TLS: the authorities that it trusts, by default the system's, and its certificate, if
    any."""
    if (certificate is None) != (key is None):
        raise codes.UsageError("--tls-cert and --tls-key go together")
    try:
        return client_context(authorities, certificate, key)
    except ssl.SSLError as error:
        what = authorities if certificate is None else f"{certificate} or {authorities}"
        raise codes.UsageError(f"{what} has no certificates: {error}") from None
    except OSError as error:
        raise codes.UsageError(f"{authorities or certificate}: {error.strerror}") from None


def clients_within_limits(wanted: int) -> int:
    """The most clients at a time: as many as wanted, if the system allows that many open files.

    Each connection is a file. Some files are reserved for the log, which couldn't be written without them.
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
        say(f"this system allows {limit} files, so there can be {allowed} clients at a time: see ulimit -n")
    return allowed
