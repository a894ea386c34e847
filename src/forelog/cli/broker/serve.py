"""`forelog broker serve`: run a broker until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import signal
import sys
from collections.abc import Callable
from typing import Any

from forelog.broker import Access, Broker, Limits, prometheus_collector
from forelog.broker.limits import NEVER
from forelog.cli import codes, options, serving
from forelog.cli.output import plural, say
from forelog.errors import LockTimeout
from forelog.serving.addresses import is_loopback, shown
from forelog.serving.tls import Certificates

PORT = 1883
_OPTIONS = {
    "max_clients": "clients_max",
    "max_unconnected": "unconnected_max",
    "max_packet": "packet_bytes_max",
    "max_inflight": "in_flight_max",
    "max_subscriptions": "subscriptions_max",
    "max_retained": "retained_max",
}
"""Options that are called otherwise than their limits."""
_OWN_OPTIONS = {
    *_OPTIONS.values(), "keep_alive_max", "session_expiry_max", "retain_seconds", "retain_bytes", "retain_force",
    "system_interval_seconds",
}  # fmt: skip
_LIMITS: dict[str, Callable[[str], float]] = {
    field.name: options.seconds if "_seconds" in field.name else options.byte_size
    for field in dataclasses.fields(Limits)
    if field.name not in _OWN_OPTIONS
}
"""The limits that `--limit` sets."""
_KINDS = {"": "MQTT", "tls": "MQTT over TLS", "ws": "MQTT over WebSockets", "wss": "MQTT over WebSockets and TLS"}


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `serve`."""
    _add_listening(parser)
    parser.add_argument("--log", required=True, metavar="DIR", help="where messages and sessions are kept")
    parser.add("""
        --sync os|interval|always
                             what an acknowledged message survives: the end of the broker (os, the default),
                             power loss except for the last interval, or power loss
        --sync-interval MS   how often --sync interval syncs, in milliseconds (default: 1000)
        --file-bytes SIZE    size of a file of messages (default: 64MiB)
    """)
    options.add_mode(parser, "the files of new logs")
    parser.add("""
        --users FILE         users and password hashes, as forelog broker passwd writes them
        --acl FILE           rules: what each user may publish and subscribe to
        --shared-client-ids  a client may take over the session of another user's client with the same id, as MQTT
                             itself allows
        --allow-anonymous    admit clients without a name, from anywhere
        --retain-age AGE     how long messages are kept, such as 7d (default: for ever)
        --retain-bytes SIZE  how many bytes of messages are kept, such as 10GB (default: all)
        --retain-force       remove messages even if a session hasn't read them yet
    """)
    _add_limits(parser)
    parser.add("""
        --sys-interval SECONDS  how often $SYS topics are updated; 0 turns them off (default: 10)
        --metrics HOST:PORT     serve Prometheus metrics at this address
    """)
    parser.set_types(sys_interval=options.seconds, metrics=serving.address(9100))
    parser.set_defaults(serves=True, sync="os", sync_interval=1000, file_bytes=64 << 20, sys_interval=10.0)


def _add_listening(parser: options.CommandParser) -> None:
    parser.add("""
        --listen HOST:PORT ...      where to serve MQTT; may be repeated (default: 127.0.0.1:1883, unless another
                                    --listen-... is given)
        --listen-tls HOST:PORT ...  where to serve MQTT over TLS
        --listen-ws HOST:PORT ...   where to serve MQTT over WebSockets
        --listen-wss HOST:PORT ...  where to serve MQTT over WebSockets and TLS
        --tls-cert FILE             a certificate, with its chain
        --tls-key FILE              its key
        --tls-client-ca FILE        over TLS, accept only clients whose certificate one of these authorities signed
        --tls-user-from-cert        the name in a client's certificate is its user, in --users; no password
        --ws-origin ORIGIN ...      pages of this origin may connect, such as https://example.org; * is any.
                                    Pages of this machine always may
    """)
    parser.set_types(
        listen=serving.address(PORT),
        listen_tls=serving.address(8883),
        listen_ws=serving.address(8080),
        listen_wss=serving.address(8443),
    )


