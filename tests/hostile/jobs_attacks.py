"""Hostile clients of the job server."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.hostile.attacks import attack
from tests.hostile.figures import folder_bytes
from tests.hostile.servers import TOKEN
from tests.hostile.site import Site, Unmet, pieces

MIB = 1 << 20
DAY_MS = 24 * 3600 * 1000


def with_token(folder: Path) -> Sequence[str]:
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    return ("-token-file", str(path))


def small_segments(_: Path) -> Sequence[str]:
    return ("-cmdlog-seg-size", "1MiB", "-cmdlog-clean-int", "500")


def job(number: int) -> bytes:
    return b"%08x-0000-4000-8000-%012x" % (number >> 48, number & 0xFFFFFFFFFFFF)


def add(
    number: int, name: bytes = b"h", payload: bytes = b"x", *, ttr: int = 60_000, ttl: int = 30 * DAY_MS
) -> bytes:
    return b"add %b %b %d %d %d\r\n%b\r\n" % (job(number), name, ttr, ttl, len(payload), payload)


def blocks(commands: Iterator[bytes], count: int = 200) -> Iterator[bytes]:
    """Many commands in a piece."""
    some: list[bytes] = []
    for one in commands:
        some.append(one)
        if len(some) == count:
            yield b"".join(some)
            some.clear()
    yield b"".join(some)


# -- before a token, and half of something


@attack("jobs silent-before-token", flags=with_token, secret=True, memory_mib=48)
def silent_before_token(site: Site) -> None:
    """2,000 connections that send no token, or a byte of one now and then."""
    some = [site.dial() for _ in range(site.many(2000))]
    for at in range(16):
        for one in some[::10]:
            site.send(one, b"auth xxxxxxxxxxxxxxxxxxxx"[at : at + 1])
        site.settle(1)
    left = sum(not site.is_closed(one, 0.005) for one in some[:50])
    if left:
        raise Unmet(f"{left} of 50 connections without a token are still there after 16 s")


@attack("jobs big-before-token", flags=with_token, secret=True, memory_mib=16, short=0.5)
def big_before_token(site: Site) -> None:
    """200 connections with half of a line, or an add of 1 MiB, where a token should be."""
    half, big = b"auth " + b"x" * 16_000, add(1, payload=bytes(MIB))[:-100]
    site.pump({site.dial(): half if n % 2 else big for n in range(site.many(200))}, quiet=0.3, seconds=15)


@attack("jobs wrong-tokens", flags=with_token, secret=True, memory_mib=16)
def wrong_tokens(site: Site) -> None:
    """5,000 wrong tokens, some with line ends and escapes in them."""
    for number in range(site.many(5000)):
        one = site.dial()
        site.send(one, b"auth wrong%d\x1b[31m\r\n" % number)
        if number % 100 == 99:
            site.leave()
    site.settle(0.5)
    said = site.server.said_at.read_bytes()
    if len(said) > 300_000:
        raise Unmet(f"{len(said):,} bytes were logged of wrong tokens")
    if b"\x1b" in said:
        raise Unmet("the log has an escape that a client has sent")


# The room of all is 256 MiB, and up to 64 KiB of each client don't count.
@attack("jobs partial-payloads", memory_mib=448, left_mib=48)
def partial_payloads(site: Site) -> None:
    """1,000 connections, each with an add of 1 MiB of which the last bytes never come."""
    data = add(1, payload=bytes(MIB))[:-50]
    site.pump({site.dial(): data for _ in range(site.many(1000))}, quiet=0.3, seconds=25)
    site.settle(1)


@attack("jobs byte-at-a-time", memory_mib=16, short=0.5)
def byte_at_a_time(site: Site) -> None:
    """20 connections whose commands come a byte at a time, 100,000 bytes in all."""
    data = b"".join(add(number, b"bytes", bytes(50)) for number in range(10**7, 10**7 + 40))
    site.pump({site.dial(): pieces(data, 1) for _ in range(20)}, seconds=25)


@attack("jobs byte-of-a-large-one", memory_mib=48)
def byte_of_a_large_one(site: Site) -> None:
    """20 adds of 1 MiB whose last 20,000 bytes come one by one."""
    data = add(1, payload=bytes(MIB))
    some = [site.dial() for _ in range(20)]
    site.pump(dict.fromkeys(some, data[:-20000]))
    site.pump({one: pieces(data[-20_000:-1], 1) for one in some}, seconds=15)


@attack("jobs long-lines", memory_mib=32)
def long_lines(site: Site) -> None:
    """200 connections with a line that never ends, 1 MiB each, and lines of other protocols."""
    junk = (b"x" * MIB, b"lease " + b"a " * 500_000, b"\0" * MIB, os.urandom(MIB), b"GET / HTTP/1.1\r\n\r\n")
    site.pump({site.dial(): junk[n % len(junk)] for n in range(site.many(200))}, quiet=0.3, seconds=15)


# -- much of something


@attack("jobs results-of-1-mb", memory_mib=160, left_mib=160, restart=True, short=0.15)
def large_results(site: Site) -> None:
    """300 completed jobs with a result of 1 MB each, which nobody asks for."""
    one = site.job_client()
    result = bytes(1_000_000)

    def commands() -> Iterator[bytes]:
        for number in range(2 * 10**7, 2 * 10**7 + site.many(300)):
            yield (
                add(number, b"results")
                + b"lease results 0\r\n"
                + b"complete %b %d\r\n" % (job(number), len(result))
                + result
                + b"\r\n"
            )

    site.pump({one: commands()}, quiet=0.5)


@attack("jobs small-results", memory_mib=160, left_mib=160, restart=True, restart_seconds=30)
def small_results(site: Site) -> None:
    """100,000 completed jobs with a result of 100 bytes, which nobody asks for, for 30 days."""
    one = site.job_client()

    def commands() -> Iterator[bytes]:
        for number in range(1, site.many(100_000) + 1):
            yield add(number) + b"lease h 0\r\n" + b"complete %b 100\r\n" % job(number) + bytes(100) + b"\r\n"

    site.pump({one: blocks(commands())}, quiet=0.5, seconds=35)


@attack("jobs large-payloads", memory_mib=512, left_mib=512, restart=True, seconds=60)
def large_payloads(site: Site) -> None:
    """1,500 jobs with a payload of 1 MiB that nobody ever leases."""
    payload = bytes(MIB)
    some = [site.job_client() for _ in range(4)]
    work = {
        one: (add(1 + at * 10_000 + n, payload=payload) for n in range(site.many(375)))
        for at, one in enumerate(some)
    }
    site.pump(work, quiet=0.5, seconds=40)


@attack("jobs never-leased", memory_mib=512, left_mib=512, restart=True, restart_seconds=40, seconds=60)
def never_leased(site: Site) -> None:
    """400,000 small jobs that nobody ever leases."""
    one = site.job_client()
    site.pump({one: blocks(add(n) for n in range(1, site.many(400_000)))}, quiet=0.5, seconds=40)


@attack("jobs queue-names", memory_mib=448, left_mib=448, restart=True, restart_seconds=40, seconds=60)
def queue_names(site: Site) -> None:
    """200,000 jobs, each in a queue of its own with a name of 200 bytes."""
    one = site.job_client()
    name = b"q" * 190
    data = blocks(add(n, b"%d%b" % (n, name)) for n in range(1, site.many(200_000)))
    site.pump({one: data}, quiet=0.5, seconds=40)
    site.ask(one, b"inspect queues 0 100\r\n")


@attack("jobs queue-names-passing", memory_mib=96, left_mib=64)
def queue_names_passing(site: Site) -> None:
    """200,000 queue names that were asked for once: leases, inspects, adds that are deleted."""
    one = site.job_client()
    name = b"n" * 200
    data = blocks(
        b"lease %d%b 0\r\n" % (n, name)
        + b"inspect queue %d%b\r\n" % (n, name)
        + add(n + 1, b"%d%b" % (n, name))
        + b"delete %b\r\n" % job(n + 1)
        for n in range(site.many(100_000))
    )
    site.pump({one: data}, quiet=0.5, seconds=30)


@attack("jobs pipeline", memory_mib=64, short=0.3)
def pipeline(site: Site) -> None:
    """100,000 commands in one go, from each of 4 connections, which read the answers."""
    some = [site.job_client() for _ in range(4)]
    data = b"".join(b"inspect server\r\n" + b"delete %b\r\n" % job(n) for n in range(1, 1000)) * site.many(50)
    site.pump(dict.fromkeys(some, data), quiet=0.3, seconds=25)


@attack("jobs pipeline-unread", memory_mib=384, left_mib=96, short=0.3)
def pipeline_unread(site: Site) -> None:
    """100 connections that ask for the list of 100 jobs of 20 kB without end, and read nothing."""
    one = site.job_client()
    site.pump({one: b"".join(add(n, payload=bytes(20_000)) for n in range(1, 101))}, quiet=0.2)
    some = [site.job_client(receive_bytes=4096) for _ in range(site.many(100))]
    site.pump(dict.fromkeys(some, b"inspect jobs h 0 100\r\n" * 5000), reads=False, seconds=10)
    site.settle(1)


@attack("jobs inspect-flood", memory_mib=64)
def inspect_flood(site: Site) -> None:
    """10 connections that inspect 50,000 jobs from offset 49,000, and queues, without end."""
    one = site.job_client()
    site.pump({one: blocks(add(n) for n in range(1, site.many(50_000)))}, quiet=0.3)
    some = [site.job_client() for _ in range(10)]
    data = b"inspect jobs h 49000 100\r\ninspect scheduled-jobs h 0 100\r\ninspect queues 0 100\r\n" * 30
    site.pump(dict.fromkeys(some, data), quiet=0.3, seconds=20)


@attack("jobs inspect-queues", memory_mib=160, left_mib=128)
def inspect_queues(site: Site) -> None:
    """50,000 queues, and 10 connections that list them from offset 49,000 without end."""
    one = site.job_client()
    site.pump({one: blocks(add(n, b"q%d" % n) for n in range(1, site.many(50_000)))}, quiet=0.3)
    some = [site.job_client() for _ in range(10)]
    site.pump(dict.fromkeys(some, b"inspect queues 49000 100\r\n" * 50), quiet=0.3, seconds=20)


@attack("jobs lease-names", memory_mib=64)
def lease_names(site: Site) -> None:
    """50 connections that lease from 256 names each, and don't wait, 200 times; then more names than may be."""
    names = [b" ".join(b"n%d.%d" % (client, n) for n in range(256)) for client in range(50)]
    work = {site.job_client(): b"lease %b 0\r\n" % names[n] * site.many(200) for n in range(50)}
    site.pump(work, quiet=0.3, seconds=20)
    one = site.job_client()
    site.pump({one: (b"lease " + b"a " * 4000 + b"0\r\n") * 500}, quiet=0.3, seconds=10)


