"""A program that uses forelog.broker. The type checker must refuse the lines marked `error:`, and no others."""

from __future__ import annotations

from pathlib import Path

from forelog.broker import (
    Access,
    Broker,
    Limits,
    prometheus_collector,
)


async def options_are_checked() -> None:
    async with Broker(
        Path("log"), sync="always", limits=Limits(clients_max=10), access=Access(users=Path("u"))
    ) as one:
        places: list[tuple[str, int]] = await one.listen("127.0.0.1", 1883, websockets=True, origins=["*"])
        figures: dict[str, float] = one.figures()
        prometheus_collector(one)
        print(places, figures)
    Broker("log", sync="alwasy")  # error: Argument "sync" to "Broker" has incompatible type
    Broker("log", sycn="always")  # error: Unexpected keyword argument "sycn" for "Broker"
    Limits(client_max=1)  # error: Unexpected keyword argument "client_max" for "Limits"
    Access(anonymous="yes")  # error: Argument "anonymous" to "Access" has incompatible type
