"""A real process, a real disk, and kill -9."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from forelog import Position, Stream


@pytest.mark.parametrize("policy", ["os", "always"])
def test_no_acknowledged_record_is_lost_to_kill_9(tmp_path, policy, request):
    rounds = request.config.getoption("--kill-rounds") // 2
    path = str(tmp_path / "log")
    rng = random.Random(policy)
    acknowledged: dict[int, Position] = {}
    serial = 0
    for _ in range(rounds):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.writer", path, policy, str(serial)],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = []
        for _ in range(rng.randrange(1, 150)):
            lines.append(process.stdout.readline())
        process.kill()
        lines.extend(process.stdout.read().splitlines(keepends=True))
        process.wait()
        process.stdout.close()
        assert lines[0] == "open\n"
        for line in lines[1:]:
            if line.endswith("\n"):
                position, number = line.split()
                acknowledged[int(number)] = Position.parse(position)
        serial = max(acknowledged, default=0) + 10  # the writer may have got further than it could tell
    stream = Stream(path)
    with stream.cursor() as cursor:
        found = {int(r.payload.split(b":")[0]): r for r in cursor}
    lost = [number for number in acknowledged if number not in found]
    assert not lost
    assert all(found[number].position == position for number, position in acknowledged.items())
    assert all(r.payload == b"%d:" % n + b"p" * (n * 37 % 900) for n, r in found.items())
    assert len(acknowledged) > rounds * 10
