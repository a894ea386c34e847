# What is done with columns of records. Included by _kernel.pyx.

def pieces(buffer, array starts, array ends):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t rows = len(starts), i
    check_column(starts)
    check_column(ends)
    if len(ends) != rows:
        raise ValueError(f"{rows} starts and {len(ends)} ends")
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef list found = [None] * rows
    for i in range(rows):
        if start[i] < 0 or end[i] < start[i] or end[i] > view.size:
            raise ValueError(f"range {i} lies outside of its buffer")
        found[i] = PyBytes_FromStringAndSize(<char *>view.data + start[i], end[i] - start[i])
    return found


def pieces_after(buffer, array starts, array ends, Py_ssize_t first, Py_ssize_t last, bytes head):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t rows = min(len(starts), len(ends)), i, size = PyBytes_GET_SIZE(head)
    check_column(starts)
    check_column(ends)
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef char *wanted = PyBytes_AS_STRING(head)
    cdef list found = []
    for i in range(first, last):
        if start[i] < 0 or end[i] < start[i] or end[i] > view.size:
            raise ValueError(f"range {i} lies outside of its buffer")
        if end[i] - start[i] < size or memcmp(view.data + start[i], wanted, size):
            break
        found.append(PyBytes_FromStringAndSize(<char *>view.data + start[i] + size, end[i] - start[i] - size))
    return found


def even_pieces(buffer, Py_ssize_t size):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t rows, i
    if size < 1 or view.size % size:
        raise ValueError(f"{view.size} bytes are no pieces of {size}")
    rows = view.size // size
    cdef list found = [None] * rows
    for i in range(rows):
        found[i] = PyBytes_FromStringAndSize(<char *>view.data + size * i, size)
    return found


def gather(buffer, array starts, array ends, Py_ssize_t first, Py_ssize_t last, offsets, data):
    cdef _View view = _View(buffer), places = _View(offsets, True), out = _View(data, True)
    cdef Py_ssize_t rows = min(len(starts), len(ends)), i
    check_column(starts)
    check_column(ends)
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    if places.size // <Py_ssize_t>sizeof(int32_t) < last - first + 1:
        raise ValueError("offsets has too little room")
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef unsigned char *place = <unsigned char *>places.data  # aligned or not
    cdef unsigned char *target = <unsigned char *>out.data
    cdef int64_t at = 0, size, outside = -1
    cdef int32_t offset = 0
    with nogil:
        memcpy(place, &offset, sizeof(offset))
        for i in range(first, last):
            if start[i] < 0 or end[i] < start[i] or end[i] > view.size:
                outside = i
                break
            size = end[i] - start[i]
            if size > out.size - at or at + size > 0x7FFFFFFF:
                outside = i
                break
            memcpy(target + at, view.data + start[i], size)
            at += size
            offset = <int32_t>at
            memcpy(place + sizeof(offset) * <size_t>(i - first + 1), &offset, sizeof(offset))
    if outside >= 0:
        raise ValueError(f"range {outside} lies outside of its buffer")
    return at


def microseconds(array times, Py_ssize_t first, Py_ssize_t last, out):
    cdef _View target = _View(out, True)
    check_column(times)
    if not 0 <= first <= last <= len(times):
        raise ValueError(f"rows {first}..{last} of {len(times)}")
    if target.size // <Py_ssize_t>sizeof(int64_t) < last - first:
        raise ValueError("out has too little room")
    cdef int64_t *time = items(times)
    cdef unsigned char *micro = <unsigned char *>target.data  # aligned or not
    cdef int64_t low = INT64_MAX, high = INT64_MIN, whole
    cdef Py_ssize_t i
    with nogil, cython.cdivision(True):
        for i in range(first, last):
            low = min(low, time[i])
            high = max(high, time[i])
            whole = time[i] / 1000
            memcpy(micro + sizeof(whole) * <size_t>(i - first), &whole, sizeof(whole))
    return first == last or (low > INT64_MIN and high < INT64_MAX)