def _add_limits(parser: options.CommandParser) -> None:
    parser.add("""
        --max-clients N           the most clients at a time (default: 20000)
        --max-unconnected N       the most connections whose CONNECT hasn't been accepted yet (default: 4000)
        --max-packet SIZE         the largest packet that is accepted (default: 16MiB)
        --max-inflight N          the most unacknowledged messages of a subscriber (default: 1000)
        --max-subscriptions N     the most subscriptions of a client (default: 10000)
        --max-retained N          the most topics with a retained message (default: 1000000)
        --keep-alive-max SECONDS  the longest keep alive; a client that asks for a longer one, or none, is given
                                  this (default: 65535)
        --limit NAME=VALUE ...    any other limit, such as out_total_bytes_max=64MiB; see docs/bounds.md
        --session-expiry AGE      the longest time that a session is kept without its client (default: for ever)
    """)
    counts = ("max_clients", "max_unconnected", "max_inflight", "max_subscriptions", "max_retained")
    parser.set_types(
        **dict.fromkeys((*counts, "keep_alive_max"), options.positive_count),
        limit=_limit,
        session_expiry=options.seconds,
    )
    known = Limits()
    parser.set_defaults(**{option: getattr(known, name) for option, name in _OPTIONS.items()})


def run(chosen: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    tls = _tls(chosen)
    if not any((chosen.listen, chosen.listen_tls, chosen.listen_ws, chosen.listen_wss)):
        chosen.listen = [("127.0.0.1", PORT)]
    allowed = serving.clients_within_limits(chosen.max_clients + chosen.max_unconnected)
    chosen.max_unconnected = min(chosen.max_unconnected, max(allowed // 4, 1))
    chosen.max_clients = min(chosen.max_clients, max(allowed - chosen.max_unconnected, 1))
    limits = _limits(chosen)
    try:
        access = _access(chosen)
        _warn(chosen)
        with asyncio.Runner(loop_factory=serving.loop_factory()) as runner:
            return runner.run(_serve(chosen, limits, access, tls))
    except LockTimeout:
        say(f"another broker has the log at {chosen.log}: stop it, or choose another directory")
        return codes.LOCKED


def _access(chosen: argparse.Namespace) -> Access:
    try:
        return Access(
            users=chosen.users,
            rules=chosen.acl,
            anonymous=chosen.allow_anonymous,
            shared_client_ids=chosen.shared_client_ids,
            user_from_certificate=chosen.tls_user_from_cert,
        )
    except OSError as error:
        raise codes.UsageError(f"{error.filename}: {error.strerror}") from None


def _tls(chosen: argparse.Namespace) -> Certificates | None:
    if (chosen.tls_cert is None) != (chosen.tls_key is None):
        raise codes.UsageError("--tls-cert and --tls-key go together")
    if (chosen.listen_tls or chosen.listen_wss) and chosen.tls_cert is None:
        raise codes.UsageError("--listen-tls and --listen-wss need --tls-cert and --tls-key")
    if chosen.tls_cert is not None and not (chosen.listen_tls or chosen.listen_wss):
        raise codes.UsageError("--tls-cert is for --listen-tls and --listen-wss: say where")
    if chosen.tls_user_from_cert and (chosen.tls_client_ca is None or chosen.users is None):
        raise codes.UsageError("--tls-user-from-cert goes with --tls-client-ca and --users")
    return serving.certificates(chosen.tls_cert, chosen.tls_key, chosen.tls_client_ca)


def _warn(chosen: argparse.Namespace) -> None:
    open_places = [host for host, _ in (*chosen.listen, *chosen.listen_ws) if not is_loopback(host)]
    if chosen.allow_anonymous and chosen.acl is None and _elsewhere(chosen):
        say("anyone who reaches this machine may publish and read everything: see --users and --acl")
    elif chosen.users is None and not chosen.allow_anonymous and _elsewhere(chosen):
        say("only clients of this machine may come in: see --users, or --allow-anonymous")
    elif chosen.users is not None and open_places:
        say(f"passwords travel to {open_places[0]} as they are: see --listen-tls")


def _elsewhere(chosen: argparse.Namespace) -> bool:
    every = (*chosen.listen, *chosen.listen_tls, *chosen.listen_ws, *chosen.listen_wss)
    return any(not is_loopback(host) for host, _ in every)


def _limits(chosen: argparse.Namespace) -> Limits:
    from forelog.times import SECOND_NS, parse_duration

    expiry = NEVER if chosen.session_expiry is None else min(int(chosen.session_expiry), NEVER)
    told = {} if chosen.keep_alive_max is None else {"keep_alive_max": min(chosen.keep_alive_max, 65_535)}
    known: dict[str, Any] = {
        **{name: getattr(chosen, option) for option, name in _OPTIONS.items()},
        "packet_bytes_max": min(chosen.max_packet, 0x1000_0004),
        "in_flight_max": min(chosen.max_inflight, 65_535),
        "session_expiry_max": expiry,
        "retain_seconds": None if chosen.retain_age is None else parse_duration(chosen.retain_age) / SECOND_NS,
        "retain_bytes": chosen.retain_bytes,
        "retain_force": chosen.retain_force,
        "system_interval_seconds": chosen.sys_interval,
    }
    try:
        return Limits(**known, **told, **dict(chosen.limit))
    except (TypeError, ValueError) as error:
        raise codes.UsageError(str(error)) from None


def _limit(text: str) -> tuple[str, float]:
    """NAME=VALUE, of a limit that has no option of its own."""
    name, _, value = text.partition("=")
    if name not in _LIMITS:
        raise argparse.ArgumentTypeError(f"{name!r} isn't a limit: expected one of {', '.join(sorted(_LIMITS))}")
    return name, _LIMITS[name](value)


async def _serve(chosen: argparse.Namespace, limits: Limits, access: Access, tls: Certificates | None) -> int:
    broker = Broker(
        chosen.log,
        sync=chosen.sync,
        sync_interval_ms=chosen.sync_interval,
        file_bytes=chosen.file_bytes,
        limits=limits,
        access=access,
        mode=chosen.mode,
    )
    await broker.open()
    try:
        gc.collect()
        gc.freeze()  # sessions and retained messages that no collection would free
        gc.set_threshold(5_000, 10, 1_000)  # one of a million objects would stop everything for 200 ms
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        loop.add_signal_handler(signal.SIGHUP, _reload, broker, tls)
        sessions, retained = len(broker.store.sessions), len(broker.store.retained)
        say(f"{chosen.log}: {plural(sessions, 'session')}, {plural(retained, 'retained message')}")
        await _listen(broker, chosen, tls)
        metrics = _serve_metrics(broker, chosen)
        sys.stderr.flush()
        await stopped.wait()
        if metrics is not None:
            metrics.shutdown()
    finally:
        await broker.stop()
    say("stopped: everything is written")
    return codes.FINE


async def _listen(broker: Broker, chosen: argparse.Namespace, tls: Certificates | None) -> None:
    for kind, what in _KINDS.items():
        places: list[tuple[str, int]] = getattr(chosen, f"listen_{kind}" if kind else "listen")
        for host, port in places:
            found = await broker.listen(
                host,
                port,
                tls.context if tls is not None and kind in ("tls", "wss") else None,
                websockets=kind in ("ws", "wss"),
                origins=chosen.ws_origin,
            )
            for place in found:
                say(f"serving {what} at {shown(*place)}")


def _serve_metrics(broker: Broker, chosen: argparse.Namespace) -> Any:
    if chosen.metrics is None:
        return None
    import forelog

    collectors = [
        prometheus_collector(broker),
        forelog.prometheus_collector(broker.stream.metrics, log=broker.stream.path),
    ]
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    host, port = chosen.metrics
    server, _ = start_http_server(port, host, registry)
    say(f"serving metrics at http://{shown(host, server.server_port)}/metrics")
    return server


def _reload(broker: Broker, tls: Certificates | None) -> None:
    """On SIGHUP, read the files of users and rules and the certificate again."""
    serving.reload_all("users, rules and certificates", broker.reload, *([] if tls is None else [tls.reload]))
