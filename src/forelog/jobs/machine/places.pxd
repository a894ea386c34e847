# Types for the compiled form of places.py.
cimport cython

from forelog.jobs.machine.ledger cimport Ledger, memory_bytes
from forelog.jobs.machine.queue cimport Job, Leaser, Queue, Waiter, new_job
from forelog.jobs.machine.registry cimport Registry
from forelog.jobs.machine.wheel cimport Timer, Wheel

cdef int NEW, FAILED, PENDING, LEASED
cdef long long NEVER, NOT_SCHEDULED, _MS_NS


cdef class Places:
    cdef readonly Ledger ledger
    cdef public dict jobs
    cdef readonly Registry registry
    cdef readonly dict queues
    cdef public Wheel wheel
    cdef public object notebook
    cdef public list ended
    cdef public Py_ssize_t evicted
    cdef public Py_ssize_t expired
    cdef public Py_ssize_t unknown
    cdef public long long waits
    cdef public Py_ssize_t draining
    cdef dict _waiters
    cdef long long _order
    cdef bint _fails_are_final

    cpdef Queue queue(self, bytes name)
    @cython.locals(queue=Queue)
    cpdef bytes shared(self, bytes name)
    cpdef Job new_job(
        self, bytes job_id, bytes name, unsigned int ttr_ms, long long ttl_ms, long long created_ns, bytes payload,
        int priority=*, unsigned char max_attempts=*, unsigned char max_fails=*, long long scheduled_ns=*
    )
    cdef _enter(self, Job job)
    @cython.locals(queue=Queue)
    cdef _enter_again(self, Job job)
    @cython.locals(when_ns="long long", ends_ns="long long", queue=Queue, leaser=Leaser)
    cdef _settle(self, Job job, long long now_ns, bint offer)
    @cython.locals(queue=Queue)
    cdef _displace(self, Job job)
    @cython.locals(job=Job)
    cdef _hand(self, Queue queue, Leaser leaser, long long now_ns)
    @cython.locals(queue=Queue)
    cdef _start(self, Job job, long long now_ns, long long lease_ms)
    cdef _end(self, Job job)
    @cython.locals(queue=Queue)
    cdef _remove(self, Job job)
    @cython.locals(waiter=Waiter)
    cdef _end_waits(self, Job job, bint gone)
    cdef _forget(self, Waiter waiter)
    @cython.locals(ends_ns="long long", expires_ns="long long")
    cdef _time(self, Job job)
    cpdef leave(self, Timer waiting)
