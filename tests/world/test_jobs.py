"""The job server keeps its promises in worlds where everything goes wrong."""

from __future__ import annotations

import pytest

from tests.world.run import run


@pytest.mark.parametrize("seed", range(6))
def test_jobs_survive_their_world(seed):
    verdict = run(seed, seconds=30)
    assert verdict.violations == []
    assert verdict.handled
