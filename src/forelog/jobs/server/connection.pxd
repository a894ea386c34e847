# Types for the compiled form of connection.py.
cimport cython

from forelog.jobs.machine.wheel cimport Clock
from forelog.jobs.server.session cimport Session

cdef double TURN_SECONDS
cdef int _BUFFER_BYTES_MAX, _LITTLE_BYTES, _SMALL_BYTES


cdef class Round:
    cdef public Clock clock
    cdef public long long now_ns
    cdef public bint begun
    cdef public list touched
    cdef public object call_soon
    cdef public object sockets
    cdef public object line
    cdef public object later
    cdef public double ends
    cdef bint _is_due
    cdef Py_ssize_t _share
    cdef object _end
    cdef object _write_early
    cdef object _try_writing

    cpdef begin(self)
    cpdef _due(self)
    cpdef start_clock(self)
    cpdef count(self, Py_ssize_t clients)
    cdef touch(self, Connection connection)


cdef class Connection:
    cdef Round _round
    cdef object _clients
    cdef public Session session
    cdef public object transport
    cdef object _is_closing
    cdef object _buffered
    cdef int _file
    cdef bint _joined
    cdef bint _counted
    cdef bint _dirty
    cdef bint _ended
    cdef bint _reading
    cdef bint _paused
    cdef double _since

    @cython.locals(session=Session)
    cpdef data_received(self, bytes data)
    @cython.locals(session=Session)
    cpdef bint eof_received(self)
    cpdef close(self)
    cpdef abort(self)
    cdef arrived(self, bytes data)
    cpdef touch(self)
    cpdef bint has_time(self)
    cpdef go_on(self)
    @cython.locals(session=Session)
    cdef Py_ssize_t _most(self)
    cpdef tuple take(self)
    @cython.locals(session=Session)
    cpdef send(self, list replies)
    @cython.locals(sent="Py_ssize_t")
    cdef _write(self, bytes data)
    @cython.locals(session=Session, before="Py_ssize_t", held=bint)
    cdef _go_on(self)
    @cython.locals(size="Py_ssize_t")
    cdef _count(self)
    cdef _read(self, bint wanted)
    cpdef bint is_late(self, double now)
