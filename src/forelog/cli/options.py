"""Options that commands share, and how sizes, times and positions are written.

>>> byte_size("64MiB"), byte_size("1.5k"), byte_size("10MB"), byte_size("512")
(67108864, 1536, 10000000, 512)
>>> key_slice("0:16"), key_slice(":8")
(slice(0, 16, None), slice(None, 8, None))
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from forelog.bounds import BYTES_MAX
from forelog.cli import codes
from forelog.errors import ForelogError
from forelog.files.modes import PRIVATE, check_mode
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.times import parse_duration, parse_time

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_POSITION = re.compile(r"\d{1,19}:\d+", re.ASCII)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports what is wrong in one line, as every error is reported."""

    def add(self, text: str) -> None:
        """Add arguments and options in the form of a help text: the option, two or more spaces, its
        description.

        A value's name gives its type (_TYPES), unless `set_types` gives another. An indented line continues the
        one before it. An argument in brackets may be left out.

        >>> parser = CommandParser()
        >>> parser.add('''
        ...     log LOG          an argument, `log` when it is parsed
        ...     names NAME ...   several, at least one
        ...     --limit N        an option, here with a number
        ...     --sync os|always
        ...                      one of these
        ...     --skip NAME ...  one that may be given several times
        ...     -q --quiet       one without a value
        ... ''')
        >>> chosen = parser.parse_args(["orders", "one", "two", "-q", "--limit", "3", "--skip", "x"])
        >>> chosen.log, chosen.names, chosen.limit, chosen.sync, chosen.skip, chosen.quiet
        ('orders', ['one', 'two'], 3, None, ['x'], True)
        """
        entries: list[str] = []
        for line in textwrap.dedent(text).strip().splitlines():
            if line.startswith(" "):
                entries[-1] += f"{' ' if '  ' in entries[-1] else '  '}{line.strip()}"
            else:
                entries.append(line)
        for entry in entries:
            usage, _, help_text = entry.partition("  ")
            words = usage.strip("[]").split()
            names = [word for word in words if word.startswith("-")] or words[:1]
            value = " ".join(words[len(names) :])
            settings: dict[str, Any] = {"help": help_text.strip()}
            if not value:
                settings["action"] = "store_true"
            elif "|" in value:
                settings["choices"] = value.split("|")
            else:
                settings["metavar"] = value.removesuffix(" ...")
                settings["type"] = _TYPES.get(settings["metavar"])
            if usage.startswith("["):
                settings["nargs"] = "?"
            elif value.endswith(" ..."):
                settings |= {"action": "append", "default": []} if usage.startswith("-") else {"nargs": "+"}
            self.add_argument(*names, **settings)

    def set_types(self, **types: Callable[[str], Any]) -> None:
        """Set how values are parsed, by the names of the parsed values."""
        for action in self._actions:
            action.type = types.get(action.dest, action.type)

    def error(self, message: str) -> NoReturn:
        self.exit(codes.USAGE, f"forelog: {message}: try {self.prog} --help\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments. Options may stand between them, unless a subcommand's parser handles these."""
        if any(action.nargs == argparse.REMAINDER for action in self._get_positional_actions()):
            return super().parse_args(args, namespace)
        chosen = self.parse_intermixed_args(args, namespace)
        for action in self._actions:
            if action.metavar in ("LOG", "PATH", "DIR") and getattr(chosen, action.dest, None) == "":
                self.error(f"{action.metavar} is empty, as an unset variable is")
        return chosen


class SubcommandParser(CommandParser):
    """A parser of a command with subcommands. Each subcommand's parser parses the rest of the line.

    `subcommands` has a summary for each; `subparser` creates its parser when needed.
    """

    def __init__(
        self,
        name: str,
        description: str,
        epilog: str,
        subcommands: Mapping[str, str],
        subparser: Callable[[str], argparse.ArgumentParser],
    ) -> None:
        summaries = "\n".join(f"  {one:<9} {summary}" for one, summary in subcommands.items())
        super().__init__(
            prog=f"forelog {name}",
            description=f"{description}\n\n{summaries}",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._subparser = subparser
        add_common(self)
        self.add_argument(
            "subcommand", metavar="SUBCOMMAND", type=subcommand_of(subcommands), help="one of the above"
        )
        self.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="its arguments")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args is not None and not args:  # no subcommand: show the help, and fail
            self.print_help(sys.stderr)
            raise SystemExit(codes.USAGE)
        outer = super().parse_args(args, namespace)
        chosen = self._subparser(outer.subcommand).parse_args(outer.arguments)
        chosen.json, chosen.verbose = chosen.json or outer.json, chosen.verbose or outer.verbose
        chosen.subcommand = outer.subcommand
        return chosen


def subcommand_parser(
    command: str, name: str, subcommands: Mapping[str, str], epilog: str | None = None
) -> CommandParser:
    """A parser for a subcommand, with the options that every command has."""
    summary = subcommands[name]
    return command_parser(f"{command} {name}", f"{summary[0].upper()}{summary[1:]}.", epilog)


def subcommand_of(subcommands: Mapping[str, str]) -> Callable[[str], str]:
    """A type for arguments that accepts the name of a subcommand."""

    def parse(text: str) -> str:
        if text not in subcommands:
            raise argparse.ArgumentTypeError(f"there is no {text!r}: choose from {', '.join(subcommands)}")
        return text

    return parse


def command_parser(name: str, description: str, epilog: str | None = None) -> CommandParser:
    """A parser with the options that every command has."""
    parser = CommandParser(
        prog=f"forelog {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_common(parser)
    return parser


def add_common(parser: CommandParser) -> None:
    """The options that every command has."""
    parser.add("""
        --json        print results as JSON
        -v --verbose  show what the log does, and tracebacks of errors
    """)


def add_timeout(parser: CommandParser, what: str) -> None:
    """The option of every command that may wait for a lock."""
    parser.add(f"--timeout SECONDS  how long to wait {what} (default: for ever)")
    parser.set_types(timeout=seconds)


def add_mode(parser: CommandParser, what: str = "the new log's files") -> None:
    """The option of every command that creates a log."""
    parser.add(f"--mode MODE  permissions of {what}, as chmod takes it: 640 lets the group read (default: 600)")
    parser.set_defaults(mode=PRIVATE)


def add_client(parser: CommandParser, waits: str = "") -> None:
    """The options of every command that connects to a server. `waits` says more of how long it waits."""
    parser.add(f"""
        --tls              speak TLS, with a server certificate that this system trusts
        --tls-ca FILE      speak TLS, with a server certificate signed by an authority in this file
        --tls-cert FILE    speak TLS, and show this certificate
        --tls-key FILE     its key
        --timeout SECONDS  how long to wait for a reply{waits} (default: 30)
    """)
    parser.set_defaults(timeout=30.0)


def client_tls(chosen: argparse.Namespace) -> ssl.SSLContext | None:
    """A client's side of TLS, by the options of `add_client`; None if it speaks none."""
    if not (chosen.tls or chosen.tls_ca or chosen.tls_cert or chosen.tls_key):
        return None
    from forelog.cli import serving  # asyncio comes along

    return serving.client_tls(chosen.tls_ca, chosen.tls_cert, chosen.tls_key)


def add_header(parser: CommandParser, magic: str, version: str) -> None:
    """The options that say what a log's segments start with."""
    parser.add(f"--magic NUMBER  {magic}\n--version-number NUMBER  {version}")


def add_known_header(parser: CommandParser) -> None:
    """The header options of commands that open an existing log."""
    add_header(
        parser,
        "the magic number of the log's segments, if headers are damaged (default: read from its files)",
        "the version of the log's content, if headers are damaged (default: read from its files)",
    )


def open_log(path: str, chosen: argparse.Namespace) -> Stream:
    """Open an existing log, as its files say, or as the options say."""
    found = Stream.open(path)
    if chosen.magic is None and chosen.version_number is None:
        return found
    if found.format.signature is None:
        raise codes.UsageError(f"{path} is a log in the format {found.format.name}, which has no magic number")
    magic, version = found.format.signature
    return Stream(
        path,
        magic=magic if chosen.magic is None else chosen.magic,
        version=version if chosen.version_number is None else chosen.version_number,
    )


def byte_size(text: str) -> int:
    """A number of bytes: `4096`, `64KiB` or `64k` (of 1024), `10MB` (of 1000)."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a size: expected a number, or one such as 64MiB or 10GB")
    number, unit, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    size = float(number) * base ** _POWERS.get((unit or "").lower(), 0)
    if size > BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: expected at most {BYTES_MAX >> 40}TiB")
    return int(size)


def positive_size(text: str) -> int:
    """A number of bytes that is not zero."""
    size = byte_size(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is zero: expected at least one byte")
    return size


def seconds(text: str) -> float:
    """A number of seconds, zero or more; also `500ms`, `2m`."""
    try:
        value = float(text)
    except ValueError:
        value = parse_or_explain(parse_duration, text) / 1e9
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a time to wait: expected seconds, zero or more")
    return value


def some_seconds(text: str) -> float:
    """A number of seconds that is not zero."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is zero: expected more than zero seconds")
    return value


def count(text: str) -> int:
    """A whole number, zero or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} isn't a count: expected a whole number, zero or more")
    if len(text) > 15 or int(text) > BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: expected at most {BYTES_MAX}")
    return int(text)


def file_mode(text: str) -> int:
    """A file's mode, in octal digits."""
    digits = text.removeprefix("0o")
    try:
        return check_mode(int(digits, 8) if re.fullmatch(r"[0-7]{3,4}", digits, re.ASCII) else -1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} isn't a mode that lets the owner read and write: expected one such as 600 or 640"
        ) from None


