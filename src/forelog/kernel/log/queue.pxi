# A bounded queue that is entered without a lock. Included by _kernel.pyx.

from collections import deque as _deque


cdef class BoundedQueue:
    """Each method is one step to all threads: it holds the interpreter's lock throughout."""
    cdef readonly int64_t writes_max, bytes_max, writes, bytes
    cdef object queue, append, popleft

    def __init__(self, int64_t writes_max, int64_t bytes_max):
        self.writes_max = writes_max
        self.bytes_max = bytes_max
        self.queue = _deque()
        self.append = self.queue.append
        self.popleft = self.queue.popleft

    def push(self, entry):
        cdef int64_t writes = len(entry.items), size = entry.byte_count
        with cython.critical_section(self):
            if writes and self.writes and (
                self.writes + writes > self.writes_max or self.bytes + size > self.bytes_max
            ):
                return False
            self.append(entry)
            self.writes += writes
            self.bytes += size
            return True

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
        return taken

    def remove(self, entry):
        with cython.critical_section(self):
            if entry not in self.queue:
                return False
            self.queue.remove(entry)
            self.writes -= len(entry.items)
            self.bytes -= <int64_t>entry.byte_count
            return True

    def first(self):
        with cython.critical_section(self):
            return self.queue[0] if self.queue else None

    def __len__(self):
        return len(self.queue)
