"""The annex: what the command log has no word for is there, or not, together with its commands."""

from __future__ import annotations

import errno

import pytest

from forelog.jobs.log import notecleaner
from forelog.jobs.log.commandlog import CommandLog
from forelog.testing import CrashDisk
from tests.jobs.beyond import Use, image


def known(disk: CrashDisk, now_ns: int) -> dict:
    """What a start finds."""
    log = CommandLog("log", sync="always", files=disk, clock=lambda: now_ns)
    machine = log.open(now_ns).machine
    found = image(machine, now_ns)
    log.close()
    return found


def differences(found: dict, wanted: dict) -> list:
    return [
        (part, key, differing(found[part].get(key), wanted[part].get(key)))
        for part in ("jobs", "letters", "keys", "rules", "queues")
        for key in found[part].keys() | wanted[part].keys()
        if found[part].get(key) != wanted[part].get(key)
    ] + ([] if found["dead"] == wanted["dead"] else [("dead", found["dead"], wanted["dead"])])


def differing(found: object, wanted: object) -> object:
    if not isinstance(found, tuple) or not isinstance(wanted, tuple):
        return found, wanted
    return [(place, *pair) for place, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]]


@pytest.mark.parametrize("seed", range(30))
def test_a_restart_knows_what_was_known(seed):
    use = Use(seed, sync="os", files=CrashDisk(), segment_bytes=3000)
    for round_number in range(40):
        use.turn()
        assert use.write()
        if round_number % 5 == 4:
            before = image(use.machine, use.now)
            use.log.close()
            use.open()
            assert differences(image(use.machine, use.now), before) == []


@pytest.mark.parametrize("seed", range(3))
def test_in_every_state_that_a_crash_leaves_a_note_counts_together_with_its_command(seed):
    disk = CrashDisk()
    use = Use(seed, sync="always", files=disk, segment_bytes=1000)
    turns = [(image(use.machine, use.now), use.now)]
    begun, ended = [0], [len(disk.events)]
    for _ in range(12):
        use.turn(steps=1)
        begun.append(len(disk.events))
        use.write()
        ended.append(len(disk.events))
        turns.append((image(use.machine, use.now), use.now))
    checked = 0
    for state in disk.states_everywhere(limit=2, seed=seed):
        sure = max(sum(moment <= state.events for moment in ended) - 1, 0)
        may_be = max(sum(moment <= state.events for moment in begun) - 1, sure)
        found = known(state.disk, turns[may_be][1])
        before, after = turns[sure][0], turns[may_be][0]
        if sure == may_be:
            assert differences(found, after) == []
        else:  # a power loss may have torn the write between two commands
            for job_id in before["jobs"].keys() | after["jobs"].keys() | found["jobs"].keys():
                job = found["jobs"].get(job_id)
                may_have_been = before["jobs"].get(job_id), after["jobs"].get(job_id)
                assert job in may_have_been or job_id in found["letters"], f"after {state.events} events"
        checked += 1
    assert checked > 50


def check_restart(use: Use) -> None:
    """What a restart finds is what was known."""
    use.tick()
    assert use.write()
    before = image(use.machine, use.now)
    use.log.close()
    use.open()
    assert differences(image(use.machine, use.now), before) == []


def of_commands(kind: str):
    return lambda operation: operation.kind == kind and is_of_log(operation.path) and "annex" not in operation.path


def of_notes(kind: str):
    return lambda operation: operation.kind == kind and is_of_log(operation.path) and "annex" in operation.path


def is_of_log(path: str) -> bool:
    return path.endswith((".log", ".journal"))


@pytest.mark.parametrize("which", [of_commands, of_notes])
@pytest.mark.parametrize("seed", range(6))
def test_a_turn_that_could_not_be_written_leaves_nothing(seed, which):
    disk = CrashDisk()
    use = Use(seed, sync="os", files=disk, segment_bytes=3000)
    refused = 0
    for _ in range(40):
        use.turn(steps=2)
        fault = disk.fail(which("write"), errno.ENOSPC) if use.random.random() < 0.3 else None
        if not use.write():
            refused += 1
        if fault is not None:
            fault.stop()
        if use.random.random() < 0.2:
            check_restart(use)
    assert refused > 2


@pytest.mark.parametrize("which", [of_commands, of_notes])
@pytest.mark.parametrize("seed", range(6))
def test_after_a_failed_sync_a_server_knows_what_its_logs_say(seed, which):
    disk = CrashDisk()
    use = Use(seed, sync="always", files=disk, segment_bytes=3000)
    failed = 0
    for _ in range(40):
        use.turn(steps=2)
        fault = disk.fail(which("sync"), errno.EIO) if use.random.random() < 0.5 else None
        written = use.write()
        if fault is not None:
            fault.stop()
        if not written:
            failed += 1
            if use.log.failed:
                use.reopen()
            check_restart(use)
    assert failed > 0


@pytest.mark.parametrize("seed", range(6))
def test_cleaning_drops_what_nobody_needs_and_nothing_else(seed, monkeypatch):
    monkeypatch.setattr(notecleaner, "SLACK_BYTES", 0)
    monkeypatch.setattr(notecleaner, "ROLL_BYTES", 0)
    disk = CrashDisk()
    use = Use(seed, sync="os", files=disk, segment_bytes=2000)
    dropped = 0
    for round_number in range(150):
        use.turn()
        if use.random.random() < 0.1:
            fault = disk.fail(of_commands("write"), errno.ENOSPC)
            use.write()
            fault.stop()
        else:
            use.write()
        if round_number % 10 == 9 and use.note_cleaner.prepare():
            report = use.note_cleaner.clean()
            assert report is not None
            dropped += report.records_dropped
        if round_number % 15 == 14:
            check_restart(use)
    assert dropped > 50
