"""The subcommands of `forelog pipeline`, in the session of the tests."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from forelog import Stream
from forelog.cli import main
from forelog.cli.pipeline import parser
from forelog.cli.pipeline.text import jobs_lines
from forelog.jobs.machine.states import JobState
from forelog.spark.pipeline.ingest import read_table
from tests.jobs.log.test_replay import fold
from tests.spark.pipeline.test_pipeline_jobs import SCRIPT, write_commands

pytestmark = pytest.mark.filterwarnings("ignore")

POISON = "keeps timing out"
NOW = "2026-11-15T19:00:00Z"


@pytest.fixture
def run(spark, capfd):
    """main() with arguments: its exit code, and what it printed."""

    def call(*words: object):
        capfd.readouterr()
        code = main(["pipeline", *map(str, words)])
        out, err = capfd.readouterr()
        return code, out, "".join(line for line in err.splitlines(True) if line.startswith("forelog:"))

    return call


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "cmdlog"
    write_commands(path, SCRIPT)
    return path


def check_report(path) -> str:
    """A page that is whole, with a plot at least, and that asks for nothing from elsewhere."""
    text = path.read_text()
    assert not re.search(r"https?://|src=|@import|<script|<link|url\(", text)
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        ElementTree.fromstring(table)
    assert "<svg" in text
    return text


def test_jobs(run, log, tmp_path):
    page = tmp_path / "jobs.html"
    code, out, err = run("jobs", log, "--now", NOW, "--json", "--limit", "2", "--report", page)
    found = json.loads(out)
    assert (code, found["jobs"], len(found["stuck"]), found["stuck_count"]) == (0, 14, 2, 4)
    assert [(job["id"][7], job["why"]) for job in found["poisoned"]] == [("a", "attempts used up"), ("c", POISON)]
    assert {queue["name"] for queue in found["queues"]} == {"mail", "slow", "later", None}
    assert found["queues"][-1]["last_time"].endswith("Z")
    assert err == f"forelog: the report is in {page}\n"
    told = ("jobs added per 1m", "waiting, p99", "lease over", "attempts used up")
    assert all(text in check_report(page) for text in told)
    # The same as lines, without running it again.
    lines = "\n".join(jobs_lines(parser().parse_args(["jobs", "cmdlog"]), found))
    assert lines.startswith("cmdlog: 14 jobs in 4 queues\n  queue")
    assert re.search(r"^  mail +6 +2 +1 +3 ", lines, re.MULTILINE)
    assert re.search(r"^  61000006-\S+ +slow +lease over", lines, re.MULTILINE)
    assert "... 2 more, --limit shows them" in lines


def test_replay_of_jobs(run, log, tmp_path):
    code, out, _ = run("replay", log, "--now", NOW, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    state, _, _ = fold(log, 1794769200 * 10**9)
    assert code == 0
    assert [(row["state"], row["attempts"]) for row in rows] == [
        (JobState(job.state).name.lower(), job.attempts) for job in state.jobs.values()
    ]
    page = tmp_path / "r.html"
    code, out, _ = run("replay", log, "--as-of", "2026-11-15T18:00:06Z", "--report", page)
    assert "jobs by state" in check_report(page)
    assert "as of 2026-11-15T18:00:06Z" in page.read_text()
    assert out == "61000001-0001-4000-8000-000000000001\tmail\tleased\t1 attempt\t0 fails\t-\n"


def test_replay_and_clean_of_keys(run, tmp_path):
    with Stream(tmp_path / "log").appender(segment_bytes=60) as log:
        log.append_many([b"a=1", b"b=1", b"a=2"])
        log.append_many([b"\xff=1", b"a=3"])
    code, out, _ = run("replay", tmp_path / "log", "--latest-until", "=", "--report", tmp_path / "r.html")
    assert "keys by when they were last written" in check_report(tmp_path / "r.html")
    assert (code, [line.split("\t")[2] for line in out.splitlines()]) == (0, ["b=1", "\\xff=1", "a=3"])
    code, out, _ = run("clean", tmp_path / "log", "--rule", "superseded", "--latest-until", "=", "--json")
    dry = json.loads(out)
    assert (code, dry["applied"], dry["logs"][0]["records_dropped"]) == (0, False, 2)
    code, out, _ = run("clean", tmp_path / "log", "--rule", "superseded", "--latest-until", "=", "--apply")
    assert code == 0
    assert "2 records dropped" in out
    with Stream(tmp_path / "log").cursor() as cursor:
        assert [record.payload for record in cursor] == [b"b=1", b"\xff=1", b"a=3"]


def test_stats(run, log, tmp_path):
    code, out, _ = run(
        "stats", log.parent, "--recursive", "--duplicates", "--gaps", "8s", "--report", tmp_path / "s"
    )
    assert code == 0
    assert f"1 log, {len(SCRIPT)} records" in out
    assert "gap: cmdlog: 8 s from 2026-11-15T18:00:12Z to 2026-11-15T18:00:20Z" in out
    assert "duplicate: cmdlog: 3 times 17 B" in out, "the attempts of one job"
    assert "records per 1m" in check_report(tmp_path / "s")


def test_verify_ends_with_the_exit_code_of_verify(run, log, tmp_path):
    code, out, _ = run("verify", log)
    assert (code, out.splitlines()[0].endswith(": no damage")) == (0, True)
    write_commands(tmp_path / "log", SCRIPT)
    segment = tmp_path / "log/000000002.log"
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    code, out, _ = run("verify", tmp_path, "--recursive", "--json", "--report", tmp_path / "v.html")
    found = json.loads(out)
    assert (code, found["ok"], found["defects"][0]["reason"]) == (1, False, "crc")
    assert "000000002.log" in check_report(tmp_path / "v.html")
    # The others stop there, with a line that says where.
    code, out, err = run("replay", tmp_path / "log")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith("forelog: damaged record (crc) at 000000002:8")
    code, out, _ = run("replay", tmp_path / "log", "--on-corruption", "skip", "--now", NOW, "--json")
    assert (code, len(out.splitlines()) > 3) == (0, True)


def test_a_log_of_something_else_is_told(run, tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"an order")
    code, out, err = run("replay", tmp_path / "log")
    assert (code, out) == (3, "")
    assert err.endswith("has 1 record, and none is a command of a job server\n")


def test_ingest(run, log, tmp_path):
    words = ["ingest", log, tmp_path / "table", "--codec", "commands", "--json"]
    code, out, _ = run(*words, "--report", tmp_path / "i.html")
    assert (code, json.loads(out)["rows"]) == (0, len(SCRIPT))
    page = check_report(tmp_path / "i.html")
    assert all(text in page for text in ("rows of a commit", "bytes of the table", "how far it goes"))
    assert json.loads(run(*words)[1])["rows"] == 0
    code, out, err = run("ingest", log, tmp_path / "table", "--codec", "records")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_ingest_to_iceberg(run, spark, log, tmp_path):
    pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
    words = ["ingest", log, tmp_path / "t", "--codec", "commands", "--table", "iceberg", "--partition-by", "name"]
    code, out, _ = run(*words, "--table-name", "jobs.commands", "--json")
    assert (code, json.loads(out)["rows"]) == (0, len(SCRIPT))
    assert json.loads(run(*words, "--json")[1])["rows"] == 0
    table = read_table(spark, tmp_path / "t")
    assert table.count() == len(SCRIPT)
    code, out, err = run(*words, "--table-name", "jobs.others")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "was made with name 'jobs.commands'" in err
