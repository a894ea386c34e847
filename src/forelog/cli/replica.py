"""`forelog replica serve`: a server that keeps copies of state logs, and passes them on to followers."""

from __future__ import annotations

import argparse
import signal
import sys
from queue import SimpleQueue
from typing import Any

from forelog.cli import codes, options, serving
from forelog.cli.output import say
from forelog.copies.server.server import (
    CONNECTIONS_MAX,
    FRAMES_BYTES_MAX,
    HELLO_SECONDS,
    LOGS_MAX,
    WAITING_MAX,
    WAITING_PER_ADDRESS_MAX,
    ReplicaServer,
)
from forelog.copies.wire import PORT
from forelog.serving.addresses import is_loopback, shown


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "replica",
        "Keep copies of state logs, as their primaries send them, and pass them on to followers.",
        epilog="examples:\n"
        "  forelog replica serve --dir copies\n"
        "  forelog replica serve --dir copies --listen 0.0.0.0:7070 --token-file token\n\n"
        "A program has its log copied there with log.add_destination('replica://HOST:PORT/NAME').",
    )
    parser.add(f"""
        subcommand serve    serve until SIGTERM or Ctrl-C
        --listen HOST:PORT  where to listen (default: 127.0.0.1:{PORT})
    """)
    parser.add_argument(
        "--dir", required=True, metavar="DIR", help="where the copies are kept, in a folder per log"
    )
    options.add_mode(parser, "new copies' files")
    parser.add(f"""
        --token-file FILE        a file with a token for all logs
        --tokens FILE            a file with tokens for the logs that patterns name
        --tls-cert FILE          a certificate, with its chain: clients must then use TLS
        --tls-key FILE           its key
        --tls-client-ca FILE     accept only clients whose certificate one of these authorities signed
        --max-connections N      the most connections that have sent a valid HELLO (default: {CONNECTIONS_MAX})
        --max-waiting N          the most connections that haven't sent it yet (default: {WAITING_MAX})
        --max-waiting-per-address N
                                 the most of these from one address (default: {WAITING_PER_ADDRESS_MAX})
        --max-logs N             the most logs with copies here (default: {LOGS_MAX})
        --max-log-bytes SIZE     the most disk space for the copies of one log, such as 10GB (default: no limit)
        --max-bytes SIZE         the most disk space for all copies (default: no limit)
        --max-frames-bytes SIZE  the most memory for frames over 1 MiB, of all connections (default: 256MiB)
        --hello-timeout SECONDS  how long a connection may take to send its HELLO (default: {HELLO_SECONDS:g})
    """)
    parser.set_types(
        subcommand=_serve,
        listen=serving.address(PORT),
        max_connections=options.positive_count,
        max_waiting=options.positive_count,
        max_waiting_per_address=options.positive_count,
        max_logs=options.positive_count,
    )
    parser.set_defaults(
        serves=True,
        listen=("127.0.0.1", PORT),
        max_connections=CONNECTIONS_MAX,
        max_waiting=WAITING_MAX,
        max_waiting_per_address=WAITING_PER_ADDRESS_MAX,
        max_logs=LOGS_MAX,
        max_frames_bytes=FRAMES_BYTES_MAX,
        hello_timeout=HELLO_SECONDS,
    )
    return parser


def _serve(text: str) -> str:
    if text != "serve":
        raise argparse.ArgumentTypeError(f"there is no {text!r}: expected serve")
    return text


def run(chosen: Any) -> int:
    if chosen.token_file is not None and chosen.tokens is not None:
        raise codes.UsageError(
            "--token-file is one token for all logs, --tokens has one for each: give one of them"
        )
    certificates = serving.certificates(chosen.tls_cert, chosen.tls_key, chosen.tls_client_ca)
    token = serving.token(chosen.token_file)
    host, port = chosen.listen
    known = token is not None or chosen.tokens is not None or chosen.tls_client_ca is not None
    if not known and not is_loopback(host):
        say(f"anyone who reaches {host} can write copies and read them: see --tokens and --tls-cert")
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    server = ReplicaServer(
        chosen.dir,
        host,
        port,
        token=token,
        tokens=chosen.tokens,
        tls=None if certificates is None else certificates.context,
        connections_max=serving.clients_within_limits(chosen.max_connections),
        waiting_max=chosen.max_waiting,
        waiting_per_address_max=chosen.max_waiting_per_address,
        hello_seconds=chosen.hello_timeout,
        logs_max=chosen.max_logs,
        log_bytes_max=chosen.max_log_bytes,
        bytes_max=chosen.max_bytes,
        frames_bytes_max=chosen.max_frames_bytes,
        mode=chosen.mode,
    )
    with server:
        say(f"keeping copies at {shown(*server.address)}, in {chosen.dir}")
        sys.stderr.flush()
        while signals.get() == signal.SIGHUP:
            serving.reload_all(
                "tokens and certificates",
                lambda: server.reload(token=serving.token(chosen.token_file), tokens=chosen.tokens),
                *([] if certificates is None else [certificates.reload]),
            )
    say("stopped: everything is written")
    return codes.FINE
