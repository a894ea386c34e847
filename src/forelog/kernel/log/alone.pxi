# The writer that has no company: write, sync and count as one call. Included by _kernel.pyx.

cdef class LoneWriter:
    """Appends without the queue while nobody else uses it.

    On the operating system's files no Python runs between the first byte and the last count, so no signal handler
    does: an interrupt comes before the append or after it. Elsewhere a handler finds everything as a failed append
    leaves it. Either way the queue is left in order, and whoever came meanwhile leads next.
    """
    cdef AppendCore core
    cdef BoundedQueue queue
    cdef object among, failed
    cdef Distribution timing, sizes

    def __init__(
        self, AppendCore core, BoundedQueue queue, among, Distribution timing, Distribution sizes=None, failed=None
    ):
        self.core = core
        self.queue = queue
        self.among = among
        self.timing = timing
        self.sizes = sizes
        self.failed = failed

    def append(self, payload):
        position = None
        cdef double begun
        if self.queue.lead_alone():
            begun = monotonic_seconds()
            try:
                position = self.core.append_synced(payload)
            except Exception as error:
                if self.failed is not None:
                    self.failed(error)
                raise
            finally:
                self.queue.pass_on()
            if position is not None:
                self.timing.put(monotonic_seconds() - begun)
                if self.sizes is not None:
                    self.sizes.put(1)
                return position
        return self.among(payload)

    def append_many(self, payloads):
        found = None
        cdef double begun
        if self.queue.lead_alone():
            begun = monotonic_seconds()
            try:
                found = self.core.append_many_synced(payloads)
            except Exception as error:
                if self.failed is not None:
                    self.failed(error)
                raise
            finally:
                self.queue.pass_on()
            if found is not None:
                self.timing.put(monotonic_seconds() - begun)
                if self.sizes is not None:
                    self.sizes.put(len(payloads))
        return found
