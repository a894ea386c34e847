"""The local session and its Python workers."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from chiplog.spark import daemon


def test_workers_answer_over_sockets_that_only_their_owner_can_reach(spark):
    folder = spark.conf.get("spark.python.unix.domain.socket.dir")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    spark.range(3).mapInArrow(lambda batches: batches, "id bigint").collect()
    assert [name for name in os.listdir(folder) if name.endswith(".sock")]


def test_a_worker_whose_query_has_enough_rows_ends_without_a_word(monkeypatch):
    def send(sock: socket.socket, authenticated: bool) -> int:
        sock.sendall(b"rows")
        return 0

    monkeypatch.setattr(daemon, "_worker", send)
    ours, theirs = socket.socketpair()
    with ours:
        assert daemon.worker(ours, True) == 0
        theirs.close()
        with pytest.raises(BrokenPipeError):
            send(ours, True)
        assert daemon.worker(ours, True) == 1
