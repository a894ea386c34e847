"""A store in memory whose operations fail as told, behind fsspec: `faulty://bank`."""

from __future__ import annotations

from collections.abc import Callable

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

REFUSED, UNHEARD, TORN = "refused", "unheard", "torn"


class Faults:
    """What has been asked of the store, and which of it is to fail."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.fail_at, self.mode, self.count = -1, REFUSED, 0
        self.creates = False
        """Whether it refuses to write a name twice when it is asked to."""
        self.before: Callable[[str, str], None] | None = None
        """Is called before each operation, with what it is and the name."""

    def plan(self, fail_at: int, mode: str, count: int = 1) -> None:
        self.done.clear()
        self.fail_at, self.mode, self.count = fail_at, mode, count

    def names(self, operation: str) -> list[str]:
        return [name for kind, name in self.done if kind == operation]

    def next(self, operation: str, path: str) -> str | None:
        """How the operation that comes now fails; None if it doesn't."""
        if self.before is not None:
            self.before(operation, path.rsplit("/", 1)[-1])
        number = len(self.done)
        self.done.append((operation, path.rsplit("/", 1)[-1]))
        failing = 0 <= self.fail_at <= number < self.fail_at + self.count
        return self.mode if failing else None


faults = Faults()


class FaultyFileSystem(MemoryFileSystem):
    protocol = "faulty"
    store: dict = {}  # noqa: RUF012 - its own, as that of the class it is derived from
    pseudo_dirs: list = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("faulty://"))

    def ls(self, path, detail=True, **options):
        return self._do("ls", path, lambda: MemoryFileSystem.ls(self, path, detail=detail, **options))

    def cat_file(self, path, start=None, end=None, **options):
        return self._do("cat", path, lambda: MemoryFileSystem.cat_file(self, path, start=start, end=end))

    def pipe_file(self, path, value, mode="overwrite", **options):
        mode = mode if faults.creates else "overwrite"
        torn = lambda: MemoryFileSystem.pipe_file(self, path, value[: len(value) // 2])  # noqa: E731
        return self._do("pipe", path, lambda: MemoryFileSystem.pipe_file(self, path, value, mode), torn)

    def rm_file(self, path):
        return self._do("rm", path, lambda: MemoryFileSystem.rm_file(self, path))

    def _do(self, operation, path, act, torn=None):
        mode = faults.next(operation, path)
        if mode is None:
            return act()
        if mode == UNHEARD:
            act()
        elif mode == TORN and torn is not None:
            torn()
        raise TimeoutError(f"the store didn't answer ({operation})")


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


def objects() -> dict[str, bytes]:
    """Everything that the store has, by its last name."""
    return {path.rsplit("/", 1)[-1]: bytes(file.getvalue()) for path, file in FaultyFileSystem.store.items()}


def put(name: str, data: bytes) -> None:
    MemoryFileSystem.pipe_file(FaultyFileSystem(), name, data)


def drop(name: str) -> None:
    for path in [path for path in FaultyFileSystem.store if path.endswith(name)]:
        del FaultyFileSystem.store[path]


def empty() -> None:
    FaultyFileSystem.store.clear()
    faults.clear()
