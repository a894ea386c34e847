"""The kernel's functions: what they take, what they return, what they do.

A buffer is anything that has bytes: bytes, a bytearray, an array, a memoryview, an mmap. Columns are arrays of
type "q". `start` and `stop` are places in a buffer, `first` and `last` rows of columns; `last` is the row after
the last. What isn't in a buffer, or isn't a row, raises ValueError.
"""

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, Self

from _typeshed import ReadableBuffer, WriteableBuffer

from forelog.kernel.types import (
    Commands,
    Drained,
    Entries,
    Item,
    MessageColumns,
    Packets,
    Pubacks,
    Publishes,
    Scan,
)

# -- Bytes and numbers

def crc32c(data: ReadableBuffer, crc: int = 0) -> int:
    """CRC-32C of `data`; `crc` is the checksum of what came before it."""

def crc32c_portable(data: ReadableBuffer, crc: int = 0) -> int:
    """CRC-32C without the processor's instruction for it."""

def crc32c_hardware() -> bool:
    """Whether crc32c() uses the processor's instruction."""

def payload_bytes(payload: Any) -> bytes:
    """A payload as bytes. Raises TypeError for a text, and for what is no buffer."""

def read_clock(clock: Callable[[], Any]) -> int:
    """The clock's time in nanoseconds since 1970. Raises TimeOutOfRange if no record can have it."""

def varint(number: int) -> bytes:
    """An unsigned number in unsigned LEB128: groups of seven bits, the lowest first."""

# -- Records of the captain format

def captain_encode(payload: ReadableBuffer, time_ns: int) -> bytes:
    """Encode one record."""

def captain_encode_many(payloads: Sequence[ReadableBuffer], time_ns: int) -> tuple[bytes, array[int]]:
    """Encode records of one time. Returns their bytes, back to back, and where each starts."""

def captain_scan(buffer: ReadableBuffer, start: int, stop: int, base: int, limit: int) -> Scan:
    """Decode and check records, at most `limit`, up to `stop` or the first that isn't whole and right.

    `base` is added to the offsets.
    """

def captain_hop(
    buffer: ReadableBuffer, start: int, stop: int, offset_min: int, time_min: int
) -> tuple[int, int, int]:
    """Go from head to head, without checking payloads, to the first record at or past both bounds.

    Returns (end, reason, need) as a scan does. `end` may be past `stop`: the next record starts there.
    """

def captain_find(buffer: ReadableBuffer, start: int, stop: int, final: bool) -> int:
    """Find the next record at or after `start`, past damage. Returns where it starts, or -1.

    A right record could be part of another one's payload. So it counts only if a right record follows it, or if it
    ends at `stop` and `final` says that the file ends there too. The work is bounded: bytes in which every place
    looks like the head of a long record end the search early.
    """

# -- Columns of records

def pieces(buffer: ReadableBuffer, starts: array[int], ends: array[int]) -> list[bytes]:
    """Copy ranges of a buffer."""

def pieces_after(
    buffer: ReadableBuffer, starts: array[int], ends: array[int], first: int, last: int, head: bytes
) -> list[bytes]:
    """Copy what follows `head` in each range. Stops at the first range that doesn't begin with it."""

def even_pieces(buffer: ReadableBuffer, size: int) -> list[bytes]:
    """Cut a buffer into pieces of one size."""

def gather(
    buffer: ReadableBuffer,
    starts: array[int],
    ends: array[int],
    first: int,
    last: int,
    offsets: WriteableBuffer,
    data: WriteableBuffer,
) -> int:
    """Copy ranges into `data`, back to back, and their bounds into `offsets`, as int32. Returns how many bytes."""

def microseconds(times: array[int], first: int, last: int, out: WriteableBuffer) -> bool:
    """Convert nanoseconds to whole microseconds, towards 0. Returns whether all times are known exactly."""

def first_since(times: array[int], start: int, time_min: int) -> int:
    """The first row from `start` on whose time is `time_min` or later; the number of rows if there is none."""

def time_run(times: array[int], start: int, time_min: int, time_last: int) -> tuple[int, int]:
    """The next run of rows whose times are in a range: its first row, and the one after its last."""

def ascends(times: array[int], after: int) -> bool:
    """Whether no time is earlier than `after`, nor than the time before it."""

def keep_since(times: array[int], time_min: int) -> bytearray:
    """A mask with 1 where the time is `time_min` or later."""