def positive_count(text: str) -> int:
    """A whole number, at least one."""
    number = count(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r}: expected at least one")
    return number


def milliseconds(text: str) -> int:
    """A whole number of milliseconds, at least one."""
    number = count(text)
    if not 0 < number < 2**40:
        raise argparse.ArgumentTypeError(f"{text!r}: expected milliseconds, more than 0")
    return number


def u32(text: str) -> int:
    """An unsigned 32 bit number, decimal or 0x...; or four characters, as in `cptn`."""
    try:
        value = int(text, 0)
    except ValueError:
        value = int.from_bytes(text.encode(), "big") if len(text.encode()) == 4 else -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a 32 bit number: expected 0x6370746e, or 4 characters")
    return value


def position(text: str) -> Position:
    """A position such as 000000007:1048576."""
    return parse_or_explain(Position.parse, text)


def time_or_position(text: str) -> Position | int:
    """A position, or a time in nanoseconds."""
    if _POSITION.fullmatch(text.strip()):
        return position(text)
    return parse_or_explain(parse_time, text)


def duration_text(text: str) -> str:
    """A duration such as 24h, checked and returned as text."""
    parse_or_explain(parse_duration, text)
    return text


def key_slice(text: str) -> slice:
    """A part of the payload, START:STOP; either may be left out."""
    start, colon, stop = text.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (start, stop)):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a part of a payload: expected START:STOP, as in 0:16")
    if any(len(part) > 14 for part in (start, stop)):
        raise argparse.ArgumentTypeError(f"{text!r} is past the end of any payload: expected one such as 0:16")
    if stop and int(stop) <= int(start or 0):
        raise argparse.ArgumentTypeError(f"{text!r} is empty: expected START:STOP, as in 0:16")
    return slice(int(start) if start else None, int(stop) if stop else None)


def one_byte(text: str) -> bytes:
    """A single byte: a character, or an escape such as \\t or \\x00."""
    try:
        data = text.encode().decode("unicode_escape").encode("latin-1") if "\\" in text else text.encode()
    except UnicodeError:
        data = b""
    if len(data) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a single byte: expected one such as = or \\t")
    return data


def parse_or_explain(parse: Callable[[str], T], text: str) -> T:
    """Parse a text; errors become those of argparse."""
    try:
        return parse(text)
    except ForelogError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_TYPES: dict[str, Callable[[str], Any]] = {
    "AGE": duration_text,
    "BYTE": one_byte,
    "BYTES": positive_size,
    "MODE": file_mode,
    "MS": milliseconds,
    "N": count,
    "NUMBER": u32,
    "POSITION": position,
    "SECONDS": some_seconds,
    "SIZE": positive_size,
    "START:STOP": key_slice,
    "WHEN": time_or_position,
}
"""How a value is parsed, by its name in the help."""
