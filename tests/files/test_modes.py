"""Files belong to the user who made them, unless somebody says otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forelog import OlderThan, Stream
from forelog.broker import Broker, MessageLogWriter
from forelog.cli import main
from forelog.commitlog import CommitLog
from forelog.conversion import convert
from forelog.errors import LockTimeout
from forelog.files import OSFiles
from forelog.files.modes import check_mode
from forelog.formats.captain import Captain
from forelog.jobs import Client
from forelog.jobs.server.local import LocalServer
from forelog.log.verify import verify
from forelog.state import Follower, PersistentDict, ReplicaServer
from forelog.state.restoration import restore
from forelog.testing import CrashDisk

OWNER, OTHER, GROUP = 12_345, 65_534, 23_456


@pytest.fixture(autouse=True)
def nothing_is_masked() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """The modes of all directories and of all files, of a folder and below it."""
    directories = {folder.stat().st_mode & 0o7777}
    files = set()
    for place, inside, names in os.walk(folder):
        directories |= {os.stat(f"{place}/{name}").st_mode & 0o7777 for name in inside}
        files |= {os.stat(f"{place}/{name}").st_mode & 0o7777 for name in names}
    return directories, files


# -- everything that makes a log


def a_log(path: Path, **options: Any) -> None:
    stream = Stream(path / "deep" / "log", **options)
    with stream.appender(sync="always", segment_bytes=200, journal_bytes=8192, spare=True) as log:
        for _ in range(20):
            log.append(b"x" * 50)
        log.roll()
        with stream.cleaner() as cleaner:
            cleaner.clean(OlderThan("0s"))
        with stream.cursor() as cursor:
            list(cursor)
        assert modes(path)[0] == {0o700 if not options else 0o750}  # while it is open, too


def a_torn_log(path: Path, **options: Any) -> None:
    a_log(path, **options)
    last = max((path / "deep" / "log").glob("*.log"))
    with last.open("ab") as file:
        file.write(b"torn")
    Stream(path / "deep" / "log").appender().close()


def a_commit_log(path: Path, **options: Any) -> None:
    with CommitLog(path, **options) as log:
        log.write(b"one")
        log.rotate_logs()
        log.write(b"two")


def an_m3_log(path: Path, **options: Any) -> None:
    from forelog.formats.m3 import Datapoint, Series

    with CommitLog(path, format="m3", **options) as log:
        log.write(Series(b"a"), Datapoint(1_000_000_000, 1.0))


def a_state(path: Path, **options: Any) -> None:
    with PersistentDict(str(path / "state"), **options) as state:
        state.log.add_destination(str(path / "copy"), ack="synced", **options)
        state["a"] = 1
        state.rotate()


def a_state_elsewhere(path: Path, **options: Any) -> None:
    with ReplicaServer(str(path / "copies"), **options) as server:
        where = f"replica://127.0.0.1:{server.address[1]}/bank"
        with PersistentDict(str(path / "state"), **options) as state:
            state.log.add_destination(where, ack="synced")
            state["a"] = 1
            seen: list[Any] = []
            follower = Follower(where, str(path / "follows"), replay=seen.append, reset=seen.clear, **options)
            with follower:
                follower._wait(lambda: bool(seen), "nothing", 30)
            assert modes(path)[0] == {0o700 if not options else 0o750}


def messages(path: Path, **options: Any) -> None:
    with MessageLogWriter(path, **options) as log:
        log.write("a/b", b"c")


def a_broker(path: Path, **options: Any) -> None:
    async def serve() -> None:
        async with Broker(path, sync="always", **options) as broker:
            await broker.listen("127.0.0.1", 0)

    asyncio.run(serve())


def jobs(path: Path, **options: Any) -> None:
    with LocalServer(path, sync="always", **options) as server, Client(server.address) as client:
        client.add("q", b"payload")


def copies(path: Path, **options: Any) -> None:
    stream = Stream(path / "log", **options)
    with stream.appender() as log:
        log.append(b"x")
    stream.backup(path / "to" / "backup", **options)
    convert(stream, path / "converted", Captain(7, 7), **options)


def a_restore(path: Path, **options: Any) -> None:
    with PersistentDict(str(path / "state"), **options) as state:
        state["a"] = 1
    restore(path / "state", path / "restored", **options)


MAKERS = [
    a_log, a_torn_log, a_commit_log, an_m3_log, a_state, a_state_elsewhere, messages, a_broker, jobs, copies,
    a_restore,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_what_is_made_belongs_to_its_user_alone(tmp_path, make):
    make(tmp_path / "new")
    assert modes(tmp_path / "new") == ({0o700}, {0o600})


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_mode_lets_others_in(tmp_path, make):
    make(tmp_path / "new", mode=0o640)
    assert modes(tmp_path / "new") == ({0o750}, {0o640})


@pytest.mark.parametrize(
    "command",
    [
        ["append", "LOG"], ["backup", "SOURCE", "LOG"], ["convert", "SOURCE", "LOG", "--to", "captain"],
        ["state", "restore", "STATE", "LOG"],
    ],
    ids=lambda command: command[0],
)  # fmt: skip
@pytest.mark.parametrize("mode", [None, "640"])
def test_commands_that_make_logs_take_a_mode(tmp_path, command, mode, monkeypatch):
    with Stream(tmp_path / "source", mode=0o644).appender() as log:
        log.append(b"x")
    with PersistentDict(str(tmp_path / "state"), mode=0o644) as state:
        state["a"] = 1
    names = {"LOG": "new", "SOURCE": "source", "STATE": "state"}
    command = [str(tmp_path / names[word]) if word in names else word for word in command]
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main([*command, *([] if mode is None else ["--mode", mode])]) == 0
    assert modes(tmp_path / "new") == (({0o700}, {0o600}) if mode is None else ({0o750}, {0o640}))


def test_a_umask_takes_away_and_never_adds(tmp_path):
    os.umask(0o027)
    a_log_here = Stream(tmp_path / "log", mode=0o666)
    a_log_here.appender().close()
    assert modes(tmp_path / "log") == ({0o750}, {0o640})
    os.umask(0)
    with a_log_here.appender() as log:  # the log has its mode by now
        log.append(b"x")
        log.roll()
    assert modes(tmp_path / "log") == ({0o750}, {0o640})


def test_a_log_that_is_there_keeps_its_mode(tmp_path):
    stream = Stream(tmp_path / "log", mode=0o644)
    with stream.appender() as log:
        log.append(b"x")
    with Stream(tmp_path / "log").appender(segment_bytes=10, journal_bytes=8192) as log:
        log.append_many([b"y"])
        log.append_many([b"y"])
    assert modes(tmp_path / "log") == ({0o755}, {0o644})


def test_a_log_of_other_programs_keeps_its_mode(tmp_path):
    """One without a file for readers' locks, as before there was any reader."""
    stream = Stream(tmp_path / "log", mode=0o644)
    with stream.appender() as log:
        log.append(b"x")
    (tmp_path / "log" / "read.lock").unlink()
    (tmp_path / "log" / "append.lock").chmod(0o664)
    with Stream(tmp_path / "log").appender() as log:
        log.roll()
    assert modes(tmp_path / "log")[1] == {0o644, 0o664}
    assert stat.S_IMODE((tmp_path / "log" / "read.lock").stat().st_mode) == 0o644


