"""Counters and timings."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from forelog import Stream, prometheus_collector


def test_a_snapshot_counts_what_happened(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender(sync="always") as log:
        log.append(b"one")
        log.append_many([b"two", b"three"])
        log.roll()
        during = stream.metrics.snapshot()
    with stream.cursor() as cursor:
        assert len(list(cursor)) == 3
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload == b"two")
    after = stream.metrics.snapshot()
    assert during["records_appended"] == after["records_appended"] == 3
    assert after["bytes_appended"] == 23 + 23 + 25
    assert after["rolls"] == 1
    assert after["recoveries"] == 1
    assert after["records_cleaned"] == 1
    assert after["segments_cleaned"] == 1
    assert after["records_read"] >= 3
    assert after["timings"]["sync"]["count"] == after["syncs"] >= 2
    assert after["timings"]["clean"]["count"] == 1
    assert 0 < after["timings"]["recovery"]["seconds_max"] <= after["timings"]["recovery"]["seconds"]


def test_prometheus_gets_the_same(tmp_path):
    stream = Stream(tmp_path / "log")
    with stream.appender() as log:
        for _ in range(5):
            log.append(b"x")
    registry = CollectorRegistry()
    registry.register(prometheus_collector(stream.metrics, log="orders"))
    text = generate_latest(registry).decode()
    assert 'forelog_records_appended_total{log="orders"} 5.0' in text
    assert 'forelog_sync_seconds_bucket{le="+Inf",log="orders"} 1.0' in text
    assert registry.get_sample_value("forelog_append_seconds_count", {"log": "orders"}) == 1
