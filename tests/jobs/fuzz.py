"""Lines that no client would send, by the million, at a real server: `make fuzz`.

The server must answer or close, never hang, never grow, and at the end still do what it is for. The lines are made
of the protocol's own words, bent, so that they get further than noise would; every seed gives the same ones.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.jobs.serving import add, job_id, served

WORDS = (
    b"add run schedule lease complete fail delete result inspect auth job jobs scheduled-jobs queue queues server "
    b"q other -priority=5 -priority= -=1 -max-attempts=2 -max-fails=9 -x=y 0 1 5 100 1000 60000 -1 +1 "
    b"18446744073709551616 99999999999999999999999 1048576 1048577 2095-06-07T08:09:10Z 9999-12-31T23:59:59Z "
    b"0001-01-01T00:00:00Z NaN 00000001-0000-4000-8000-000000000001 {00000002-0000-4000-8000-000000000002} "
    b"urn:uuid: \xff\xfe \0 \t"
).split(b" ")
ENDS = (b"\r\n",) * 60 + (b"\n", b"\r", b"", b"\r\n\r\n")
LINES_PER_CONNECTION = 50  # one that doesn't end as it should closes the connection


def line(chance: random.Random) -> bytes:
    """One that is whole, one that is nearly, or one that is nothing."""
    kind = chance.random()
    if kind < 0.4:
        number = chance.randrange(50)
        some = chance.choice(
            [
                add(number, payload=bytes(chance.randrange(40))),
                b"lease q other 0\r\n",
                b"complete %b 1\r\nx\r\n" % job_id(number),
                b"fail %b 1\r\nx\r\n" % job_id(number),
                b"delete %b\r\n" % job_id(number),
                b"inspect jobs q 0 %d\r\n" % chance.randrange(-2, 120),
                b"inspect job %b\r\n" % job_id(number),
                b"result %b 1\r\n" % job_id(number),
                b"run %b nobody 1000 1 1\r\nx\r\n" % job_id(number + 100),
            ]
        )
        if chance.random() < 0.2:  # bent in one place
            at = chance.randrange(len(some))
            some = some[:at] + bytes([chance.randrange(256)]) + some[at + 1 :]
        return some
    if kind < 0.9:
        return b" ".join(chance.choice(WORDS) for _ in range(chance.randrange(9))) + chance.choice(ENDS)
    return chance.randbytes(chance.randrange(60)) + chance.choice(ENDS)


def talk(port: int, seed: int, lines: int) -> int:
    """Send lines, over as many connections as it takes, in pieces of any size; returns how many were answered."""
    chance = random.Random(seed)
    sent = answered = 0
    while sent < lines:
        count = min(LINES_PER_CONNECTION, lines - sent)
        data = b"".join(line(chance) for _ in range(count))
        sent += count
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(30)
            try:
                at = 0
                while at < len(data):
                    size = chance.choice((1, 7, 100, 4096, 65536))
                    connection.sendall(data[at : at + size])
                    at += size
                connection.shutdown(socket.SHUT_WR)
                while answer := connection.recv(1 << 16):
                    answered += answer.count(b"\n-") + answer.count(b"\n+") + 1
            except TimeoutError:
                raise AssertionError(f"the server hangs: seed {seed}, after {sent} lines") from None
            except OSError:
                pass  # it has closed the connection, as it should
    return answered


def run(lines: int, seed: int, say: Callable[[str], None]) -> None:
    """Until so many lines were answered; those swallowed by a payload, or behind a bad end, don't count."""
    part, sizes, answered, sent, began = max(lines // 10, 1000), [], 0, 0, time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        served("-cmdlog-path", f"{folder}/log", "-cmdlog-sync", "os", "-cmdlog-clean-int", "500") as server,
        ThreadPoolExecutor(4) as pool,
    ):
        while answered < lines:
            seeds = [seed * 1_000_003 + sent + number for number in range(4)]
            answered += sum(pool.map(lambda one: talk(server.port, one, part // 4), seeds))
            sent += part
            sizes.append(server.rss_bytes())
            assert server.process.poll() is None, "the server has ended"
            seconds = time.monotonic() - began
            say(f"{answered:,} of {sent:,} lines answered, {sizes[-1] >> 20} MiB, {seconds:.0f} s")
        client = server.connect()
        assert client.ask(add(10**6 + seed, name="fuzz")) == b"+OK"
        assert client.lease("fuzz")[0] == job_id(10**6 + seed)
        settled = sizes[len(sizes) // 4]
        assert sizes[-1] < settled + (32 << 20), f"it grew from {settled} to {sizes[-1]} bytes"
        said = server.stop()
        assert "Traceback" not in said, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000, help="that are answered")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run(options.lines, options.seed, lambda text: print(text, file=sys.stderr, flush=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
