# Types for the compiled form of queue.py.
cimport cython

from forelog.jobs.machine.wheel cimport Timer

cdef int UNSET
cdef long long NEVER, NOT_SCHEDULED, _MS_NS
cdef int _ATTEMPTS_MAX, _STALE_MAX, COMPLETED, FAILED, NEW


cdef class Job(Timer):
    cdef public bytes id
    cdef public bytes name
    cdef public bytes payload
    cdef public bytes result
    cdef public long long created_ns
    cdef public long long scheduled_ns
    cdef public long long leased_ns
    cdef public long long due_ns
    cdef public long long ends_ns
    cdef public long long beat_ns
    cdef public long long done_ns
    cdef public object terms
    cdef public bint timed_out
    cdef public long long order
    cdef public long long offset
    cdef public long long result_offset
    cdef public long long ttl_ms
    cdef public unsigned int ttr_ms
    cdef public unsigned int lease_ms
    cdef public long long priority
    cdef public int segment
    cdef public int result_segment
    cdef public unsigned int add_bytes
    cdef public unsigned int result_bytes
    cdef public unsigned int kept_bytes
    cdef public bint is_unloaded
    cdef public unsigned char max_attempts
    cdef public unsigned char max_fails
    cdef public unsigned char state
    cdef public unsigned char attempts
    cdef public unsigned char fails
    cdef public bint ready
    cdef public bint volatile

    cpdef bint is_like(self, Job other)
    cpdef bint is_processed(self)
    cpdef bint is_in(self, int segment, long long offset)
    cpdef bint is_spent(self)
    cpdef long long expires_ns(self)
    cpdef long long lease_ends_ns(self)


cdef class Leaser(Timer):
    cdef public object client
    cdef public list names
    cdef public Job job
    cdef public bint waiting
    cdef public long long lease_ms
    cdef public bint info


cdef class Waiter(Timer):
    cdef public object client
    cdef public Job job
    cdef public bint owner
    cdef public bint gone
    cdef public bint inspects
    cdef public bint refused
    cdef public bytes read
    cdef public object asked
    cdef public object then


cdef class _Shelf:
    cdef public object fresh
    cdef public list returned

    @cython.locals(job=Job)
    cpdef tidy(self)


cdef class Queue:
    cdef public bytes name
    cdef public Py_ssize_t jobs
    cdef public Py_ssize_t ready
    cdef public dict scheduled
    cdef public object leasers
    cdef object _agenda
    cdef Py_ssize_t _leasers_max
    cdef dict _shelves
    cdef list _priorities
    cdef Py_ssize_t _entries
    cdef public Py_ssize_t running
    cdef public bint held
    cdef public dict blocked

    cpdef bint is_idle(self)
    @cython.locals(shelf=_Shelf)
    cpdef push(self, Job job)
    @cython.locals(shelf=_Shelf, job=Job)
    cpdef Job pop(self)
    cpdef remove(self, Job job)
    @cython.locals(shelf=_Shelf, job=Job, found=list)
    cpdef list ready_jobs(self, long long offset, Py_ssize_t limit)
    cpdef schedule(self, Job job)
    @cython.locals(job=Job)
    cpdef unschedule(self, bytes job_id)
    cpdef wait(self, Leaser leaser)
    @cython.locals(leaser=Leaser)
    cpdef Leaser next_leaser(self)


@cython.locals(job=Job)
cpdef Job new_job(
    bytes job_id, bytes name, unsigned int ttr_ms, long long ttl_ms, long long created_ns, bytes payload, int priority,
    unsigned char max_attempts, unsigned char max_fails, long long scheduled_ns
)
