# Types for the compiled form of session.py.
cimport cython

from forelog.jobs.machine.machine cimport Machine
from forelog.jobs.machine.queue cimport Job, Leaser, Waiter
from forelog.jobs.machine.wheel cimport Timer
from forelog.jobs.machine.limits cimport is_id
from forelog.jobs.server.outage cimport Outage
from forelog.jobs.server.words cimport number, parse_id, payload_size, refuse_flags, refuse_job, refuse_wait
from forelog.jobs.server.replies cimport lease_reply, read_reply, result_reply

cdef long long _WAITS_MAX, _MS_NS, NOT_SCHEDULED
cdef int _NAMES_FEW, _OUT_BYTES_MAX, _LINE_BYTES_MAX, _STRANGE_BYTES_MAX, _CR, _LF, DONE, UNKNOWN


cdef class Session:
    cdef Machine _machine
    cdef object _clients
    cdef Outage _outage
    cdef object _archive
    cdef object _rare
    cdef object _beyond
    cdef public object connection
    cdef bytearray _buffer
    cdef Py_ssize_t _need
    cdef public bint known
    cdef public list out
    cdef public Py_ssize_t out_bytes
    cdef public Py_ssize_t tentative
    cdef public Timer waiting
    cdef public bint in_line
    cdef public bint closed

    cpdef Py_ssize_t buffered(self)
    cpdef bint is_held(self)
    cpdef bint is_in_line(self)
    cpdef feed(self, bytes data, long long now_ns)
    cpdef resume(self, long long now_ns)
    cpdef go_on(self, long long now_ns)
    cpdef tuple take(self)
    cpdef leave(self)
    cpdef end_wait(self)
    cpdef refuse(self, bytes refusal)
    @cython.locals(
        most="Py_ssize_t", at="Py_ssize_t", end="Py_ssize_t", stop="Py_ssize_t", after="Py_ssize_t", words=list, flagged=bint
    )
    cdef _commands(self, bytes data, long long now_ns)
    cdef _refuse_line(self)
    cdef _keep(self, bytes data, Py_ssize_t at, Py_ssize_t need)
    @cython.locals(
        name=bytes, flags=dict, sound=bint, payload=bytes,
        sized=tuple, size="long long", end="Py_ssize_t", count="Py_ssize_t", bad_size=bytes,
    )
    cdef Py_ssize_t _command(
        self, bytes data, list args, bint flagged, Py_ssize_t after, long long now_ns
    ) except? -1
    @cython.locals(job=Job)
    cdef _dispatch(self, bytes name, list args, dict flags, bytes payload, long long now_ns)
    @cython.locals(waiter=Waiter)
    cpdef fetch(self, Job job, bint inspects, then=*)
    cpdef reply(self, bytes reply)
    cpdef change(self, bytes reply)
    @cython.locals(waiter=Waiter)
    cdef _authorize(self, bytes name, list args, long long now_ns)
    @cython.locals(job_id=bytes, name=bytes, ttr_ms="long long", ttl_ms="long long", refusal=bytes)
    cdef _add(self, list args, dict flags, bytes payload, long long now_ns)
    @cython.locals(job_id=bytes, name=bytes, ttr_ms="long long", ttl_ms="long long", refusal=bytes)
    cdef _schedule(self, list args, dict flags, bytes payload, long long now_ns)
    @cython.locals(machine=Machine, job=Job, max_fails="long long")
    cdef _enter(
        self, bytes job_id, bytes name, long long ttr_ms, long long ttl_ms, bytes payload, dict flags,
        long long scheduled_ns, long long now_ns
    )
    @cython.locals(names=list, wait_ms="long long", leaser=Leaser, job=Job, refusal=bytes, crowded=bint)
    cdef _lease(self, list args, dict flags, long long now_ns)
    @cython.locals(job=Job)
    cdef _lease_more(self, Leaser leaser, Job job, options, long long now_ns)
    @cython.locals(job_id=bytes, outcome="int", job=Job, retry_ms="long long", final=bint)
    cdef _finish(self, list args, dict flags, bytes result, bint success, long long now_ns)
