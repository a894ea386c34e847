"""Tokens: each gives the right to write or read the copies of the logs that match a pattern.

A file of tokens has one per line::

    # logs     token                                                                what it is for
    bank       5f2b8c1e9d7a4f60                                                     write
    bank       0c9f2a7d41be83e6                                                     read
    sensors-*  sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae   write

`*` matches any characters, and `?` one. A line can have a token's SHA-256 in place of the token, so that the file
doesn't reveal it. `write` is for primaries and promotions, and includes `read`, which is for followers. The
default is `write`. Any other line is an error.

>>> tokens = Tokens.parse("bank s3cret-1\\nbank s3cret-2 read\\nsensors-* s3cret-3 write")
>>> tokens.right("bank", "s3cret-1"), tokens.right("bank", "s3cret-2"), tokens.right("bank", "s3cret-3")
('write', 'read', None)
>>> tokens.right("sensors-7", "s3cret-3"), tokens.right("sensors", "s3cret-3")
('write', None)
>>> Tokens.parse("bank s3cret red")
Traceback (most recent call last):
forelog.errors.BadTokens: the tokens: line 1: 'red' is not a right: expected read or write
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Literal, NamedTuple, Self

from forelog.errors import BadTokens

Right = Literal["read", "write"]
LINES_MAX = 10_000
FILE_BYTES_MAX = 4 << 20
_PATTERN = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9._*?-]{0,127}", re.ASCII)
_HASHED = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]{1,1024}", re.ASCII)


class _Line(NamedTuple):
    names: re.Pattern[str]
    digest: bytes
    right: Right


class Tokens:
    """Tokens and their rights. Without any, everybody may do everything."""

    def __init__(self, lines: list[_Line] | None = None) -> None:
        self._lines = lines

    @classmethod
    def one(cls, token: str | None) -> Self:
        """One token for all logs; None for none."""
        return cls(None if token is None else [_Line(re.compile(".*", re.DOTALL), _digest(token), "write")])

    @classmethod
    def read(cls, path: str) -> Self:
        """The tokens of a file. OSError if it can't be read, BadTokens if a line is wrong."""
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise BadTokens(f"{path} has more than {FILE_BYTES_MAX:,} bytes: is it a file of tokens?")
        try:
            return cls.parse(data.decode(), path)
        except UnicodeDecodeError:
            raise BadTokens(f"{path} is not UTF-8") from None

    @classmethod
    def parse(cls, text: str, source: str = "the tokens") -> Self:
        """Parse a text into tokens. `source` names the text in errors."""
        lines = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                lines.append(_parse(words))
            except ValueError as error:
                raise BadTokens(f"{source}: line {number}: {error}") from None
            if len(lines) > LINES_MAX:
                raise BadTokens(f"{source}: line {number}: there are more than {LINES_MAX:,} tokens")
        if not lines:
            raise BadTokens(f"{source} has no token, so no client could connect: expected lines of PATTERN TOKEN")
        return cls(lines)

    def __bool__(self) -> bool:
        """Whether clients need a token."""
        return self._lines is not None

    def right(self, log: str, token: str) -> Right | None:
        """The right that a token gives to a log; None for none. Wrong tokens take as long as right ones."""
        if self._lines is None:
            return "write"
        digest = _digest(token)
        found: set[Right] = set()
        for line in self._lines:
            if hmac.compare_digest(line.digest, digest) and line.names.fullmatch(log):
                found.add(line.right)
        return "write" if "write" in found else "read" if found else None


def _parse(words: list[str]) -> _Line:
    if len(words) not in (2, 3):
        raise ValueError(f"it has {len(words)} words: expected PATTERN TOKEN, and read or write if that matters")
    pattern, token, right = (*words, "write")[:3]
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(f"{pattern!r:.60} can't match a log: expected letters, digits, dots, dashes, * and ?")
    if right not in ("read", "write"):
        raise ValueError(f"{right!r:.60} is not a right: expected read or write")
    hashed = _HASHED.fullmatch(token)
    if hashed is None and token.lower().startswith("sha256:"):
        raise ValueError("the SHA-256 of a token is sha256: and 64 digits, 0 to 9 and a to f")
    if hashed is None and not _TOKEN.fullmatch(token):
        raise ValueError("a token is 1 to 1024 ASCII characters without spaces")
    names = "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in pattern)
    digest = bytes.fromhex(hashed[1]) if hashed is not None else _digest(token)
    return _Line(re.compile(names), digest, "read" if right == "read" else "write")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
