# Types for the compiled form of turns.py.
cimport cython

from forelog.jobs.machine.ledger cimport Ledger
from forelog.jobs.machine.machine cimport Machine
from forelog.jobs.machine.queue cimport Leaser, Waiter
from forelog.jobs.machine.wheel cimport Clock, Timer
from forelog.jobs.server.connection cimport Connection, Round
from forelog.jobs.server.outage cimport Outage
from forelog.jobs.server.pace cimport Pace
from forelog.jobs.server.session cimport Session

cdef long long NEVER, _ALL, _HANDED_BYTES_MAX
cdef int _MANY


cdef class Turns:
    cdef public Machine machine
    cdef public object log
    cdef public object clients
    cdef public Pace pace
    cdef public Outage outage
    cdef public object archive
    cdef object _rare
    cdef object _beyond
    cdef object _late
    cdef Ledger _ledger
    cdef public Round round
    cdef Clock _clock
    cdef object _in_flight
    cdef bint _handing
    cdef int _segment
    cdef object _schedule
    cdef object _writer
    cdef double _write_began
    cdef object _loop
    cdef object _alarm
    cdef long long _alarm_ns

    cpdef read(self)
    @cython.locals(arrived=list, current=Round, connection=Connection, many=bint, ends=double)
    cdef bint _take_in(self) except -1
    @cython.locals(when_ns="long long")
    cpdef turn(self)
    @cython.locals(current=Round, connection=Connection, ends=double)
    cdef _go_on(self)
    @cython.locals(machine=Machine, ended=list, size="long long")
    cdef _end_waits(self, long long most=*)
    @cython.locals(session=Session, size="Py_ssize_t")
    cdef Py_ssize_t _end_wait(self, Timer waiter) except -1
    @cython.locals(touched=list, changes=tuple, held=list, connection=Connection, began=double, took=double)
    cdef _write(self)
    cdef _succeed(self, tuple changes, list held, where)
    @cython.locals(connection=Connection, replies=tuple)
    cdef _send(self, list held)
    @cython.locals(connection=Connection)
    cdef _fail(self, tuple changes, list held, error)
    @cython.locals(connection=Connection)
    cdef _refuse(self, tuple changes, list held, bytes refusal)
    cdef _set_alarm(self, long long when_ns)
