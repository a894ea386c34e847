# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Loops over bytes, compiled. What each function means is written in `_kernel_py`, its plain-Python twin;
the tests hold the two to each other on random and hostile bytes.

Bounds checks are off because every place is checked by hand: each read below is preceded by a comparison
with `stop`, and `stop` was compared with the buffer's length on entry.
"""

cimport cython
from cpython.array cimport array, clone, resize
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from array import array as _array

from chiplog._kernel_py import Scan

cdef extern from "_crc32c.h" nogil:
    int crc32c_has_hardware
    void crc32c_init()
    uint32_t crc32c_update(uint32_t crc, const unsigned char *p, size_t n)
    uint32_t crc32c_update_portable(uint32_t crc, const unsigned char *p, size_t n)

crc32c_init()

COMPILED = True

cdef enum:
    TIME_BYTES = 15
    CRC_BYTES = 4
    RECORD_BYTES_MIN = 20
    END = 0
    LIMIT = 1
    TRUNCATED = 2
    BAD_TIME = 3
    BAD_LENGTH = 4
    BAD_CRC = 5
    FOUND = 6

cdef int64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF
cdef int64_t INT64_MIN = -INT64_MAX - 1
cdef int64_t UINT32_MAX = 0xFFFFFFFF
cdef int64_t UNIX_EPOCH_SECONDS = 62135596800
cdef int64_t UNIX_SECONDS_MAX = 9223372033
cdef array _int64_template = _array("q")


# ---------------------------------------------------------------------------------------------- bytes

cdef inline uint32_t load_u32(const unsigned char *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t load_u64(const unsigned char *p) noexcept nogil:
    return (<uint64_t>load_u32(p) << 32) | load_u32(p + 4)


cdef inline void store_u32(unsigned char *p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = (value >> 16) & 0xFF
    p[2] = (value >> 8) & 0xFF
    p[3] = value & 0xFF


cdef inline void store_u64(unsigned char *p, uint64_t value) noexcept nogil:
    store_u32(p, <uint32_t>(value >> 32))
    store_u32(p + 4, <uint32_t>value)


def crc32c(data, uint32_t crc=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            crc = crc32c_update(crc, <const unsigned char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_portable(data, uint32_t crc=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            crc = crc32c_update_portable(crc, <const unsigned char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_hardware():
    return bool(crc32c_has_hardware)


# ----------------------------------------------------------------------------------- captain: encoding

cdef inline Py_ssize_t varint_bytes(uint64_t number) noexcept nogil:
    cdef Py_ssize_t n = 1
    while number >= 0x80:
        number >>= 7
        n += 1
    return n


cdef inline Py_ssize_t record_bytes(Py_ssize_t length) noexcept nogil:
    return TIME_BYTES + varint_bytes(length) + length + CRC_BYTES


cdef inline unsigned char *put_record(
    unsigned char *out, const unsigned char *time, uint32_t time_crc, const unsigned char *payload, Py_ssize_t length
) noexcept nogil:
    """`time_crc` is the checksum of TIME, the same for all records of a batch. The rest is summed from where
    it came from: to read back what was just stored in smaller pieces would stall."""
    cdef unsigned char *p = out + TIME_BYTES
    cdef uint64_t rest = length
    cdef uint32_t crc
    memcpy(out, time, TIME_BYTES)
    while rest >= 0x80:
        p[0] = (rest & 0x7F) | 0x80
        rest >>= 7
        p += 1
    p[0] = <unsigned char>rest
    p += 1
    crc = crc32c_update(time_crc, out + TIME_BYTES, p - out - TIME_BYTES)
    memcpy(p, payload, length)
    store_u32(p + length, crc32c_update(crc, payload, length))
    return p + length + CRC_BYTES


cdef inline void put_time(unsigned char *out, int64_t time_ns) noexcept nogil:
    cdef int64_t seconds = time_ns // 1000000000
    cdef int64_t nanos = time_ns - seconds * 1000000000
    if nanos < 0:  # C divides toward zero
        nanos += 1000000000
        seconds -= 1
    out[0] = 1
    store_u64(out + 1, <uint64_t>(seconds + UNIX_EPOCH_SECONDS))
    store_u32(out + 9, <uint32_t>nanos)
    out[13] = 0
    out[14] = 0


cdef put_time_object(unsigned char *out, time_ns):
    """A time that int64 nanoseconds can't hold, such as the year 9999."""
    seconds, nanos = divmod(time_ns, 1000000000)
    cdef int64_t on_disk = seconds + UNIX_EPOCH_SECONDS
    cdef uint32_t rest = nanos
    out[0] = 1
    store_u64(out + 1, <uint64_t>on_disk)
    store_u32(out + 9, rest)
    out[13] = 0
    out[14] = 0


