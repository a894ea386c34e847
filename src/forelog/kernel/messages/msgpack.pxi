# Many values in msgpack, joined to one array. Included by _kernel.pyx.

cdef inline int64_t big_endian(const unsigned char *p, int size) noexcept nogil:
    cdef int64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | p[i]
    return value


cdef bint is_one_value(const unsigned char *p, const unsigned char *end) noexcept nogil:
    """Whether these bytes are one value in msgpack and nothing else."""
    cdef int64_t pending = 1, skip
    cdef int sized, item
    cdef unsigned char kind
    while pending:
        if pending > end - p:
            return False
        kind = p[0]
        p += 1
        pending -= 1
        skip = sized = item = 0
        if kind < 0x80 or kind >= 0xE0:
            continue
        elif kind < 0x90:
            pending += 2 * (kind & 15)
            continue
        elif kind < 0xA0:
            pending += kind & 15
            continue
        elif kind < 0xC0:
            skip = kind & 31
        elif kind == 0xC1:
            return False
        elif kind <= 0xC3:
            continue
        elif kind <= 0xC6:
            sized = 1 << (kind - 0xC4)
        elif kind <= 0xC9:
            sized = 1 << (kind - 0xC7)
            skip = 1
        elif kind <= 0xCB:
            skip = 4 << (kind - 0xCA)
        elif kind <= 0xCF:
            skip = 1 << (kind - 0xCC)
        elif kind <= 0xD3:
            skip = 1 << (kind - 0xD0)
        elif kind <= 0xD8:
            skip = 1 + (1 << (kind - 0xD4))
        elif kind <= 0xDB:
            sized = 1 << (kind - 0xD9)
        else:
            sized = 2 << (kind & 1)
            item = 1 if kind <= 0xDD else 2
        if sized:
            if end - p < sized:
                return False
            if item:
                pending += item * big_endian(p, sized)
            else:
                skip += big_endian(p, sized)
            p += sized
        if end - p < skip:
            return False
        p += skip
    return p == end


def msgpack_array(buffer, array starts, array ends, Py_ssize_t first, Py_ssize_t last, bytes head,
                  Py_ssize_t skip, int64_t size_max):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t rows = min(len(starts), len(ends)), i, size = PyBytes_GET_SIZE(head), row = first
    check_column(starts)
    check_column(ends)
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    if not 0 <= skip <= size:
        raise ValueError(f"can't leave out {skip} bytes of a head of {size}")
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef char *wanted = PyBytes_AS_STRING(head)
    cdef int64_t total = 0, outside = -1
    with nogil:
        while row < last:
            if start[row] < 0 or end[row] < start[row] or end[row] > view.size:
                outside = row
                break
            if end[row] - start[row] < size or memcmp(view.data + start[row], wanted, size):
                break
            if row > first and end[row] - start[row] - skip > size_max - total:
                break
            if not is_one_value(view.data + start[row] + skip, view.data + end[row]):
                break
            total += end[row] - start[row] - skip
            row += 1
    if outside >= 0:
        raise ValueError(f"range {outside} lies outside of its buffer")
    cdef bytes data = PyBytes_FromStringAndSize(NULL, 5 + total)
    cdef unsigned char *p = <unsigned char *>PyBytes_AS_STRING(data)
    cdef uint32_t count = <uint32_t>(row - first)
    p[0] = 0xDD
    store_u32(p + 1, count)
    p += 5
    for i in range(first, row):
        memcpy(p, view.data + start[i] + skip, end[i] - start[i] - skip)
        p += end[i] - start[i] - skip
    return count, data