def test_a_log_in_an_empty_directory_that_is_open_to_all_is_private(tmp_path):
    (tmp_path / "log").mkdir(0o777)
    a_log_here = Stream(tmp_path / "log")
    with a_log_here.appender() as log:
        log.append(b"x")
    assert modes(tmp_path / "log") == ({0o777}, {0o600})


@pytest.mark.parametrize("mode", [0o200, 0o400, 0o755, 0o1600, -1, 0, True, "640", None, 6.0])
def test_a_mode_that_makes_no_sense_is_refused(mode):
    with pytest.raises(ValueError, match="mode is"):
        check_mode(mode)


def test_a_mode_is_for_the_operating_systems_files(tmp_path):
    with pytest.raises(ValueError, match="mode"):
        Stream(tmp_path, files=CrashDisk(), mode=0o640)
    with (
        PersistentDict(str(tmp_path / "state")) as state,
        pytest.raises(ValueError, match="mode is for directories"),
    ):
        state.log.add_destination("replica://127.0.0.1:1/x", mode=0o640)


@pytest.mark.parametrize("text", ["755", "6", "640x", "0x1a0", "-640", "00000640", "４００", "200"])
def test_a_mode_of_a_command_that_makes_no_sense_is_refused(tmp_path, text, capsys):
    assert main(["append", str(tmp_path / "log"), f"--mode={text}"]) == 2
    assert "mode" in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


