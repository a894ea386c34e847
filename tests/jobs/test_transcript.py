"""What was said to the original server is said to ours, and compared with what the original answered."""

from __future__ import annotations

import re
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forelog import Stream, kernel
from forelog.formats import Captain
from forelog.formats.commands.commands import format_id
from forelog.jobs.log.reader import read_commands
from forelog.times import parse_time
from tests.jobs.log import vectors
from tests.jobs.serving import Served, Talk, served

LEGEND = vectors.load("legend.json")
MASK = re.compile(LEGEND["mask_regex"])
TEMPLATE = re.compile(r"\{NOW([+-]\d+)s\}")

THREE_KEYS = "inspect server has three keys: the original says 2"
PAYLOAD_SKIPPED = "a refused command's payload, whose size could be read, isn't run as a command"
FAILS_COUNTED = "fails are counted"
FAILS_REQUEUE = "with max-fails=3 the first fail requeues the job, as the document says"
STRADDLE = "a payload that straddles a read buffer works"

ONE_REFUSAL = "-CLIENT-ERROR Invalid command flags\r\n"


def counted(expected: str) -> str:
    return expected.replace("\r\nfails 0\r\n", "\r\nfails 1\r\n")


def three(expected: str) -> str:
    return expected.replace("server 2\r\n", "server 3\r\n")


DIFFERENT = {
    **dict.fromkeys((2, 12, 15, 32, 246, 271, 304, 307), (THREE_KEYS, three)),
    **dict.fromkeys((60, 61, 62), (PAYLOAD_SKIPPED, lambda _: ONE_REFUSAL)),
    224: (FAILS_COUNTED, counted),
    264: (FAILS_REQUEUE, lambda expected: counted(expected).replace("state 2", "state 3")),
    265: (FAILS_REQUEUE, lambda _: "+OK 1\r\n0000002b-0000-4000-8000-00000000002b mf 60000 1\r\nx\r\n"),
    311: (STRADDLE, lambda _: "+OK\r\n"),
    312: (STRADDLE, None),
}
"""Where we differ on purpose, why, and what we answer instead; None where that is looked at by itself."""


def masked(text: str) -> str:
    return MASK.sub(lambda found: f"{found[1]} {{TIME}}\r", text)


def filled(text: str) -> bytes:
    def time_of(found: re.Match[str]) -> str:
        return f"{datetime.now(UTC) + timedelta(seconds=int(found[1])):%Y-%m-%dT%H:%M:%SZ}"

    return TEMPLATE.sub(time_of, text).encode("latin-1")


def say(steps: list[dict], server: Served):
    """Say it all, and yield each exchange with what was answered and whether the server closed the connection."""
    talks: dict[str, Talk] = {}
    for step in steps:
        talk = talks.get(step.get("conn"))
        if step["action"] == "sleep":
            time.sleep(step["ms"] / 1000)
        elif step["action"] == "open":
            talks[step["conn"]] = server.connect()
            time.sleep(0.2)  # until it counts as a client
        elif step["action"] == "close":
            talk.close()
            time.sleep(0.2)
        else:
            talk.send(filled(step.get("send_template") or step["send"]))
            if step.get("deferred"):
                time.sleep(0.05)  # another connection asks next: let this one be read first
                continue
            expected = masked(step.get("recv_masked") or step["recv"])
            change = DIFFERENT.get(step["i"], (None, lambda text: text))[1]
            if change is not None:
                expected = change(expected)
            count = len(expected.replace("{TIME}", "2026-11-15T18:34:22Z"))
            answer = talk.read(count) if count else talk.silence(0.1)
            yield step, expected, masked(answer.decode("latin-1")), talk


