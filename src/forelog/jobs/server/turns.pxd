# Types for the compiled form of turns.py.
cimport cython

from forelog.jobs.machine.machine cimport Machine
from forelog.jobs.server.protocol cimport Session
from forelog.jobs.machine.wheel cimport Clock

cdef int _BUFFER_BYTES_MAX


cdef class Connection:
    cdef Turns _turns
    cdef public Session session
    cdef public object transport
    cdef object _is_closing
    cdef object _buffered
    cdef int _file
    cdef bint _joined
    cdef bint _dirty
    cdef bint _ended
    cdef bint _reading
    cdef bint _paused
    cdef double _since

    @cython.locals(session=Session)
    cpdef data_received(self, bytes data)
    cpdef bint eof_received(self)
    cpdef close(self)
    cpdef abort(self)
    cdef arrived(self, bytes data)
    cpdef touch(self)
    cpdef tuple take(self)
    @cython.locals(session=Session)
    cpdef send(self, list answers)
    @cython.locals(sent="Py_ssize_t")
    cdef _write(self, bytes data)
    @cython.locals(session=Session, before="Py_ssize_t", held=bint, most="Py_ssize_t")
    cdef _go_on(self)
    cdef _read(self, bint wanted)
    cpdef bint is_late(self, double now)


cdef class Turns:
    cdef public Machine machine
    cdef public object journal
    cdef public bytes token
    cdef public Clock clock
    cdef public long long started_ns
    cdef public bint read_only
    cdef public bint trial
    cdef public object in_flight
    cdef public list waiting
    cdef public bint turning
    cdef public bint handing
    cdef public long long now_ns
    cdef public Py_ssize_t share
    cdef public Py_ssize_t crowd
    cdef public bint slow
    cdef public int segment
    cdef public object call_soon
    cdef public object sockets

    cpdef touched(self, Connection connection)
    cpdef read(self)
    @cython.locals(arrived=list, connection=Connection)
    cpdef bint take_in(self) except -1
    cpdef turn_soon(self)
    cpdef turn(self)
    cpdef hand_answers(self)
    @cython.locals(waiting=list, batch=tuple, held=list, connection=Connection, began=double, took=double)
    cpdef write(self)
    cpdef succeed(self, tuple batch, list held, where)
    @cython.locals(connection=Connection, answers=tuple)
    cpdef send(self, list held)