def compact(
    buffer: ReadableBuffer,
    offsets: array[int],
    base: int,
    end: int,
    keep: ReadableBuffer,
    out: WriteableBuffer,
) -> int:
    """Copy the frames that `keep` marks into `out`, back to back. Returns how many bytes.

    Each frame ends where the next one starts, and the last one at `end`. `base` is the offset of the buffer's
    start.
    """

def select(column: array[int], keep: ReadableBuffer) -> array[int]:
    """The rows of a column that `keep` marks."""

def kept_runs(
    logical: array[int],
    physical: array[int],
    end: int,
    keep: ReadableBuffer,
    place: int,
    expected: int,
    runs: array[int],
) -> tuple[int, int]:
    """Append to `runs` a pair (logical offset, new physical offset) for each run of kept frames.

    `end` is the physical end of the last frame. The first kept frame will be written at `place`; it starts a new
    run unless its logical offset is `expected`. Returns (place, expected) for the next call.
    """

def relocate(physical: array[int], runs: array[int]) -> array[int]:
    """The logical offsets of ascending physical ones, by the pairs of kept_runs()."""

class KeySet:
    """A set of keys, for keeping the latest record of each."""

    def __len__(self) -> int: ...
    def keep_latest(
        self,
        buffer: ReadableBuffer,
        starts: array[int],
        ends: array[int],
        key_start: int,
        key_stop: int,
        delimiter: int,
    ) -> bytearray:
        """Add the payloads' keys, from the last to the first. Returns a mask with 1 for each key that is new.

        The key is payload[key_start:key_stop], cut at the first `delimiter` byte unless that is negative. A
        payload that is too short to have a key gets 1.
        """

def msgpack_array(
    buffer: ReadableBuffer,
    starts: array[int],
    ends: array[int],
    first: int,
    last: int,
    head: bytes,
    skip: int,
    size_max: int,
) -> tuple[int, bytes]:
    """Join values in msgpack to one array. Returns how many they are, and the array.

    Each range is `head` and one value; only `skip` bytes of the head are left out. The array ends before a range
    that doesn't begin with the head or isn't one value. It also ends before it exceeds `size_max` bytes, but has
    at least one value.
    """

# -- Appending

class _Shared(Protocol):
    """Words of memory that other processes see."""

    def words(self) -> Any:
        """The words as a memoryview of type "Q", or None if they can only be set by store()."""

    def store(self, index: int, value: int) -> None:
        """Set one word."""

