"""`forelog repair`: show how to repair a log, and do it on request."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from forelog.cli import codes, options
from forelog.cli.output import plural, print_json, say
from forelog.cli.progress import Progress
from forelog.log.repair import Repair, apply_repairs, plan_repair


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "repair",
        "Show how to repair a damaged log; with --apply, do it. Bytes that are cut or left out are kept in\n"
        "NAME.torn and NAME.broken beside the segments. Positions stay valid. Exit code 1 if there is damage\n"
        "that was not repaired.",
    )
    parser.add_argument("log", metavar="LOG", help="the log's directory")
    parser.add_argument("--apply", action="store_true", help="do it; waits until the log isn't in use")
    options.add_known_header(parser)
    options.add_timeout(parser, "until nobody uses the log")
    return parser


def run(chosen: argparse.Namespace) -> int:
    stream = options.open_log(chosen.log, chosen)
    with Progress(f"checking {chosen.log}") as progress:
        work = apply_repairs if chosen.apply else plan_repair
        repairs = work(stream, progress=progress, timeout=chosen.timeout)
    left = [repair for repair in repairs if repair.damage and not (chosen.apply and repair.possible)]
    if chosen.json:
        listed = [{**asdict(repair), "possible": repair.possible} for repair in repairs]
        print_json({"path": chosen.log, "applied": chosen.apply, "repairs": listed})
    else:
        _print(chosen, repairs)
    return codes.PROBLEMS if left else codes.FINE


def _print(chosen: argparse.Namespace, repairs: list[Repair]) -> None:
    if not repairs:
        print(f"{chosen.log}: nothing to repair")
        return
    possible = sum(repair.possible for repair in repairs)
    print(f"{chosen.log}: {plural(possible, 'repair')} {'done' if chosen.apply else 'to do'}")
    for repair in repairs:
        done = "did" if chosen.apply and repair.possible else "do"
        print(f"  {repair.path}")
        print(f"    wrong: {repair.problem}")
        print(f"    {done if repair.possible else 'not repaired'}: {repair.action}")
        if repair.copies:
            print(f"    kept: {', '.join(repair.copies)}")
    if possible and not chosen.apply:
        say(f"nothing was changed: `forelog repair {chosen.log} --apply` does it")
