"""The demo, stage by stage: `make demo`, or `python -m examples.demo --seconds 5 --folder somewhere`."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo.clients import QUEUES, WORKERS, Clients
from examples.demo.factory import Factory
from examples.demo.ledger import POINTS, STATE, Ledger
from examples.demo.proof import Held, prove
from examples.demo.screen import Screen, Watch
from examples.demo.writers import ITEMS, MACHINES
from forelog.errors import MissingExtra

if TYPE_CHECKING:
    from examples.demo.analysis import Starting

STAGES = {"all well": 0.3, "subscriber away": 0.2, "down": 0.05, "up again": 0.2, "all back": 0.25}
"""What happens to the factory, and for which share of the time."""
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="forelog, all of it, end to end")
    parser.add_argument("--seconds", type=float, default=16.0, help="how long the factory works (16)")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where everything goes; emptied first")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(format="   forelog says: %(message)s", level=logging.ERROR, stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells of an interruption at length
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    screen = Screen()
    start = time.monotonic()
    try:
        code = run(screen, chosen.folder.absolute(), chosen.seconds)
    except KeyboardInterrupt:
        screen.say("every process that was started has ended")
        return INTERRUPTED
    screen.say(f"[dim]all of it took {time.monotonic() - start:.0f} seconds[/]")
    return code


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def run(screen: Screen, folder: Path, seconds: float) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    ledger = Ledger()
    missing = lacks_for_spark()
    with ExitStack() as stack:
        starting = None if missing else stack.enter_context(_start_spark())
        factory = stack.enter_context(
            Factory(
                logs,
                stock_changed=lambda key: ledger.note(STATE, key),
                metered=lambda key: ledger.note_all(POINTS, [f"{key} {name}" for name in MACHINES]),
            )
        )
        try:
            start(screen, factory)
            clients = Clients(ledger, factory.broker.address, factory.jobs.address)
            stack.callback(clients.close)
            work(screen, factory, clients, ledger, seconds)
            held = check(screen, factory, clients, ledger, logs)
            factory.end()
            if any(one.lost for one in held):
                return 1
            if starting is None:
                screen.heading("4  Tables and plots need Spark", "and are left out")
                screen.say(missing.replace("[", r"\["))
            else:
                from examples.demo.analysis import analyze

                analyze(screen, folder, starting, ledger, held, clients.subscriber)
        except KeyboardInterrupt:
            screen.say("\n   interrupted: ending what was started; Spark takes a moment if it is just starting")
            raise
    finish(screen, folder, spark=not missing)
    return 0


def _start_spark() -> Starting:
    from examples.demo.analysis import Starting

    return Starting()


def lacks_for_spark() -> str:
    """What is missing to start Spark, and how to get it; nothing if nothing is."""
    try:
        if importlib.util.find_spec("pyspark") is None:
            raise MissingExtra.needed("pyspark", by="the demo", extra="spark")
        from forelog.spark.java import java_home

        java_home()
    except (MissingExtra, ValueError) as error:
        return str(error)
    return ""


def start(screen: Screen, factory: Factory) -> None:
    screen.heading("1  A factory", "four processes, each with a log of its own")
    with screen.busy("four processes started"):
        factory.start()
    for child, what in (
        (factory.broker, "MQTT: what the machines tell"),
        (factory.jobs, "jobs: what the office wants done"),
        (factory.stock, "a dict that survives: what is in store"),
        (factory.meters, "datapoints in M3's format: what the machines draw"),
    ):
        where = child.address if ":" in child.address else Path(child.address).name
        screen.say(f"  {child.name:<11} pid {child.pid:<8} {where:<16} {what}")


def work(screen: Screen, factory: Factory, clients: Clients, ledger: Ledger, seconds: float) -> None:
    screen.heading(
        "2  At work",
        f"{len(MACHINES)} machines, {len(QUEUES)} queues of jobs, {WORKERS} workers, {len(ITEMS)} items in store",
    )
    with Watch(screen, ledger, seconds) as watch:
        clients.start()
        watch.say("the clients are connected, one of them subscribed to all that is published")
        watch.go_on(STAGES["all well"])
        clients.subscriber.leave()
        clients.subscriber.away.append(time.time())
        watch.say("the subscriber goes away; the broker keeps its messages")
        watch.go_on(STAGES["subscriber away"])
        factory.kill()
        ledger.killed_ns = time.time_ns()
        watch.say("[bold red]kill -9[/] of all four processes")
        watch.go_on(STAGES["down"])
        begun = time.monotonic()
        factory.start()
        watch.say(f"started again, on the same logs: they serve after {time.monotonic() - begun:.1f} s")
        watch.go_on(STAGES["up again"])
        clients.subscriber.away.append(time.time())
        clients.subscriber.come()
        watch.say("the subscriber is back")
        watch.go_on(STAGES["all back"])
    with screen.busy("what was under way is finished"):
        clients.finish()
        factory.stock.end()
        factory.meters.end()


def check(screen: Screen, factory: Factory, clients: Clients, ledger: Ledger, logs: Path) -> list[Held]:
    screen.heading("3  Is it all there?", "what clients were told is done, and what is found of it")
    held = prove(ledger, logs, factory.jobs.address, clients.subscriber.received)
    rows = [
        (one.what, one.where, one.before_the_kill, one.acknowledged, one.found, _lost(one.lost)) for one in held
    ]
    screen.table(["what", "looked for in", ">before kill", ">acknowledged", ">found", ">lost"], rows)
    again = sum(count - 1 for count in clients.subscriber.received.values())
    lost = sum(one.lost for one in held)
    screen.say(
        "[bold green]Nothing that was acknowledged is lost.[/]"
        if not lost
        else f"[bold red]{lost:,} acknowledged things are lost.[/] That must never be: please report it."
    )
    if again:
        screen.say(f"[dim]{again:,} messages came to the subscriber more than once, as QoS 1 allows[/]")
    return held


def _lost(count: int) -> str:
    return f"[{'red' if count else 'green'}]{count:,}[/]"


def finish(screen: Screen, folder: Path, *, spark: bool) -> None:
    place = Path(os.path.relpath(folder))
    screen.heading("That was it", "everything is in files, and all processes have ended")
    places = {"logs/": "the four logs"}
    if spark:
        places = {
            "report.html": "[bold]look at this one[/], in any browser",
            "results/": "its tables as Parquet; results/delta has them as Delta",
            "tables/": "the logs as Delta tables; another ingest goes on where this one ended",
            "restored/": "the stock as of the kill, a state log of its own",
            **places,
        }
    width = len(str(place)) + 14
    for name, what in places.items():
        screen.say(f"  {f'{place}/{name}':<{width}} {what}")
    screen.say("\n   What to try next, after [bold]. .venv/bin/activate[/]:")
    tries = {
        f"forelog dump --limit 5 {place}/logs/broker/messages": "what machines told",
        f"forelog verify {place}/logs/jobs": "every checksum",
        f"forelog state inspect {place}/logs/stock": "without its program",
        f"forelog jobs serve -cmdlog-path {place}/logs/jobs": "where it left off",
        f"forelog broker serve --log {place}/logs/broker": "the same; and then:",
        "forelog broker sub 'factory/#' --since -1h": "the past hour again",
        "python -m examples.recovery": "a torn log, repaired",
    }
    if spark:
        tries[f"forelog pipeline jobs {place}/logs/jobs"] = "the life of each job"
    width = max(map(len, tries)) + 2
    for command, why in tries.items():
        screen.say(f"  {command:<{width}} [dim]{why}[/]")
    screen.say("The README goes on from here.")


if __name__ == "__main__":
    sys.exit(main())
