# Locks for the writers of keys, and one for them all. Included by _kernel.pyx.

cdef enum:
    KEY_LOCKS = 16


cdef class KeyLocks:
    """Taking and giving back is one step, which no signal handler comes into the middle of."""
    cdef PyThread_type_lock locks[KEY_LOCKS]
    cdef unsigned long owners[KEY_LOCKS]
    cdef list since
    cdef object mend, among
    cdef readonly object transaction

    def __cinit__(self, mend, among):
        cdef int at
        self.mend = mend
        self.among = among
        self.since = [None] * KEY_LOCKS
        for at in range(KEY_LOCKS):
            self.locks[at] = PyThread_allocate_lock()
            if self.locks[at] is NULL:
                raise MemoryError("no lock")

    def __dealloc__(self):
        cdef int at
        for at in range(KEY_LOCKS):
            if self.locks[at] is not NULL:
                PyThread_free_lock(self.locks[at])

    def of(self, key):
        cdef int at = <int>(hash(key) & (KEY_LOCKS - 1))
        return held_by(self, at, at + 1)

    def all(self):
        return held_by(self, 0, KEY_LOCKS)

    def together(self, transaction, commit):
        cdef Held held = held_by(self, 0, KEY_LOCKS)
        held.transaction = transaction
        held.commit = commit
        return held

    def begin(self, position):
        cdef unsigned long own = PyThread_get_thread_ident()
        cdef int at
        for at in range(KEY_LOCKS):
            if self.owners[at] == own and self.since[at] is None:
                self.since[at] = position

    def done(self):
        cdef unsigned long own = PyThread_get_thread_ident()
        cdef int at
        for at in range(KEY_LOCKS):
            if self.owners[at] == own:
                self.since[at] = None

    def forget(self):
        self.since[:] = [None] * KEY_LOCKS

    cdef int take(self, int first, int last) except -1:
        cdef unsigned long own = PyThread_get_thread_ident()
        cdef int at, found
        for at in range(KEY_LOCKS):
            if self.owners[at] == own:
                raise RuntimeError(IN_A_CHANGE if self.transaction is None else IN_A_TRANSACTION)
        for at in range(first, last):
            if not PyThread_acquire_lock(self.locks[at], 0):
                found = PY_LOCK_INTR
                while found == PY_LOCK_INTR:
                    with nogil:
                        found = PyThread_acquire_lock_timed(self.locks[at], -1, 1)
                    if found == PY_LOCK_INTR:
                        try:
                            PyErr_CheckSignals()
                        except BaseException:
                            self.give(first, at)
                            raise
            self.owners[at] = own
        return 0

    cdef void give(self, int first, int last) noexcept:
        cdef int at
        for at in range(first, last):
            self.owners[at] = 0
            PyThread_release_lock(self.locks[at])

    cdef object doubt(self, int first, int last):
        """Where the first change begins that one of these locks' last holders may not have made; None if all are."""
        cdef int at
        found = None
        for at in range(first, last):
            position = self.since[at]
            if position is not None and (found is None or position < found):
                found = position
        return found

    cdef int take_mended(self, int first, int last) except -1:
        """Take locks, and have unfinished changes made by whoever comes first."""
        self.take(first, last)
        while (position := self.doubt(first, last)) is not None:
            self.give(first, last)
            self.take(0, KEY_LOCKS)
            try:
                position = self.doubt(0, KEY_LOCKS)
                if position is not None:
                    self.mend(position)
                    self.forget()
            finally:
                self.give(0, KEY_LOCKS)
            self.take(first, last)
        return 0


@cython.no_gc_clear
cdef class Held:
    cdef KeyLocks locks
    cdef int first, last
    cdef bint held
    cdef object transaction, commit, token

    def __enter__(self):
        if self.held:
            raise RuntimeError("these locks are held already: each `with` takes its own")
        self.locks.take_mended(self.first, self.last)
        self.held = True
        if self.transaction is not None:
            self.locks.transaction = self.transaction
            self.token = self.locks.among.set((*self.locks.among.get(), self.transaction))

    def __exit__(self, kind, error, traceback):
        transaction = self.transaction
        try:
            if transaction is not None:
                self.end()
                if kind is None:
                    self.commit(transaction)
        finally:
            self.let_go()

    cdef int end(self) except -1:
        """Nobody's calls belong to the transaction any more."""
        self.locks.transaction = self.transaction = None
        token, self.token = self.token, None
        if token is not None:
            try:
                self.locks.among.reset(token)
            except ValueError:
                pass  # it ends in another context than it began in, which forgets it with itself
        return 0

    cdef int let_go(self) except -1:
        if self.held:
            self.held = False
            self.locks.give(self.first, self.last)
        return 0

    def __dealloc__(self):
        # An interrupt may come when the locks are taken and the block isn't entered yet.
        if self.held:
            self.held = False
            if self.transaction is not None:
                self.locks.transaction = None
            self.locks.give(self.first, self.last)


cdef Held held_by(KeyLocks locks, int first, int last):
    cdef Held held = Held.__new__(Held)
    held.locks = locks
    held.first = first
    held.last = last
    return held
