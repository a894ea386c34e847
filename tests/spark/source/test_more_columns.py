"""State logs as rows, and ids, tags and units of datapoints as texts; without Spark."""

from __future__ import annotations

from dataclasses import make_dataclass

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("msgspec", reason="msgspec is not installed")

from forelog.commitlog import CommitLog
from forelog.formats.m3 import Datapoint, Series, Unit
from forelog.spark.options import read_options
from forelog.spark.planning import codec_for, logs_of, plan
from forelog.spark.slices import read_slice, table_columns
from forelog.state import PersistentDict, StateLog


def rows(path, names, **options):
    checked = read_options({"path": str(path), **options})
    columns, _ = table_columns(checked)
    found = []
    for piece in plan(checked, logs_of(checked), splits=options["codec"] != "datapoints"):
        for batch in read_slice(piece, checked, columns, names):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def test_the_events_of_a_dict_are_rows(tmp_path):
    with PersistentDict(tmp_path / "prices") as prices:
        prices["chips"] = 250
        prices["dip"] = {"cents": 120, "raw": b"\x01"}
        del prices["chips"]
        prices.clear()
    found = rows(tmp_path / "prices", ["action", "type", "key", "value"], codec="state")
    assert found == [
        ("set", "", '"chips"', "250"),
        ("set", "", '"dip"', '{"cents":120,"raw":"AQ=="}'),
        ("remove", "", '"chips"', None),
        ("clear", "", None, None),
    ]


def test_events_of_a_group_share_their_position(tmp_path):
    with PersistentDict(tmp_path / "prices") as prices:
        prices.update({"a": 1, "b": 2})
        prices["c"] = 3
    found = rows(tmp_path / "prices", ["segment", "offset", "time", "key"], codec="state")
    places = [row[:3] for row in found]
    assert [row[3] for row in found] == ['"a"', '"b"', '"c"']
    assert (places[0], places[1] < places[2]) == (places[1], True)


def test_events_of_a_program_have_types_and_keys(tmp_path):
    renamed = make_dataclass("Renamed", [("id", int), ("name", str)])
    with StateLog(tmp_path / "state", replay=lambda _: None, enumerate=lambda _: None, types=[renamed]) as log:
        log.update(renamed(7, "chip"))
        log.update({"key": "k", "n": 1})
        log.update("plain")
    found = rows(tmp_path / "state", ["action", "type", "key", "value", "event"], codec="state")
    assert [row[:4] for row in found] == [
        ("event", "Renamed", "7", '{"id":7,"name":"chip"}'),
        ("event", "", '"k"', '{"key":"k","n":1}'),
        ("event", "", '"plain"', '"plain"'),
    ]
    assert found[0][4].startswith(b"\x07Renamed")


def test_a_state_log_is_known_by_its_magic_number(tmp_path):
    PersistentDict(tmp_path / "prices").open().close()
    assert codec_for(logs_of(read_options({"path": str(tmp_path / "prices")}))) == "state"


def test_ids_tags_and_units_of_datapoints_are_texts(tmp_path):
    with CommitLog(tmp_path / "log", format="m3") as log:
        log.write(Series(b"cpu", tags={b"host": "a\u00e9".encode()}), Datapoint(10**9, 1.0), unit=Unit.SECOND)
        log.write(Series(b"\xff", tags={b"host": b"\xfe"}), Datapoint(2 * 10**9, 2.0), unit=Unit.NANOSECOND)
        log.write(Series(b"cpu2"), Datapoint(3 * 10**9, 3.0), unit=Unit.SECOND)
    found = rows(tmp_path / "log", ["id_text", "tags_json", "unit_name", "value"], codec="datapoints")
    assert [row[0] for row in found] == ["cpu", None, "cpu2"]
    assert [row[1] for row in found][:2] == ['{"host": "a\u00e9"}', None]
    assert [row[2] for row in found] == ["second", "nanosecond", "second"]
