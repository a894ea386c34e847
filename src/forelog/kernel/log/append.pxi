# An append while nothing special is due. Included by _kernel.pyx.

from operator import index as _index

_EXPECTED_TIME = "expected a time in the years 1678 to 2261. Set it right; nothing was written"

cdef extern from "unistd.h" nogil:
    ssize_t write(int descriptor, const void *data, size_t size)
    ssize_t pwrite(int descriptor, const void *data, size_t size, long offset)
    int fdatasync(int descriptor)


cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    object PyErr_SetFromErrno(object kind)
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)
    void PyTuple_SET_ITEM(object pair, Py_ssize_t index, object item)


cdef extern from *:
    """
    #ifdef __APPLE__
    int fdatasync(int descriptor);  /* it is there, but in no header */
    #endif
    static inline void store_word(uint64_t *place, uint64_t value) {
        __atomic_store_n(place, value, __ATOMIC_RELEASE);
    }
    """
    void store_word(uint64_t *place, uint64_t value) noexcept nogil


cdef inline uint64_t checked_offset(int64_t offset) noexcept:
    """An offset with the check of an end mark: see log/directory/end.py."""
    return <uint64_t>offset | ((<uint64_t>offset * <uint64_t>0x9E3779B97F4A7C15) & <uint64_t>0xFFFF000000000000)


cdef inline object new_pair(object kind, object first, object second):
    """Make an instance of a subclass of tuple without calling its constructor."""
    pair = PyType_GenericAlloc(<PyTypeObject *>kind, 2)
    Py_INCREF(first)
    PyTuple_SET_ITEM(pair, 0, first)
    Py_INCREF(second)
    PyTuple_SET_ITEM(pair, 1, second)
    return pair


def read_clock(clock):
    try:
        now = _index(clock())
    except OverflowError:  # the system's, past the year 2262
        raise TimeOutOfRange(f"the clock says more than 64 bits hold: {_EXPECTED_TIME}") from None
    if not CLOCK_MIN <= now <= CLOCK_MAX:
        raise TimeOutOfRange(f"the clock says {now} nanoseconds since 1970: {_EXPECTED_TIME}")
    return now


cdef enum:
    END_COMMITTED = 5  # words of an end mark: log/directory/end.py
    END_INTENDED = 6
    SCRATCH_BYTES = 1048576  # of memory that is kept for batches
    NOTE_BYTES = 56  # a mark of what is synced: log/directory/watermark.py
    NOTE_SEGMENT = 16
    NOTE_OFFSET = 24
    NOTE_CRC = 52


