# Types for the compiled form of ledger.py.
cimport cython

from chiplog.jobs.queue cimport Job


cdef class Ledger:
    cdef public list records
    cdef public Py_ssize_t record_bytes
    cdef public Py_ssize_t batch_bytes_max
    cdef public set leaving
    cdef public dict lost
    cdef list _undo
    cdef Job _alike
    cdef bytes _head

    cpdef tuple take(self)
    cpdef bint is_full(self)
    @cython.locals(change=tuple, job=Job)
    cpdef landed(self, tuple batch, int segment)
    cdef bytes _head_of(self, Job job)
    cdef _log(self, bytes record)
    cdef _note(self, Job job, bint alive)
