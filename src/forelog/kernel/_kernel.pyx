# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Loops over bytes, compiled. `_kernel.pyi` has the signatures, and says what each function does.

This file has what all others use: bytes, checksums, buffers. They are included at its end, a folder for each owner:

    memory.pxi  what malloc keeps of freed memory

    log/        captain    records of the captain format: encode, scan, hop, find
                columns    what is done with columns of records: gather, mask, compact, map, keys
                hash       a keyed hash, for keys that come from strangers
                append     an append while nothing special is due
                alone      the same with its sync, for a writer that has no company
                queue      a bounded queue that is entered without a lock, and who commits what is in it
                gate       where a thread waits for another one
                figures    how often and how long
    state/      keys       locks for the writers of keys
    m3/         chunks     chunks of M3's commit log: scan, hop, find, and messages put into them
                fields     what messages are made of
                series     the metadata of a series
                encode     entries to messages
                decode     messages to columns of entries
    messages/   scan       messages of a broker's log: scan, hop, find, split
                encode     messages to bytes
                json       properties of messages to JSON
                msgpack    many values in msgpack as one
    jobs/       columns    commands of a job server to columns
                commands   commands and lines, one by one
    broker/     mqtt       packets of MQTT to columns, and messages to packets
                inbox      what clients publish, as messages of the log
                columns    messages of the log to columns, and rows chosen by them
                deliver    rows to packets
                sockets    sockets that are read together

Bounds checks are off because every place is checked by hand: each read is preceded by a comparison with
`stop`, and `stop` was compared with the buffer's length on entry. No bytes can make a function read outside of
its buffer, or allocate more than they take.
"""

cimport cython
from cpython.array cimport array, clone, resize, resize_smart
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from array import array as _array
from time import time_ns as _time_ns

from forelog.errors import TimeOutOfRange
from forelog.kernel.types import (
    CLOCK_MAX, CLOCK_MIN, IN_A_CHANGE, IN_A_TRANSACTION, REENTERED, Commands, Drained, Entries, MessageColumns,
    Packets, Pubacks, Publishes, Scan
)

cdef extern from "crc32c.h" nogil:
    int crc32c_has_hardware
    void crc32c_init()
    uint32_t crc32c_update(uint32_t crc, const unsigned char *p, size_t n)
    uint32_t crc32c_update_portable(uint32_t crc, const unsigned char *p, size_t n)
    void crc32c_update3(uint32_t crc, const unsigned char **p, size_t n, uint32_t *out)

cdef extern from "Python.h":
    void *PyList_GET_ITEM(list items, Py_ssize_t index)

cdef extern from "adler32.h" nogil:
    uint32_t adler32_update(uint32_t adler, const unsigned char *p, size_t n)

crc32c_init()

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
cdef array _int32_template = _array("i")
cdef array _double_template = _array("d")


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


cdef const unsigned char *NO_BYTES = b""


cdef inline const unsigned char *address(const Py_buffer *view) noexcept nogil:
    """Where a buffer's bytes are. An empty one may be at NULL, which C doesn't allow in a copy of no bytes either."""
    return NO_BYTES if view.buf == NULL else <const unsigned char *>view.buf


def crc32c(data, uint32_t crc=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            crc = crc32c_update(crc, address(&view), view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_portable(data, uint32_t crc=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            crc = crc32c_update_portable(crc, address(&view), view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_hardware():
    return bool(crc32c_has_hardware)


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
        self.data = address(&self.view)
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


cdef struct Stretch:
    # Bytes that grow: raw memory, so that loops without the GIL may add to it.
    unsigned char *data
    int64_t size
    int64_t room


cdef int reserve(Stretch *stretch, int64_t more) noexcept nogil:
    cdef int64_t room
    cdef unsigned char *data
    if stretch.size + more <= stretch.room:
        return 0
    room = max(stretch.size + more, 2 * stretch.room)
    data = <unsigned char *>PyMem_RawRealloc(stretch.data, room)
    if data == NULL:
        return -1
    stretch.data = data
    stretch.room = room
    return 0


cdef inline int extend(Stretch *stretch, const unsigned char *data, int64_t size) noexcept nogil:
    if size == 0:
        return 0  # there may be no memory yet to copy it to
    if reserve(stretch, size):
        return -1
    memcpy(stretch.data + stretch.size, data, size)
    stretch.size += size
    return 0


include "memory.pxi"
include "log/captain.pxi"
include "log/hash.pxi"
include "log/columns.pxi"
include "messages/msgpack.pxi"
include "log/gate.pxi"
include "log/figures.pxi"
include "log/append.pxi"
include "log/queue.pxi"
include "log/alone.pxi"
include "state/keys.pxi"
include "m3/chunks.pxi"
include "m3/encode.pxi"
include "m3/fields.pxi"
include "m3/series.pxi"
include "m3/decode.pxi"
include "messages/scan.pxi"
include "messages/encode.pxi"
include "messages/json.pxi"
include "jobs/columns.pxi"
include "jobs/commands.pxi"
include "broker/sockets.pxi"
include "broker/mqtt.pxi"
include "broker/deliver.pxi"
include "broker/columns.pxi"
include "broker/inbox.pxi"
