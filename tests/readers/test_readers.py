"""A little of what `make readers` does at length."""

from __future__ import annotations

import pytest

from tests.readers.__main__ import READERS, maker, run_in_a_room
from tests.readers.pair import Plan, run
from tests.readers.room import can_mount

PLAN = Plan(seconds=1.5, kills=3, idle_seconds=0.7)
NEEDS = {"spark": "pyspark", "ingest": "pyarrow", "broker": "msgspec", "copy": "msgspec"}

readers = pytest.mark.parametrize("reader", READERS)


@pytest.fixture(autouse=True)
def needs(reader, request):
    if reader in NEEDS:
        pytest.importorskip(NEEDS[reader], reason=f"{NEEDS[reader]} is not installed")
    if reader == "spark" and not request.config.getoption("--long"):
        pytest.skip("Spark takes a minute: only with --long")


@readers
@pytest.mark.parametrize("way", ["rolling", "killed"])
def test_a_reader_gets_what_was_acknowledged_and_nothing_else(reader, way):
    verdict = run(maker(reader), way, PLAN)
    assert not verdict.wrong(), verdict.line()
    assert verdict.noted.kills == (PLAN.kills if way == "killed" else 0)
    assert verdict.records > 100


@readers
@pytest.mark.skipif(not can_mount(), reason="no permission to mount a small tmpfs")
def test_a_reader_never_gets_what_a_full_disk_refused(reader):
    done = run_in_a_room(reader, PLAN)
    assert done.returncode == 0, done.stdout
