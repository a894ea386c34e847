# Types for the compiled form of machine.py.
cimport cython

from forelog.jobs.machine.ledger cimport memory_bytes
from forelog.jobs.machine.limits cimport refuse
from forelog.jobs.machine.places cimport Places
from forelog.jobs.machine.queue cimport Job, Leaser, Queue, Waiter
from forelog.jobs.machine.wheel cimport Bell

cdef int COMPLETE, FAIL, DELETE, EXPIRE, START_ATTEMPT
cdef int COMPLETED, FAILED, PENDING, LEASED
cdef long long NOT_SCHEDULED, _MS_NS


cdef class Machine(Places):
    cpdef bint add(self, Job job, long long now_ns)
    @cython.locals(waiter=Waiter)
    cpdef Waiter run(self, Job job, object client, long long now_ns)
    @cython.locals(queue=Queue, found=Job)
    cpdef Job lease(self, Leaser leaser, long long now_ns, long long wait_ms)
    @cython.locals(job=Job, leased=bint, cancelled=bint)
    cpdef int finish(
        self, bytes job_id, bytes result, bint success, long long now_ns, long long retry_ms=*, bint final=*
    )
    cdef _go_back(self, Job job, bint leased, bytes error, long long retry_ms, long long now_ns)
    cpdef heartbeat(self, Job job, long long now_ns, long long lease_ms)
    cpdef extend(self, Job job, long long until_ns)
    @cython.locals(job=Job)
    cpdef int delete(self, bytes job_id)
    cdef _ring(self, Job job, long long now_ns)
    cdef _pass_over(self, Job job)
    @cython.locals(job=Job, other=Job, there=bint)
    cpdef rollback(self, tuple changes, long long now_ns)
    @cython.locals(queue=Queue, leaser=Leaser)
    cpdef offer_of(self, bytes name, long long now_ns)
    cpdef replay_job(self, Job job, long long now_ns)
    @cython.locals(queue=Queue)
    cpdef replay_change(self, Job job, int kind, bytes result, long long time_ns, bint final=*)
    cdef _replay_start(self, Job job, long long time_ns)
    @cython.locals(job=Job)
    cpdef start(self, long long now_ns)
    cdef _finish(self, Job job, bytes result, bint success, bint final)
    cdef _time_out(self, Job job)