class AppendCore:
    """Stamp, encode, write and count a record, under a lock: an append while nothing special is due.

    The core is a context manager that holds the lock. Only its holder may touch the fields, and it can't take
    the lock twice. An append that finds `offset` at or past `rest_at`, or whose frame has more than
    `frame_bytes_max` bytes, calls `rest(payload)` instead, without the lock.

    A write that is short or fails calls `undo(frame, written, error)` with the lock held, which either completes
    the write or raises. Until it has returned `torn` is set, and every append calls `rest`.
    """

    torn: bool
    segment: int
    offset: int
    rest_at: int
    """The offset from which on every append calls `rest`. Once the appender has ended it stays at -1."""
    time_ns: int
    step_ns: int
    """The least time between two records."""
    records: int
    frame_bytes_max: int
    write: Callable[[bytes | memoryview], int]
    descriptor: int
    """What `write` writes to. Unless it is -1 the core writes to it by itself, without a call of `write`."""
    alone: bool
    """Whether a LoneWriter may append and sync; otherwise the appender has more to do."""
    synced: int
    """Up to where the segment is on stable storage, or in the journal."""
    settled: int
    """Up to where it is on stable storage itself."""
    syncs: int
    journal_syncs: int
    sync: Callable[[], None]
    """Syncs the segment, where there is no descriptor."""
    cover: Callable[[int, int, int], bool] | None
    """Syncs bytes of a segment in the journal: `cover(segment, start, end)`. False if there is no room."""
    restart: Callable[[int], None] | None
    """Begins the journal again, once a segment was synced itself."""
    note: Callable[[int, int], None] | None
    """Writes a mark of what is synced, where there is no descriptor for it."""
    fail: Callable[[OSError], Any]
    """Raises for a sync that failed."""
    mark_at: int
    mark_bytes: int
    timing: Distribution | None
    """How long syncs take."""
    one_timing: Distribution | None
    """How long append() takes, by sample: where a mark is due."""
    many_timing: Distribution | None
    """How long append_many() takes, likewise."""
    def __init__(
        self,
        encode: Callable[[Any, int], bytes] | None,
        undo: Callable[[bytes, int, OSError | None], None],
        rest: Callable[[Any], Any],
        kind: type[tuple[Any, ...]],
        clock: Callable[[], int] | None = None,
    ) -> None: ...
    @property
    def locked(self) -> bool:
        """Whether the lock is held."""

    def place(self) -> tuple[int, int]:
        """The segment, and where the next record goes in it. Doesn't wait for the lock."""

    def end(self) -> None:
        """Have every append call `rest` from now on, for good."""

    @property
    def held(self) -> bool:
        """Whether the calling thread holds the lock, or that for syncing."""

    @property
    def sync_lock(self) -> OwnedLock:
        """Held by whoever syncs. Taken after the core's own lock, never before."""

    @property
    def sync_error(self) -> OSError | None:
        """The error of a sync, after which nothing more may be appended."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def disown(self) -> None:
        """In a forked child: append nothing more, and lock nothing more."""

    def begin(self, segment: int, offset: int, marks: array[int], mark_at: int) -> None:
        """Continue in a segment that is synced up to its end.

        `marks` gets pairs of offset and time for the segment's index: of the first record at or past `mark_at`,
        and of the first in each `mark_bytes` after it.
        """

    def mark_batch(self, starts: array[int], base: int, time_ns: int) -> None:
        """Note the marks that are due among records of one time, which start at `base` plus `starts`."""

    def share_mark(self, descriptor: int, mark: bytes, place: int) -> None:
        """Write marks of what is synced to this descriptor: `mark`, with the segment, the offset and the checksum
        replaced. With -1, `note` is called instead."""

    def note_synced(self, segment: int, offset: int) -> None:
        """Write a mark, unless there is a later one. The caller holds the lock for syncing."""

    def finish_sync(self, segment: int, end: int, settled: bool) -> None:
        """Count a sync, publish the end, and write a mark if the segment itself was synced.

        The caller holds the lock for syncing.
        """

    def fail_sync(self, error: OSError) -> None:
        """Remember the error of a sync, and append nothing more."""

    def unshare(self) -> None:
        """Publish and note nothing more."""

    def stamp(self) -> int:
        """The time for a record that is written now: at least `step_ns` later than that of the last one."""

    def share_end(self, shared: _Shared | None, waits: bool = False) -> None:
        """Tell other processes where each write will end, and where it has; None tells them no more.

        With `waits` the second is left to the caller, who does so after a sync.
        """

    def intend(self, end: int) -> None:
        """A write is about to begin that ends there."""

    def advance(self, size: int, records: int, time_ns: int) -> None:
        """Count what the caller has written. No interrupt can come in between."""

    def append(self, payload: Any) -> Any:
        """Append a record. Returns its position, of type `kind`, or what `rest` returns."""

    def append_many(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        """Append captain records of one time with one write. Returns their segment, its offset, and their starts.

        Returns None and does nothing if they would reach `rest_at`, exceed `frame_bytes_max`, or aren't captain's.
        """

class LoneWriter:
    """Appends and syncs in one step while nobody else uses `queue`.

    It takes the lead of the queue, so others who come meanwhile enter the queue and one of them leads next. While
    there is company, or something special is due, it calls `among(payload)`. `failed(error)` is called while it
    still leads. `timing` and `sizes` count its writes.
    """

    def __init__(
        self,
        core: AppendCore,
        queue: BoundedQueue,
        among: Callable[[Any], Any],
        timing: Distribution,
        sizes: Distribution | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None: ...
    def append(self, payload: Any) -> Any:
        """Append a record. Returns its position once it is on stable storage, or what `among` returns."""

    def append_many(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        """Append captain records, as AppendCore.append_many() does, and sync them. None if it can't."""

class Distribution:
    """A count, a sum, a maximum, and a histogram. Each call is one step to all threads."""

    bounds: tuple[float, ...]
    count: int
    total: float
    most: float
    def __init__(self, bounds: Sequence[float]) -> None: ...
    def add(self, value: float) -> None:
        """Count a value."""

    @property
    def buckets(self) -> list[int]:
        """How many values were up to each bound and above the one before, and how many above all."""

