# Types for the compiled form of outage.py.

cdef class Outage:
    cdef public bint read_only
    cdef public bint trial
    cdef object _log
    cdef object _machine
    cdef object _clock
    cdef object _tasks
    cdef object _resume
    cdef double _retry_seconds
