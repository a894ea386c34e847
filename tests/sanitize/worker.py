"""The search in one target, in a process of its own: a sanitizer ends the process that it finds something in.

The input that it is trying lies in a file that it shares with the process that started it. What it finds it
prints, as lines of JSON.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import mmap
import struct
import time
from pathlib import Path
from typing import Any

from tests.sanitize.reached import REACHED  # first, see there
from tests.sanitize.search import LARGE_BYTES, Search
from tests.sanitize.target import load_targets

NOTE = struct.Struct("=QQ")  # how many inputs were tried, and the size of the one that follows
NOTE_BYTES = NOTE.size + LARGE_BYTES
_LARGE_SHARE = 0.15  # of the time, for large inputs


def say(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


def search(name: str, seconds: float, seed: int, folder: Path) -> None:
    target = load_targets()[name]
    assert REACHED is not None, "it runs with what build.py makes"
    REACHED.trace("/forelog/" if target.traced else "")
    work = Search(target, seed, REACHED)
    with open(folder / "trying", "r+b") as file:
        note = mmap.mmap(file.fileno(), NOTE_BYTES)

    def before(data: bytes) -> None:
        NOTE.pack_into(note, 0, work.executions, len(data))
        note[NOTE.size : NOTE.size + len(data)] = data

    work.before = before
    until = time.monotonic() + seconds
    kept_in = folder / "corpus" / name
    kept_in.mkdir(parents=True, exist_ok=True)
    work.begin([path.read_bytes() for path in sorted(kept_in.iterdir())])
    seeds = len(work.corpus)
    while time.monotonic() < until - _LARGE_SHARE * seconds:
        for _ in range(20):
            work.step()
    for number, data in enumerate(work.corpus[seeds:]):
        (kept_in / f"{number:06d}").write_bytes(data)
    work.grow(until - time.monotonic())
    for broken in work.broken.values():
        say("broken", data=broken.data.hex(), what=broken.what, name=broken.name)
    say("done", executions=work.executions, edges=REACHED.edges(), corpus=len(work.corpus))


def again(name: str, path: Path) -> int:
    """Run one input; its errors are those of the target."""
    target = load_targets()[name]
    data = path.read_bytes()
    try:
        target.run(data)
    except target.refusals as error:
        print(f"refused: {type(error).__name__}: {error}")
    began = time.thread_time()
    if target.timed is not None:
        try:
            target.timed(data)
        except target.refusals:
            pass
    print(f"{name} takes {len(data):,} bytes, in {time.thread_time() - began:.2f} s of the processor")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--input", type=Path)
    options = parser.parse_args()
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    if options.input is not None:
        return again(options.target, options.input)
    search(options.target, options.seconds, options.seed, options.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