def test_the_original_and_we_answer_alike(tmp_path):
    told = vectors.load("transcript.json")
    assert len(told) == 314
    differing = set()
    flags = ("-cmdlog-path", tmp_path / "log", *LEGEND["transcript_server_flags"][2:])
    with served(*flags) as server:
        for step, expected, answer, talk in say(told, server):
            if DIFFERENT.get(step["i"], ("", True))[1] is None:
                assert "payload-size 4030\r\n" in answer + talk.read(100).decode("latin-1")
                talk.silence(0.2)
            else:
                assert answer == expected, step
            if answer != masked(step.get("recv_masked") or step["recv"]):
                differing.add(step["i"])
            elif step["closed_by_server"]:
                assert talk.is_closed()
        assert "everything is written" in server.stop()
    assert differing == set(DIFFERENT), "each difference is on the list, and what is on the list differs"
    defects = {step["i"] for step in told if step.get("server_defect")}
    assert defects - differing == {25}, "a payload that ends with LF only is refused at once, as the original does"


def test_the_same_session_writes_the_log_that_the_original_wrote(tmp_path):
    """The one difference is a fail that isn't the last, on which the two go different ways: it is left out."""
    steps = vectors.load("cmdlog_session.json")
    for step in steps:
        for field in ("send", "send_template"):
            if field in step:
                step[field] = step[field].replace(" 5 -max-fails=3\r\nwork6", " 5\r\nwork6")
    flags = ("-cmdlog-path", tmp_path / "log", *LEGEND["cmdlog_session_server_flags"][2:])
    with served(*flags) as server:
        for step, expected, answer, _ in say(steps, server):
            assert answer == expected, step
        server.stop()
    stream = Stream.open(tmp_path / "log")
    ours = [(position, command) for position, _, command in read_commands(stream)]
    theirs = vectors.records("cmdlog")
    assert [(c.word, format_id(c.id)) for _, c in ours] == [(r["cmd"], r["id"]) for r in theirs]
    for (position, command), record in zip(ours, theirs, strict=True):
        assert f"{position.segment:09d}.log" == record["segment"]
        assert position.offset == record["offset"]
        if hasattr(command, "ttr_ms"):
            limits = (record["priority"], record["max_attempts"])
            assert (command.name, command.ttr_ms, command.ttl_ms) == (record["name"], record["ttr"], record["ttl"])
            assert (command.priority, command.max_attempts) == limits
            assert (command.time_ns is None) == record["job_time_is_zero"]


def stamp_anew(path: Path) -> None:
    """As if the original had written its log just now: a lease in it runs for a day, whenever this is run."""
    now = kernel.captain_encode(b"", time.time_ns())[1:13]  # seconds and nanoseconds; the zone stays
    for segment in path.glob("*.log"):
        data = bytearray(segment.read_bytes())
        scan = kernel.captain_scan(bytes(data), Captain.header_bytes, len(data), 0, 1000)
        for start, end in zip(scan.offsets, scan.ends, strict=True):
            data[start + 1 : start + 13] = now
            data[end : end + 4] = kernel.crc32c(bytes(data[start:end])).to_bytes(4, "big")
        segment.write_bytes(data)


def test_a_server_started_on_the_originals_log_answers_as_the_original_did(tmp_path):
    shutil.copytree(vectors.FOLDER / "cmdlog-2090", tmp_path / "log")
    stamp_anew(tmp_path / "log")
    told = vectors.load("after_restart-2090.json")["after_restart"]
    assert parse_time("2090-01-01T00:00:00Z") > time.time_ns()
    with served("-cmdlog-path", tmp_path / "log") as server:
        talk = server.connect()
        for probe in told:
            expected = probe["recv"].replace("server 2\r\n", "server 3\r\n")
            talk.send(probe["send"].encode("latin-1"))
            answer = talk.read(len(expected)).decode("latin-1")
            if probe["send"].startswith("inspect server"):
                assert masked(answer) == masked(expected).replace("active-clients 2", "active-clients 1")
            else:  # the original never counts fails
                assert answer.replace("\r\nfails 1\r\n", "\r\nfails 0\r\n") == expected, probe["send"]
        server.stop()
