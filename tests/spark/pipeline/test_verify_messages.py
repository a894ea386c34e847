"""Fleets with logs of M3's format: what their chunks say is checked too."""

from __future__ import annotations

import json

import pytest

from forelog.cli import main
from forelog.spark.pipeline.verify import verify
from tests.commitlog.test_entries import CPU, INFO, chunked, entry, file_of, raw_chunk

pytestmark = pytest.mark.filterwarnings("ignore")


def test_messages_in_right_chunks_are_checked_as_the_command_does_it(spark, tmp_path, capsys):
    fine, bad, torn = (tmp_path / name for name in ("fine", "bad", "torn"))
    good = chunked(INFO, entry(0, CPU, 1))
    for folder in (fine, bad, torn):
        folder.mkdir()
        file_of(folder, good)
        file_of(folder, good, number=1)
    file_of(bad, good, raw_chunk(b"\x05hello"), chunked(entry(0, None, 3)))
    file_of(torn, good, raw_chunk(chunked(entry(0, None, 3))[12:-3]), number=1)
    found = verify(spark, str(tmp_path), recursive=True)
    assert {name: report.ok for name, report in found.reports.items()} == {
        "fine": True,
        "bad": False,
        "torn": False,
    }
    for folder in (fine, bad, torn):
        main(["verify", "--json", str(folder)])
        assert found.reports[folder.name].problems() == json.loads(capsys.readouterr().out)["problems"]
    defects = [(row.log, row.segment, row.reason, row.torn) for row in found.defects(spark).collect()]
    assert sorted(defects) == [("bad", 0, "message", False), ("torn", 1, "truncated", True)]
    [row] = found.logs(spark).where("log = 'bad'").collect()
    assert (row.defects, row.defect_bytes) == (1, len(raw_chunk(b"\x05hello")))