def first_since(array times, Py_ssize_t start, int64_t time_min):
    check_column(times)
    cdef Py_ssize_t count = len(times), row = start
    if not 0 <= start <= count:
        raise ValueError(f"row {start} of {count}")
    cdef int64_t *time = items(times)
    with nogil:
        while row < count and time[row] < time_min:
            row += 1
    return row


def time_run(array times, Py_ssize_t start, int64_t time_min, int64_t time_last):
    check_column(times)
    cdef Py_ssize_t count = len(times), first = start, last
    if not 0 <= start <= count:
        raise ValueError(f"row {start} of {count}")
    cdef int64_t *time = items(times)
    with nogil:
        while first < count and not time_min <= time[first] <= time_last:
            first += 1
        last = first
        while last < count and time_min <= time[last] <= time_last:
            last += 1
    return first, last


def ascends(array times, int64_t after):
    check_column(times)
    cdef Py_ssize_t count = len(times), row = 0
    cdef int64_t *time = items(times)
    with nogil:
        while row < count and time[row] >= after:
            after = time[row]
            row += 1
    return row == count


def keep_since(array times, int64_t time_min):
    check_column(times)
    cdef Py_ssize_t count = len(times), i
    mask = bytearray(count)
    cdef unsigned char[::1] keep = mask
    cdef int64_t *time = items(times)
    with nogil:
        for i in range(count):
            keep[i] = time[i] >= time_min
    return mask


def compact(buffer, array offsets, int64_t base, int64_t end, keep, out):
    cdef _View view = _View(buffer), mask = _View(keep), target = _View(out, True)
    check_column(offsets)
    cdef Py_ssize_t count = len(offsets), i
    if mask.size != count:
        raise ValueError("keep has another length than offsets")
    cdef int64_t *offset = items(offsets)
    cdef int64_t at = 0, start, stop, outside = -1
    cdef bint full = False
    with nogil:
        for i in range(count):
            start = offset[i] - base
            stop = offset[i + 1] - base if i + 1 < count else end
            if start < 0 or stop < start or stop > view.size:
                outside = i
                break
            if mask.data[i]:
                if stop - start > target.size - at:
                    full = True
                    break
                memcpy(<unsigned char *>target.data + at, view.data + start, stop - start)
                at += stop - start
    if outside >= 0:
        raise ValueError(f"frame {outside} lies outside of its buffer")
    if full:
        raise ValueError("out has too little room")
    return at


def select(array column, keep):
    cdef _View mask = _View(keep)
    check_column(column)
    cdef Py_ssize_t count = len(column), i, kept = 0
    if mask.size != count:
        raise ValueError("keep has another length than the column")
    cdef array chosen = new_column(count)
    cdef int64_t *value = items(column)
    cdef int64_t *out = items(chosen)
    with nogil:
        for i in range(count):
            if mask.data[i]:
                out[kept] = value[i]
                kept += 1
    resize(chosen, kept)
    return chosen


def kept_runs(array logical, array physical, int64_t end, keep, int64_t place, int64_t expected, array runs):
    cdef _View mask = _View(keep)
    check_column(logical)
    check_column(physical)
    check_column(runs)
    cdef Py_ssize_t count = len(logical), i
    if len(physical) != count or mask.size != count:
        raise ValueError("columns of different lengths")
    cdef int64_t *old = items(logical)
    cdef int64_t *offset = items(physical)
    cdef int64_t size
    for i in range(count):
        if mask.data[i]:
            if old[i] != expected:
                runs.append(old[i])
                runs.append(place)
            size = (offset[i + 1] if i + 1 < count else end) - offset[i]
            place += size
            expected = old[i] + size
    return place, expected


def relocate(array physical, array runs):
    check_column(physical)
    check_column(runs)
    cdef Py_ssize_t count = len(physical), i, run = -1, run_count = len(runs) // 2
    cdef array logical = new_column(count)
    cdef int64_t *offset = items(physical)
    cdef int64_t *pair = items(runs)
    cdef int64_t *out = items(logical)
    with nogil:
        for i in range(count):
            while run + 1 < run_count and pair[2 * (run + 1) + 1] <= offset[i]:
                run += 1
            out[i] = offset[i] if run < 0 else pair[2 * run] + offset[i] - pair[2 * run + 1]
    return logical


