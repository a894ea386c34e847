"""The locks of keys of both kernels: the same steps, and none of them half done."""

from __future__ import annotations

import contextvars
import gc
import signal
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from forelog import kernel
from tests.kernel import oracle

AMONG: ContextVar[tuple[Any, ...]] = ContextVar("among", default=())
BOTH = pytest.mark.parametrize("module", [oracle, kernel], ids=["oracle", "kernel"])


class Locks:
    """Locks, and what was asked of their owner."""

    def __init__(self, module: Any) -> None:
        self.mended: list[Any] = []
        self.committed: list[Any] = []
        self.of_kind = module.KeyLocks(self.mend, AMONG)

    def mend(self, position: Any) -> None:
        with pytest.raises(RuntimeError, match="must not write"), self.of_kind.of("other"):
            pass
        self.mended.append(position)


def elsewhere(held: Any) -> threading.Thread:
    """A thread that takes locks."""

    def take() -> None:
        with held:
            pass

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread


@BOTH
def test_a_key_or_all_keys_are_held_by_one_thread(module: Any) -> None:
    locks = Locks(module).of_kind
    with locks.of("key"):
        other = elsewhere(locks.of(hash("key") + 1))
        other.join(30)
        assert not other.is_alive()
        waits = [elsewhere(locks.of("key")), elsewhere(locks.all())]
        assert all(thread.is_alive() for thread in waits)
    for thread in waits:
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(TypeError), locks.of([]):
        pass


@BOTH
def test_a_thread_that_holds_a_lock_is_refused_another_and_keeps_what_it_has(module: Any) -> None:
    locks = Locks(module).of_kind
    for held in (locks.of("a"), locks.all()):
        with held:
            for other in (locks.of("a"), locks.of("b"), locks.all()):
                with pytest.raises(RuntimeError, match="must not write to the dict: use a transaction"), other:
                    pass
            with pytest.raises(RuntimeError, match=r"held already|must not write"), held:
                pass
            waits = elsewhere(locks.of("a"))
        waits.join(30)
        assert not waits.is_alive()


@BOTH
def test_a_transaction_is_known_while_it_is_open_and_committed_without_an_error(module: Any) -> None:
    locks = Locks(module)
    one, other = object(), object()
    with locks.of_kind.together(one, locks.committed.append):
        assert locks.of_kind.transaction is one
        assert AMONG.get() == (one,)
        with pytest.raises(RuntimeError, match=r"aio.transact"), locks.of_kind.of("a"):
            pass
    assert (locks.committed, locks.of_kind.transaction, AMONG.get()) == ([one], None, ())
    with pytest.raises(ZeroDivisionError), locks.of_kind.together(other, locks.committed.append):
        print(1 / 0)
    assert (locks.committed, locks.of_kind.transaction, AMONG.get()) == ([one], None, ())

    def fails(_: object) -> None:
        assert locks.of_kind.transaction is None
        raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"), locks.of_kind.together(other, fails):
        pass
    with locks.of_kind.all():
        pass


@BOTH
def test_a_transaction_that_ends_in_another_context_gives_its_locks_back(module: Any) -> None:
    locks = Locks(module)
    held = locks.of_kind.together(object(), locks.committed.append)
    held.__enter__()
    contextvars.Context().run(held.__exit__, None, None, None)
    assert len(locks.committed) == 1
    with locks.of_kind.all():
        pass
    AMONG.set(())


@BOTH
def test_what_was_begun_and_not_done_is_mended_by_whoever_comes_next(module: Any) -> None:
    locks = Locks(module)
    for begun in ([], [(3, 9)], [(3, 9), (2, 70)]):
        for number, position in enumerate(begun):
            with locks.of_kind.of(number):
                locks.of_kind.begin(position)
                locks.of_kind.begin((9, 9))
        with locks.of_kind.of(7):
            locks.of_kind.begin((1, 1))
            locks.of_kind.done()
        with locks.of_kind.of(7):
            assert locks.mended == [], "nobody has left anything here"
        for _ in range(2):
            with locks.of_kind.of(0):
                assert locks.mended == ([min(begun)] if begun else [])
        with locks.of_kind.all():
            assert len(locks.mended) == bool(begun)
        locks.mended.clear()
    with locks.of_kind.all():
        locks.of_kind.begin((4, 4))
    locks.of_kind.forget()
    with locks.of_kind.of(5):
        assert locks.mended == []


@BOTH
def test_a_mending_that_fails_is_tried_again(module: Any) -> None:
    mended: list[Any] = []

    def fails_once(position: Any) -> None:
        mended.append(position)
        if len(mended) == 1:
            raise KeyboardInterrupt

    locks = module.KeyLocks(fails_once, AMONG)
    with locks.of(1):
        locks.begin((1, 2))
    with pytest.raises(KeyboardInterrupt), locks.all():
        pass
    thread = elsewhere(locks.of(1))
    thread.join(30)
    assert not thread.is_alive()
    assert mended == [(1, 2)] * 2


def test_an_interrupt_ends_a_wait_and_leaves_no_lock_behind() -> None:
    locks = Locks(kernel).of_kind
    ready, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.of(9):
            ready.set()
            leave.wait(30)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(30)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt), locks.all():
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    for key in range(9):  # which it had taken by then
        elsewhere(locks.of(key)).join(30)
    leave.set()
    thread.join()
    with locks.all():
        pass


def test_locks_of_a_block_that_was_never_left_are_given_back() -> None:
    """An interrupt may come when the locks are taken and the block isn't entered yet."""
    locks = Locks(kernel).of_kind
    for take in (lambda: locks.of(3), lambda: locks.together(object(), print)):
        held = take()
        held.__enter__()
        del held
    gc.collect()
    assert locks.transaction is None
    with locks.all():
        pass
    AMONG.set(())
