"""Defects that the explorer finds, each with the history and the readers in which it shows.

Take a mending out, and `python -m tests.testing.explore --defects` says which of them are back.
"""

from __future__ import annotations

from typing import NamedTuple

from forelog.testing import Explorer, Report, all_histories


class Defect(NamedTuple):
    """Where a defect shows."""

    history: str
    readers: list[str]
    kinds: set[str]
    """The violations that it makes there, unless it is mended."""
    words: str = ""
    """What these say."""


DEFECTS = {
    "a follower skips a segment that a listing left out": Defect("rolls", ["follower"], {"gap"}),
    "a cursor skips a segment that a listing left out": Defect("rolls", ["cursor", "since", "position"], {"gap"}),
    "a follower by time skips a file that a listing left out": Defect(
        "messages", ["follower", "messages"], {"gap"}
    ),
    "Stream.segments() has a hole, and so has a backup": Defect("rolls", ["segments", "backup"], {"gap"}),
    "a reader has records of a refused batch": Defect(
        "refused batch",
        ["cursor", "scan", "reversed cursor"],
        {"phantom"},
    ),
    "a follower has records of a refused batch, and misses those that got their positions": Defect(
        "refused batch",
        ["follower", "resumed"],
        {"phantom", "twice", "gap"},
    ),
    "a position means two records": Defect("refused batch always", ["follower", "cursor"], {"twice"}),
    "a full disk leaves records for a moment": Defect("full disk", ["follower", "cursor"], {"phantom", "twice"}),
    "a batch is seen in part": Defect("batches", ["cursor", "follower", "backup"], {"part"}),
    "a killed batch is kept in part": Defect("killed in a batch", ["cursor", "follower"], {"part"}),
    "what a failed sync leaves in doubt is seen, and then gone": Defect(
        "failed sync",
        ["cursor", "follower"],
        {"vanished"},
    ),
    "a follower that has seen a torn tail spins": Defect("killed in a record", ["follower"], {"spins"}),
    "a reader spins beside a write that is undone": Defect("refused halfway", ["cursor", "follower"], {"spins"}),
    "a record that is finished between two looks counts as damage": Defect(
        "append always",
        ["cursor", "follower", "verify"],
        {"raised", "wrong"},
    ),
    "a header that is finished between two looks counts as damage": Defect(
        "rolls", ["follower"], {"raised"}, "header bytes"
    ),
    "negative count": Defect(
        "refused batch always", ["position", "resumed", "planner"], {"raised"}, "negative count"
    ),
    "a shipper sends refused records": Defect(
        "refused updates", ["shipper", "shipper that reconnects"], {"phantom"}
    ),
    "a copy has refused records, and lacks acknowledged ones": Defect(
        "refused updates", ["copy"], {"phantom", "gap"}
    ),
    "a query and a stream have refused rows": Defect("refused batch", ["planner", "stream"], {"phantom"}),
    "an ingest has refused rows, and lacks others": Defect("refused batch", ["ingest"], {"phantom", "gap"}),
    "the end of a log lies inside of a batch": Defect("batches", ["end", "segments"], {"part"}),
    "an index that couldn't be written counts as damage": Defect("full disk", ["verify"], {"wrong"}),
}


def explore_defect(name: str) -> Report:
    """Look for a defect."""
    defect = DEFECTS[name]
    history = all_histories()[defect.history]
    return Explorer(history, name=defect.history, readers=defect.readers, limit=120, seed=1).explore()
