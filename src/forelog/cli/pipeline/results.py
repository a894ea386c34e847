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
    """What a subcommand has found."""

    page: Report
    values: Iterable[Any] = ()
    """For --json, a line each."""
    lines: Iterable[str] = ()
    code: int = codes.FINE


Subcommand = Callable[["SparkSession", argparse.Namespace], Result]


def results_of(name: str) -> Subcommand:
    """The function that runs a subcommand."""
    found: dict[str, Subcommand] = {
        "verify": verify,
        "jobs": jobs,
        "replay": replay,
        "stats": stats,
        "clean": clean,
        "ingest": ingest,
    }
    return found[name]


def verify(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    value = values.verify(spark, chosen)
    code = codes.FINE if value["ok"] else codes.PROBLEMS
    return Result(pages.verify_page(chosen, value), [value], text.verify_lines(chosen, value), code)


def jobs(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    value = values.jobs(spark, chosen)
    return Result(pages.jobs_page(chosen, value), [value], text.jobs_lines(chosen, value))


def replay(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    rows = values.replay(spark, chosen)
    return Result(pages.replay_page(chosen, rows), map(values.plain, rows), text.replay_lines(chosen, rows))


def stats(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    value = values.stats(spark, chosen)
    return Result(pages.stats_page(chosen, value), [value], text.stats_lines(chosen, value))


def clean(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    value = values.clean(spark, chosen)
    return Result(pages.clean_page(chosen, value), [value], text.clean_lines(chosen, value))


def ingest(spark: SparkSession, chosen: argparse.Namespace) -> Result:
    value, found = table.ingest(spark, chosen)
    return Result(table.page(chosen, value, found), [value], table.lines(chosen, found))
