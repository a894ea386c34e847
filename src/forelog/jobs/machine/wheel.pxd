# Types for the compiled form of wheel.py.
cimport cython

cdef int _UNSET, _TICK_BITS, _SLOT_BITS, _LEVELS
cdef long long _LATEST_NS


cdef class Clock:
    cdef long long _wall
    cdef long long _ahead

    @cython.locals(wall="long long", passed="long long")
    cpdef long long now(self)


cdef class Timer:
    cdef public long long when_ns
    cdef public long long slot
    cdef public Py_ssize_t place


cdef class Bell(Timer):
    cdef public object ring


cdef class Wheel:
    cdef public Py_ssize_t count
    cdef long long _tick
    cdef dict _slots
    cdef list _heap
    cdef list _dealing
    cdef int _dealing_level

    @cython.locals(slot=list, last=Timer)
    cpdef cancel(self, Timer timer)
    cpdef set(self, Timer timer, long long when_ns)
    @cython.locals(due=list, dealing=list, timer=Timer, tick="long long", first="long long", key="long long")
    cpdef list advance(self, long long now_ns, Py_ssize_t limit)
    cpdef bint pending(self, long long now_ns)
    cpdef long long next_ns(self)
    @cython.locals(due="long long", tick="long long", low="long long", base="long long", key="long long", level="int", slot=list)
    cdef _put(self, Timer timer)
