"""`chiplog replica serve`: a server that keeps copies of state logs, and passes them on to followers."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import Any

from chiplog.cli import codes, options, serving
from chiplog.cli.output import say
from chiplog.state.replica import CONNECTIONS_MAX, ReplicaServer
from chiplog.state.targets import PORT


def parser() -> argparse.ArgumentParser:
    parser = options.command_parser(
        "replica",
        "Keep copies of state logs, as their primaries send them, and pass them on to followers.",
        epilog="examples:\n"
        "  chiplog replica serve --dir copies\n"
        "  chiplog replica serve --dir copies --listen 0.0.0.0:7070 --token-file token\n\n"
        "A program has its log copied there with log.add_destination('replica://HOST:PORT/NAME').",
    )
    parser.add_argument("subcommand", metavar="serve", type=_serve, help="serve until a signal says stop")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=serving.address(PORT),
        default=("127.0.0.1", PORT),
        help=f"where (127.0.0.1:{PORT})",
    )
    parser.add_argument(
        "--dir", required=True, metavar="DIR", help="where the copies are kept, in a folder per log"
    )
    options.add_mode(parser, "new copies' files")
    parser.add_argument("--token-file", metavar="FILE", help="a file with a token that who connects must send")
    parser.add_argument("--tls-cert", metavar="FILE", help="a certificate, with its chain: TLS is needed then")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")
    parser.add_argument(
        "--max-connections",
        type=options.positive_count,
        default=CONNECTIONS_MAX,
        metavar="N",
        help=f"at a time ({CONNECTIONS_MAX})",
    )
    return parser


def _serve(text: str) -> str:
    if text != "serve":
        raise argparse.ArgumentTypeError(f"there is no {text!r}: expected serve")
    return text


def run(chosen: Any) -> int:
    if (chosen.tls_cert is None) != (chosen.tls_key is None):
        raise codes.UsageError("--tls-cert and --tls-key go together")
    token = serving.token(chosen.token_file)
    tls = serving.tls(chosen.tls_cert, chosen.tls_key)
    host, port = chosen.listen
    if token is None and not serving.is_loopback(host):
        say(f"anyone who reaches {host} can write copies and read them: see --token-file and --tls-cert")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = ReplicaServer(
        chosen.dir,
        host,
        port,
        token=token,
        tls=tls,
        connections_max=chosen.max_connections,
        mode=chosen.mode,
    )
    with server:
        say(f"keeping copies at {serving.shown(*server.address)}, in {chosen.dir}")
        sys.stderr.flush()
        stopped.wait()
    say("stopped: everything is written")
    return codes.FINE
