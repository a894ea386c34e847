"""What malloc has free: the kernel and the oracle ask the same malloc."""

from __future__ import annotations

import pytest

from forelog import kernel
from tests.kernel import oracle

MB = 1 << 20


def test_what_is_freed_is_counted():
    pieces = [bytes(50_000) for _ in range(1000)]
    kept = pieces[::50]  # malloc can't shrink the heap past them
    before = kernel.heap_free_bytes()
    del pieces
    free = kernel.heap_free_bytes()
    if before == free == 0:
        pytest.skip("this malloc doesn't tell")
    assert free - before > 40 * MB
    assert abs(oracle.heap_free_bytes() - free) < MB
    assert kept


@pytest.mark.parametrize("module", [kernel, oracle], ids=["kernel", "oracle"])
def test_what_is_given_back_is_still_free_for_what_is_allocated_next(module):
    pieces = [bytes(50_000) for _ in range(1000)]
    kept = pieces[::50]
    del pieces
    free = module.heap_free_bytes()
    module.heap_trim()
    assert abs(module.heap_free_bytes() - free) < 4 * MB
    assert all(bytes(50_000) == one for one in kept)
