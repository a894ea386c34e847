"""One attack against one server: what it cost, against what it may cost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.attacks import MIB, Attack
from tests.hostile.figures import Figures, cpu_seconds, figures, folder_bytes, forget_peak
from tests.hostile.probe import Probe
from tests.hostile.servers import Server
from tests.hostile.site import Site, Unmet

__all__ = ["Outcome", "besiege", "besiege_in_short"]

MEMORY_BYTES_MAX = 3 << 30
"""A server that grows beyond this is ended: the machine has other things to do."""
CALM_SECONDS = 20.0
LEFT_SECONDS = 12.0
"""For a server to let go of those who have left: a little longer than a CONNECT may take."""
_WATCH_SECONDS = 0.05
_UNTIL_ENDED = (0.3, 1.0)


@dataclass(slots=True)
class Outcome:
    """The figures of one attack."""

    name: str
    about: str
    sent_bytes: int = 0
    seconds: float = 0.0
    latency_ms: float = 0.0
    """The longest round trip of another client."""
    stall_ms: float = 0.0
    """Of that, what the machine can't be blamed for."""
    newcomer_ms: float = 0.0
    rounds: int = 0
    ended: bool = False
    """Whether the server was gone in the end."""
    memory_mib: float = 0.0
    left_mib: float = 0.0
    disk_mib: float = 0.0
    idle_cpu: float = 0.0
    left_cpu: float = 0.0
    files: int = 0
    threads: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fine": self.fine}


def besiege(attack: Attack, *, slack: float = 1.0) -> Outcome:
    """Run it against a server of its own. `slack` makes times generous, on a busy machine."""
    outcome = Outcome(attack.name, attack.about)
    with _served(attack) as site:
        if attack.prepare is not None:
            attack.prepare(site)
        with contextlib.closing(_probe(attack, site)) as probe:
            time.sleep(0.3)
            _besiege(attack, site, probe, outcome)
        _judge(attack, outcome, slack)
        if not outcome.ended:
            _end(attack, site, outcome)
    return outcome


def besiege_in_short(attacks: list[Attack], *, slack: float) -> list[Outcome]:
    """Smaller ones, one after the other against the same server, without waiting until it has calmed down."""
    outcomes = []
    with _served(attacks[0]) as site:
        with contextlib.closing(_probe(attacks[0], site)) as probe:
            for attack in attacks:
                outcome = Outcome(attack.name, attack.about)
                outcomes.append(outcome)
                site.scale = attack.short
                if attack.prepare is not None:
                    attack.prepare(site)
                _besiege(attack, site, probe, outcome, short=True)
                _judge(attack, outcome, slack, short=True)
                _check(attack, site, outcome.problems, "")
                if outcome.ended:
                    return outcomes
        _stop(site, outcome.problems)
    return outcomes


@contextlib.contextmanager
def _served(attack: Attack) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        server = Server(attack.server, place, attack.flags(place), attack.ports)
        site = Site(server, attack.seconds)
        try:
            yield site
        finally:
            site.leave()
            server.close()


def _probe(attack: Attack, site: Site) -> Probe:
    server = site.server
    probe = Probe(attack.server, server.port, server.pid, server.folder, secret=attack.secret, tls=attack.tls)
    probe.begin()
    return probe


def _besiege(attack: Attack, site: Site, probe: Probe, outcome: Outcome, *, short: bool = False) -> None:
    server, problems = site.server, outcome.problems
    forget_peak(server.pid)
    before, folder_before = figures(server.pid), folder_bytes(server.data)
    probe.begin()
    site.begin()
    began = time.monotonic()
    with _guarded(server, problems):
        _run(attack, site, problems)
        outcome.seconds = time.monotonic() - began
        outcome.sent_bytes = site.sent
        try:
            if not short:
                outcome.idle_cpu = _calm(server, probe, attack.idle_cpu)
            during = figures(server.pid)
            site.leave()
            if not short:
                outcome.left_cpu = _calm(server, probe, attack.idle_cpu)
            _left(server, attack, before, problems)
            _seen(attack, probe.report(), outcome)
            after = figures(server.pid)
        except FileNotFoundError:
            outcome.ended = True
            problems.append(f"the server has ended: {server.said()[-300:]}")
            return
    outcome.memory_mib = (max(during.peak_bytes, after.peak_bytes) - before.rss_bytes) / MIB
    outcome.left_mib = (after.rss_bytes - before.rss_bytes) / MIB
    grown = folder_bytes(server.data) - folder_before
    outcome.disk_mib = max(after.written_bytes - before.written_bytes, grown, 0) / MIB
    outcome.files, outcome.threads = during.files, during.threads


def _run(attack: Attack, site: Site, problems: list[str]) -> None:
    try:
        attack.run(site)
    except Unmet as error:
        problems.append(str(error))
    except Exception as error:
        if site.server.process.poll() is None:
            problems.append(f"the attack failed: {type(error).__name__}: {error}"[:300])


