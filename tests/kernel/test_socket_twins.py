"""Sockets that are read together and written to, by the kernel and by the oracle."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator

import pytest

from forelog import kernel
from tests.kernel import oracle

KERNELS = [pytest.param(kernel, id="kernel"), pytest.param(oracle, id="oracle")]


@pytest.fixture(params=KERNELS)
def sockets(request) -> Iterator[oracle.SocketSet]:
    if not hasattr(select, "epoll"):
        pytest.skip("there are such sets on Linux only")
    found = request.param.SocketSet()
    yield found
    found.close()


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    found = [socket.socketpair() for _ in range(300)]
    for ours, _ in found:
        ours.setblocking(False)
    yield found
    for pair in found:
        for one in pair:
            one.close()


def is_ready(sockets: oracle.SocketSet) -> bool:
    return bool(select.select([sockets.fileno()], [], [], 0)[0])


def test_all_that_have_something_are_read_and_no_others(sockets, pairs):
    for number, (ours, theirs) in enumerate(pairs[:5]):
        sockets.add(ours.fileno(), f"client {number}")
        if number % 2:
            theirs.send(b"from %d" % number)
    assert len(sockets) == 5
    assert is_ready(sockets)
    assert sorted(sockets.read()) == [("client 1", b"from 1"), ("client 3", b"from 3")]
    assert not is_ready(sockets)
    assert sockets.read() == []


def test_no_more_is_read_of_one_at_a_time_than_fits_and_the_rest_comes_next(sockets, pairs):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(b"x" * 100_000)
        sockets.add(ours.fileno(), "client")
        ((_, first),), ((_, second),) = sockets.read(), sockets.read()
        assert (len(first), len(first) + len(second)) == (1 << 16, 100_000)
        sockets.remove(ours.fileno())


def test_many_that_are_ready_are_told_in_several_reads(sockets, pairs):
    for number, (ours, theirs) in enumerate(pairs):
        sockets.add(ours.fileno(), number)
        theirs.send(b"here")
    told = [len(sockets.read()) for _ in range(6)]
    assert told == [64, 64, 64, 64, 44, 0]


def test_an_end_and_a_break_are_told_as_such(sockets, pairs):
    (ours, theirs), _ = pairs[0], pairs[1]
    sockets.add(ours.fileno(), "ends")
    theirs.shutdown(socket.SHUT_WR)
    assert sockets.read() == [("ends", b"")]
    assert sockets.read() == [("ends", b"")], "until it is removed"
    sockets.remove(ours.fileno())
    assert sockets.read() == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()  # with a reset
            sockets.add(accepted.fileno(), "breaks")
            select.select([accepted], [], [], 10)
            assert sockets.read() == [("breaks", None)]
            sockets.remove(accepted.fileno())


def test_one_that_is_removed_is_left_alone(sockets, pairs):
    ours, theirs = pairs[0]
    sockets.add(ours.fileno(), "client")
    theirs.send(b"more")
    sockets.remove(ours.fileno())
    sockets.remove(ours.fileno())
    assert (len(sockets), sockets.read(), is_ready(sockets)) == (0, [], False)
    assert ours.recv(10) == b"more"
    sockets.add(ours.fileno(), "again")
    theirs.send(b"!")
    assert sockets.read() == [("again", b"!")]


def test_one_that_was_closed_is_forgotten_and_its_number_may_be_anothers(sockets, pairs):
    ours, _ = pairs[0]
    number = ours.fileno()
    sockets.add(number, "old")
    ours.close()
    other, theirs = pairs[1]
    os.dup2(other.fileno(), number)
    with socket.socket(fileno=number) as new:
        sockets.add(new.fileno(), "new")
        sockets.forget(number, "old")
        theirs.send(b"hi")
        assert sockets.read() == [("new", b"hi")]
        sockets.forget(number, "new")
        assert len(sockets) == 0


def test_what_is_no_socket_is_refused(sockets):
    with pytest.raises(OSError, match="Bad file descriptor") as refused:
        sockets.add(10**6, "nobody")
    assert (refused.value.errno, len(sockets)) == (errno.EBADF, 0)
    with pytest.raises(TypeError):
        sockets.add("one", "nobody")


@pytest.mark.parametrize("module", KERNELS)
def test_a_socket_takes_what_it_has_room_for(module):
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        assert module.socket_send(left.fileno(), b"+OK\r\n") == 5
        assert right.recv(100) == b"+OK\r\n"
        sent = 0
        while (count := module.socket_send(left.fileno(), bytes(100_000))) > 0:
            sent += count
        assert sent > 0
        assert count < 0, "it is full"
        right.close()
        assert module.socket_send(left.fileno(), b"x") < 0, "nobody is there any more"
    with pytest.raises(TypeError):
        module.socket_send(1, "text")