cdef int take_time(unsigned char *out, time_ns) except -1:
    cdef int64_t small
    try:
        small = time_ns
    except OverflowError:
        put_time_object(out, time_ns)
        return 0
    put_time(out, small)
    return 0


cdef bytes encode_record(const unsigned char *time, payload):
    cdef uint32_t time_crc = crc32c_update(0, time, TIME_BYTES)
    cdef Py_buffer view
    cdef bytes out
    if PyBytes_CheckExact(payload):
        out = PyBytes_FromStringAndSize(NULL, record_bytes(PyBytes_GET_SIZE(payload)))
        put_record(
            <unsigned char *>PyBytes_AS_STRING(out),
            time,
            time_crc,
            <const unsigned char *>PyBytes_AS_STRING(payload),
            PyBytes_GET_SIZE(payload),
        )
        return out
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        out = PyBytes_FromStringAndSize(NULL, record_bytes(view.len))
        put_record(
            <unsigned char *>PyBytes_AS_STRING(out), time, time_crc, <const unsigned char *>view.buf, view.len
        )
        return out
    finally:
        PyBuffer_Release(&view)


def captain_encode(payload, time_ns):
    cdef unsigned char time[TIME_BYTES]
    take_time(time, time_ns)
    return encode_record(time, payload)


cdef list as_bytes(payloads):
    """The payloads as a list of bytes: itself if it is one."""
    cdef list given = payloads if type(payloads) is list else list(payloads)
    for payload in given:
        if not PyBytes_CheckExact(payload):
            return [p if PyBytes_CheckExact(p) else bytes(memoryview(p)) for p in given]
    return given


def captain_encode_many(payloads, time_ns):
    cdef unsigned char time[TIME_BYTES]
    cdef uint32_t time_crc
    cdef list given = as_bytes(payloads)
    cdef Py_ssize_t count = len(given), i, total = 0, size
    cdef array starts = clone(_int64_template, count, False)
    cdef int64_t *start = <int64_t *>starts.data.as_longlongs
    cdef unsigned char *out
    take_time(time, time_ns)
    time_crc = crc32c_update(0, time, TIME_BYTES)
    for i in range(count):
        size = record_bytes(PyBytes_GET_SIZE(given[i]))
        start[i] = total
        total += size
    result = PyBytes_FromStringAndSize(NULL, total)
    out = <unsigned char *>PyBytes_AS_STRING(result)
    # The GIL is held and nothing below runs Python: the list stays as it was measured.
    for i in range(count):
        item = given[i]
        put_record(
            out + start[i], time, time_crc, <const unsigned char *>PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item)
        )
    return result, starts


# ----------------------------------------------------------------------------------- captain: decoding

cdef inline int64_t get_time(const unsigned char *p) noexcept nogil:
    cdef uint64_t seconds = load_u64(p + 1)
    cdef int64_t unix
    if <int64_t>seconds < INT64_MIN + UNIX_EPOCH_SECONDS:
        return INT64_MIN
    unix = <int64_t>seconds - UNIX_EPOCH_SECONDS
    if unix > UNIX_SECONDS_MAX:
        return INT64_MAX
    if unix < -UNIX_SECONDS_MAX:
        return INT64_MIN
    return unix * 1000000000 + <int32_t>load_u32(p + 9)


