"""A result of each subcommand of `forelog pipeline`: values, lines and a page of the same findings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forelog.cli import codes
from forelog.cli.pipeline import ingest as table
from forelog.cli.pipeline import pages, text, values
from forelog.spark.pipeline.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Result:
    """The result of a subcommand."""

    page: Report
    values: Iterable[Any] = ()
    """What --json prints: a line for each."""
    lines: Iterable[str] = ()
    code: int = codes.FINE


_STEPS: dict[str, tuple[Callable[..., Any], Callable[..., Report], Callable[..., list[str]]]] = {
    "verify": (values.verify, pages.verify_page, text.verify_lines),
    "jobs": (values.jobs, pages.jobs_page, text.jobs_lines),
    "replay": (values.replay, pages.replay_page, text.replay_lines),
    "stats": (values.stats, pages.stats_page, text.stats_lines),
    "clean": (values.clean, pages.clean_page, text.clean_lines),
}
"""For each subcommand: what finds its values, and what makes a page and lines of them."""


def result_of(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    """Run a subcommand."""
    if chosen.subcommand == "ingest":
        value, report = table.ingest(spark, chosen)
        return Result(table.page(chosen, value, report), [value], table.lines(chosen, report))
    find, page, lines = _STEPS[chosen.subcommand]
    found = find(spark, chosen)
    if isinstance(found, list):  # rows
        return Result(page(chosen, found), map(values.plain, found), lines(chosen, found))
    code = codes.FINE if found.get("ok", True) else codes.PROBLEMS
    return Result(page(chosen, found), [found], lines(chosen, found), code)
