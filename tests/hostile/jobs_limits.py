"""Each documented limit of the job server, from both sides."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from tests.hostile import jobs_attacks
from tests.hostile.attacks import attack
from tests.hostile.jobs_attacks import DAY_MS, MIB, with_token
from tests.hostile.servers import TOKEN
from tests.hostile.site import Site, Unmet


def job(number: int) -> bytes:
    """An id that no other attack has."""
    return jobs_attacks.job(number + 10**9)


def add(number: int, name: bytes = b"limits", payload: bytes = b"x", **times: int) -> bytes:
    return jobs_attacks.add(number + 10**9, name, payload, **times)


def limit(name: str, *words: str, **more: Any) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    if words:
        more["flags"] = lambda _: words
    return attack(f"jobs limit {name}", limits=True, latency_ms=1000, **more)


def answers(site: Site, *pairs: tuple[bytes, bytes]) -> None:
    """Commands, and how the answer to each begins."""
    one = site.job_client()
    for data, expected in pairs:
        found = site.ask(one, data)
        if not found.startswith(expected):
            raise Unmet(f"{data[:60]!r} is answered {found!r}, not {expected!r}")


def sized(number: int, size: int, name: bytes = b"limits") -> bytes:
    return add(number, name, bytes(size))


@limit("sizes", short=1)
def sizes(site: Site) -> None:
    """Payloads and results of 1 MiB are taken, a byte more is refused."""
    answers(
        site,
        (sized(101, MIB), b"+OK"),
        (b"delete %b\r\n" % job(101), b"+OK"),
        (add(103, b"res"), b"+OK"),
        (sized(102, MIB + 1)[: -MIB - 3], b"-CLIENT-ERROR Invalid payload size"),
    )
    one = site.job_client()
    site.ask(one, b"lease res 0\r\n")
    site.line(one), site.line(one)
    found = site.ask(site.job_client(), b"complete %b %d\r\n" % (job(103), MIB + 1))
    if not found.startswith(b"-CLIENT-ERROR Invalid"):
        raise Unmet(f"a result of 1 MiB and a byte is answered {found!r}")
    found = site.ask(one, b"complete %b %d\r\n" % (job(103), MIB) + bytes(MIB) + b"\r\n")
    if found != b"+OK":
        raise Unmet(f"a result of 1 MiB is answered {found!r}")


@limit("words", short=1)
def words(site: Site) -> None:
    """Names, times, attempts and cursors, each just within its limit and just past it."""
    no = b"-CLIENT-ERROR Invalid "
    answers(
        site,
        (add(1, b"n" * 255), b"+OK"),
        (add(2, b"n" * 256), no + b"Name"),
        (add(3, ttr=1), b"+OK"),
        (add(4, ttr=0), no + b"TTR"),
        (add(5, ttr=DAY_MS), b"+OK"),
        (add(6, ttr=DAY_MS + 1), no + b"TTR"),
        (add(7, ttl=30 * DAY_MS), b"+OK"),
        (add(8, ttl=30 * DAY_MS + 1), no + b"TTL"),
        (add(9, ttl=0), no + b"TTL"),
        (b"add %b h 1000 1000 1 -max-attempts=255 -max-fails=255\r\nx\r\n" % job(10), b"+OK"),
        (b"add %b h 1000 1000 1 -max-attempts=256\r\nx\r\n" % job(11), no + b"Max Attempts"),
        (b"add %b h 1000 1000 1 -max-fails=256\r\nx\r\n" % job(12), no + b"Max Fails"),
        (b"add %b h 1000 1000 1 -priority=2147483647\r\nx\r\n" % job(13), b"+OK"),
        (b"add %b h 1000 1000 1 -priority=2147483648\r\nx\r\n" % job(14), no + b"Priority"),
        (b"lease empty %d\r\n" % (DAY_MS + 1), no + b"wait timeout"),
        (b"inspect jobs h 0 101\r\n", no + b"limit"),
        (b"inspect jobs h 4294967296 1\r\n", no + b"cursor offset"),
        (add(1, b"n" * 255), b"-CLIENT-ERROR Duplicate job"),
        (b"inspect queues 0 0\r\n", no + b"limit"),
    )


@limit("lease-names", short=1)
def lease_names(site: Site) -> None:
    """256 names may be leased from, 257 not."""
    names = [b"l%d" % number for number in range(257)]
    answers(
        site,
        (b"lease %b 0\r\n" % b" ".join(names[:256]), b"-TIMEOUT"),
        (b"lease %b 0\r\n" % b" ".join(names), b"-CLIENT-ERROR"),
    )


@limit("line", short=1)
def line(site: Site) -> None:
    """A line of nearly 16 KiB is answered; a longer one is `Line too long`, and the end."""
    answers(site, (b"lease " + b"x" * (16 * 1024 - 20) + b" 0\r\n", b"-CLIENT-ERROR Invalid Name"))
    one = site.job_client()
    site.send(one, b"lease " + b"x" * (17 * 1024) + b" 0\r\n")
    with contextlib.suppress(ConnectionError):
        found = site.line(one)
        if not found.startswith(b"-CLIENT-ERROR Line too long"):
            raise Unmet(f"a line of 17 KiB is answered {found!r}")
    if not site.is_closed(one, 3):
        raise Unmet("a line of 17 KiB doesn't end the connection")


@limit("clients", "-max-clients", "20", full=True)
def clients(site: Site) -> None:
    """Past 20 clients one more is answered `Too many clients`, and comes in once others have left."""
    some = [site.dial() for _ in range(30)]
    found = [site.ask(one, b"inspect server\r\n") for one in some]
    refused = sum(b"Too many clients" in one or not one for one in found)
    for one in some:
        site.drop(one)
    if not 10 <= refused <= 14:
        raise Unmet(f"{refused} of 30 clients were refused, where 20 may be there, two of the probe")
    until = time.monotonic() + 5
    while not site.ask(site.dial(), b"inspect server\r\n").startswith(b"+OK"):
        if time.monotonic() > until:
            raise Unmet("nobody comes in after others have left")
        time.sleep(0.1)


@limit("token", flags=with_token, secret=True, short=1)
def token(site: Site) -> None:
    """With the token all is well; without, with another, or with a part of it, nothing is."""
    one = site.dial()
    if site.ask(one, f"auth {TOKEN}\r\n".encode()) != b"+OK":
        raise Unmet("the right token is refused")
    for wrong in (
        b"auth x\r\n",
        b"auth\r\n",
        f"auth {TOKEN}x\r\n".encode(),
        f"auth {TOKEN[:-1]}\r\n".encode(),
        b"inspect server\r\n",
    ):
        other = site.dial()
        found = site.ask(other, wrong)
        if not found.startswith(b"-CLIENT-ERROR") or not site.is_closed(other, 3):
            raise Unmet(f"{wrong!r} is answered {found!r}, and the connection isn't ended")
