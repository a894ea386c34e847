"""Both clients against a real server: every command, errors, batches, lost connections."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from forelog.errors import (
    BadReply,
    BatchFailed,
    ConnectionLost,
    ForelogError,
    JobNotFound,
    JobRefused,
    JobTimeout,
    LockTimeout,
    ServerReadOnly,
)
from forelog.jobs import AsyncClient, Client, LocalServer
from forelog.jobs.client import requests
from forelog.jobs.client.replies import DONE, LEASED, LINE_BYTES_MAX, RESULT, ReplyReader
from forelog.jobs.client.requests import windows
from forelog.jobs.client.things import JOBS, QUEUES, SERVER
from tests.jobs import unasync
from tests.jobs.conftest import Served


class Blocking:
    """AsyncClient, called as Client is."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            return await getattr(self._client, name)(*args, **options)

        return lambda *args, **options: self._runner.run(call(*args, **options))

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[Any]:
        context = self._client.pipeline()
        batch = self._runner.run(_enter(context))
        yield batch
        self._runner.run(_leave(context))


async def _enter(context: Any) -> Any:
    return await context.__aenter__()


async def _leave(context: Any) -> None:
    await context.__aexit__(None, None, None)


Connect = Callable[..., Any]


@pytest.fixture(params=["threads", "tasks"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Either client, for an address."""
    with contextlib.ExitStack() as stack:
        if request.param == "threads":
            yield lambda address, **options: stack.enter_context(Client(address, **options))
        else:
            runner = stack.enter_context(asyncio.Runner())

            def make(address: str, **options: Any) -> Blocking:
                client = Blocking(AsyncClient(address, **options), runner)
                stack.callback(client.close)
                return client

            yield make


@pytest.fixture
def client(connect: Connect, server: Served) -> Any:
    return connect(server.address)


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q-{uuid4().hex}"


# -- every command


def test_a_job_is_added_leased_completed_and_its_result_read(client, queue):
    job = client.add(queue, b"hello\r\nworld\0")
    assert job.version == 4
    leased = client.lease("some-other", queue)
    assert (leased.id, leased.name, leased.ttr_ms, leased.payload) == (job, queue, 60_000, b"hello\r\nworld\0")
    client.complete(job, b"done\r\n")
    found = client.result(job)
    assert (found.id, found.success, found.result) == (job, True, b"done\r\n")


def test_a_failed_job_is_tried_again_as_often_as_its_max_fails_allows(client, queue):
    job = client.add(queue, max_fails=2)
    for text in (b"first", b"second"):
        assert client.lease(queue).id == job
        client.fail(job, text)
    assert client.lease(queue) is None
    found = client.result(job)
    assert (found.success, found.result) == (False, b"second")


def test_priorities_come_first_and_all_options_arrive(client, queue):
    low = client.add(queue, b"low", priority=-7, ttr_ms=1000, ttl_ms=60_000, max_attempts=3, max_fails=4)
    high = client.add(queue, b"high", priority=7)
    assert [job.id for job in client.inspect_jobs(queue)] == [high, low]
    found = client.inspect_job(low)
    assert (found.name, found.payload, found.priority, found.state) == (queue, b"low", -7, "new")
    assert (found.ttr_ms, found.ttl_ms) == (1000, 60_000)
    assert (found.max_attempts, found.attempts, found.max_fails, found.fails) == (3, 0, 4, 0)
    assert abs(found.created_ns - time.time_ns()) < 60 * 10**9
    assert found.scheduled_ns is None
    assert client.lease(queue).id == high
    assert client.inspect_job(high).state == "leased"


@pytest.mark.parametrize("form", ["datetime", "text", "nanoseconds"])
def test_a_job_is_scheduled_for_a_time_in_any_form(client, queue, form):
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    time_ns = int(due.timestamp()) * 10**9
    given = {"datetime": due, "text": due.strftime("%Y-%m-%dT%H:%M:%SZ"), "nanoseconds": time_ns}[form]
    job = client.schedule(queue, b"later", given)
    (found,) = client.inspect_scheduled_jobs(queue)
    assert (found.id, found.payload, found.scheduled_ns) == (job, b"later", time_ns)
    assert client.lease(queue) is None
    assert client.inspect_queue(queue).scheduled == 1


def test_a_run_waits_for_its_result(client, server, queue):
    def work() -> None:
        with Client(server.address) as other:
            leased = other.lease(queue, wait_ms=5000)
            assert leased is not None
            other.complete(leased.id, leased.payload.upper())

    thread = threading.Thread(target=work)
    thread.start()
    found = client.run(queue, b"shout", wait_ms=5000, ttr_ms=5000, priority=1)
    thread.join()
    assert (found.success, found.result) == (True, b"SHOUT")


def test_what_is_not_there_in_time_is_a_timeout_and_an_empty_queue_is_none(client, queue):
    job = client.add(queue)
    with pytest.raises(JobTimeout, match=f"result {job}: nothing came in time"):
        client.result(job, wait_ms=10)
    with pytest.raises(JobTimeout):
        client.run(queue + "x", wait_ms=10)
    assert client.lease(queue + "x", wait_ms=10) is None


def test_what_is_deleted_is_not_found(client, queue):
    job = client.add(queue)
    client.delete(job)
    for call in (client.delete, client.complete, client.fail, client.result, client.inspect_job):
        with pytest.raises(JobNotFound, match=str(job)):
            call(job)
    with pytest.raises(JobNotFound):
        client.inspect_queue(queue + "-never-seen")


def test_queues_and_the_server_can_be_inspected(client, queue):
    client.add_many(queue, [b""] * 3)
    found = client.inspect_queue(queue)
    assert (found.name, found.ready, found.scheduled) == (queue, 3, 0)
    assert found in client.inspect_queues()
    told = client.inspect_server()
    assert told.active_clients >= 1
    assert told.evicted_jobs >= 0
    assert 0 < time.time_ns() - told.started_ns < 600 * 10**9


def test_payloads_of_a_mebibyte_pass_and_a_byte_more_is_refused(client, queue):
    payload = bytes(range(256)) * 4096
    job = client.add(queue, payload)
    leased = client.lease(queue)
    assert leased.payload == payload
    client.complete(job, payload)
    assert client.result(job).result == payload
    with pytest.raises(JobRefused, match="1048577 bytes are more than"):
        client.add(queue, payload + b"x")


def test_many_large_jobs_are_inspected_up_to_what_an_answer_may_have(client, queue):
    client.add_many(queue, [bytes(1 << 20)] * 18)
    assert len(client.inspect_jobs(queue)) == 2


# -- errors


def test_the_server_refuses_in_its_own_words(client, queue):
    with pytest.raises(JobRefused, match="the server refuses it: Invalid TTR") as caught:
        client.add(queue, ttr_ms=0)
    assert caught.value.reason == "Invalid TTR"
    job = client.add(queue)
    with pytest.raises(JobRefused, match="Duplicate job"):
        client.add(queue, id=job)
    with pytest.raises(JobRefused, match="Invalid limit"):
        client.inspect_jobs(queue, 0, 1000)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("no spaces", {}, "isn't a queue's name"),
        ("line\r\nadd", {}, "isn't a queue's name"),
        ("ok", {"id": "nonsense"}, "isn't an id"),
        ("ok", {"id": "00000000-0000-1000-8000-000000000000"}, "isn't a random UUID"),
        ("ok", {"ttr_ms": 1.5}, "isn't a whole number"),
        ("ok", {"payload": "text"}, "a payload is bytes, not str"),
    ],
)
def test_nothing_is_sent_that_would_be_another_command(client, name, options, why):
    with pytest.raises(JobRefused, match=why):
        client.add(name, **options)


def test_where_nobody_listens_it_says_so(connect):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        client = connect(f"127.0.0.1:{port}", retry_seconds=0)
        with pytest.raises(
            ConnectionLost, match=f"no job server answers at 127.0.0.1:{port}: .*refused"
        ) as caught:
            client.lease("mail")
    assert not caught.value.unknown


def test_an_address_that_is_none_is_told_at_once(connect):
    for bad in ("", ":9922", "host:port", "host:70000"):
        with pytest.raises(JobRefused, match="expected HOST:PORT"):
            connect(bad)


@contextlib.contextmanager
def foreign(*answers: bytes) -> Iterator[str]:
    """Something that answers whatever is sent; with each connection the next, and then no more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    with contextlib.suppress(OSError):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "isn't a reply of a job server"),
        (b"220 mail.example ESMTP\n", "doesn't end with CR LF"),
        (b"+OK 2\r\n", "one was asked for, and 2 came"),
        (b"+OK\r\n", "without a value"),
        (b"+OK 1\r\n61000000-0001-4000-8000-000000000001 q 1 99999999999\r\n", "isn't a number up to 1048576"),
        (b"+OK 1\r\nnonsense q 1 0\r\n\r\n", "isn't an id"),
        (b"+OK 1\r\n61000000-0001-4000-8000-000000000001 q 1 2\r\nabcd", "CR LF is missing"),
        (b"x" * LINE_BYTES_MAX, "longer than"),
        (b"-WHAT\r\n", "isn't a reply of a job server"),
    ],
)
def test_what_is_no_job_server_is_told_and_not_asked_again(connect, answer, why):
    with foreign(answer) as address, pytest.raises(BadReply, match=why):
        connect(address).lease("mail")