cdef class AppendCore:
    """Stamp, encode, write and count a record, under a lock: an append while nothing special is due."""
    cdef cython.pymutex mutex
    cdef unsigned long owner
    cdef public bint torn, alone
    cdef public int64_t segment, offset, time_ns, step_ns, records, frame_bytes_max
    cdef public int64_t synced, settled, syncs, journal_syncs, mark_at, mark_bytes
    cdef public object write, sync, cover, restart, note, fail
    cdef public Distribution timing, one_timing, many_timing
    cdef array marks
    cdef public int descriptor
    cdef readonly OwnedLock sync_lock
    cdef readonly object sync_error
    cdef object encode, clock, undo, rest, kind
    cdef bint captain, waits, disowned, ended
    cdef int64_t rest_from
    cdef object shared
    cdef int64_t committed, noted_segment, noted_offset
    cdef int note_descriptor
    cdef int64_t note_place
    cdef unsigned char noted[NOTE_BYTES]
    cdef Stretch scratch
    cdef uint64_t[::1] words
    cdef uint64_t *end_words

    def __init__(self, encode, undo, rest, kind, clock=None):
        if not issubclass(kind, tuple):
            raise TypeError("positions are tuples")
        self.encode = encode
        self.captain = encode is captain_encode
        self.undo = undo
        self.rest = rest
        self.kind = kind
        self.clock = clock
        self.rest_from = -1
        self.descriptor = -1
        self.note_descriptor = -1
        self.frame_bytes_max = self.mark_at = INT64_MAX
        self.mark_bytes = 1
        self.sync_lock = OwnedLock()

    @property
    def locked(self):
        return self.owner != 0

    @property
    def held(self):
        return self.owner == PyThread_get_thread_ident() or self.sync_lock.held

    @property
    def rest_at(self):
        return self.rest_from

    @rest_at.setter
    def rest_at(self, int64_t offset):
        self.rest_from = -1 if self.ended else offset

    def place(self):
        return self.segment, self.offset

    def end(self):
        self.ended = True
        self.rest_from = -1
        self.alone = False

    def disown(self):
        self.disowned = True
        self.end()

    cdef int acquire(self) except -1:
        cdef unsigned long own = PyThread_get_thread_ident()
        if self.disowned:
            return 0  # the parent's thread that held the lock isn't here to release it
        if self.owner == own or self.sync_lock.owner == own:  # a signal handler, in the middle of a call
            raise RuntimeError(REENTERED)
        self.mutex.acquire()
        self.owner = own
        return 0

    cdef void release(self) noexcept:
        if not self.disowned:
            self.owner = 0
            self.mutex.release()

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *error):
        self.release()

    cdef inline int64_t now(self) except? -1:
        cdef timespec ts
        cdef int64_t now
        if self.clock is None:
            clock_gettime(CLOCK_REALTIME, &ts)
            if not -UNIX_SECONDS_MAX <= ts.tv_sec < UNIX_SECONDS_MAX:
                read_clock(_time_ns)  # raises
            now = <int64_t>ts.tv_sec * 1000000000 + ts.tv_nsec
        else:
            now = read_clock(self.clock)
        return now if now > self.time_ns + self.step_ns else self.time_ns + self.step_ns

    cdef int64_t hand_over(self, const unsigned char *data, ssize_t size) except -1:
        """Do what os.write() does. Calling that would add a third to the cost of an append."""
        cdef ssize_t written
        if self.descriptor < 0:
            return self.write(PyBytes_FromStringAndSize(<const char *>data, size))
        while True:
            with nogil:
                written = write(self.descriptor, data, size)
            if written >= 0:
                return written
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()

    def stamp(self):
        return self.now()

    cdef bytes frame_of(self, payload, int64_t now):
        cdef unsigned char time[TIME_BYTES]
        if not self.captain:
            return self.encode(payload, now)
        put_time(time, now)
        return encode_record(time, payload)

    def share_end(self, shared, waits=False):
        """Tell other processes where each write will end, and where it has; None tells them no more."""
        self.end_words = NULL
        self.words = None if shared is None else shared.words()
        self.shared = shared
        self.waits = waits
        if self.words is not None:
            self.end_words = &self.words[0]

    cdef inline int tell(self, Py_ssize_t word, int64_t end) except -1:
        if self.end_words != NULL:
            store_word(self.end_words + word, checked_offset(end))
        elif self.shared is not None:
            self.shared.store(word, checked_offset(end))
        return 0

    cpdef int intend(self, int64_t end) except -1:
        return self.tell(END_INTENDED, end)

    cdef inline int settle(self) except -1:
        return 0 if self.waits else self.tell(END_COMMITTED, self.offset)

    def unshare(self):
        self.share_end(None)
        self.note_descriptor = -1
        self.note = None

    def begin(self, int64_t segment, int64_t offset, array marks, int64_t mark_at):
        check_column(marks)
        self.segment = segment
        self.offset = self.synced = self.settled = self.committed = offset
        self.marks = marks
        self.mark_at = mark_at

    cdef int mark_one(self, int64_t offset, int64_t time_ns) except -1:
        cdef Py_ssize_t count = len(self.marks)
        resize_smart(self.marks, count + 2)
        items(self.marks)[count] = offset
        items(self.marks)[count + 1] = time_ns
        self.mark_at = (offset // self.mark_bytes + 1) * self.mark_bytes
        return 0

    cpdef int mark_batch(self, array starts, int64_t base, int64_t time_ns) except -1:
        cdef Py_ssize_t row
        cdef int64_t *start = items(starts)
        if self.marks is not None:
            for row in range(len(starts)):
                if base + start[row] >= self.mark_at:
                    self.mark_one(base + start[row], time_ns)
        return 0

    cdef int count_one(self, int64_t now, int64_t size) except -1:
        """Count a record that was written."""
        if self.offset >= self.mark_at:
            self.mark_one(self.offset, now)
        self.time_ns = now
        self.offset += size
        self.records += 1
        return self.settle()

    def share_mark(self, int descriptor, bytes mark, int64_t place):
        if PyBytes_GET_SIZE(mark) != NOTE_BYTES:
            raise ValueError(f"a mark of {len(mark)} bytes: expected {NOTE_BYTES}")
        memcpy(self.noted, PyBytes_AS_STRING(mark), NOTE_BYTES)
        self.note_place = place
        self.note_descriptor = descriptor

    def note_synced(self, int64_t segment, int64_t offset):
        cdef ssize_t count
        if segment < self.noted_segment or (segment == self.noted_segment and offset < self.noted_offset):
            return
        self.noted_segment = segment
        self.noted_offset = offset
        if self.note_descriptor < 0:
            if self.note is not None:
                self.note(segment, offset)
            return
        store_u64(self.noted + NOTE_SEGMENT, segment)
        store_u64(self.noted + NOTE_OFFSET, offset)
        store_u32(self.noted + NOTE_CRC, crc32c_update(0, self.noted, NOTE_CRC))
        # One that can't be written is too low, and still true.
        pwrite(self.note_descriptor, self.noted, NOTE_BYTES, self.note_place)

    def finish_sync(self, int64_t segment, int64_t end, bint settled):
        self.syncs += 1
        self.journal_syncs += not settled
        if segment == self.segment:
            if self.waits and end > self.committed:
                self.tell(END_COMMITTED, end)
                self.committed = end
            if end > self.synced:
                self.synced = end
            if settled and end > self.settled:
                self.settled = end
        if settled:
            self.note_synced(segment, end)

    cdef int sync_alone(self) except -1:
        """Put everything that was written on stable storage. The caller holds the lock."""
        cdef int64_t segment = self.segment, start, end = self.offset
        cdef double begun
        cdef bint settled = True
        cdef int failed = 0
        self.sync_lock.take()
        try:
            if self.sync_error is not None:
                self.fail(self.sync_error)
            start = self.synced
            if start >= end:
                return 0
            begun = monotonic_seconds()
            try:
                if self.cover is not None and self.cover(segment, start, end):
                    settled = False  # or the journal is full, and begins again below
                elif self.descriptor < 0:
                    self.sync()
                else:
                    with nogil:
                        failed = fdatasync(self.descriptor)
                        while failed and errno == EINTR:
                            failed = fdatasync(self.descriptor)
                    if failed:
                        PyErr_SetFromErrno(OSError)
            except OSError as error:
                self.fail_sync(error)
                self.fail(error)
            if self.timing is not None:
                self.timing.put(monotonic_seconds() - begun)
            if settled and self.restart is not None:
                self.restart(segment)
            self.finish_sync(segment, end, settled)
            return 0
        finally:
            self.sync_lock.give()

    def fail_sync(self, error):
        """No interrupt can come between an error of a sync and this."""
        if self.sync_error is None:
            self.sync_error = error
        self.end()

    cdef int put(self, const unsigned char *data, int64_t size) except -1:
        """Write all of it. If this raises, none of it is left in the file."""
        cdef int64_t written, rest_at = self.rest_from
        self.intend(self.offset + size)
        try:
            written = self.hand_over(data, size)
            failure = None
        except OSError as error:
            written = 0
            failure = error
        except BaseException:  # an interrupt, where writing runs Python: what it left is for the next append to cut
            self.torn = True
            self.rest_from = -1
            raise
        if written != size:
            # Nothing may be appended until `undo` is done, also if an interrupt ends it.
            self.torn = True
            self.rest_from = -1
            self.undo(PyBytes_FromStringAndSize(<const char *>data, size), written, failure)
            self.torn = False
            self.rest_at = rest_at
        return 0

    cdef inline int put_frame(self, bytes frame) except -1:
        return self.put(<const unsigned char *>PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame))

    def advance(self, int64_t size, int64_t records, int64_t time_ns):
        self.offset += size
        self.records += records
        self.time_ns = time_ns
        self.torn = False
        self.settle()

    def append(self, payload):
        cdef int64_t offset, now
        cdef bytes frame
        cdef double begun = 0
        self.acquire()
        try:
            offset = self.offset
            if offset < self.rest_from:
                if offset >= self.mark_at and self.one_timing is not None:
                    begun = monotonic_seconds()
                now = self.now()
                frame = self.frame_of(payload, now)
                if PyBytes_GET_SIZE(frame) <= self.frame_bytes_max:
                    self.put_frame(frame)
                    self.count_one(now, PyBytes_GET_SIZE(frame))
                    if begun:
                        self.one_timing.put(monotonic_seconds() - begun)
                    return new_pair(self.kind, self.segment, offset)
        finally:
            self.release()
        return self.rest(payload)

    cdef object append_synced(self, payload):
        """Append a record and sync it. None, with nothing done, if that takes more than this."""
        cdef int64_t offset, now
        cdef bytes frame
        self.acquire()
        try:
            offset = self.offset
            if not self.alone or offset >= self.rest_from:
                return None
            now = self.now()
            frame = self.frame_of(payload, now)
            if PyBytes_GET_SIZE(frame) > self.frame_bytes_max:
                return None
            self.put_frame(frame)
            self.count_one(now, PyBytes_GET_SIZE(frame))
            self.sync_alone()
            return new_pair(self.kind, self.segment, offset)
        finally:
            self.release()

    cdef object append_many_synced(self, payloads):
        return self.put_many(payloads, True)

    def append_many(self, payloads):
        return self.put_many(payloads, False)

    cdef object put_many(self, payloads, bint synced):
        """Encode into memory that is kept, and write from there: new memory for each batch would cost as much."""
        cdef int64_t offset, now, size = 0, more
        cdef Py_ssize_t count, row
        cdef int64_t *start
        cdef list given
        cdef array starts
        cdef double begun = 0
        if not self.captain or not payloads:
            return None
        self.acquire()
        try:
            offset = self.offset
            if offset >= self.rest_from or (synced and not self.alone):
                return None
            now = self.now()
            given = as_bytes(payloads)
            # From here to the write the GIL is held and no Python runs: the list stays as it is measured.
            count = len(given)
            starts = new_column(count)
            start = items(starts)
            for row in range(count):
                start[row] = size
                size += record_bytes(PyBytes_GET_SIZE(<object>PyList_GET_ITEM(given, row)))
            if size > self.frame_bytes_max or offset + size > self.rest_from:
                return None
            self.scratch.size = 0
            if reserve(&self.scratch, size):
                raise MemoryError(f"no memory for {size} bytes")
            put_records(self.scratch.data, start, given, now)
            if offset + size > self.mark_at and not synced and self.many_timing is not None:
                begun = monotonic_seconds()
            self.put(self.scratch.data, size)
            if self.scratch.room > SCRATCH_BYTES:
                self.forget_scratch()
            if offset + size > self.mark_at:
                self.mark_batch(starts, offset, now)
            self.time_ns = now
            self.offset = offset + size
            self.records += count
            self.settle()
            if synced:
                self.sync_alone()
            elif begun:
                self.many_timing.put(monotonic_seconds() - begun)
            return self.segment, offset, starts
        finally:
            self.release()

    cdef void forget_scratch(self) noexcept:
        PyMem_RawFree(self.scratch.data)
        memset(&self.scratch, 0, sizeof(Stretch))

    def __dealloc__(self):
        self.forget_scratch()
