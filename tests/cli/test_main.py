"""The command as a whole: help, errors, exit codes, start-up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forelog
from forelog import Stream, cli
from forelog.cli import COMMANDS, main

from .conftest import Run, Start, damage


def test_help_names_every_command_and_exit_code(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    assert all(f"\n  {name} " in result.out for name in COMMANDS)
    assert all(f"\n  {code} " in result.out for code in (0, 1, 2, 3, 4, 5, 6, 70, 130))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"usage: forelog {name} ")
    assert "--json" in result.out


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"forelog {forelog.__version__}\n", "")


def test_nothing_is_wrong_usage_and_shows_help(run: Run) -> None:
    result = run()
    assert (result.code, result.out) == (2, "")
    assert "commands:" in result.err


def test_a_mistyped_command_is_wrong_usage_with_a_suggestion(run: Run) -> None:
    result = run("verfy", "x")
    assert result == (2, "", "forelog: there is no command 'verfy' (did you mean verify?): see forelog --help\n")


def test_an_unknown_option_is_wrong_usage(run: Run, log: Path) -> None:
    expected = "forelog: unrecognized arguments: --frobnicate: try forelog dump --help\n"
    assert run("dump", log, "--frobnicate") == (2, "", expected)


def test_a_wrong_value_is_told_in_one_line_without_the_usage(run: Run, log: Path) -> None:
    result = run("dump", log, "--limit", "many")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("forelog: argument --limit: 'many' isn't a count")


@pytest.mark.parametrize(
    "words", [["dump"], ["verify"], ["repair"], ["stats"], ["clean", "--latest-until", "="]], ids=lambda w: w[0]
)
def test_a_log_whose_headers_mislead_is_read_with_its_magic_number_by_hand(
    run: Run, tmp_path: Path, words: list[str]
) -> None:
    with Stream(tmp_path, magic=0x6F726473, version=7).appender() as log:
        for payload in (b"one", b"two", b"three"):
            log.append(payload)
            log.roll()
    for number in (1, 2, 3):
        with open(tmp_path / f"{number:09d}.log", "r+b") as file:
            file.write(b"?")
    command, *rest = words
    right = run(command, tmp_path, *rest, "--magic", "ords", "--version-number", "7", "--json")
    damage = "magic 0x3f726473, expected 0x6f726473"
    told = damage in right.out + right.err or '"defects": 3' in right.out
    assert told, "what is damaged is the three headers, not the one that is right"
    assert damage not in run(command, tmp_path, *rest, "--json").out


def test_a_log_without_magic_numbers_takes_none(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        name = "plain"
        signature = None

    stream = Stream(tmp_path)
    stream.format = Plain()  # type: ignore[assignment]
    monkeypatch.setattr(Stream, "open", lambda _: stream)
    result = run("verify", tmp_path, "--magic", "ords")
    assert result.code == 2
    assert "in the format plain, which has no magic number" in result.err


@pytest.mark.parametrize("command", ["dump", "verify", "repair", "stats"])
def test_no_log_there_is_code_3_and_nothing_is_created(run: Run, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nowhere")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(f"forelog: there is no log at {tmp_path}/nowhere")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_no_log(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for command in ("dump", "append"):
        result = run(command, tmp_path / "file")
        assert result.code == 3
        assert "is a file" in result.err


def test_damage_is_code_4_with_the_place(run: Run, log: Path) -> None:
    damage(log / "000000002.log")
    result = run("dump", log)
    assert result.code == 4
    assert "000000002:8" in result.err
    assert result.err.count("\n") == 1


def test_a_held_lock_is_code_5(run: Run, log: Path) -> None:
    with Stream.open(log).appender():
        result = run("append", log, "--timeout", "0", stdin=b"x\n")
    assert result.code == 5
    assert "append.lock is locked" in result.err


def test_a_file_that_may_not_grow_is_code_6_and_tells_what_was_appended(tmp_path: Path, start: Start) -> None:
    import resource

    process = start(
        "append",
        tmp_path / "log",
        stdin=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    out, err = process.communicate(b"x" * 200 + b"\n" + b"y" * 120_000 + b"\n")
    assert process.returncode == 6
    assert b"File too large" in err
    assert out == b""
    with Stream.open(tmp_path / "log").cursor() as cursor:
        assert len(list(cursor)) <= 1


def test_verbose_shows_the_traceback(run: Run, tmp_path: Path) -> None:
    for words in (("-v", "dump", tmp_path / "nowhere"), ("dump", tmp_path / "nowhere", "-v")):
        result = run(*words)
        assert result.code == 3
        assert "Traceback" in result.err
    assert "Traceback" not in run("dump", tmp_path / "nowhere").err


def test_verbose_shows_what_the_log_does(run: Run, log: Path) -> None:
    with (log / "000000003.log").open("ab") as file:
        file.write(b"torn")
    assert "torn tail" in run("dump", log, "-v").err


def test_a_mended_tail_is_told_without_being_asked(run: Run, log: Path) -> None:
    with (log / "000000003.log").open("ab") as file:
        file.write(b"torn")
    result = run("append", log, stdin=b"x\n")
    assert result.code == 0
    assert result.err.startswith("forelog: ")
    assert "cut a torn tail of 4 bytes" in result.err


def test_a_bug_is_no_documented_outcome(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Stream, "bounds", explode)
    result = run("dump", log)
    assert result.code == 70
    assert "Traceback" in result.err


def test_who_reads_only_the_start_is_not_complained_to(tmp_path: Path, start: Start) -> None:
    with Stream(tmp_path / "log").appender() as appender:
        appender.append_many([b"x" * 100] * 20_000)
    process = start("dump", tmp_path / "log")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"000000001:8\t")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_python_m_forelog_is_the_command(start: Start) -> None:
    out, _ = start("--version").communicate()
    assert out == f"forelog {forelog.__version__}\n".encode()


def test_logging_is_left_as_it_was(log: Path) -> None:
    import logging

    logger = logging.getLogger("forelog")
    before = (list(logger.handlers), logger.level, logger.propagate)
    main(["stats", str(log)])
    assert (list(logger.handlers), logger.level, logger.propagate) == before


# -- start-up


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from forelog.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stderr.split()
    assert "forelog.cli" in loaded
    assert not {"pyarrow", "rich", "asyncio", "argparse", "json", "prometheus_client"} & set(loaded)
    assert not [name for name in loaded if name.startswith("forelog.cli.")]


def test_a_command_loads_only_itself(log: Path) -> None:
    code = f"import sys; from forelog.cli import main; main(['verify', {str(log)!r}]); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.split()
    commands = {cli.command(name).__name__ for name in COMMANDS}
    assert commands & set(loaded) == {"forelog.cli.log.verify"}
    assert not {"pyarrow", "rich", "asyncio"} & set(loaded)


def test_help_comes_within_six_times_the_start_of_python(tmp_path: Path) -> None:
    # With compiled modules kept, as an installed package has them, whatever this test's own environment says.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    # In turns, and the fastest of each: what else the machine does slows both down.
    pairs = [(seconds("pass"), seconds("from forelog.cli import main; main(['--help'])")) for _ in range(15)]
    assert min(helped for _, helped in pairs) < 6 * min(bare for bare, _ in pairs)


@pytest.mark.parametrize("words", [["--help"], ["dump", "LOG"], ["stats", "LOG"]])
def test_output_that_cannot_be_written_is_told_in_a_line(tmp_path: Path, words: list[str]) -> None:
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"x")
    command = [sys.executable, "-m", "forelog", *(str(tmp_path / "log") if one == "LOG" else one for one in words)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (6, 1)
    assert "No space left on device" in done.stderr


def test_output_that_is_closed_or_knows_few_letters_does_no_harm(tmp_path: Path) -> None:
    with Stream(tmp_path / "log").appender() as log:
        log.append("ü".encode())
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for command in ("dump", "stats"):
        words = [sys.executable, "-m", "forelog", command, str(tmp_path / "log")]
        done = subprocess.run(words, env=ascii_only, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        shell = f'"{sys.executable}" -m forelog {command} "{tmp_path}/log" >&-'
        assert subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE).stderr == b""


def test_options_may_stand_between_arguments(run: Run, tmp_path: Path) -> None:
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"one")
    (tmp_path / "text").write_text("two\n")
    result = run("append", "--json", str(tmp_path / "log"), "--sync", "os", stdin=b"two\n")
    assert result.code == 0
    assert run("jobs", "add", "mail", "--priority", "5", "to: you", "--server", "127.0.0.1:1").code == 8


def test_an_empty_path_is_no_log_and_nothing_is_made(run: Run) -> None:
    before = set(os.listdir("/"))
    assert run("append", "", stdin=b"x\n").code == 2
    assert run("dump", "").code != 0
    with pytest.raises(ValueError, match="a log's path is empty"):
        Stream("")
    assert set(os.listdir("/")) == before


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("broker", ["append", "{}"]),
        ("broker", ["jobs", "serve", "--listen", "127.0.0.1:0", "--cmdlog-path", "{}"]),
        ("broker", ["replica", "serve", "--listen", "127.0.0.1:0", "--dir", "{}"]),
        ("state", ["append", "{}"]),
        ("state", ["jobs", "serve", "--listen", "127.0.0.1:0", "--cmdlog-path", "{}"]),
        ("state", ["broker", "serve", "--listen", "127.0.0.1:0", "--log", "{}"]),
        ("state", ["replica", "serve", "--listen", "127.0.0.1:0", "--dir", "{}"]),
        ("jobs", ["append", "{}"]),
        ("jobs", ["broker", "serve", "--listen", "127.0.0.1:0", "--log", "{}"]),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, list) else words,
)
def test_no_command_begins_a_log_in_a_place_of_another(
    run: Run, tmp_path: Path, place: str, words: list[str]
) -> None:
    pytest.importorskip("msgspec")
    from ..log.directory import test_tenants

    here = tmp_path / "here"
    getattr(test_tenants, place)(here)
    before = test_tenants.contents(here)
    result = run(*(word.format(here) for word in words), stdin=b"line\n")
    assert result.code in (2, 3, 4)
    assert result.err.count("\n") == 1
    what = {"broker": "a broker's directory", "state": "a state log", "jobs": "the command log of a job server"}
    assert what[place] in result.err
    assert test_tenants.contents(here) == before
