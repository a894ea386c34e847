"""The command `forelog`, for people and scripts.

    codes.py      exit codes, and which error ends in which
    options.py    options that commands share: sizes, times, positions
    output.py     results on stdout, messages on stderr
    progress.py   the progress of a long command
    draw.py       pictures of numbers in a terminal
    serving.py    what commands that serve share: addresses, TLS, signals
    aside.py      log lines of servers, written by a thread of their own
    log/          append, dump, verify, repair, backup, stats, clean, convert, bench
    pipeline/     subcommands that run on Spark
    jobs/         subcommands that serve jobs, or talk to a job server
    broker/       subcommands that serve MQTT, or talk to a broker
    state/        subcommands that read state logs
    replica.py    a server that keeps copies of state logs
    doctor.py     what forelog runs on, and what is missing

The module of a command has `parser()` and `run(options) -> exit code`. It is imported only when it runs, so help
and errors of usage come at once.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "append": "append records from standard input",
    "dump": "show records, as text, JSON or bytes; follow a log",
    "verify": "check every byte of logs",
    "repair": "show how to repair a damaged log; with --apply, do it",
    "backup": "copy a log while it is in use, and check the copy",
    "stats": "show segments, sizes, and rates over time",
    "clean": "forget records by age, size or key",
    "convert": "write a log's content to a new log in another format",
    "pipeline": "verify, replay, measure, clean and ingest logs on Spark",
    "jobs": "serve, add, run and watch jobs",
    "broker": "serve MQTT from a log; publish, subscribe, watch",
    "replica": "keep copies of state logs",
    "state": "inspect, restore and compare the states in a state log",
    "bench": "measure the log, and the disk below it",
    "doctor": "show what forelog runs on, and what is missing",
}

_HOMES = {
    name: f"log.{name}"
    for name in ("append", "dump", "verify", "repair", "backup", "stats", "clean", "convert", "bench")
}

_EXIT_CODES = """\
exit codes:
  0    fine
  1    problems were found (verify, repair), or a job has failed (jobs run, result), or
       states differ (state diff)
  2    wrong usage
  3    no log there, or an unknown format; no such job or queue
  4    damage stopped the command
  5    another process holds the lock; no job or result came in time
  6    input or output failed: a full disk, input that ends in the middle of a record; a server that can't write
  7    a job server or a broker refused the command
  8    no job server or broker there, or the connection broke
  70   an error that forelog didn't expect: a bug
  130  interrupted
"""


def command(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"forelog.cli.{_HOMES.get(name, name)}")


def help_text() -> str:
    """What `forelog --help` prints."""
    lines = [
        "usage: forelog [-h] [--version] [-v] COMMAND ...",
        "",
        "A write-ahead log: write ahead, replay, forget.",
        "",
        "commands:",
        *(f"  {name:<8} {summary}" for name, summary in COMMANDS.items()),
        "",
        "options:",
        "  -h, --help     show this text; after a command, its options",
        "  --version      show the version",
        "  -v, --verbose  show what the log does, and tracebacks of errors",
        "",
        "Every command takes --json. Results go to stdout, messages and progress to stderr.",
        "",
        _EXIT_CODES,
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return its exit code."""
    _take_any_text()
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except OSError as error:  # results can't be written
        _close_stdout()
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"forelog: the output can't be written: {error.strerror or error}", file=sys.stderr)
        return 6


def _take_any_text() -> None:
    """Escape characters that the terminal or the file can't encode, so that any log can be shown."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _main(words: list[str]) -> int:
    verbose = False
    while words and words[0] in ("-v", "--verbose"):
        verbose = True
        del words[0]
    if not words:
        print(help_text(), end="", file=sys.stderr)
        return 2
    name = words[0]
    if name in ("-h", "--help"):
        print(help_text(), end="")
        return 0
    if name == "--version":
        from forelog import __version__

        print(f"forelog {__version__}")
        return 0
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        print(f"forelog: there is no {kind} {name!r}{_suggestion(name)}: see forelog --help", file=sys.stderr)
        return 2
    return _run(name, words[1:], verbose)


def _join_times_ago(words: list[str]) -> list[str]:
    """Turn `--since -15m` into `--since=-15m`, because argparse takes what starts with a minus for an option."""
    joined: list[str] = []
    for word in words:
        if word[:1] == "-" and word[1:2].isdigit() and joined and joined[-1].startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _run(name: str, words: list[str], verbose: bool) -> int:
    from forelog.cli import codes

    module = command(name)
    try:
        options = module.parser().parse_args(_join_times_ago(words))
    except SystemExit as end:  # argparse has printed why
        return end.code if isinstance(end.code, int) else codes.FINE
    verbose = verbose or options.verbose
    level = logging.DEBUG if verbose else logging.WARNING
    serves = getattr(options, "serves", False)
    if serves:
        level = min(level, logging.INFO)
    elif name in ("verify", "repair", "stats") and not verbose:
        level = logging.CRITICAL  # they report the same findings themselves
    with logging_to_stderr(level, serves=serves):
        try:
            code: int = module.run(options)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # The reader of our output has closed it. Python would complain once more when it exits.
            _close_stdout()
            return codes.FINE
        except KeyboardInterrupt:
            return codes.INTERRUPTED
        except Exception as error:
            code, message = codes.explain(error)
            if verbose or code == codes.UNEXPECTED:
                logging.getLogger("forelog").exception("%s", message)
            else:
                print(f"forelog: {message}", file=sys.stderr)
            return code


def _close_stdout() -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # not a file, as in a test: then nothing is flushed at exit either


@contextmanager
def logging_to_stderr(level: int, *, serves: bool) -> Iterator[None]:
    """Send the log's own messages to stderr. Those of servers, and verbose ones, have a time and a level."""
    logger = logging.getLogger("forelog")
    handler: logging.Handler = logging.StreamHandler()
    layout = logging.Formatter("forelog: %(message)s")
    if level <= logging.INFO:
        from forelog.cli.aside import OneLine

        layout = OneLine("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        layout.converter = time.gmtime
    handler.setFormatter(layout)
    if serves:
        from forelog.cli.aside import Aside

        handler = Aside(handler)
    before, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.setLevel(before)
        logger.propagate = propagate