cdef inline int get_head(
    const unsigned char *buf, int64_t at, int64_t stop, int64_t *start, uint64_t *length
) noexcept nogil:
    """Reason (END if fine); start of the payload, or for TRUNCATED the bytes that the head needs."""
    cdef int64_t place = at + TIME_BYTES
    cdef unsigned char byte
    cdef int i
    start[0] = 0
    length[0] = 0
    if at < stop and buf[at] != 1:
        return BAD_TIME
    if stop - at < TIME_BYTES + 1:
        start[0] = TIME_BYTES + 1
        return TRUNCATED
    byte = buf[place]
    if byte < 0x80:
        length[0] = byte
        start[0] = place + 1
        return END
    for i in range(10):
        if place >= stop:
            start[0] = TIME_BYTES + i + 1
            return TRUNCATED
        byte = buf[place]
        place += 1
        if i == 9 and byte > 1:
            return BAD_LENGTH
        length[0] |= (<uint64_t>(byte & 0x7F)) << (7 * i)
        if byte < 0x80:
            start[0] = place
            return END
    return BAD_LENGTH


cdef inline int get_record(
    const unsigned char *buf, int64_t at, int64_t stop, int64_t *start, int64_t *end
) noexcept nogil:
    """Reason (END if fine); payload start and end, or for TRUNCATED the bytes that the record needs."""
    cdef uint64_t length
    cdef int reason = get_head(buf, at, stop, start, &length)
    end[0] = 0
    if reason != END:
        return reason
    if stop - start[0] < CRC_BYTES or length > <uint64_t>(stop - start[0] - CRC_BYTES):
        if length > <uint64_t>(INT64_MAX - (start[0] - at) - CRC_BYTES):
            start[0] = INT64_MAX
        else:
            start[0] = start[0] - at + <int64_t>length + CRC_BYTES
        return TRUNCATED
    end[0] = start[0] + <int64_t>length
    if crc32c_update(0, buf + at, end[0] - at) != load_u32(buf + end[0]):
        start[0] = 0
        return BAD_CRC
    return END