@attack("jobs waiting-leases", memory_mib=192, left_mib=64)
def waiting_leases(site: Site) -> None:
    """3,000 connections that wait for a job of 256 queues each, with 200 kB of commands behind."""
    some = [site.job_client() for _ in range(site.many(3000))]
    names = b" ".join(b"w%d" % n for n in range(256))
    behind = b"inspect server\r\n" * 1000
    site.pump(dict.fromkeys(some, b"lease %b 86400000\r\n" % names + behind), reads=False, seconds=20)
    one = site.job_client()
    site.pump({one: b"".join(add(n, b"w%d" % (n % 256)) for n in range(1, 500))}, quiet=0.3)


@attack("jobs waiting-leases-leave", memory_mib=192, left_mib=64)
def waiting_leases_leave(site: Site) -> None:
    """3,000 connections that wait for a job of the same 100 queues and leave together, three times."""
    names = b" ".join(b"w%d" % n for n in range(100))
    for _ in range(3):
        some = [site.job_client() for _ in range(site.many(3000))]
        site.pump(dict.fromkeys(some, b"lease %b 3600000\r\n" % names), reads=False, seconds=10)
        site.leave()


@attack("jobs waiting-time-out-together", memory_mib=128, left_mib=64)
def waiting_time_out_together(site: Site) -> None:
    """3,000 leases of 50 queues that time out in the same moment."""
    names = b" ".join(b"t%d" % n for n in range(50))
    some = [site.job_client() for _ in range(site.many(3000))]
    until = time.monotonic() + 5
    for one in some:
        site.send(one, b"lease %b %d\r\n" % (names, max(1, int((until - time.monotonic()) * 1000))))
    site.settle(until - time.monotonic() + 1)


