# Types for the compiled form of pace.py.

cdef class Pace:
    cdef public Py_ssize_t crowd
    cdef public bint slow
    cdef double _sent
    cdef double _typical
    cdef Py_ssize_t _usual_crowd