class OwnedLock:
    """A lock that its thread can take again. A thread that waits for it can't be interrupted."""

    @property
    def held(self) -> bool:
        """Whether the calling thread holds it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class BoundedQueue:
    """A queue that is bounded by writes and by bytes, and who commits what is in it. Each call is one step to all
    threads, and no signal handler runs in it.

    An entry has `items`, its writes, and `byte_count`. An entry without writes always enters. Any entry enters an
    empty queue, even if it is larger than all of it.

    The leader is the entry whose thread commits; the queue itself for a thread of the queue's own, which `wake()`
    wakes, a function in C; or None. An entry's thread can lead if the entry has a `gate` where it waits, and isn't
    `is_main`. To make it the leader its gate is taken away and opened.
    """

    writes_max: int
    bytes_max: int
    writes: int
    bytes: int
    crowd: int
    """How many use the queue together, as far as is known. Only with 0 may a LoneWriter lead."""
    committing: int
    """The thread that commits; 0 for none."""
    def __init__(self, writes_max: int, bytes_max: int, wake: Callable[[], object] | None = None) -> None: ...
    @property
    def leader(self) -> Any:
        """Who leads."""

    @property
    def is_committing(self) -> bool:
        """Whether the calling thread commits."""

    def enter(self, entry: Any, gate: Gate | None = None) -> bool:
        """Put an entry at the end, and have the first one lead if nobody does.

        Returns False if there is no room for it, or if the queue refuses all. `gate` is opened when there may be
        room.
        """

    def pass_on(self) -> None:
        """End the lead: the first in the queue leads, or nobody."""

    def rest(self, gate: Gate) -> bool:
        """Whether nobody leads and nothing is queued. If not, `gate` is opened when that is so."""

    def leave(self, entry: Any) -> Gate | None:
        """Take an entry's gate: its thread doesn't wait any more. The entry stays, and someone leads."""

    def refuse(self) -> None:
        """Let nothing more in."""

    def __len__(self) -> int: ...
    def push(self, entry: Any) -> bool:
        """Put an entry at the end. Returns False if there is no room for it."""

    def take(self, entries_max: int, bytes_max: int) -> list[Any]:
        """Take entries from the front within the limits, but at least one if there is any."""

    def remove(self, entry: Any) -> bool:
        """Take an entry back. Returns False if it has been taken."""

    def first(self) -> Any:
        """The entry at the front; None if there is none."""

class Gate:
    """A thread waits here until another one opens it, once."""

    def open(self) -> None:
        """Release the thread that waits here, or the one that will."""

    def wait(self, line: deque[Gate] = ...) -> None:
        """Open the first gate of a line, if there is one, and wait.

        No interrupt can come in between, and the interpreter's lock is given up first.
        """

    def wait_for(self, seconds: float) -> bool:
        """Wait at most so long. Returns whether the gate was opened."""

def open_first(line: deque[Gate]) -> None:
    """Take the first gate out of a line, if there is one, and open it."""

# -- State

class KeyLocks:
    """Locks for the writers of keys, and one for them all. Taking and giving back is one step: no interrupt leaves
    a lock behind. A thread can be interrupted while it waits.

    A change is made first in a log and then in memory, and an interrupt may come in between. `begin` notes where
    the log ended before, and `done` that memory has the change. If `done` wasn't called, whoever takes the lock
    next has `mend(position)` called first, with all locks held. It makes in memory what the log has from there on.

    `among` is a context variable with the transactions that a call belongs to.
    """

    transaction: Any
    """The open transaction; None if there is none."""
    def __init__(self, mend: Callable[[Any], object], among: ContextVar[tuple[Any, ...]]) -> None: ...
    def of(self, key: Hashable) -> Held:
        """Keep out other writers of a key."""

    def all(self) -> Held:
        """Keep out all other writers."""

    def together(self, transaction: Any, commit: Callable[[Any], object]) -> Held:
        """Keep out all other writers for a transaction, and call `commit(transaction)` if it ends without an
        error."""

    def begin(self, position: tuple[int, int]) -> None:
        """Note that the log, from this place on, may have what memory hasn't. The caller holds its locks."""

    def done(self) -> None:
        """Note that memory has what the log has."""

    def forget(self) -> None:
        """Forget unfinished changes: memory has been restored."""