# -- other users


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, group: int, work: Callable[[], Any]) -> Any:
    """What some work returns or raises, done by another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            told = (True, work())
        except BaseException as error:
            told = (False, error)
        with contextlib.suppress(BaseException):
            os.write(writer, pickle.dumps(told))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        fine, found = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if not fine:
        raise found
    return found


def append(path: Path, mode: int | None = None, count: int = 1) -> None:
    with Stream(path, mode=mode).appender() as log:
        for _ in range(count):
            log.append(b"x")


def read(path: Path) -> list[bytes]:
    with Stream.open(path).cursor() as cursor:
        return [record.payload for record in cursor]


def test_nobody_else_reads_a_log_or_holds_its_locks(place):
    as_user(OWNER, GROUP, lambda: append(place / "log"))

    def hold(name: str) -> None:
        OSFiles().lock(str(place / "log" / name), exclusive=True, timeout=0)

    for name in ("append.lock", "read.lock", "append.synced"):
        with pytest.raises(PermissionError):
            as_user(OTHER, OTHER, partial(hold, name))
    with pytest.raises(PermissionError):
        as_user(OTHER, OTHER, lambda: read(place / "log"))
    as_user(OWNER, GROUP, lambda: append(place / "log"))


def test_a_log_in_a_directory_that_is_open_to_all_is_as_private(place):
    (place / "log").mkdir(0o777)
    as_user(OWNER, GROUP, lambda: append(place / "log"))
    with pytest.raises(PermissionError):
        as_user(OTHER, OTHER, lambda: read(place / "log"))
    with pytest.raises(PermissionError):
        as_user(OTHER, OTHER, lambda: append(place / "log"))


def test_a_group_reads_a_log_that_is_open_to_it_and_writes_nothing(place):
    as_user(OWNER, GROUP, lambda: append(place / "log", 0o640, 5))
    assert as_user(OTHER, GROUP, lambda: read(place / "log")) == [b"x"] * 5
    assert as_user(OTHER, GROUP, lambda: verify(Stream.open(place / "log")).problems()) == []
    with pytest.raises(PermissionError):
        as_user(OTHER, GROUP, lambda: append(place / "log"))
    with pytest.raises(PermissionError):
        as_user(OTHER, OTHER, lambda: read(place / "log"))


def test_a_group_that_reads_holds_up_a_cleaner_from_the_first_moment(place):
    """It could not make the file to lock itself: whoever makes the log does."""

    def make() -> None:
        stream = Stream(place / "log", mode=0o640)
        with stream.appender() as log:
            log.append(b"x")

    as_user(OWNER, GROUP, make)

    def read_while_it_is_cleaned() -> str:
        with Stream.open(place / "log").cursor():
            return "held" if _is_held(place / "log" / "read.lock") else "not held"

    assert as_user(OTHER, GROUP, read_while_it_is_cleaned) == "held"


def _is_held(path: Path) -> bool:
    try:
        OSFiles().lock(str(path), exclusive=True, timeout=0).release()
    except LockTimeout:
        return True
    return False


def test_a_group_may_write_where_it_is_let(place):
    as_user(OWNER, GROUP, lambda: append(place / "log", 0o660))
    as_user(OTHER, GROUP, lambda: append(place / "log"))
    as_user(OWNER, GROUP, lambda: append(place / "log"))
    assert as_user(OTHER, GROUP, lambda: read(place / "log")) == [b"x"] * 3


def test_what_root_makes_in_a_users_log_belongs_to_that_user(place):
    as_user(OWNER, GROUP, lambda: append(place / "log"))
    (place / "log" / "read.lock").unlink()
    verify(Stream.open(place / "log"))
    append(place / "log")
    assert {os.stat(path).st_uid for path in (place / "log").iterdir()} == {OWNER}
    as_user(OWNER, GROUP, lambda: append(place / "log"))


def test_root_gives_away_nothing_that_a_name_leads_to(place):
    secret = place / "secret"
    secret.write_text("root's")
    os.chmod(secret, 0o600)
    os.mkdir(place / "log")
    os.chown(place / "log", OWNER, GROUP)
    os.symlink(place / "later", place / "log" / "append.lock")
    os.symlink(secret, place / "log" / "read.lock")
    with pytest.raises(OSError, match=r"append\.lock"):
        append(place / "log")
    assert not (place / "later").exists()
    assert secret.stat().st_uid == 0
