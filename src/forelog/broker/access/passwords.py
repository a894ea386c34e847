"""The file of users, with hashes of their passwords::

    ann:$scrypt$16384,8,1$SALT$HASH
    # a line that starts so is a comment

Salt and hash are in base64. The numbers are scrypt's n, r and p. `forelog broker passwd FILE NAME` writes a line.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from typing import NamedTuple

from forelog.errors import BadAccessFile
from forelog.files import Files, OSFiles, replace_file
from forelog.files.modes import PRIVATE

ANONYMOUS = "anonymous"
"""The name of clients without a name, in rules."""
_COST = (1 << 14, 8, 1)
"""scrypt's n, r and p. They cost 16 MiB of memory and some 50 ms: much for guessing, little for a login."""
_MEMORY_MAX = 256 << 20
_FILE_BYTES_MAX = 64 << 20
_LINE = re.compile(r"\$scrypt\$(\d{1,9}),(\d{1,4}),(\d{1,4})\$([A-Za-z0-9+/=]{1,200})\$([A-Za-z0-9+/=]{1,200})")


class Password(NamedTuple):
    """A salted hash of a password."""

    cost: tuple[int, int, int]
    salt: bytes
    hash: bytes

    @classmethod
    def of(cls, password: bytes) -> Password:
        """Hash a password with a new salt."""
        salt = secrets.token_bytes(16)
        return cls(_COST, salt, _scrypt(password, _COST, salt, 32))

    @classmethod
    def parse(cls, text: str) -> Password:
        """Parse a hash as the file has it."""
        match = _LINE.fullmatch(text)
        if match is None:
            raise ValueError("expected NAME:$scrypt$N,R,P$SALT$HASH, as forelog broker passwd writes it")
        n, r, p = (int(number) for number in match.groups()[:3])
        if n < 2 or n & (n - 1) or not r or not p or 128 * n * r > _MEMORY_MAX or p > 16:
            raise ValueError(f"scrypt can't be used with {n},{r},{p}: N is a power of two, and 128 * N * R bytes")
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in match.groups()[3:])
        except ValueError:
            raise ValueError("its salt or hash isn't base64") from None
        if not salt or len(digest) < 16:
            raise ValueError("its salt or hash is too short")
        return cls((n, r, p), salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.hash))
        return f"$scrypt${','.join(map(str, self.cost))}${salt}${digest}"

    def is_of(self, password: bytes) -> bool:
        """Whether a password has this hash. Takes some 50 ms by design, during which other threads run."""
        return hmac.compare_digest(_scrypt(password, self.cost, self.salt, len(self.hash)), self.hash)


def _scrypt(password: bytes, cost: tuple[int, int, int], salt: bytes, size: int) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, dklen=size, maxmem=_MEMORY_MAX + (1 << 20))


def read_users(path: str) -> dict[str, Password]:
    """Read the users of a file."""
    return read_users_text(read_text(path), path)


def read_text(path: str) -> str:
    """Read a text file that a person wrote."""
    with open(path, "rb") as file:
        data = file.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise BadAccessFile(f"{path} has more than {_FILE_BYTES_MAX} bytes: is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadAccessFile(f"{path}, line {line}: it isn't text in UTF-8") from None


def read_users_text(text: str, path: str) -> dict[str, Password]:
    """Parse the users of a file's text."""
    users: dict[str, Password] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, rest = line.partition(":")
        try:
            if not colon:
                raise ValueError("expected NAME:$scrypt$...")
            check_name(name)
            if name in users:
                raise ValueError(f"the user {name!r} is listed twice")
            users[name] = Password.parse(rest.strip())
        except ValueError as error:
            raise BadAccessFile(f"{path}, line {number}: {error}") from None
    return users


def check_name(name: str) -> None:
    """Raise ValueError if a text can't be the name of a user."""
    if not name or name != name.strip() or name.startswith("#") or any(c in ":\n\r\0" for c in name):
        raise ValueError(f"{name!r} can't be a user's name: it has a colon, a # at its start, or spaces around it")
    if name == ANONYMOUS:
        raise ValueError(f"{ANONYMOUS!r} stands for clients without a name: choose another one")


def change_password(path: str, name: str, password: bytes | None, *, files: Files | None = None) -> bool:
    """Set a user's password, or remove the user if it is None. Returns whether the user existed.

    Other lines stay as they are. The file is replaced in one step: a broker never reads half of it.
    """
    check_name(name)
    try:
        text = read_text(path)
    except FileNotFoundError:
        text = ""
    known = name in read_users_text(text, path)
    lines = [line for line in text.splitlines() if line.partition(":")[0] != name or line.startswith("#")]
    if password is not None:
        lines.append(f"{name}:{Password.of(password)}")
    text = "".join(f"{line}\n" for line in lines)
    replace_file(files or OSFiles(), path, text.encode(), _mode_of(path))
    return known


def _mode_of(path: str) -> int:
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return PRIVATE
