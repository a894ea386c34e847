"""`forelog pipeline` before Spark is started: what it refuses, and how it shows what Spark does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from forelog.broker import MessageLogWriter
from forelog.cli.pipeline import session
from forelog.cli.pipeline.parser import SUBCOMMANDS, parser
from forelog.cli.progress import Progress

from .conftest import Run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["verfy", "LOG"], "there is no 'verfy': choose from verify, jobs, replay, stats, clean, ingest"),
        (["verify", "LOG", "--as-of", "2026-11-15"], "--as-of is not for pipeline verify, only for replay"),
        (["jobs", "LOG", "table"], "a TARGET is not for pipeline jobs, only for ingest"),
        (["jobs", "LOG", "--since", "yesterday"], "'yesterday' isn't a time"),
        (["clean", "LOG"], "clean takes a --rule"),
        (["clean", "LOG", "--rule", "superseded"], "goes with --latest-key or --latest-until"),
        (["clean", "LOG", "--rule", "expired-jobs", "--latest-until", "="], "and no other rule does"),
        (["clean", "LOG", "--rule", "expired-jobs", "--finished-for", "1h"], "goes with --rule finished-jobs"),
        (["replay", "LOG", "--latest-until", "=", "--fails-are-final"], "--fails-are-final is for jobs"),
        (["ingest", "LOG"], "pipeline ingest needs a TARGET"),
        (["ingest", "LOG", "table", "--every", "10s"], "--every is how often to look with --follow"),
        (["ingest", "LOG", "table", "--table-name", "a.b"], "--table-name go with --table iceberg"),
        (
            ["ingest", "LOG", "t", "--codec", "datapoints", "--partition-by", "id"],
            "which is binary: folders can't",
        ),
        (["ingest", "LOG", "t", "--partition-by", "payload"], "Choose from date\n"),
        (["ingest", "LOG", "table", "--codec", "x"], "there is no codec 'x': expected one of commands"),
    ],
)
def test_wrong_options_are_told_before_spark_is_started(run: Run, log: Path, words: list[str], told: str) -> None:
    result = run("pipeline", *(str(log) if word == "LOG" else word for word in words))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert told in result.err


@pytest.mark.parametrize(
    "words", [("stats",), ("jobs",), ("ingest", "table"), ("ingest", "table", "--codec", "commands")]
)
def test_a_brokers_log_without_its_codec_is_told_before_spark_is_started(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with MessageLogWriter(tmp_path / "messages") as log:
        log.write("topic", b"x")
    result = run("pipeline", words[0], tmp_path / "messages", *words[1:])
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "is a log in the format messages: read it with the codec messages" in result.err


def test_the_codec_of_messages_for_another_log_is_told_before_spark_is_started(run: Run, log: Path) -> None:
    result = run("pipeline", "ingest", log, "table", "--codec", "messages")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "is a log in the format captain: read it with the codec records" in result.err


def test_a_path_without_a_log_is_told_before_spark_is_started(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no log")
    (tmp_path / "folder").mkdir()
    refused: list[tuple[list[str | Path], str]] = [
        (["nowhere"], "nowhere: an appender would create it"),
        ([tmp_path / "file"], "is a file: a log is a directory"),
        ([tmp_path / "nowhere", "--recursive"], "there is no folder"),
        ([tmp_path / "folder", "--recursive"], "there is no log in"),
    ]
    for words, told in refused:
        result = run("pipeline", "verify", *words)
        assert (result.code, result.out, result.err.count("\n")) == (3, "", 1)
        assert told in result.err


def test_help_does_not_import_spark() -> None:
    code = "import sys; from forelog.cli import main; main(['pipeline', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = done.stdout.rpartition("\n\n")[2].split()
    assert "forelog.cli.pipeline" in loaded
    assert not {"pyspark", "pyarrow", "forelog.spark"} & set(loaded)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_a_subcommand_shows_its_own_options_alone(run: Run, name: str) -> None:
    result = run("pipeline", name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"usage: forelog pipeline {name} [-h]")
    shown = {option for option in parser()._option_string_actions if f"  {option} " in result.out}
    assert ("--rule" in shown) == (name == "clean")
    assert ("--follow" in shown) == ("TARGET" in result.out) == (name == "ingest")
    assert ("--latest-key" in shown) == (name in ("replay", "clean"))
    assert {"--recursive", "--master", "--report", "--json"} <= shown


class Tracker:
    """Spark's, with a stage that has done two of five tasks, and one that is gone when it is looked at."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.asked.set()
        return [1, 2]

    def getStageInfo(self, number: int) -> SimpleNamespace | None:  # noqa: N802
        return SimpleNamespace(numTasks=5, numCompletedTasks=2) if number == 1 else None


def test_tasks_are_counted_over_the_stages_that_run() -> None:
    assert session.tasks_of(Tracker()) == (2, 5)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(session, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    shown: list[tuple[int, int]] = []

    class Shown(Progress):
        def __call__(self, done: int, total: int) -> None:
            shown.append((done, total))

    monkeypatch.setattr(session, "Progress", Shown)
    tracker = Tracker()
    context = SimpleNamespace(statusTracker=lambda: tracker)
    with session.Watch(SimpleNamespace(sparkContext=context), "verify x"):  # type: ignore[arg-type]
        assert tracker.asked.wait(5 if terminal else 0.05) == terminal
    assert set(shown) <= {(2, 5)}
    assert bool(shown) == terminal


def test_why_java_did_not_start_is_told_in_a_line() -> None:
    said = (
        'Exception in thread "main" org.apache.spark.SparkException: Master must be something else\n'
        "\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)\n"
    )
    error = session.not_started(said, RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway exited."))
    assert str(error) == "Spark doesn't start: Master must be something else"
    error = session.not_started("", RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway exited."))
    assert str(error) == "Spark failed: Java gateway exited."
