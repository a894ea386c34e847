"""Each documented limit of the replica server, from both sides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from forelog.copies.wire import VERSION, Kind
from tests.hostile.attacks import attack
from tests.hostile.replica_attacks import answer, frame, hello, identity
from tests.hostile.site import Site, Unmet


def limit(name: str, *words: str, **more: Any) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    if words:
        more["flags"] = lambda _: words
    return attack(f"replica limit {name}", limits=True, latency_ms=1000, **more)


def kind_of(site: Site, data: bytes) -> int:
    one = site.dial()
    site.send(one, data)
    kind, _ = answer(site, one)
    site.drop(one)
    return kind


@limit("hello", short=1)
def hello_size(site: Site) -> None:
    """A HELLO of 4 KiB is answered, one of more is refused."""
    within = hello("primary", "size", **identity(), more="x" * 3000)
    if kind_of(site, within) != Kind.KNOWN:
        raise Unmet("a HELLO of 3 kB isn't taken")
    past = hello("primary", "size", **identity(), more="x" * 4200)
    if kind_of(site, past) not in (0, Kind.REFUSED):
        raise Unmet("a HELLO of more than 4 KiB is taken")


@limit("names", short=1)
def names(site: Site) -> None:
    """A name of 128 characters is taken; one of 129, and one with a slash or dots, is refused."""
    if kind_of(site, hello("primary", "n" * 128, **identity())) != Kind.KNOWN:
        raise Unmet("a name of 128 characters isn't taken")
    for wrong in ("n" * 129, "a/b", "..", ".a", "", "a b", "a\n", "\u00e9"):
        if kind_of(site, hello("primary", wrong, **identity())) not in (0, Kind.REFUSED):
            raise Unmet(f"the name {wrong!r:.40} is taken")


@limit("version", short=1)
def version(site: Site) -> None:
    """Another version of the protocol is refused."""
    if kind_of(site, hello("follower", "probe")) != Kind.WELCOME:
        raise Unmet("a follower isn't let in")
    for wrong in (0, VERSION - 1, VERSION + 1, 2**40):
        if kind_of(site, hello("follower", "probe", version=wrong)) not in (0, Kind.REFUSED):
            raise Unmet(f"version {wrong} is taken")


@limit("connections", "--max-connections", "20", full=True)
def connections(site: Site) -> None:
    """Past 20 connections of followers one more is turned away; and is let in once others have left."""
    some = [site.dial() for _ in range(30)]
    for one in some:
        site.send(one, hello())
    found = [answer(site, one, 3)[0] for one in some]
    welcome = found.count(Kind.WELCOME)
    if not 10 <= welcome <= 19:
        raise Unmet(f"{welcome} of 30 followers were let in, where 20 connections may be, two of the probe")
    for one in some:
        site.drop(one)
    until = time.monotonic() + 10
    while kind_of(site, hello()) != Kind.WELCOME:
        if time.monotonic() > until:
            raise Unmet("nobody comes in after others have left")
        time.sleep(0.1)


@limit("frames")
def frames(site: Site) -> None:
    """A frame that announces more than 64 MiB is refused at once."""
    one = site.dial()
    site.send(one, hello("primary", "frames", **identity()))
    answer(site, one)
    from msgspec import msgpack

    site.send(one, frame(Kind.CLAIM, msgpack.encode({"continues": False})))
    answer(site, one)
    site.send(one, frame(Kind.DATA, b"", (64 << 20) + 1))
    kind, told = answer(site, one)
    if kind != Kind.REFUSED:
        raise Unmet(f"a frame of 64 MiB and a byte is answered with {kind}: {told}")


@limit("hello-timeout", "--hello-timeout", "2")
def hello_timeout(site: Site) -> None:
    """A HELLO whose last byte comes after 1 s is answered; one after 4 s finds the connection closed."""
    data = hello()
    one, other = site.dial(), site.dial()
    site.send(one, data[:-1])
    site.send(other, data[:-1])
    time.sleep(1)
    site.send(one, data[-1:])
    if answer(site, one)[0] != Kind.WELCOME:
        raise Unmet("a HELLO that took 1 s isn't answered")
    if not site.is_closed(other, 3.5):
        raise Unmet("a HELLO that takes longer than 2 s is waited for")


@limit("logs", "--max-logs", "5")
def logs(site: Site) -> None:
    """Five logs are kept, the probe's included; a sixth is refused."""
    found = [kind_of(site, hello("primary", f"log{number}", **identity())) for number in range(8)]
    if found.count(Kind.KNOWN) != 4:
        raise Unmet(f"{found.count(Kind.KNOWN)} more logs than the probe's are taken, where five may be: {found}")


@limit("terms")
def terms(site: Site) -> None:
    """A new copy may begin with a term of up to 2**32, and a known one go ahead by 1,000; no further."""
    if kind_of(site, hello("primary", "term", **identity(2**32))) != Kind.KNOWN:
        raise Unmet("a new copy can't begin with a term of 2**32")
    for wrong in (2**32 + 1, 2**40, 2**62):
        if kind_of(site, hello("primary", f"term{wrong}", **identity(wrong))) not in (0, Kind.REFUSED):
            raise Unmet(f"a new copy may begin with a term of {wrong}")
