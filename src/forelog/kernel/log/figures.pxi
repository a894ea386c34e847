# How often and how long: counted where no Python runs. Included by _kernel.pyx.

cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_REALTIME, CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)


cdef inline double monotonic_seconds() noexcept nogil:
    cdef timespec ts
    clock_gettime(CLOCK_MONOTONIC, &ts)
    return ts.tv_sec + ts.tv_nsec * 1e-9


cdef enum:
    BOUNDS_MAX = 15


cdef class Distribution:
    """Each method is one step to all threads."""
    cdef readonly tuple bounds
    cdef readonly int64_t count
    cdef readonly double total, most
    cdef double limits[BOUNDS_MAX]
    cdef int64_t counts[BOUNDS_MAX + 1]

    def __init__(self, bounds):
        self.bounds = tuple(bounds)
        if len(self.bounds) > BOUNDS_MAX:
            raise ValueError(f"{len(self.bounds)} bounds: expected up to {BOUNDS_MAX}")
        for i in range(len(self.bounds)):
            self.limits[i] = self.bounds[i]

    cdef int put(self, double value) except -1:
        cdef Py_ssize_t place = 0, last = len(self.bounds)
        with cython.critical_section(self):
            while place < last and self.limits[place] < value:
                place += 1
            self.counts[place] += 1
            self.count += 1
            self.total += value
            if value > self.most:
                self.most = value
        return 0

    def add(self, double value):
        self.put(value)

    @property
    def buckets(self):
        with cython.critical_section(self):
            return [self.counts[i] for i in range(len(self.bounds) + 1)]
