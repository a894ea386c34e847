"""`forelog broker passwd`: users of a broker, and their passwords."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from forelog.broker.access.passwords import change_password, check_name
from forelog.cli import codes, options
from forelog.cli.output import print_json, say

_PASSWORD_BYTES_MAX = 65_535  # as MQTT has it


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `passwd`."""
    parser.add_argument("file", metavar="FILE", help="the file; created, for its owner alone, if it doesn't exist")
    parser.add_argument("name", metavar="NAME", help="the user")
    parser.add_argument("--delete", action="store_true", help="remove the user")


def run(chosen: argparse.Namespace) -> int:
    """Change the file. A broker reads it again on SIGHUP."""
    try:
        check_name(chosen.name)
    except ValueError as error:
        raise codes.UsageError(str(error)) from None
    password = None if chosen.delete else _ask()
    known = change_password(chosen.file, chosen.name, password)
    if chosen.delete and not known:
        raise codes.UsageError(f"{chosen.file} has no user {chosen.name!r}")
    done = "removed" if chosen.delete else "changed" if known else "added"
    if chosen.json:
        print_json({"file": chosen.file, "user": chosen.name, "done": done})
    else:
        say(f"{chosen.file}: user {chosen.name} is {done}")
    return codes.FINE


def _ask() -> bytes:
    """The password: typed twice, or the first line of standard input."""
    if sys.stdin.isatty():
        import getpass

        text = getpass.getpass("password: ")
        if text != getpass.getpass("again: "):
            raise codes.UsageError("these are two different passwords")
        password = text.encode()
    else:
        stdin: Any = getattr(sys.stdin, "buffer", sys.stdin)
        password = stdin.readline(_PASSWORD_BYTES_MAX + 2).rstrip(b"\r\n")
    if not 0 < len(password) <= _PASSWORD_BYTES_MAX:
        raise codes.UsageError("a password has 1 to 65,535 bytes")
    return password