class Held:
    """A `with` block in which locks are held. A thread that holds any gets RuntimeError if it takes another."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

# -- M3's commit log

def m3_scan(buffer: ReadableBuffer, start: int, stop: int, base: int, limit: int) -> Scan:
    """Decode and check chunks, at most `limit`, up to `stop` or the first that isn't whole and right.

    A chunk's time is when its first entry was created. A chunk in which no entry begins has the time of the one
    before it, or else of the one after it, so that times don't go back; 0 if no time is known.
    """

def m3_hop(buffer: ReadableBuffer, start: int, stop: int, offset_min: int, time_min: int) -> tuple[int, int, int]:
    """Go from head to head, without checking data, to the first chunk past both bounds: see captain_hop()."""

def m3_find(buffer: ReadableBuffer, start: int, stop: int, final: bool) -> int:
    """Find the next chunk at or after `start`, past damage: see captain_find()."""

def m3_time(buffer: ReadableBuffer, start: int, stop: int, before: int) -> int:
    """When the first entry of a chunk's data was created; `before` if the data begins with none."""

def m3_metadata(
    series_id: bytes, namespace: bytes, shard: int, tags: Iterable[tuple[bytes, bytes]] | None
) -> bytes:
    """The metadata of a series, as its first entry has it."""

def m3_parse_metadata(
    data: ReadableBuffer,
) -> tuple[bytes, bytes, int, tuple[tuple[bytes, bytes], ...] | None]:
    """The id, namespace, shard and tags of a series. Raises ValueError for anything else."""

def m3_message(
    series: int,
    created: int,
    metadata: bytes | None,
    timestamp: int,
    value: float,
    unit: int,
    annotation: bytes | None,
) -> bytes:
    """Encode one entry, without its length."""

def m3_chunks(messages: Sequence[bytes], chunk_bytes: int) -> tuple[bytes, array[int], array[int]]:
    """Put messages into chunks. Returns the bytes, where the chunks start, and for each message its chunk's start.

    The layout is that of M3's writer. A message that doesn't fit into the rest of a chunk starts the next one.
    One that fits into no chunk fills its first; what is left over is a chunk by itself if it is larger than
    `chunk_bytes`, and else shares one with what follows.
    """

class M3Encoder:
    """Encodes the entries of one file. What a batch teaches it is kept once the batch is accepted."""

    def __init__(self, number: int, chunk_bytes: int) -> None: ...
    def encode_many(self, entries: Iterable[Item], time_ns: int) -> tuple[bytes, array[int]]:
        """Encode a batch. Returns the bytes of its chunks, the last one closed, and where they start."""

    def places(self) -> array[int]:
        """For each entry of the last batch, the start of the chunk that it begins in."""

    def accept(self) -> None:
        """The last batch was written."""

class M3Decoder:
    """Decodes the entries of one file, from its first chunk on.

    A message that can't be read stops it. Fed the same chunks from `row` on, it resumes at the next chunk that
    begins with a message. An entry of an unknown series stops it too, or with `lenient` is left out and counted.
    """

    number: int
    """The file's number, by its LogInfo; -1 if there was none."""
    pending_offset: int
    """The chunk in which a message begins whose end hasn't come yet; -1 if there is none."""
    def __init__(self, lenient: bool = False, annotation_bytes_max: int = 0x7FFFFFFF) -> None: ...
    def __len__(self) -> int:
        """How many series there are."""

    def metadata(self, first: int, last: int) -> list[bytes]:
        """The metadata of some of the series."""

    def resync(self) -> None:
        """There is a gap before the next chunk: resume at one that begins with a message."""

    def feed(
        self,
        buffer: ReadableBuffer,
        starts: array[int],
        ends: array[int],
        offsets: array[int],
        first: int,
        last: int,
    ) -> Entries:
        """Decode the entries that end in these chunks."""

class M3Checker:
    """Finds where a file may be cut without leaving half a message.

    A message that spans chunks is the first in its first chunk, if M3's writer or this one wrote it. Of a file
    where that isn't so nothing is known: it may be cut after each chunk.
    """

    end: int
    """The physical offset after the last chunk at which no message is unfinished."""
    def feed(self, buffer: ReadableBuffer, scan: Scan) -> None:
        """Look at the next chunks of the file."""

# -- Messages of a broker's log

def messages_scan(buffer: ReadableBuffer, start: int, stop: int, base: int, limit: int) -> Scan:
    """Decode and check messages, at most `limit`, up to `stop` or the first that isn't whole and right."""