def test_a_server_that_can_not_write_says_so(connect):
    answer = b"-SERVER-ERROR Read only: the command log can't be written\r\n"
    with foreign(answer) as address, pytest.raises(ServerReadOnly, match="Read only"):
        connect(address).add("mail")


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(connect):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        client = connect(address, timeout=0.1, retry_seconds=0)
        with pytest.raises(ConnectionLost, match="whether it was done is unknown") as caught:
            client.lease("mail")
        assert caught.value.unknown


# -- batches


def test_one_that_fails_in_a_batch_hides_no_other(client, queue):
    taken = client.add(queue)
    with client.pipeline() as batch:
        first = batch.add(queue, b"one")
        second = batch.add(queue, b"two", id=taken)
        third = batch.schedule(queue, b"three", "2090-01-01T00:00:00Z")
        leased = batch.lease(queue)
        missing = batch.result(uuid4())
        gone = batch.delete(taken)
        with pytest.raises(ValueError, match="wasn't sent yet"):
            first.value()
    assert isinstance(first.value(), UUID)
    assert isinstance(second.error(), JobRefused)
    assert isinstance(third.value(), UUID)
    assert leased.value().id == taken
    assert isinstance(missing.error(), JobNotFound)
    assert gone.error() is None
    with client.pipeline() as batch:
        done = batch.complete(first.value(), b"x")
        failed = batch.fail(third.value(), b"y")
    assert (done.error(), failed.error()) == (None, None)


