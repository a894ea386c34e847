# Types for the compiled form of ledger.py.
cimport cython

from forelog.jobs.machine.queue cimport Job

cdef int COMPLETE, FAIL, DELETE, EXPIRE, _ATTEMPT_BYTES, _FRAME_BYTES, _KEPT_BYTES_MIN, _JOB_BYTES


cdef class Ledger:
    cdef public list records
    cdef public Py_ssize_t record_bytes
    cdef public Py_ssize_t record_bytes_max
    cdef public set leaving
    cdef public dict live
    cdef public long long attempts_lost
    cdef public long long memory_bytes
    cdef public long long memory_bytes_max
    cdef public object kept
    cdef public long long kept_bytes
    cdef public long long kept_bytes_max
    cdef public list notes
    cdef list _undo
    cdef list _undo_notes
    cdef Job _alike
    cdef bytes _head

    cpdef tuple take(self)
    cpdef bint is_full(self)
    cpdef bint is_dirty(self)
    @cython.locals(
        change=tuple, job=Job, records=list, record=bytes, segment="int", base="long long", offset="long long",
        first="Py_ssize_t", index="Py_ssize_t", kind="int",
    )
    cpdef landed(self, tuple changes, where)
    cpdef place(self, Job job, int segment, long long offset, unsigned int size)
    cpdef place_result(self, Job job, int segment, long long offset, unsigned int size)
    @cython.locals(size="Py_ssize_t")
    cpdef keep(self, Job job)
    @cython.locals(job=Job)
    cpdef list unload(self)
    cpdef lose(self, Job job)
    @cython.locals(left="long long")
    cdef _unneeded(self, int segment, unsigned int size)
    cdef bytes head_of(self, Job job)
    cdef log(self, bytes record)
    cdef note(self, Job job, bint alive)


cpdef Py_ssize_t memory_bytes(Job job)
@cython.locals(total="Py_ssize_t")
cpdef Py_ssize_t frame_bytes(Py_ssize_t size)