@attack("jobs waiting-results", memory_mib=128, left_mib=64)
def waiting_results(site: Site) -> None:
    """3,000 connections that wait for the result of one job, which then has 1 MiB."""
    one = site.job_client()
    site.ask(one, add(7, b"slow"))
    some = [site.job_client() for _ in range(site.many(3000))]
    site.pump(dict.fromkeys(some, b"result %b 600000\r\n" % job(7)), reads=False, seconds=10)
    site.ask(one, b"lease slow 0\r\n")
    site.pump({one: b"complete %b %d\r\n" % (job(7), MIB) + bytes(MIB) + b"\r\n"}, quiet=0.5)
    site.settle(2)


@attack("jobs runs-unread", memory_mib=192, left_mib=64)
def runs(site: Site) -> None:
    """2,000 connections with a run of 10 kB that waits for a day, half of which leave."""
    some = [site.job_client() for _ in range(site.many(2000))]
    work = {
        one: b"run %b r 1000 86400000 10000\r\n" % job(n + 1) + bytes(10_000) + b"\r\n"
        for n, one in enumerate(some)
    }
    site.pump(work, reads=False, seconds=15)
    for one in some[::2]:
        site.drop(one)
    site.settle(1)


# -- time


@attack("jobs due-together", memory_mib=192, left_mib=160)
def due_together(site: Site) -> None:
    """100,000 jobs that are due in the same second, then as many whose life ends in the same moment."""
    one = site.job_client()
    due = (datetime.now(UTC) + timedelta(seconds=8)).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    data = blocks(
        b"schedule %b due 60000 86400000 %b 1\r\nx\r\n" % (job(n), due) for n in range(1, site.many(100_000))
    )
    site.pump({one: data}, quiet=0.2, seconds=15)
    until = time.monotonic() + 6
    data = blocks(
        add(n, b"short", ttl=max(1, int((until - time.monotonic()) * 1000))) for n in range(200_000, 250_000)
    )
    site.pump({one: data}, quiet=0.2, seconds=10)
    site.settle(until - time.monotonic() + 2)


