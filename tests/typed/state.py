"""A program that uses forelog.state. Type checkers must refuse the lines marked `error:`, and no others."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type

from forelog import SyncPolicy
from forelog.state import (
    Enumeration,
    Follower,
    PersistentDict,
    ReplicaServer,
    StateLog,
    restore,
)


def names_that_are_misspelt() -> None:
    from forelog.state import PersistantDict  # error: PersistantDict


def change(event: Any) -> None:
    print(event)


def enumerate_all(log: Enumeration) -> None:
    log.update({})


def empty() -> None:
    pass


def types_are_inferred() -> None:
    prices = PersistentDict("prices", keys=str, values=Decimal)
    assert_type(prices, PersistentDict[str, Decimal])
    assert_type(prices["chips"], Decimal)
    prices[1] = Decimal(1)  # error: Invalid index type "int" | "key"
    prices["chips"] = 1  # error: Incompatible types in assignment | "value"

    assert_type(
        PersistentDict("by place", keys=tuple[int, str], values=list[int]),
        PersistentDict[tuple[int, str], list[int]],
    )
    assert_type(PersistentDict("names", keys=str), PersistentDict[str, Any])
    assert_type(PersistentDict("sizes", values=int), PersistentDict[Any, int])
    assert_type(PersistentDict("anything"), PersistentDict[Any, Any])
    maybe: PersistentDict[str, int | None] = PersistentDict("maybe", keys=str, values=int | None)
    assert_type(maybe["chips"], int | None)
    plain: PersistentDict[str, int] = PersistentDict("plain")
    assert_type(plain["chips"], int)


def paths_are_str_or_path() -> None:
    PersistentDict(Path("prices"))
    log = StateLog(Path("log"), replay=change, enumerate=enumerate_all)
    Follower("replica://localhost/log", Path("copy"), replay=change, reset=empty)
    ReplicaServer(Path("replicas"))
    restore(Path("log"), Path("again"))
    log.add_destination(Path("copy"))


def options_are_checked() -> None:
    log = StateLog("log", replay=change, enumerate=enumerate_all)
    PersistentDict("prices", sync="always", rotate_bytes=1 << 20)
    PersistentDict("prices", sync=SyncPolicy.ALWAYS)
    PersistentDict("prices", keys=str, read_only=True)
    PersistentDict("prices", read_only="yes")  # error: overload | "read_only"
    PersistentDict("prices", sycn="always")  # error: overload
    PersistentDict("prices", sync="alwasy")  # error: overload | "sync"
    PersistentDict("prices", rotate_bytes="1 MiB")  # error: overload | "rotate_bytes"
    StateLog("log", replay=change, enumerate=enumerate_all, sync="interval", sync_interval_ms=10)
    StateLog("log", replay=change, enumerate=enumerate_all, sync="alwasy")  # error: "sync"
    StateLog("log", replay=change, enumerate=enumerate_all, sycn="os")  # error: "sycn"
    log.add_destination("copy", ack="synced", ack_timeout=1.0)
    log.add_destination("copy", ack="snyced")  # error: "ack"
    log.add_destination("copy", akc="synced")  # error: "akc"
    Follower("replica://localhost/log", "copy", replay=change, reset=empty).promote(enumerate_all, sync="always")
    Follower("replica://localhost/log", "copy", replay=change, reset=empty).promote(
        enumerate_all,
        sync="alwasy",  # error: "sync"
    )