cdef struct KeySlot:
    uint64_t place  # in the arena, plus one: 0 is an empty slot
    uint32_t length
    uint32_t hash


cdef class KeySet:
    """A set of byte strings: open addressing over an arena that holds each key once."""
    cdef KeySlot *slots
    cdef unsigned char *arena
    cdef uint64_t slot_count, used, arena_bytes, arena_room

    def __cinit__(self):
        self.slots = NULL
        self.arena = NULL
        self.slot_count = self.used = self.arena_bytes = self.arena_room = 0

    def __dealloc__(self):
        PyMem_RawFree(self.slots)
        PyMem_RawFree(self.arena)

    def __len__(self):
        return self.used

    cdef int grow_slots(self) except -1 nogil:
        cdef uint64_t count = self.slot_count * 2 if self.slot_count else 1024, i, at
        cdef KeySlot *slots = <KeySlot *>PyMem_RawRealloc(NULL, count * sizeof(KeySlot))
        if slots == NULL:
            with gil:
                raise MemoryError()
        memset(slots, 0, count * sizeof(KeySlot))
        for i in range(self.slot_count):
            if self.slots[i].place:
                at = self.slots[i].hash & (count - 1)
                while slots[at].place:
                    at = (at + 1) & (count - 1)
                slots[at] = self.slots[i]
        PyMem_RawFree(self.slots)
        self.slots = slots
        self.slot_count = count
        return 0

    cdef int add(self, const unsigned char *key, uint32_t length) except -1 nogil:
        """1 if the key is new."""
        cdef uint32_t digest = <uint32_t>keyed_hash(key, length)
        cdef uint64_t at, room
        cdef void *grown
        if self.used * 10 >= self.slot_count * 7:
            self.grow_slots()
        at = digest & (self.slot_count - 1)
        while self.slots[at].place:
            if (
                self.slots[at].hash == digest
                and self.slots[at].length == length
                and memcmp(self.arena + self.slots[at].place - 1, key, length) == 0
            ):
                return 0
            at = (at + 1) & (self.slot_count - 1)
        if self.arena == NULL or self.arena_bytes + length > self.arena_room:  # the first key may be empty
            room = max(self.arena_room * 2, self.arena_bytes + length, <uint64_t>65536)
            grown = PyMem_RawRealloc(self.arena, room)
            if grown == NULL:
                with gil:
                    raise MemoryError()
            self.arena = <unsigned char *>grown
            self.arena_room = room
        memcpy(self.arena + self.arena_bytes, key, length)
        self.slots[at].place = self.arena_bytes + 1
        self.slots[at].length = length
        self.slots[at].hash = digest
        self.arena_bytes += length
        self.used += 1
        return 1

    def keep_latest(self, buffer, array starts, array ends, int64_t key_start, int64_t key_stop, int delimiter):
        cdef _View view = _View(buffer)
        check_column(starts)
        check_column(ends)
        cdef Py_ssize_t count = len(starts), i
        if len(ends) != count:
            raise ValueError("columns of different lengths")
        mask = bytearray(count)
        cdef unsigned char[::1] keep = mask
        cdef int64_t *start = items(starts)
        cdef int64_t *end = items(ends)
        cdef int64_t low, high, outside = -1
        cdef const unsigned char *hit
        with nogil:
            for i in range(count - 1, -1, -1):
                if start[i] < 0 or end[i] < start[i] or end[i] > view.size or end[i] - start[i] > UINT32_MAX:
                    outside = i
                    break
                if 0 < key_start and end[i] - start[i] <= key_start:
                    keep[i] = 1
                    continue
                low = start[i] + max(key_start, 0)
                high = start[i] + min(max(key_stop, 0), end[i] - start[i])
                high = max(low, high)
                if delimiter >= 0 and high > low:
                    hit = <const unsigned char *>memchr(view.data + low, delimiter, high - low)
                    if hit != NULL:
                        high = hit - view.data
                keep[i] = self.add(view.data + low, <uint32_t>(high - low))
        if outside >= 0:
            raise ValueError(f"range {outside} lies outside of its buffer")
        return mask
