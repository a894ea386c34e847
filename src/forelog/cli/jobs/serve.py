"""`workq-server`, also `forelog jobs serve`: the job server, with the flags of the original in its spelling."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import re
import signal
import sys
from collections.abc import Sequence

from forelog import __version__
from forelog.cli import codes, logging_to_stderr, options, serving
from forelog.cli.output import human_count, say
from forelog.cli.progress import Progress
from forelog.errors import ForelogError, LockTimeout
from forelog.files.modes import PRIVATE
from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.ledger import KEPT_BYTES_MAX, MEMORY_BYTES_MAX
from forelog.jobs.server.clients import CLIENTS_MAX
from forelog.jobs.server.door import STRANGERS_MAX
from forelog.jobs.server.server import Server
from forelog.serving.addresses import is_loopback, shown
from forelog.serving.tls import Certificates

PORT = 9922
_FLAGS = f"""
--listen HOST:PORT      where to listen (default: 127.0.0.1:9922)
--cmdlog-path DIR       the command log; without one, jobs are kept in memory only
--cmdlog-sync interval|os|always
                        when commands are synced: at intervals (the default), when the operating system decides,
                        or before each reply
--cmdlog-sync-int -cmdlog-sync-interval --cmdlog-sync-interval MS
                        how often interval syncs, in milliseconds (default: 1000)
--cmdlog-clean-int MS   how often the log is cleaned, in milliseconds (default: 300000)
--cmdlog-seg-size BYTES
                        size at which a new segment begins (default: 64MiB)
--cmdlog-skip-damage    start although the log is damaged, without the commands that are lost
--cmdlog-mode MODE      permissions of a new command log's files, as chmod takes it: 640 lets the group read
                        (default: 600)
--max-clients N         the most clients at a time (default: {CLIENTS_MAX})
--max-strangers N       the most clients that haven't sent the token yet (default: {STRANGERS_MAX})
--max-memory BYTES      memory for all jobs; beyond it no more are accepted (default: 2GiB)
--max-results BYTES     memory for payloads and results of finished jobs; others are read from the log
                        (default: 64MiB)
--tls-cert FILE         a certificate, with its chain: clients must then use TLS
--tls-key FILE          its key
--tls-client-ca FILE    accept only clients whose certificate one of these authorities signed
--token-file FILE       a file with a token that clients must send: auth TOKEN
"""


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add each flag, with one dash as in workq, or with two."""
    parser.add(re.sub(r"^--(\S+)", r"-\1 --\1", _FLAGS, flags=re.MULTILINE))
    parser.set_types(
        listen=serving.address(PORT),
        max_clients=options.positive_count,
        max_strangers=options.positive_count,
        max_results=options.byte_size,
    )
    parser.set_defaults(
        serves=True,
        listen=("127.0.0.1", PORT),
        cmdlog_sync="interval",
        cmdlog_sync_int=1000,
        cmdlog_clean_int=300_000,
        cmdlog_seg_size=64 << 20,
        cmdlog_mode=PRIVATE,
        max_clients=CLIENTS_MAX,
        max_strangers=STRANGERS_MAX,
        max_memory=MEMORY_BYTES_MAX,
        max_results=KEPT_BYTES_MAX,
    )


def run(chosen: argparse.Namespace, _: None = None) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    token = serving.token(chosen.token_file)
    if (chosen.tls_cert is None) != (chosen.tls_key is None):
        raise codes.UsageError("-tls-cert and -tls-key go together")
    certificates = serving.certificates(chosen.tls_cert, chosen.tls_key, chosen.tls_client_ca)
    if token is None and chosen.tls_client_ca is None and not is_loopback(chosen.listen[0]):
        say(f"anyone who reaches {chosen.listen[0]} can add and take jobs: see -token-file and -tls-cert")
    strangers = 0 if token is None else chosen.max_strangers
    chosen.max_clients = max(serving.clients_within_limits(chosen.max_clients + strangers) - strangers, 1)
    try:
        with asyncio.Runner(loop_factory=serving.loop_factory()) as runner:
            return runner.run(_serve(chosen, token, certificates))
    except LockTimeout:
        say(f"another server has the command log at {chosen.cmdlog_path}: stop it, or choose another directory")
        return codes.LOCKED


async def _serve(chosen: argparse.Namespace, token: bytes | None, certificates: Certificates | None) -> int:
    log = CommandLog(
        chosen.cmdlog_path,
        sync=chosen.cmdlog_sync,
        sync_interval_ms=chosen.cmdlog_sync_int,
        segment_bytes=chosen.cmdlog_seg_size,
        on_corruption="skip" if chosen.cmdlog_skip_damage else "raise",
        mode=chosen.cmdlog_mode,
    )
    gc.disable()  # a million jobs are a million objects that no collection would free
    try:
        with Progress("replaying") as progress:
            server = Server(
                log,
                clients_max=chosen.max_clients,
                strangers_max=chosen.max_strangers,
                token=token,
                clean_interval_ms=chosen.cmdlog_clean_int,
                kept_bytes_max=chosen.max_results,
                memory_bytes_max=chosen.max_memory,
                progress=progress,
            )
        gc.freeze()
    finally:
        gc.enable()
        gc.set_threshold(10_000, 5, 2_000)  # one of a million new objects would stop everything for 500 ms
    _tell(server, chosen.cmdlog_path)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if certificates is not None:
        loop.add_signal_handler(signal.SIGHUP, serving.reload_all, "certificates", certificates.reload)
    host, port = chosen.listen
    tls = None if certificates is None else certificates.context
    try:
        for bound_host, bound_port in await server.start(host, port, tls):
            say(f"serving jobs at {shown(bound_host, bound_port)}")
        sys.stderr.flush()
        await stopped.wait()
    finally:
        await server.stop()
    say("stopped: everything is written" if chosen.cmdlog_path else "stopped: its jobs were only in memory")
    return codes.FINE


def _tell(server: Server, path: str | None) -> None:
    restored = server.restored
    if path is None:
        say("jobs are kept in memory only: -cmdlog-path DIR keeps them through restarts")
        return
    jobs = human_count(len(server.machine.jobs))
    say(f"{path}: {human_count(restored.commands)} commands replayed, {jobs} jobs")
    if restored.expired:
        say(f"{human_count(restored.expired)} jobs have expired and were skipped")
    if restored.torn_path is not None:
        say(f"a torn tail was cut off, as a crash leaves it, and kept in {restored.torn_path}")
    if restored.conflicts or restored.bad:
        odd = human_count(restored.conflicts + restored.bad)
        say(f"{odd} records contradicted those before them and were skipped; -v shows which")


def main(argv: Sequence[str] | None = None) -> int:
    """The command `workq-server`."""
    parser = options.CommandParser(
        prog="workq-server",
        description="A job server that speaks the workq protocol; its memory is a command log.",
        epilog="Each flag may have one dash or two. See docs/jobs.md.",
        allow_abbrev=False,
    )
    add_options("serve", parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show what the log does")
    parser.add_argument("-version", "--version", action="version", version=f"workq-server (forelog) {__version__}")
    try:
        chosen = parser.parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else codes.FINE
    try:
        with logging_to_stderr(logging.DEBUG if chosen.verbose else logging.INFO, serves=True):
            return run(chosen)
    except KeyboardInterrupt:
        return codes.INTERRUPTED
    except (OSError, ForelogError) as error:
        code, message = codes.explain(error)
        say(message)
        return code
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
