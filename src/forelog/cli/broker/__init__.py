"""`forelog broker`: an MQTT broker whose memory is a log, and its clients.

    serve.py        serve: the broker
    talk.py         pub and sub
    sessions.py     sessions: how far each has read
    top.py          top: watch a broker
    passwd.py       passwd: users and their passwords
    mqtt_client.py  the client that pub, sub and top use

Each subcommand has a parser of its own, created when it is needed.
"""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forelog.cli import codes, options, serving

if TYPE_CHECKING:
    from forelog.cli.broker.mqtt_client import BrokerClient

SUBCOMMANDS = {
    "serve": "run a broker, with a log as its memory",
    "pub": "publish a message, or one for each line of standard input",
    "sub": "print messages as they come; also past messages",
    "sessions": "list sessions and how far each has read, from the files",
    "top": "watch a broker: clients, messages, bytes",
    "passwd": "set a user's password in a file, or remove the user",
}
PORT = 1883
SERVER = f"127.0.0.1:{PORT}"
_ENVIRONMENT = """\
environment:
  MQTT_SERVER    the broker's address, unless --server is given
  MQTT_PASSWORD  the password, unless --password-file is given"""
_MODULES = {"pub": "talk", "sub": "talk"}
_CLIENTS = ("pub", "sub", "top")


def parser() -> options.CommandParser:
    return options.SubcommandParser(
        "broker",
        "An MQTT broker whose memory is a log, and its clients.",
        "examples:\n"
        "  forelog broker serve --log messages\n"
        "  forelog broker sub 'sensors/#'\n"
        "  forelog broker pub sensors/attic 21.5\n"
        "  forelog broker sub 'sensors/#' --since -15m\n\n"
        "forelog broker SUBCOMMAND --help shows the options of a subcommand.\n\n" + _ENVIRONMENT,
        SUBCOMMANDS,
        subparser,
    )


def subparser(name: str) -> options.CommandParser:
    """The parser of a subcommand."""
    epilog = _ENVIRONMENT if name in _CLIENTS else "See docs/broker.md."
    parser = options.subcommand_parser("broker", name, SUBCOMMANDS, epilog)
    _module(name).add_options(name, parser)
    if name in _CLIENTS:
        parser.add(f"""
            --server HOST:PORT    the broker's address (default: {SERVER})
            --user NAME           the user's name
            --password-file FILE  a file with the user's password
            --client-id ID        the client's id (default: the broker's choice)
        """)
        parser.set_defaults(client_id="")
        options.add_client(parser)
    return parser


def _module(name: str) -> Any:
    return import_module(f"forelog.cli.broker.{_MODULES.get(name, name)}")


def run(chosen: argparse.Namespace) -> int:
    module = _module(chosen.subcommand)
    code: int
    if chosen.subcommand not in _CLIENTS:
        code = module.run(chosen)
        return code
    with client(chosen) as found:
        code = module.run(chosen, found)
        return code


def client(chosen: argparse.Namespace) -> BrokerClient:
    """A connection to the broker that was chosen."""
    from forelog.cli.broker.mqtt_client import BrokerClient

    where = chosen.server or os.environ.get("MQTT_SERVER") or SERVER
    try:
        address = serving.address(PORT)(where)
    except argparse.ArgumentTypeError as error:
        raise codes.UsageError(str(error)) from None
    expiry = getattr(chosen, "session", None)
    if expiry and not chosen.client_id:
        raise codes.UsageError("--session needs --client-id: the broker recognizes the session by that id")
    return BrokerClient(
        address,
        client_id=chosen.client_id,
        user=chosen.user,
        password=_password(chosen),
        tls=options.client_tls(chosen),
        session_expiry=int(expiry or 0),
        timeout=chosen.timeout,
    )


def _password(chosen: argparse.Namespace) -> bytes | None:
    if chosen.password_file is None:
        text = os.environ.get("MQTT_PASSWORD")
        return None if not text or chosen.user is None else text.encode()
    if chosen.user is None:
        raise codes.UsageError("--password-file needs --user")
    with open(chosen.password_file, "rb") as file:
        return file.read(65_535).rstrip(b"\r\n")
