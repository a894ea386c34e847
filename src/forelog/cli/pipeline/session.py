"""Spark for `forelog pipeline`: a session, its errors in one line, and its progress in a terminal."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from forelog.cli import codes
from forelog.cli.output import say
from forelog.cli.progress import Progress
from forelog.errors import ForelogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2


def session_of(master: str | None, verbose: bool) -> tuple[SparkSession, bool]:
    """A session, and whether it is ours to stop."""
    from forelog.spark import session

    start = partial(session) if master is None else partial(session, master)
    try:
        from pyspark.sql import SparkSession

        if SparkSession.getActiveSession() is not None:
            return start(), False
    except ImportError:
        pass  # session() says what to install
    if verbose:
        return start(), True
    if sys.stderr.isatty():
        say("starting Spark")
    with tempfile.TemporaryFile() as said:
        try:
            with _stderr_to(said.fileno()):
                spark = start()
        except ForelogError:
            raise
        except Exception as error:
            said.seek(0)
            raise not_started(said.read().decode(errors="replace"), error) from error
    # Errors are reported in one line here, not at length there.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return spark, True


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    """Redirect stderr; processes started meanwhile keep writing to the new place."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def not_started(said: str, error: Exception) -> Exception:
    """Why Spark doesn't start, from what Java printed."""
    from forelog.errors import SparkFailure
    from forelog.spark.pipeline.failures import find_failure

    reasons = re.findall(r"^(?:Exception in thread \S+ |Error: |Caused by: )(.+)$", said, re.MULTILINE)
    if not reasons:
        return find_failure(error)
    told = re.sub(r"^[\w.$]+(?:Exception|Error): ", "", reasons[0])
    return SparkFailure(f"Spark doesn't start: {told}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise the error behind one of Spark's: a line instead of a page of Java."""
    try:
        yield
    except Exception as error:
        from forelog.errors import BadOption

        found: Exception = error
        if _is_sparks(error):
            from forelog.spark.pipeline.failures import find_failure

            found = find_failure(error)
        if isinstance(found, BadOption):
            raise codes.UsageError(str(found)) from error
        if isinstance(found, ForelogError) and found is not error:
            raise found from error
        raise


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


class Watch:
    """Shows Spark's progress in a terminal: tasks done in the stages that run."""

    def __init__(self, spark: SparkSession, label: str) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker() if sys.stderr.isatty() else None
        self._label = label
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        if self._tracker is not None:
            self._thread = threading.Thread(target=self._poll, name="forelog-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _poll(self) -> None:
        with Progress(self._label, unit="tasks") as progress:
            while not self._stop.wait(POLL_SECONDS):
                try:
                    done, total = tasks_of(self._tracker)
                except Exception:  # Spark has stopped; the caller that waits for a result gets the error
                    return
                if total:
                    progress(done, total)


def tasks_of(tracker: Any) -> tuple[int, int]:
    """Tasks done in the stages that run, and all their tasks."""
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
