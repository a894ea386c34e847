# A bounded queue that is entered without a lock, and who commits what is in it. Included by _kernel.pyx.

from collections import deque as _deque


cdef class BoundedQueue:
    """Each method is one step to all threads: it holds the interpreter's lock throughout, and no signal handler runs.

    So nobody can be interrupted between entering the queue and finding out who leads.
    """
    cdef readonly int64_t writes_max, bytes_max, writes, bytes
    cdef public int64_t crowd
    cdef public unsigned long committing
    cdef object queue, append, popleft, leading, wake
    cdef list full, idle
    cdef bint refused

    def __init__(self, int64_t writes_max, int64_t bytes_max, wake=None):
        self.writes_max = writes_max
        self.bytes_max = bytes_max
        self.queue = _deque()
        self.append = self.queue.append
        self.popleft = self.queue.popleft
        self.wake = wake
        self.full = []
        self.idle = []

    cdef bint put(self, entry) except -1:
        cdef int64_t writes = len(entry.items), size = entry.byte_count
        if writes and self.writes and (
            self.writes + writes > self.writes_max or self.bytes + size > self.bytes_max
        ):
            return False
        self.append(entry)
        self.writes += writes
        self.bytes += size
        return True

    def push(self, entry):
        with cython.critical_section(self):
            return self.put(entry)

    def take(self, int64_t entries_max, int64_t bytes_max):
        cdef list taken = []
        with cython.critical_section(self):
            while self.queue and len(taken) < entries_max:
                entry = self.queue[0]
                bytes_max -= <int64_t>entry.byte_count
                if bytes_max < 0 and taken:
                    break
                self.popleft()
                self.writes -= len(entry.items)
                self.bytes -= <int64_t>entry.byte_count
                taken.append(entry)
            open_all(self.full)
        return taken

    def remove(self, entry):
        with cython.critical_section(self):
            if entry not in self.queue:
                return False
            self.queue.remove(entry)
            self.writes -= len(entry.items)
            self.bytes -= <int64_t>entry.byte_count
            open_all(self.full)
            return True

    def first(self):
        with cython.critical_section(self):
            return self.queue[0] if self.queue else None

    def __len__(self):
        return len(self.queue)

    # -- who commits

    @property
    def leader(self):
        with cython.critical_section(self):
            return self.leading

    @property
    def is_committing(self):
        return self.committing == PyThread_get_thread_ident()

    cdef int lead(self, entry) except -1:
        """Make an entry's thread the leader, if it waits for that; otherwise the queue's own thread."""
        cdef Gate gate
        if entry.gate is not None and not entry.is_main:
            gate = entry.gate
            entry.gate = None
            self.leading = entry
            PyThread_release_lock(gate.lock)
        elif self.leading is not self:
            self.leading = self
            self.wake()
        return 0

    def enter(self, entry, Gate gate=None):
        with cython.critical_section(self):
            if self.refused:
                return False
            if not self.put(entry):
                if gate is not None:
                    self.full.append(gate)
                return False
            if self.leading is None:
                self.lead(self.queue[0])
            return True

    def pass_on(self):
        with cython.critical_section(self):
            self.committing = 0
            if self.queue:
                self.lead(self.queue[0])
            else:
                self.leading = None
                open_all(self.idle)

    def rest(self, Gate gate):
        with cython.critical_section(self):
            if self.leading is None:
                if not self.queue:
                    return True
                self.lead(self.queue[0])
            self.idle.append(gate)
            return False

    def leave(self, entry):
        with cython.critical_section(self):
            gate = entry.gate
            entry.gate = None
            if self.leading is None and self.queue:
                self.lead(self.queue[0])
            return gate

    def refuse(self):
        with cython.critical_section(self):
            self.refused = True
            open_all(self.full)

    cdef bint lead_alone(self) except -1:
        """Lead for one entry that never is in the queue, unless there is company."""
        with cython.critical_section(self):
            if self.leading is not None or self.crowd or self.refused or self.queue:
                return False
            self.leading = ALONE
            self.committing = PyThread_get_thread_ident()
            return True


cdef object ALONE = "a writer without company"


cdef int open_all(list gates) except -1:
    cdef Gate gate
    for gate in gates:
        PyThread_release_lock(gate.lock)
    gates.clear()
    return 0
