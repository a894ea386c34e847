"""`forelog jobs`: every subcommand against a real server, exit codes, and that docs/cli.md has all of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from forelog.cli import codes, jobs
from forelog.cli.jobs import top as jobs_top
from forelog.jobs import Client, LocalServer, QueueInfo, ServerInfo
from tests.children import child

from ..jobs.conftest import Served, serve, server  # noqa: F401
from .conftest import Result, Run, Start
from .test_docs import section

COMMON = {"-h", "--help", "--json", "-v", "--verbose"}


class Jobs:
    """The command, told where the server is."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, *words: object, stdin: bytes = b"") -> Result:
        return self._run("jobs", *words, stdin=stdin)

    def id_of(self, *words: object, stdin: bytes = b"") -> str:
        result = self(*words, stdin=stdin)
        assert (result.code, result.err) == (0, "")
        return result.out.rstrip("\n")


@pytest.fixture
def command(run: Run, server: Served, monkeypatch: pytest.MonkeyPatch) -> Jobs:  # noqa: F811
    monkeypatch.setenv("WORKQ_SERVER", server.address)
    return Jobs(run)


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex}"


@pytest.fixture
def client(server: Served) -> Iterator[Client]:  # noqa: F811
    with Client(server.address) as client:
        yield client


# -- subcommands


def test_a_job_is_added_leased_completed_and_its_result_printed(command: Jobs, queue: str) -> None:
    job = command.id_of("add", queue, "to: you\n", "--ttr", "30s", "--ttl", "1h", "--max-attempts", "3")
    assert command("lease", "other", queue).out == f"{job}\t{queue}\t30000\tto: you\\n\n"
    assert command("complete", job, "sent\t") == (0, "", "")
    assert command("result", job).out == "sent\\t\n"
    assert command("result", job, "--raw").out == "sent\t"
    assert json.loads(command("result", job, "--json").out) == {"id": job, "success": True, "result": "sent\t"}


def test_a_payload_comes_from_an_argument_a_file_or_standard_input(
    command: Jobs, client: Client, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "payload").write_bytes(b"\xff\x00file")
    given = [
        command.id_of("add", queue),
        command.id_of("add", queue, "argument"),
        command.id_of("add", queue, "--file", tmp_path / "payload"),
        command.id_of("add", queue, "-", stdin=b"standard\ninput\n"),
    ]
    found = [client.inspect_job(job).payload for job in given]
    assert found == [b"", b"argument", b"\xff\x00file", b"standard\ninput\n"]
    assert command("add", queue, "x", "--file", tmp_path / "payload").code == 2


def test_each_line_can_be_a_job(command: Jobs, client: Client, queue: str, tmp_path: Path) -> None:
    ids = command.id_of("add", queue, "-", "--lines", "--priority", "-3", stdin=b"one\ntwo\n\nlast").split("\n")
    found = [client.inspect_job(job) for job in ids]
    assert [job.payload for job in found] == [b"one", b"two", b"", b"last"]
    assert {job.priority for job in found} == {-3}
    (tmp_path / "lines").write_text("a\nb\n")
    told = command("add", queue, "--file", tmp_path / "lines", "--lines", "--json").out
    assert [list(json.loads(line)) for line in told.splitlines()] == [["id"], ["id"]]
    assert command("add", queue, "--lines").code == 2
    assert command("add", queue, "-", "--lines", "--id", ids[0]).code == 2


def test_a_run_prints_its_result_and_its_failure_is_an_exit_code(command: Jobs, start: Start, queue: str) -> None:
    for success in (True, False):
        process = start("jobs", "run", queue, "shout", "--wait", "10s", "--ttr", "10")
        leased = json.loads(command("lease", queue, "--wait", "10s", "--json").out)
        assert (leased["name"], leased["payload"], leased["ttr_ms"]) == (queue, "shout", 10_000)
        command("complete" if success else "fail", leased["id"], "SHOUT")
        out, err = process.communicate(timeout=20)
        assert out == b"SHOUT\n"
        assert process.returncode == (0 if success else 1)
        assert (b"has failed" in err) is not success