cdef class _View:
    """A buffer held for reading (or writing) while the GIL is away."""
    cdef Py_buffer view
    cdef const unsigned char *data
    cdef Py_ssize_t size
    cdef bint held

    def __cinit__(self, source, bint writable=False):
        self.held = False
        PyObject_GetBuffer(source, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True
        self.data = <const unsigned char *>self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef int check_range(str what, int64_t start, int64_t stop, Py_ssize_t size) except -1:
    if not 0 <= start <= stop <= size:
        raise ValueError(f"{what} {start}..{stop} in a buffer of {size} bytes")
    return 0


cdef inline int64_t *items(array column) noexcept:
    return <int64_t *>column.data.as_longlongs


cdef array new_column(Py_ssize_t count):
    return clone(_int64_template, count, False)


cdef int check_column(array column) except -1:
    if column.ob_descr.typecode != c"q":
        raise TypeError("columns are arrays of type 'q'")
    return 0


def captain_scan(buffer, int64_t start, int64_t stop, int64_t base, int64_t limit):
    cdef _View view = _View(buffer)
    check_range("scan of", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t room = min(max(limit, 0), (stop - start) // RECORD_BYTES_MIN + 1)
    cdef array offsets = new_column(room), starts = new_column(room)
    cdef array ends = new_column(room), times = new_column(room)
    cdef int64_t *offset = items(offsets)
    cdef int64_t *payload_start = items(starts)
    cdef int64_t *payload_end = items(ends)
    cdef int64_t *time = items(times)
    cdef int64_t at = start, count = 0, payload = 0, end = 0
    cdef int reason
    with nogil:
        while True:
            if at == stop:
                reason = END
                payload = 0
                break
            if count >= limit:
                reason = LIMIT
                payload = 0
                break
            reason = get_record(buf, at, stop, &payload, &end)
            if reason != END:
                break
            offset[count] = base + at
            payload_start[count] = payload
            payload_end[count] = end
            time[count] = get_time(buf + at)
            count += 1
            at = end + CRC_BYTES
    resize(offsets, count)
    resize(starts, count)
    resize(ends, count)
    resize(times, count)
    return Scan(offsets, starts, ends, times, at, reason, payload)


def captain_hop(buffer, int64_t start, int64_t stop, int64_t offset_min, int64_t time_min):
    cdef _View view = _View(buffer)
    check_range("hop over", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t at = start, payload = 0
    cdef uint64_t length
    cdef int reason = END
    with nogil:
        while at < stop:
            reason = get_head(buf, at, stop, &payload, &length)
            if reason != END:
                break
            if at >= offset_min and get_time(buf + at) >= time_min:
                reason = FOUND
                payload = 0
                break
            if length > <uint64_t>(INT64_MAX - payload - CRC_BYTES):
                reason = TRUNCATED
                payload = INT64_MAX
                break
            at = payload + <int64_t>length + CRC_BYTES
    if reason == END:
        payload = 0
    return at, reason, payload


def captain_find(buffer, int64_t start, int64_t stop, bint final):
    cdef _View view = _View(buffer)
    check_range("find in", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef const unsigned char *hit
    cdef int64_t at = start, payload = 0, end = 0, ignored = 0, budget = 64 * (stop - start) + 65536
    cdef int64_t found = -1
    cdef uint64_t length
    with nogil:
        while at < stop:
            hit = <const unsigned char *>memchr(buf + at, 1, stop - at)
            if hit == NULL:
                break
            at = hit - buf
            if (
                get_head(buf, at, stop, &payload, &length) == END
                and stop - payload >= CRC_BYTES
                and length <= <uint64_t>(stop - payload - CRC_BYTES)
            ):
                budget -= <int64_t>length + RECORD_BYTES_MIN
                if budget < 0:
                    break
                if get_record(buf, at, stop, &payload, &end) == END:
                    end += CRC_BYTES
                    if end == stop:
                        if final:
                            found = at
                            break
                    elif get_record(buf, end, stop, &payload, &ignored) == END:
                        found = at
                        break
            at += 1
    return found


# --------------------------------------------------------------------------------------------- columns

def gather(buffer, array starts, array ends, Py_ssize_t first, Py_ssize_t last, offsets, data):
    cdef _View view = _View(buffer), places = _View(offsets, True), out = _View(data, True)
    cdef Py_ssize_t rows = min(len(starts), len(ends)), i
    check_column(starts)
    check_column(ends)
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    if places.size // <Py_ssize_t>sizeof(int32_t) < last - first + 1:
        raise ValueError("offsets has too little room")
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef int32_t *place = <int32_t *>places.data
    cdef unsigned char *target = <unsigned char *>out.data
    cdef int64_t at = 0, size, outside = -1
    with nogil:
        place[0] = 0
        for i in range(first, last):
            size = end[i] - start[i]
            if start[i] < 0 or size < 0 or end[i] > view.size or size > out.size - at or at + size > 0x7FFFFFFF:
                outside = i
                break
            memcpy(target + at, view.data + start[i], size)
            at += size
            place[i - first + 1] = <int32_t>at
    if outside >= 0:
        raise ValueError(f"range {outside} lies outside of its buffer")
    return at


def first_since(array times, Py_ssize_t start, int64_t time_min):
    check_column(times)
    cdef Py_ssize_t count = len(times), row = start
    if not 0 <= start <= count:
        raise ValueError(f"row {start} of {count}")
    cdef int64_t *time = items(times)
    with nogil:
        while row < count and time[row] < time_min:
            row += 1
    return row


def keep_since(array times, int64_t time_min):
    check_column(times)
    cdef Py_ssize_t count = len(times), i
    mask = bytearray(count)
    cdef unsigned char[::1] keep = mask
    cdef int64_t *time = items(times)
    with nogil:
        for i in range(count):
            keep[i] = time[i] >= time_min
    return mask


def compact(buffer, array offsets, int64_t base, int64_t end, keep, out):
    cdef _View view = _View(buffer), mask = _View(keep), target = _View(out, True)
    check_column(offsets)
    cdef Py_ssize_t count = len(offsets), i
    if mask.size != count:
        raise ValueError("keep has another length than offsets")
    cdef int64_t *offset = items(offsets)
    cdef int64_t at = 0, start, stop, outside = -1
    cdef bint full = False
    with nogil:
        for i in range(count):
            start = offset[i] - base
            stop = offset[i + 1] - base if i + 1 < count else end
            if start < 0 or stop < start or stop > view.size:
                outside = i
                break
            if mask.data[i]:
                if stop - start > target.size - at:
                    full = True
                    break
                memcpy(<unsigned char *>target.data + at, view.data + start, stop - start)
                at += stop - start
    if outside >= 0:
        raise ValueError(f"frame {outside} lies outside of its buffer")
    if full:
        raise ValueError("out has too little room")
    return at


def select(array column, keep):
    cdef _View mask = _View(keep)
    check_column(column)
    cdef Py_ssize_t count = len(column), i, kept = 0
    if mask.size != count:
        raise ValueError("keep has another length than the column")
    cdef array chosen = new_column(count)
    cdef int64_t *value = items(column)
    cdef int64_t *out = items(chosen)
    with nogil:
        for i in range(count):
            if mask.data[i]:
                out[kept] = value[i]
                kept += 1
    resize(chosen, kept)
    return chosen


def kept_runs(array logical, array physical, int64_t end, keep, int64_t place, int64_t expected, array runs):
    cdef _View mask = _View(keep)
    check_column(logical)
    check_column(physical)
    check_column(runs)
    cdef Py_ssize_t count = len(logical), i
    if len(physical) != count or mask.size != count:
        raise ValueError("columns of different lengths")
    cdef int64_t *old = items(logical)
    cdef int64_t *offset = items(physical)
    cdef int64_t size
    for i in range(count):
        if mask.data[i]:
            if old[i] != expected:
                runs.append(old[i])
                runs.append(place)
            size = (offset[i + 1] if i + 1 < count else end) - offset[i]
            place += size
            expected = old[i] + size
    return place, expected


def relocate(array physical, array runs):
    check_column(physical)
    check_column(runs)
    cdef Py_ssize_t count = len(physical), i, run = -1, run_count = len(runs) // 2
    cdef array logical = new_column(count)
    cdef int64_t *offset = items(physical)
    cdef int64_t *pair = items(runs)
    cdef int64_t *out = items(logical)
    with nogil:
        for i in range(count):
            while run + 1 < run_count and pair[2 * (run + 1) + 1] <= offset[i]:
                run += 1
            out[i] = offset[i] if run < 0 else pair[2 * run] + offset[i] - pair[2 * run + 1]
    return logical


# ------------------------------------------------------------------------------------------------ keys

cdef struct KeySlot:
    uint64_t place  # in the arena, plus one: 0 is an empty slot
    uint32_t length
    uint32_t hash


cdef class KeySet:
    """An exact set of byte strings: open addressing over an arena that holds every key once."""
    cdef KeySlot *slots
    cdef unsigned char *arena
    cdef uint64_t slot_count, used, arena_bytes, arena_room
    cdef uint32_t seed

    def __cinit__(self):
        import os
        self.slots = NULL
        self.arena = NULL
        self.slot_count = self.used = self.arena_bytes = self.arena_room = 0
        self.seed = int.from_bytes(os.urandom(4), "big")  # so that nobody can prepare colliding keys

    def __dealloc__(self):
        PyMem_RawFree(self.slots)
        PyMem_RawFree(self.arena)

    def __len__(self):
        return self.used

    cdef int grow_slots(self) except -1 nogil:
        cdef uint64_t count = self.slot_count * 2 if self.slot_count else 1024, i, at
        cdef KeySlot *slots = <KeySlot *>PyMem_RawRealloc(NULL, count * sizeof(KeySlot))
        if slots == NULL:
            with gil:
                raise MemoryError()
        memset(slots, 0, count * sizeof(KeySlot))
        for i in range(self.slot_count):
            if self.slots[i].place:
                at = self.slots[i].hash & (count - 1)
                while slots[at].place:
                    at = (at + 1) & (count - 1)
                slots[at] = self.slots[i]
        PyMem_RawFree(self.slots)
        self.slots = slots
        self.slot_count = count
        return 0

    cdef int add(self, const unsigned char *key, uint32_t length) except -1 nogil:
        """1 if the key is new."""
        cdef uint64_t h64 = crc32c_update(self.seed, key, length)
        cdef uint32_t digest
        cdef uint64_t at, room
        cdef void *grown
        h64 = (h64 ^ self.seed) * <uint64_t>0x9E3779B97F4A7C15  # spread: a CRC alone is linear
        digest = <uint32_t>(h64 >> 32)
        if self.used * 10 >= self.slot_count * 7:
            self.grow_slots()
        at = digest & (self.slot_count - 1)
        while self.slots[at].place:
            if (
                self.slots[at].hash == digest
                and self.slots[at].length == length
                and memcmp(self.arena + self.slots[at].place - 1, key, length) == 0
            ):
                return 0
            at = (at + 1) & (self.slot_count - 1)
        if self.arena_bytes + length > self.arena_room:
            room = max(self.arena_room * 2, self.arena_bytes + length, <uint64_t>65536)
            grown = PyMem_RawRealloc(self.arena, room)
            if grown == NULL:
                with gil:
                    raise MemoryError()
            self.arena = <unsigned char *>grown
            self.arena_room = room
        memcpy(self.arena + self.arena_bytes, key, length)
        self.slots[at].place = self.arena_bytes + 1
        self.slots[at].length = length
        self.slots[at].hash = digest
        self.arena_bytes += length
        self.used += 1
        return 1

    def keep_latest(self, buffer, array starts, array ends, int64_t key_start, int64_t key_stop, int delimiter):
        cdef _View view = _View(buffer)
        check_column(starts)
        check_column(ends)
        cdef Py_ssize_t count = len(starts), i
        if len(ends) != count:
            raise ValueError("columns of different lengths")
        mask = bytearray(count)
        cdef unsigned char[::1] keep = mask
        cdef int64_t *start = items(starts)
        cdef int64_t *end = items(ends)
        cdef int64_t low, high, outside = -1
        cdef const unsigned char *hit
        with nogil:
            for i in range(count - 1, -1, -1):
                if start[i] < 0 or end[i] < start[i] or end[i] > view.size or end[i] - start[i] > UINT32_MAX:
                    outside = i
                    break
                low = start[i] + min(max(key_start, 0), end[i] - start[i])
                high = start[i] + min(max(key_stop, 0), end[i] - start[i])
                high = max(low, high)
                if delimiter >= 0 and high > low:
                    hit = <const unsigned char *>memchr(view.data + low, delimiter, high - low)
                    if hit != NULL:
                        high = hit - view.data
                keep[i] = self.add(view.data + low, <uint32_t>(high - low))
        if outside >= 0:
            raise ValueError(f"range {outside} lies outside of its buffer")
        return mask


# ---------------------------------------------------------------------------------------------- append

cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_REALTIME
    int clock_gettime(int clock, timespec *now)


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)
    void PyTuple_SET_ITEM(object pair, Py_ssize_t index, object item)


cdef inline object new_pair(object kind, object first, object second):
    """An instance of a subclass of tuple, without the call of its constructor."""
    pair = PyType_GenericAlloc(<PyTypeObject *>kind, 2)
    Py_INCREF(first)
    PyTuple_SET_ITEM(pair, 0, first)
    Py_INCREF(second)
    PyTuple_SET_ITEM(pair, 1, second)
    return pair


cdef class AppendCore:
    """Stamp, encode, hand to `write`, count: an append while nothing special is due, under its lock."""
    cdef cython.pymutex mutex
    cdef readonly bint locked
    cdef public int64_t segment, offset, rest_at, time_ns, records
    cdef public object write
    cdef object encode, clock, undo, rest, kind
    cdef bint captain

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

    def __enter__(self):
        self.mutex.acquire()
        self.locked = True
        return self

    def __exit__(self, *error):
        self.locked = False
        self.mutex.release()

    cdef inline int64_t now(self) except? -1:
        cdef timespec ts
        cdef int64_t now
        if self.clock is None:
            clock_gettime(CLOCK_REALTIME, &ts)
            now = <int64_t>ts.tv_sec * 1000000000 + ts.tv_nsec
        else:
            now = self.clock()
        return now if now > self.time_ns else self.time_ns

    def stamp(self):
        return self.now()

    def append(self, payload):
        cdef unsigned char time[TIME_BYTES]
        cdef int64_t offset, now, size, written
        cdef bytes frame
        with self.mutex:
            offset = self.offset
            if offset < self.rest_at:
                now = self.now()
                if self.captain:
                    put_time(time, now)
                    frame = encode_record(time, payload)
                else:
                    frame = self.encode(payload, now)
                size = PyBytes_GET_SIZE(frame)
                self.locked = True
                try:
                    try:
                        written = self.write(frame)
                    except OSError as error:
                        written = size
                        self.undo(frame, 0, error)
                    if written != size:
                        self.undo(frame, written, None)
                finally:
                    self.locked = False
                self.time_ns = now
                self.offset = offset + size
                self.records += 1
                return new_pair(self.kind, self.segment, offset)
        return self.rest(payload)
