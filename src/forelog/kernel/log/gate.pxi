# Where a thread waits for another one. Included by _kernel.pyx.

cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait)
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)
    int PY_LOCK_INTR, PY_LOCK_ACQUIRED


cdef class Gate:
    """A waiting thread gives up the interpreter before it opens the next gate: the thread behind that needs it."""
    cdef PyThread_type_lock lock

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock is NULL:
            raise MemoryError("no lock")
        PyThread_acquire_lock(self.lock, 0)

    def __dealloc__(self):
        if self.lock is not NULL:
            PyThread_free_lock(self.lock)

    def open(self):
        PyThread_release_lock(self.lock)

    def wait(self, line=()):
        cdef Gate first = line.popleft() if line else None
        cdef PyThread_type_lock to_open = NULL if first is None else first.lock
        cdef int found
        while True:
            with nogil:
                if to_open is not NULL:
                    PyThread_release_lock(to_open)
                    to_open = NULL
                found = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if found != PY_LOCK_INTR:
                return
            PyErr_CheckSignals()

    def wait_for(self, double seconds):
        cdef double end = monotonic_seconds() + seconds
        cdef long long microseconds
        cdef int found
        while True:
            microseconds = <long long>(min(max(end - monotonic_seconds(), 0), 1e6) * 1e6)
            with nogil:
                found = PyThread_acquire_lock_timed(self.lock, microseconds, 1)
            if found != PY_LOCK_INTR:
                return found == PY_LOCK_ACQUIRED
            PyErr_CheckSignals()


def open_first(line):
    cdef Gate first
    if line:
        first = line.popleft()
        PyThread_release_lock(first.lock)


cdef class OwnedLock:
    """A lock that its thread can take again. A thread that waits for it can't be interrupted."""
    cdef cython.pymutex mutex
    cdef unsigned long owner
    cdef int depth

    cdef int take(self) except -1:
        cdef unsigned long own = PyThread_get_thread_ident()
        if self.owner != own:
            self.mutex.acquire()
            self.owner = own
        self.depth += 1
        return 0

    cdef void give(self) noexcept:
        self.depth -= 1
        if self.depth == 0:
            self.owner = 0
            self.mutex.release()

    @property
    def held(self):
        return self.owner == PyThread_get_thread_ident()

    def __enter__(self):
        self.take()
        return self

    def __exit__(self, *error):
        self.give()