def test_a_job_is_scheduled_for_a_time_or_for_later(command: Jobs, queue: str) -> None:
    first = command.id_of("schedule", queue, "2090-01-01T00:00:00Z", "x")
    second = command.id_of("schedule", queue, "+15m", "-", stdin=b"y")
    told = [json.loads(line) for line in command("inspect", "scheduled-jobs", queue, "--json").out.splitlines()]
    assert {job["id"]: job["payload"] for job in told} == {first: "x", second: "y"}
    assert {job["scheduled"] for job in told} >= {"2090-01-01T00:00:00Z"}
    assert command("schedule", queue, "tomorrow").code == 2


def test_a_failed_job_and_several_deleted_ones(command: Jobs, queue: str) -> None:
    ids = [command.id_of("add", queue) for _ in range(3)]
    assert command("fail", ids[0], "-", stdin=b"why").code == 0
    result = command("result", ids[0])
    assert (result.code, result.out) == (1, "why\n")
    assert command("delete", *ids).code == 0
    assert command("delete", *ids).code == 3


def test_everything_can_be_inspected(command: Jobs, queue: str) -> None:
    job = command.id_of("add", queue, "x" * 100, "--max-fails", "2")
    assert re.fullmatch(r"active clients: \d+\nevicted jobs: \d+\nstarted: \S+\n", command("inspect").out)
    assert set(json.loads(command("inspect", "server", "--json").out)) == {
        "active_clients",
        "evicted_jobs",
        "started",
    }
    assert re.search(rf"^{queue} +1 +0$", command("inspect", "queue", queue).out, re.MULTILINE)
    assert queue in command("inspect", "queues").out
    lines = command("inspect", "jobs", queue).out.splitlines()
    assert lines[0].split() == ["id", "priority", "state", "attempts", "fails", "created", "due", "payload"]
    assert lines[1].startswith(job)
    assert lines[1].endswith("x…")
    assert "max fails: 2\n" in command("inspect", "job", job).out
    assert command("inspect", "jobs", queue, "--offset", "1").out.count("\n") == 1
    for wrong in (["queue"], ["job"], ["server", "x"], ["weather"]):
        assert command("inspect", *wrong).code == 2


# -- exit codes


def test_what_is_not_there_what_is_late_what_is_refused_and_no_server_have_their_codes(
    command: Jobs, queue: str
) -> None:
    job = command.id_of("add", queue)
    assert command("lease", queue + "-empty", "--wait", "10ms").code == 5
    assert command("result", job).code == 5
    assert command("result", uuid4()).code == 3
    assert command("inspect", "queue", queue + "-unknown").code == 3
    refused = command("add", queue, "--id", job)
    assert (refused.code, refused.err) == (7, f"forelog: add {job}: the server refuses it: Duplicate job\n")
    assert command("add", queue, "--ttr", "48h").code == 7
    assert command("add", "no name").code == 7
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        away = command("lease", queue, "--server", address)
    assert (away.code, away.err) == (8, f"forelog: no job server answers at {address}: Connection refused\n")
    assert command("lease", queue, "--server", "nonsense:port").code == 2
    assert command("add", queue, "--file", "/nonexistent").code == 6


def test_wrong_usage_is_told_in_one_line(command: Jobs) -> None:
    assert command("frobnicate").err.startswith("forelog: argument SUBCOMMAND: there is no 'frobnicate'")
    result = command("add", "--frobnicate")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.endswith("try forelog jobs add --help\n")
    assert command().code == 2


