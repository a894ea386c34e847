"""A program that uses forelog.broker. Type checkers must refuse the lines marked `error:`, and no others."""

from __future__ import annotations

from pathlib import Path

from forelog.broker import (
    Access,
    Broker,
    Limits,
    prometheus_collector,
)


def names_that_are_misspelt() -> None:
    from forelog.broker import Brokr  # error: Brokr


async def options_are_checked() -> None:
    async with Broker(
        Path("log"), sync="always", limits=Limits(clients_max=10), access=Access(users=Path("u"))
    ) as one:
        places: list[tuple[str, int]] = await one.listen("127.0.0.1", 1883, websockets=True, origins=["*"])
        figures: dict[str, float] = one.figures()
        prometheus_collector(one)
        print(places, figures)
    Broker("log", sync="alwasy")  # error: "sync"
    Broker("log", sycn="always")  # error: "sycn"
    Limits(client_max=1)  # error: "client_max"
    Access(anonymous="yes")  # error: "anonymous"
