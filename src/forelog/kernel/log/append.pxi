# An append while nothing special is due. Included by _kernel.pyx.

from operator import index as _index

_EXPECTED_TIME = "expected a time in the years 1678 to 2261. Set it right; nothing was written"

cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_REALTIME
    int clock_gettime(int clock, timespec *now)


cdef extern from "unistd.h" nogil:
    ssize_t write(int descriptor, const void *data, size_t size)


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


cdef class AppendCore:
    """Stamp, encode, write and count a record, under a lock: an append while nothing special is due."""
    cdef cython.pymutex mutex
    cdef unsigned long owner
    cdef public bint torn
    cdef public int64_t segment, offset, rest_at, time_ns, step_ns, records, frame_bytes_max
    cdef public object write
    cdef public int descriptor
    cdef object encode, clock, undo, rest, kind
    cdef bint captain, waits
    cdef object shared
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
        self.rest_at = -1
        self.descriptor = -1
        self.frame_bytes_max = INT64_MAX

    @property
    def locked(self):
        return self.owner != 0

    cdef int acquire(self) except -1:
        cdef unsigned long own = PyThread_get_thread_ident()
        if self.owner == own:
            raise RuntimeError(REENTERED)
        self.mutex.acquire()
        self.owner = own
        return 0

    cdef void release(self) noexcept:
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

    cdef int64_t hand_over(self, bytes frame) except -1:
        """Do what os.write() does. Calling that would add a third to the cost of an append."""
        cdef const char *data = PyBytes_AS_STRING(frame)
        cdef ssize_t size = PyBytes_GET_SIZE(frame), written
        if self.descriptor < 0:
            return self.write(frame)
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

    cdef int put(self, bytes frame) except -1:
        """Write the whole frame. If this raises, none of it is left in the file."""
        cdef int64_t size = PyBytes_GET_SIZE(frame), written, rest_at = self.rest_at
        self.intend(self.offset + size)
        try:
            written = self.hand_over(frame)
            failure = None
        except OSError as error:
            written = 0
            failure = error
        if written != size:
            # Nothing may be appended until `undo` is done, also if an interrupt ends it.
            self.torn = True
            self.rest_at = -1
            self.undo(frame, written, failure)
            self.torn = False
            self.rest_at = rest_at
        return 0

    def advance(self, int64_t size, int64_t records, int64_t time_ns):
        self.offset += size
        self.records += records
        self.time_ns = time_ns
        self.torn = False
        self.settle()

    def append(self, payload):
        cdef int64_t offset, now
        cdef bytes frame
        self.acquire()
        try:
            offset = self.offset
            if offset < self.rest_at:
                now = self.now()
                frame = self.frame_of(payload, now)
                if PyBytes_GET_SIZE(frame) <= self.frame_bytes_max:
                    self.put(frame)
                    self.time_ns = now
                    self.offset = offset + PyBytes_GET_SIZE(frame)
                    self.records += 1
                    self.settle()
                    return new_pair(self.kind, self.segment, offset)
        finally:
            self.release()
        return self.rest(payload)

    def append_many(self, payloads):
        cdef int64_t offset, now, size
        cdef list given
        if not self.captain or not payloads:
            return None
        given = as_bytes(payloads)
        self.acquire()
        try:
            offset = self.offset
            if offset >= self.rest_at:
                return None
            size = records_bytes(given)
            if size > self.frame_bytes_max or offset + size > self.rest_at:
                return None
            now = self.now()
            data, starts = captain_encode_many(given, now)
            if PyBytes_GET_SIZE(data) != size:
                return None  # the caller's clock has changed the caller's list
            self.put(data)
            self.time_ns = now
            self.offset = offset + size
            self.records += len(<array>starts)
            self.settle()
            return self.segment, offset, starts
        finally:
            self.release()