def messages_hop(
    buffer: ReadableBuffer, start: int, stop: int, offset_min: int, time_min: int
) -> tuple[int, int, int]:
    """Go from message to message, without checking, to the first at or past both bounds: see captain_hop().

    `end` is never past `stop`: where a message ends is known only once all of it is there.
    """

def messages_find(buffer: ReadableBuffer, start: int, stop: int, final: bool) -> int:
    """Find the next message at or after `start`, past damage: see captain_find()."""

def message_columns(
    buffer: ReadableBuffer, offsets: array[int], base: int, first: int, last: int
) -> MessageColumns:
    """Where the topics, the payloads and the properties of scanned messages are."""

def message_split(frame: ReadableBuffer) -> tuple[str, bytes, bytes]:
    """Topic, payload and encoded properties of one message. Its checksum isn't looked at."""

def messages_encode(item: tuple[bytes, bytes, bytes], time_ns: int) -> bytes:
    """Encode one message from a topic, a payload, and properties in msgpack."""

def messages_encode_many(given: Iterable[tuple[bytes, bytes, bytes]], time_ns: int) -> tuple[bytes, array[int]]:
    """Encode messages of consecutive nanoseconds. Returns their bytes, back to back, and where each starts."""

def messages_json(buffer: ReadableBuffer, starts: array[int], ends: array[int]) -> tuple[array[int], bytes]:
    """Convert properties to JSON. Returns where each begins and the last ends, and the texts, back to back.

    Bytes become texts in base64, an extension `{"ext": its type, "data": base64}`, infinities and NaN null. A
    key that is no text becomes the text of its JSON, and within a key a list or a map as a key its bytes in
    base64. What is no UTF-8 in a text becomes U+FFFD.
    """

# -- Commands of a job server

def commands_decode(
    buffer: ReadableBuffer,
    starts: array[int],
    ends: array[int],
    first: int,
    last: int,
    ticks_per_second: int = 1_000_000_000,
) -> Commands:
    """Decode commands. Times count ticks since 1970."""

def uuid_texts(ids: ReadableBuffer) -> tuple[array[int], bytes]:
    """Ids of sixteen bytes as texts. Returns where each begins and the last ends, as int32, and the texts."""

def job_encode(job_id: bytes, head: bytes, payload: bytes, scheduled_ns: int | None, created_ns: int) -> bytes:
    """Encode an add, or a schedule if there is a time. `head` is the job's name and numbers, encoded."""

def uuid_text(job_id: bytes) -> bytes:
    """An id of sixteen bytes as a text such as 61000000-0001-4000-8000-000000000001."""

def uuid_parse(text: bytes) -> bytes | None:
    """The id of such a text, in either case; None if it is none."""

def next_line(data: bytes, at: int, limit: int) -> tuple[int, list[bytes] | None, bool]:
    """Read a line. Returns where its line feed is, its words, and whether there is a "=" in it.

    The place is -1 if there is no line feed within `limit` bytes. The words are None if the line doesn't end in CR
    LF. The first word is what comes before the first space and may be empty; no other word is.
    """

# -- Memory

def heap_free_bytes() -> int:
    """How many bytes malloc has free, whether the system has them or not. 0 where that isn't known."""

def heap_trim() -> None:
    """Give the system what malloc has free. Takes about 10 ms for 100 MiB, and allocations wait meanwhile."""

# -- Sockets

class SocketSet:
    """Sockets, each with an owner, that one call reads together. For one thread; on Linux only (else OSError).

    An event loop waits until `fileno` is readable, as it is while one of the sockets is, and calls `read`.
    Remove a socket before closing it. One that something else has closed is to be forgotten.
    """

    def __len__(self) -> int: ...
    def fileno(self) -> int:
        """A descriptor that is readable while one of the sockets is."""

    def add(self, descriptor: int, owner: Any) -> None:
        """Read this socket from now on."""

    def remove(self, descriptor: int) -> None:
        """Read this socket no more."""

    def forget(self, descriptor: int, owner: Any) -> None:
        """Something else has closed this owner's socket. Does nothing if another socket has its number by now."""

    def read(self) -> list[tuple[Any, bytes | None]]:
        """What has come, with its owner. No bytes: the socket was closed. None: it is broken."""

    def close(self) -> None:
        """Remove all sockets, which stay open."""