def test_many_are_added_completed_and_deleted_in_batches(client, queue):
    jobs = client.add_many(queue, [b"%d" % number for number in range(2500)], ttr_ms=5000)
    assert len(set(jobs)) == 2500
    assert client.inspect_queue(queue).ready == 2500
    client.complete_many(dict.fromkeys(jobs[:1500], b"r"))
    client.complete_many([(job, b"r") for job in jobs[1500:2000]])
    assert client.inspect_queue(queue).ready == 500
    client.delete_many(jobs)
    with pytest.raises(BatchFailed, match="2 of 3 commands failed") as caught:
        client.call_many([requests.delete(jobs[0]), requests.add(queue), requests.delete(jobs[1])])
    outcomes = caught.value.outcomes
    assert [type(outcome) for outcome in outcomes] == [JobNotFound, UUID, JobNotFound]


def test_a_batch_takes_ids_from_a_mapping(client, queue):
    wanted = {uuid4(): b"one", uuid4(): b"two"}
    assert client.add_many(queue, wanted) == list(wanted)
    with pytest.raises(JobRefused, match="can't share an id"):
        client.add_many(queue, [b""], id=uuid4())


def test_what_has_large_answers_is_sent_in_small_lots():
    small = [requests.delete(uuid4())] * 2500
    assert [len(lot) for lot in windows(small)] == [1000, 1000, 500]
    large = [requests.add("q", bytes(1 << 20))] * 3
    assert [len(lot) for lot in windows(large)] == [1, 1, 1]
    job = requests.add("q", bytes(5000))
    mixed: list[requests.Request] = [job, requests.inspect_jobs("q"), job]
    assert [len(lot) for lot in windows(mixed)] == [2, 1]
    assert [len(lot) for lot in windows([mixed[0]] * 10 + [mixed[1]])] == [10, 1]