@attack("jobs leases-time-out-together", memory_mib=160, left_mib=128)
def leases_time_out_together(site: Site) -> None:
    """30,000 leases whose time to run ends in the same moment, three times over."""
    one = site.job_client()
    count = site.many(30_000)
    site.pump({one: blocks(add(n, b"t", ttr=3000) for n in range(1, count))}, quiet=0.2)
    site.pump({one: b"lease t 0\r\n" * count}, quiet=0.2)
    site.settle(4)
    site.pump({one: b"lease t 0\r\n" * count}, quiet=0.2)
    site.settle(4)


# -- the log's bound


@attack("jobs one-id-again", flags=small_segments, memory_mib=48, restart=True, short=0.5)
def one_id_again(site: Site) -> None:
    """One id, 1,500 times: added with 10 kB and deleted, and at the end one live job; the log must stay small."""
    one = site.job_client()
    data = (add(5, payload=bytes(10_000)) + b"delete %b\r\n" % job(5) for _ in range(site.many(1500)))
    site.pump({one: data}, quiet=0.2)
    site.ask(one, add(5, payload=bytes(10_000)))
    small_log(site, 6 * MIB)


@attack("jobs one-id-completed-again", flags=small_segments, memory_mib=48)
def one_id_completed_again(site: Site) -> None:
    """One id, 1,000 times: added, leased, completed with 10 kB, deleted."""
    one = site.job_client()
    done = b"lease h 0\r\ncomplete %b 10000\r\n" % job(5) + bytes(10_000) + b"\r\ndelete %b\r\n" % job(5)
    site.pump({one: (add(5) + done for _ in range(site.many(1000)))}, quiet=0.2)
    site.ask(one, add(5, payload=bytes(10_000)))
    small_log(site, 6 * MIB)


@attack("jobs fail-texts", flags=small_segments, memory_mib=64, restart=True, short=0.5)
def fail_texts(site: Site) -> None:
    """One job that fails 60 times with a text of 1 MB; the log must stay small."""
    one = site.job_client()
    site.ask(one, b"add %b f 60000 86400000 1 -max-fails=255\r\nx\r\n" % job(6))
    text = bytes(1_000_000)
    for _ in range(site.many(60)):
        site.ask(one, b"lease f 0\r\n")
        site.line(one)
        site.line(one)
        site.ask(one, b"fail %b %d\r\n" % (job(6), len(text)) + text + b"\r\n")
    small_log(site, 6 * MIB)


@attack("jobs leased-again", flags=small_segments, memory_mib=48)
def leased_again(site: Site) -> None:
    """20 jobs of 100 kB that are leased and let go 200 times each."""
    one = site.job_client()
    data = b"".join(add(n, b"again", bytes(100_000), ttr=1) for n in range(1, 21))
    site.pump({one: data}, quiet=0.2)
    for _ in range(site.many(200)):
        site.pump({one: b"lease again 0\r\n" * 20}, quiet=0.02)
    small_log(site, 12 * MIB)


def small_log(site: Site, most: int) -> None:
    """The log shrinks by itself to what is needed."""
    until = time.monotonic() + 12
    while (size := folder_bytes(site.server.data)) > most and time.monotonic() < until:
        time.sleep(0.2)
    if size > most:
        raise Unmet(f"the log has {size:,} bytes after cleaning, where at most {most:,} are needed")


# -- connections


@attack("jobs connect-storm", memory_mib=32, short=0.2)
def connect_storm(site: Site) -> None:
    """10,000 connections that ask one thing and leave."""
    for _ in range(site.many(100)):
        some = [site.dial() for _ in range(100)]
        site.pump(dict.fromkeys(some, b"inspect server\r\n"), quiet=0.01)
        for one in some:
            site.drop(one)
        if site.left() < 2:
            break


@attack("jobs adds-of-1-mb", memory_mib=256, left_mib=96, seconds=60)
def large_adds(site: Site) -> None:
    """50 connections that add and delete jobs of 1 MiB as fast as they are taken, 1,000 in all."""
    some: list[socket.socket] = [site.job_client() for _ in range(50)]
    work = {
        one: (
            add(1 + at * 1000 + n, payload=bytes(MIB)) + b"delete %b\r\n" % job(1 + at * 1000 + n)
            for n in range(site.many(20))
        )
        for at, one in enumerate(some)
    }
    site.pump(work, quiet=0.5, seconds=40)