def test_a_token_and_a_certificate_come_from_files(
    command: Jobs,
    serve,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("sesame\n")
    locked = serve("-token-file", str(tmp_path / "token"))
    assert command("inspect", "--server", locked.address).code == 7
    assert command("inspect", "--server", locked.address, "--token-file", tmp_path / "token").code == 0
    (tmp_path / "ca").write_text("nothing")
    assert command("inspect", "--tls-ca", tmp_path / "ca").code == 2


# -- serve and top


def test_serve_is_the_server(start: Start, run: Run, tmp_path: Path, queue: str) -> None:
    process = start("jobs", "serve", "-listen", "127.0.0.1:0", "--cmdlog-path", tmp_path / "cmdlog")
    assert process.stderr is not None
    said = b""
    while not (found := re.search(rb"serving jobs at (\S+)\n", said)):
        line = process.stderr.readline()
        assert line, f"the server didn't start: {said.decode()}"
        said += line
    assert run("jobs", "add", queue, "--server", found[1].decode()).code == 0
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0
    assert b"everything is written" in process.stderr.read()


@pytest.mark.parametrize(
    "flags",
    [
        ["-token-file", "nowhere"],
        ["-tls-cert", "nowhere", "-tls-key", "nowhere"],
        ["-tls-cert", "nowhere"],
        ["-cmdlog-sync", "never"],
        ["-listen", "nowhere"],
    ],
    ids=" ".join,
)
def test_a_server_that_can_not_start_is_wrong_usage(run: Run, flags: list[str]) -> None:
    result = run("jobs", "serve", *(flags if "-listen" in flags else ["-listen", "127.0.0.1:0", *flags]))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("forelog: ")


def test_a_server_that_can_not_have_its_log_or_its_port_says_which(run: Run, tmp_path: Path) -> None:
    assert run("jobs", "serve", "-cmdlog-path", "/proc/nowhere").code == codes.IO
    with LocalServer(tmp_path / "log") as running:
        held = run("jobs", "serve", "-listen", "127.0.0.1:0", "-cmdlog-path", str(tmp_path / "log"))
        assert (held.code, "another server has the command log" in held.err) == (codes.LOCKED, True)
        taken = run("jobs", "serve", "-listen", running.address)
        assert (taken.code, "address already in use" in taken.err.lower()) == (codes.IO, True)


def test_top_looks_once_for_people_and_for_programs(command: Jobs, client: Client, queue: str) -> None:
    client.add_many(queue, [b""] * 1000, priority=1)
    told = command("top", "--once", "--probe").out
    assert re.search(r"replies: p50 \S+ \S+, p99 \S+ \S+  changes: p50 ", told)
    assert re.search(rf"^{queue} +1,000 +0 +-$", told, re.MULTILINE)
    seen = json.loads(command("top", "--once", "--json", "--limit", "1").out)
    assert seen["queues"] == [{"name": queue, "ready": 1000, "scheduled": 0, "growth_per_second": None}]
    assert 0 < seen["answer_seconds"]["p50"] <= seen["answer_seconds"]["p99"]
    assert seen["change_seconds"] is None


def test_top_goes_on_until_it_is_interrupted_also_while_the_server_is_away(
    start: Start,
    serve,  # noqa: F811
) -> None:
    other = serve()
    process = start("jobs", "top", "--json", "--interval", "50ms", "--server", other.address)
    assert process.stdout is not None
    first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    assert first["trouble"] is None
    assert second["active_clients"] == 1
    other.kill()
    while json.loads(process.stdout.readline())["trouble"] is None:
        pass
    other.start()
    while json.loads(process.stdout.readline())["trouble"] is not None:
        pass
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(20) == 0
    other.stop()


@pytest.mark.parametrize("rich", [True, False])
def test_top_in_a_terminal_shows_one_screen_after_the_other(server: Served, client: Client, rich: bool) -> None:  # noqa: F811
    client.add("shown-in-a-terminal")
    hidden = "" if rich else "import sys; sys.modules['rich.live'] = None\n"
    words = ["jobs", "top", "--interval", "50ms", "--limit", "1000", "--server", server.address]
    code = f"{hidden}from forelog.cli import main\nraise SystemExit(main({words!r}))"
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, 150, 0, 0))
    with child([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"shown-in-a-terminal") < 3:
            seen += os.read(ours, 65536)
        os.kill(process.pid, signal.SIGINT)
        with contextlib.suppress(OSError):  # a terminal whose other end is closed
            while os.read(ours, 65536):
                pass
        assert process.wait(20) == 0
    os.close(ours)
    assert b"\x1b[" in seen
    assert b"growth/s" in seen


def test_growth_is_told_by_differences() -> None:
    view = jobs_top.View(server=ServerInfo(1, 0, 0))
    view._compare([QueueInfo("a", 10, 5), QueueInfo("b", 3, 0), QueueInfo("c", 1, 0)], 100.0)
    view._compare([QueueInfo("a", 30, 5), QueueInfo("b", 0, 0), QueueInfo("c", 1, 0)], 102.0)
    assert view.rates == {"a": 10.0, "b": -1.5, "c": 0.0}
    lines = jobs_top.lines_of(view, 2)
    assert [line.split() for line in lines[3:]] == [
        ["a", "30", "5", "+10"],
        ["c", "1", "0", "0"],
        ["and", "1", "more"],
    ]


# -- documentation


def described() -> dict[str, set[str]]:
    """What docs/cli.md says that each subcommand takes."""
    table = section("forelog jobs").partition("| argument or option | of | |")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {name: set() for name in jobs.SUBCOMMANDS}
    for option, of in re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", table, re.MULTILINE):
        names = set(jobs.SUBCOMMANDS) - {"serve"} if of.startswith("all but") else set(re.findall(r"`(\w+)`", of))
        for name in names:
            found[name].add(option.split()[0])
    return found


@pytest.mark.parametrize("name", [name for name in jobs.SUBCOMMANDS if name != "serve"])
def test_every_option_of_a_subcommand_is_described_and_has_help(name: str) -> None:
    takes: set[str] = set()
    for action in jobs.subparser(name)._actions:
        assert action.help
        takes |= set(action.option_strings) or {str(action.metavar)}
    assert described()[name] == takes - COMMON


def test_every_subcommand_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", section("forelog jobs").partition("| subcommand | |")[2], re.MULTILINE)
    assert rows[: len(jobs.SUBCOMMANDS)] == list(jobs.SUBCOMMANDS)


JOBS_PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()


def test_every_flag_of_the_server_is_described_and_none_that_there_is_not() -> None:
    table = JOBS_PAGE.partition("| flag | meaning |")[2].partition("\n\n")[0]
    flags = set()
    for action in jobs.subparser("serve")._actions:
        flags |= {flag for flag in action.option_strings if not flag.startswith("--")}
    assert set(re.findall(r"`(-[\w-]+)", table.replace("`-cmdlog-sync-int`,", ""))) == flags - COMMON


def test_every_refusal_of_the_server_is_described() -> None:
    from forelog.jobs.server import replies

    errors = [value for value in vars(replies).values() if isinstance(value, bytes) and value[:1] == b"-"]
    assert len(errors) > 20
    pages = JOBS_PAGE + (Path(__file__).parents[2] / "docs" / "jobs-protocol.md").read_text()
    for error in errors:
        code, _, why = error.decode().strip().partition(" ")
        assert f"`{why}`" in pages or f"{code} {why}`" in pages, error


def test_help_comes_without_loading_asyncio() -> None:
    code = (
        "import sys\nfrom forelog.cli import main\n"
        "assert main(['jobs', 'add', '--help']) == 0\nassert 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# -- dead letters


def test_dead_jobs_are_listed_shown_tried_again_and_dropped(command: Jobs, client: Client, queue: str) -> None:
    error = b'{"error":{"type":"ValueError","message":"no","traceback":"Traceback:\\n  here\\n"}}'
    ids = client.add_many(queue, [b"one", b"\xff", b"three"])
    for text in (error, b"plain", b""):
        client.fail(client.lease(queue).id, text)
    lines = command("dead", "list", queue).out.splitlines()
    assert lines[0].split() == ["id", "queue", "reason", "attempts", "died", "error"]
    assert {line.split()[0] for line in lines[1:]} == set(map(str, ids))
    assert any(line.endswith("ValueError: no") for line in lines)
    assert command("dead", "list", queue, "--limit", "1", "--offset", "1").out.count("\n") == 2
    shown = command("dead", "show", str(ids[0])).out
    assert shown.endswith("error: ValueError: no\npayload: one\nTraceback:\n  here\n")
    told = json.loads(command("dead", "show", str(ids[1]), "--json").out)
    assert (told["error"], told["reason"], told["payload_base64"]) == ("plain", "failed", "/w==")
    assert json.loads(command("dead", "--json", "list", queue).out.splitlines()[0])["attempts"] == 1

    assert command("dead", "retry", str(ids[0])).code == 0
    assert client.inspect_job(ids[0]).state in ("new", "pending")
    assert command("dead", "drop", str(ids[1])).code == 0
    assert command("dead", "show", str(ids[1])).code == codes.NO_LOG
    assert command("dead", "retry", "--all", queue).out == "1 job tried again\n"
    assert command("dead", "drop", "--all", queue, "--json").out == '{"jobs": 0}\n'
    assert command("dead", "show").err.startswith("forelog: dead show needs the id of a job")
    assert command("dead", "list", "--all").code == codes.USAGE
    assert command("dead", "bury").code == codes.USAGE