def test_large_answers_to_a_batch_do_not_stop_it(client, queue):
    client.add_many(queue, [bytes(1 << 20)] * 12)
    with client.pipeline() as batch:
        found = [batch.lease(queue) for _ in range(12)]
        more = [batch.add(queue, bytes(1 << 19)) for _ in range(4)]
    assert {len(leased.value().payload) for leased in found} == {1 << 20}
    assert all(added.error() is None for added in more)


# -- lost connections


def test_a_client_goes_on_after_the_server_was_killed_and_has_come_back(connect, serve, queue):
    server = serve()
    client = connect(server.address)
    job = client.add(queue, b"kept")
    server.kill()
    server.start()
    assert client.lease(queue).id == job, "a connection that is known to be dead is not used"
    server.kill()
    timer = threading.Timer(0.2, server.start)
    timer.start()
    second = client.add(queue, b"while it was away")
    timer.join()
    assert client.inspect_job(second).payload == b"while it was away"
    server.stop()


def test_every_add_is_there_once_when_the_server_is_killed_again_and_again(serve, queue):
    server = serve()
    stop = threading.Event()
    added: list[UUID] = []
    errors: list[Exception] = []

    def produce(client: Client) -> None:
        try:
            while not stop.is_set():
                added.append(client.add(queue))
                added.extend(client.add_many(queue, [b""] * 20))
        except Exception as error:
            errors.append(error)

    with Client(server.address, retry_seconds=20) as client:
        threads = [threading.Thread(target=produce, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            count = len(added)
            while len(added) < count + 300 and not errors:
                time.sleep(0.001)
            server.kill()
            server.start()
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(set(added)) == len(added)
        assert client.inspect_queue(queue).ready == len(added)
    server.stop()


def test_an_add_that_was_done_already_counts_as_done_when_it_is_sent_again(connect, queue):
    with foreign(b"", b"-CLIENT-ERROR Duplicate job\r\n") as address:
        job = uuid4()
        assert connect(address).add(queue, id=job) == job


def test_a_delete_that_was_done_already_counts_as_done_when_it_is_sent_again(connect):
    with foreign(b"", b"-NOT-FOUND\r\n") as address:
        connect(address).delete(uuid4())


@pytest.mark.parametrize("command", ["lease", "complete", "fail", "run"])
def test_what_can_not_be_repeated_is_told_to_be_unknown(connect, command):
    calls = {
        "lease": lambda client: client.lease("q"),
        "complete": lambda client: client.complete(uuid4()),
        "fail": lambda client: client.fail(uuid4()),
        "run": lambda client: client.run("q", wait_ms=10),
    }
    with foreign(b"") as address:
        with pytest.raises(ConnectionLost, match="whether it was done is unknown") as caught:
            calls[command](connect(address))
        assert caught.value.unknown


def test_of_a_batch_that_broke_only_what_can_be_is_sent_again(connect, queue):
    job = uuid4()
    with (
        foreign(b"+OK\r\n", b"-CLIENT-ERROR Duplicate job\r\n") as address,
        connect(address).pipeline() as batch,
    ):
        first = batch.add(queue)
        second = batch.complete(uuid4())
        third = batch.add(queue, id=job)
    assert first.error() is None
    assert isinstance(second.error(), ConnectionLost)
    assert third.value() == job


def test_a_closed_client_connects_no_more(connect, server):
    client = connect(server.address, retry_seconds=0)
    client.inspect_server()
    client.close()
    with pytest.raises(ConnectionLost, match="the client is closed"):
        client.inspect_server()


def test_a_task_that_is_cancelled_costs_its_connection_and_no_other(server, queue):
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            waiting = asyncio.create_task(client.lease(queue, wait_ms=60_000))
            await client.inspect_server()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            assert (await client.add(queue)).version == 4

    asyncio.run(main())


def test_a_closed_client_says_so_at_once(server):
    client = Client(server.address, retry_seconds=60)
    client.close()
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="the client is closed"):
        client.add("q")
    assert time.monotonic() - began < 30


def test_what_can_never_connect_is_refused_when_it_is_made():
    for make in (Client, AsyncClient):
        with pytest.raises(ValueError, match="connections is 0: expected at least 1"):
            make(connections=0)
        with pytest.raises(TypeError, match="a server is a text, HOST:PORT"):
            make(("127.0.0.1", 9922))  # type: ignore[arg-type]


def test_threads_and_tasks_share_a_client(server, queue):
    with Client(server.address, connections=4) as client:
        threads = [threading.Thread(target=client.add_many, args=(queue, [b""] * 20)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.inspect_queue(queue).ready == 160

    async def main() -> None:
        async with AsyncClient(server.address, connections=4) as client:
            await asyncio.gather(*(client.add(queue) for _ in range(50)))
            assert (await client.inspect_queue(queue)).ready == 210

    asyncio.run(main())


def test_a_forked_process_makes_connections_of_its_own(server, queue):
    code = (
        "import os, sys\n"
        "from forelog.jobs import Client\n"
        "client = Client(sys.argv[1])\n"
        "client.add(sys.argv[2])\n"
        "if (child := os.fork()) == 0:\n"
        "    client.add_many(sys.argv[2], [b''] * 500)\n"
        "    client.close()\n"
        "    os._exit(0)\n"
        "for _ in range(500): client.add(sys.argv[2])\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(client.inspect_queue(sys.argv[2]).ready)\n"
    )
    command = [sys.executable, "-c", code, server.address, queue]
    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == "1001\n"


# -- tokens and TLS


def test_a_token_opens_the_server_and_without_it_nothing_is_told(connect, serve, tmp_path):
    (tmp_path / "token").write_text("sesame\n")
    server = serve("-token-file", str(tmp_path / "token"))
    assert connect(server.address, token="sesame").inspect_server().active_clients == 1
    for wrong in (None, "mustard"):
        with pytest.raises(JobRefused, match="Unauthorized"):
            connect(server.address, token=wrong).inspect_server()
    with pytest.raises(JobRefused, match="one word"):
        connect(server.address, token="two words").inspect_server()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for this machine, signed by itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    paths = str(folder / "cert.pem"), str(folder / "key.pem")
    made = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *named, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


def test_over_tls_everything_is_the_same(connect, serve, certificate, queue):
    server = serve("-tls-cert", certificate[0], "-tls-key", certificate[1])
    context = ssl.create_default_context(cafile=certificate[0])
    client = connect(server.address, tls=context)
    jobs = client.add_many(queue, [bytes(1 << 19)] * 4)
    assert [client.lease(queue).id for _ in jobs] == jobs, "one connection after the other"
    assert client.inspect_server().active_clients == 1, "and it is the same one"
    with pytest.raises(ConnectionLost, match="certificate is not trusted"):
        connect(server.address, tls=True, retry_seconds=0).inspect_server()
    with pytest.raises(JobRefused, match="This server expects TLS"):
        connect(server.address, retry_seconds=0, timeout=5).lease(queue)


# -- bytes


ANSWERS = [
    (DONE, b"+OK\r\n"),
    (LEASED, b"+OK 1\r\n61000000-0001-4000-8000-000000000001 q 10 4\r\n\r\n\r\n\r\n"),
    (RESULT, b"+OK 1\r\n61000000-0001-4000-8000-000000000001 0 0\r\n\r\n"),
    (QUEUES, b"+OK 2\r\na 2\r\nready-len 1\r\nscheduled-len 2\r\nb 2\r\nready-len 0\r\nscheduled-len 0\r\n"),
    (SERVER, b"+OK 1\r\nserver 2\r\nactive-clients 1\r\nevicted-jobs 0\r\nstarted 2026-01-01T00:00:00Z\r\n"),
    (
        JOBS,
        b"+OK 1\r\n61000000-0001-4000-8000-000000000001 12\r\nname q\r\nttr 1\r\nttl 2\r\npayload-size 6\r\n"
        b"payload a\r\nb\r\n\r\nmax-attempts 0\r\nattempts 0\r\nmax-fails 0\r\nfails 0\r\npriority -5\r\n"
        b"state 3\r\ncreated 2026-01-01T00:00:00Z\r\n",
    ),
]


@pytest.mark.parametrize(("kind", "answer"), ANSWERS)
def test_an_answer_is_the_same_however_it_is_cut_into_pieces(kind, answer):
    def read(step: int) -> Any:
        reader = ReplyReader()
        reader.expect(kind)
        for at in range(0, len(answer), step):
            assert reader.take() is None
            reader.feed(answer[at : at + step])
        assert reader.idle()
        return reader.take()

    whole = read(len(answer))
    assert whole is not None
    assert all(read(step) == whole for step in range(1, len(answer)))


@pytest.mark.parametrize(("kind", "answer"), ANSWERS[1:])
def test_a_garbled_answer_is_an_error_or_another_answer_and_nothing_else(kind, answer):
    for at in range(len(answer)):
        for byte in (0, 10, 13, 32, 57, 255):
            reader = ReplyReader()
            reader.expect(kind)
            with contextlib.suppress(ForelogError):
                reader.feed(answer[:at] + bytes([byte]) + answer[at + 1 :])
                reader.take()


def test_a_server_that_never_ends_an_answer_costs_no_memory():
    reader = ReplyReader()
    reader.expect(JOBS)
    reader.feed(b"+OK 1000\r\n")
    job = ANSWERS[5][1].partition(b"\r\n")[2].replace(b"payload-size 6", b"payload-size 1048576")
    job = job.replace(b"a\r\nb\r\n", bytes(1 << 20), 1)
    with pytest.raises(BadReply, match="more than 20971520 bytes"):
        for _ in range(1000):
            reader.feed(job)


@pytest.mark.parametrize("name", unasync.NAMES)
def test_the_client_for_threads_is_made_from_the_one_for_tasks(name):
    pytest.importorskip("ruff", reason="ruff is not installed")
    found = (unasync.FOLDER / f"{name}.py").read_text()
    assert found == unasync.made(name), "run: python -m tests.jobs.unasync"


def test_importing_the_client_does_not_load_asyncio_or_the_server():
    code = "import sys; from forelog.jobs import Client; print('asyncio' in sys.modules, 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


# -- a server inside the process


def test_a_local_server_keeps_its_jobs_in_its_log(tmp_path, queue):
    with LocalServer(tmp_path / "cmdlog") as local, Client(local.address) as client:
        job = client.add(queue, b"kept")
    with (
        LocalServer(tmp_path / "cmdlog", token=b"sesame") as local,
        Client(local.address, token="sesame") as client,
    ):
        assert client.lease(queue).id == job
    with LocalServer() as local, Client(local.address) as client:
        assert client.lease(queue) is None


def test_a_local_server_that_can_not_start_says_why(tmp_path):
    with LocalServer(tmp_path / "cmdlog") as local:
        with pytest.raises(LockTimeout):
            LocalServer(tmp_path / "cmdlog")
        with pytest.raises(OSError, match="in use"):
            LocalServer(port=int(local.address.rpartition(":")[2]))