@contextlib.contextmanager
def _guarded(server: Server, problems: list[str]) -> Iterator[None]:
    """End a server that takes too much memory."""
    over = threading.Event()

    def watch() -> None:
        pages = os.sysconf("SC_PAGE_SIZE")
        while not over.wait(_WATCH_SECONDS):
            with contextlib.suppress(OSError, IndexError):
                size = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * pages
                if size > MEMORY_BYTES_MAX:
                    problems.append(f"the server was ended when it had {size / MIB:,.0f} MiB")
                    server.process.send_signal(signal.SIGKILL)
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _calm(server: Server, probe: Probe, enough: float) -> float:
    """The share of a processor that a server uses by itself, once it has done what it was asked for."""
    probe.pause()
    deadline = time.monotonic() + CALM_SECONDS
    share = 1.0
    while time.monotonic() < deadline and server.process.poll() is None:
        for seconds in _UNTIL_ENDED:  # a short look first, most are quiet at once; then a longer one to be sure
            began, used = time.monotonic(), cpu_seconds(server.pid)
            time.sleep(seconds)
            share = (cpu_seconds(server.pid) - used) / (time.monotonic() - began)
            if share > max(enough, 0.04):
                break
        else:
            break
    probe.begin_again()
    return share


def _left(server: Server, attack: Attack, before: Figures, problems: list[str]) -> None:
    """After it has left: wait until the server is as it was, for a while."""
    deadline = time.monotonic() + LEFT_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        found = figures(server.pid)
        if (
            found.files <= before.files + attack.files
            and found.rss_bytes - before.rss_bytes <= attack.left_mib * MIB
        ):
            return
        time.sleep(0.1)
    if found.files > before.files + attack.files:
        problems.append(f"{found.files - before.files} files are still open after it has left")


def _seen(attack: Attack, report: dict[str, Any], outcome: Outcome) -> None:
    rounds, newcomers = report["rounds"], report["newcomers"]
    outcome.latency_ms, outcome.stall_ms = rounds["worst_ms"], rounds["stall_ms"]
    outcome.newcomer_ms, outcome.rounds = newcomers["stall_ms"], rounds["rounds"]
    for what, found in (("the probe", rounds), ("a newcomer", newcomers)):
        if found["wrong_count"] and not (attack.full and found is newcomers):
            outcome.problems.append(f"{what} failed {found['wrong_count']} times: {found['wrong'][0]}")


def _judge(attack: Attack, outcome: Outcome, slack: float, *, short: bool = False) -> None:
    left_max = max(attack.left_mib, attack.memory_mib) if short else attack.left_mib  # it had no time to shrink
    disk_max = attack.disk * outcome.sent_bytes / MIB + attack.disk_mib
    for what, found, bound in (
        ("another client waited {:,.0f} ms", outcome.stall_ms, attack.latency_ms * slack),
        ("a newcomer waited {:,.0f} ms", 0.0 if attack.full else outcome.newcomer_ms, attack.newcomer_ms * slack),
        ("the server grew by {:,.0f} MiB", outcome.memory_mib, attack.memory_mib),
        ("it is {:,.0f} MiB larger afterwards", outcome.left_mib, left_max),
        ("{:,.0f} MiB were written", outcome.disk_mib, disk_max),
        ("idle, with the attackers there, it uses {:.2f} processors", outcome.idle_cpu, attack.idle_cpu * slack),
        ("idle, after they left, it uses {:.2f} processors", outcome.left_cpu, attack.idle_cpu * slack),
    ):
        if found > bound:
            outcome.problems.append(f"{what.format(found)}, more than {bound:,.4g}")


def _end(attack: Attack, site: Site, outcome: Outcome) -> None:
    """It must end in order, and start again on what was written."""
    server, problems = site.server, outcome.problems
    _check(attack, site, problems, "")
    _stop(site, problems)
    if attack.restart:
        began = time.monotonic()
        try:
            server.start()
        except AssertionError as error:
            problems.append(f"it doesn't start again: {error}")
            return
        took = time.monotonic() - began
        if took > attack.restart_seconds:
            problems.append(f"to start again took {took:.0f} s, more than {attack.restart_seconds:.0f}")
        site.begin()
        _check(attack, site, problems, "after a restart: ")
        site.leave()
        _stop(site, problems)


def _stop(site: Site, problems: list[str]) -> None:
    """In order, and without having had a failure."""
    server = site.server
    if (code := server.stop()) != 0:
        problems.append(f"the server didn't stop in order: its code is {code}")
    if traces := re.findall(r"^Traceback.*?^(?=\S)(?!Traceback)([^\n]*)", server.said(), re.M | re.S):
        problems.append(f"{len(traces)} tracebacks, the last: {traces[-1][:200]}")


def _check(attack: Attack, site: Site, problems: list[str], when: str) -> None:
    if attack.check is None:
        return
    site.begin()
    try:
        attack.check(site)
    except Exception as error:
        problems.append(
            f"{when}{error}"[:300] if isinstance(error, Unmet) else f"{when}{type(error)}: {error}"[:300]
        )
    site.leave()