def socket_send(descriptor: int, data: bytes) -> int:
    """Write to a socket without waiting. Returns how many bytes it took, or less than 0."""

# -- MQTT: what clients send

def mqtt_split(
    buffer: ReadableBuffer, start: int, stop: int, packet_bytes_max: int, packets_max: int = 4096
) -> Packets:
    """Find packets of any type. `packet_bytes_max` counts all of a packet's bytes."""

def mqtt_publishes(
    buffer: ReadableBuffer, start: int, stop: int, version: int, packet_bytes_max: int, packets_max: int = 4096
) -> Publishes:
    """Decode the run of plain messages from `start` on, as a client of MQTT 4 (3.1.1) or 5 sends them."""

def mqtt_pubacks(buffer: ReadableBuffer, start: int, stop: int) -> Pubacks:
    """Decode the run of PUBACKs from `start` on that have nothing but their packet id."""

class Inbox:
    """What clients have published since the last write, as messages of the log. For one thread."""

    runs: list[tuple[Any, bytes]]
    """Whose the messages are, run by run, and the acknowledgements to send once they are safe."""
    last_ns: int
    """The time of the last message. The next one is later."""
    def __len__(self) -> int:
        """How many messages there are."""

    @property
    def byte_count(self) -> int:
        """How many bytes the messages have."""

    def take(
        self,
        owner: Any,
        buffer: ReadableBuffer,
        start: int,
        stop: int,
        version: int,
        packet_bytes_max: int,
        time_ns: int,
        properties0: bytes,
        properties1: bytes,
        packets_max: int = 4096,
    ) -> tuple[int, int, int, int]:
        """Take the run of plain messages without properties from `start` on, of consecutive nanoseconds.

        Messages of QoS 0 get `properties0` and those of QoS 1 `properties1`, maps in msgpack. Returns how many
        they are, and the `end`, `reason` and `need` of mqtt_publishes().
        """

    def put(self, owner: Any, message: bytes, time_ns: int, acks: bytes) -> None:
        """Take one message, encoded as the log has it, as a run of its own."""

    def topics(self) -> list[bytes]:
        """The topics of the last run, each once."""

    def undo(self) -> None:
        """Drop the last run."""

    def drain(self) -> Drained:
        """Take out everything."""

# -- MQTT: what subscribers get

def messages_flags(buffer: ReadableBuffer, property_starts: array[int], property_ends: array[int]) -> bytes:
    """One byte for each message, by its properties: QoS + 4 if it is retained + 8 if it is odd + 16 if it expires.

    Odd properties have to be decoded: they are no map, have other keys than "qos", "from", "retain" and "id", or
    one of these twice or with a strange value.
    """

def topic_codes(buffer: ReadableBuffer, starts: array[int], ends: array[int]) -> tuple[array[int], list[bytes]]:
    """Number the distinct topics as they appear. Returns each message's number, and the topics."""

def rows_where(
    codes: array[int],
    wanted: ReadableBuffer,
    first: int = 0,
    flags: ReadableBuffer | None = None,
    flags_mask: int = 0,
    flags_value: int = 0,
) -> array[int]:
    """The rows from `first` on whose byte in `wanted`, at their code, isn't 0.

    With `flags`, a byte for each row, only those where `flags[row] & flags_mask == flags_value`.
    """

def mqtt_deliver(
    version: int,
    buffer: ReadableBuffer,
    rows: array[int],
    topic_starts: array[int],
    topic_ends: array[int],
    payload_starts: array[int],
    payload_ends: array[int],
    flags: ReadableBuffer,
    qos_max: int,
    first_id: int,
    properties: bytes,
    retain: bool = False,
    dup: bool = False,
) -> tuple[bytes, int]:
    """Encode rows as PUBLISH packets. Returns the packets, and how many packet ids they took from `first_id` on.

    After 65,535 comes 1. A row's QoS is at most `qos_max`; with QoS 0 it has no id, and `dup` isn't set. All
    have the same properties, encoded without their length, which MQTT 3.1.1 leaves out.
    """

def mqtt_encode_publish(
    version: int,
    topic: bytes,
    payload: ReadableBuffer,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    properties: bytes,
) -> bytes:
    """Encode a PUBLISH. The properties are encoded, without their length; MQTT 3.1.1 leaves them out.

    The topic and the properties aren't looked at: they were checked when they came in.
    """
