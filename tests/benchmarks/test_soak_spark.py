"""What the soak of a stream takes for steady."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from benchmarks.soak_spark import MIB, Window, verdict


def run(**last):
    """Ten minutes of a steady run, the latter half of it otherwise."""
    steady = {
        "lag_records": 100_000,
        "lag_seconds": 1.5,
        "batches_ms": (300,),
        "driver_bytes": 200 * MIB,
        "heap_bytes": 80 * MIB,
        "jvm_bytes": 600 * MIB,
    }
    return [
        Window(60.0 * n, 6000 * n, 6000 * n, **(steady | (last if n > 5 else {})))  # type: ignore[arg-type]
        for n in range(1, 11)
    ]


def test_a_steady_run_has_nothing_wrong():
    assert verdict(run(), 60_000) == []


@pytest.mark.parametrize(
    ("last", "expected", "told"),
    [
        ({"lag_seconds": 40.0}, 60_000, "40.0 s behind"),
        ({"driver_bytes": 300 * MIB}, 60_000, "driver_bytes grew from 200 to 300 MiB"),
        ({"heap_bytes": 120 * MIB}, 60_000, "heap_bytes grew"),
        ({"jvm_bytes": 900 * MIB}, 60_000, "jvm_bytes grew"),
        ({}, 80_000, "too busy"),
    ],
)
def test_what_grows_is_told(last, expected, told):
    [line] = verdict(run(**last), expected)
    assert told in line


def test_records_that_were_not_read_are_told():
    windows = run()
    windows.append(Window(660.0, 66_000, 65_000, 0, 0.0, (), 200 * MIB, 80 * MIB, 600 * MIB))
    assert verdict(windows, 66_000) == ["66,000 records were written and 65,000 read"]
