# Commands one by one, as a job server makes them. Included by _kernel.pyx.

cdef int64_t NOT_SCHEDULED = INT64_MIN


cdef inline unsigned char *put_job_time(unsigned char *out, int64_t time_ns) noexcept nogil:
    put_time(out, time_ns)
    out[13] = out[14] = 0xFF
    return out + TIME_BYTES


def job_encode(bytes job_id not None, bytes head not None, bytes payload not None, scheduled_ns, int64_t created_ns):
    cdef Py_ssize_t head_bytes = PyBytes_GET_SIZE(head), size = PyBytes_GET_SIZE(payload)
    cdef int64_t due_ns = NOT_SCHEDULED if scheduled_ns is None else scheduled_ns
    if PyBytes_GET_SIZE(job_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(job_id)}")
    cdef bytes record = PyBytes_FromStringAndSize(
        NULL, 1 + ID_BYTES + head_bytes + varint_bytes(size) + size + 2 * TIME_BYTES
    )
    cdef unsigned char *out = writable(record)
    out[0] = SCHEDULE if scheduled_ns is not None else ADD
    memcpy(out + 1, PyBytes_AS_STRING(job_id), ID_BYTES)
    out += 1 + ID_BYTES
    memcpy(out, PyBytes_AS_STRING(head), head_bytes)
    out += head_bytes
    out += put_varint(out, size)
    memcpy(out, PyBytes_AS_STRING(payload), size)
    out += size
    if scheduled_ns is None:
        memset(out, 0, TIME_BYTES)
        out[0], out[13], out[14] = 1, 0xFF, 0xFF
        out += TIME_BYTES
    else:
        out = put_job_time(out, due_ns)
    put_job_time(out, created_ns)
    return record


def uuid_text(bytes job_id not None):
    if PyBytes_GET_SIZE(job_id) != ID_BYTES:
        raise ValueError(f"an id has {ID_BYTES} bytes, not {len(job_id)}")
    cdef bytes text = PyBytes_FromStringAndSize(NULL, UUID_CHARS)
    cdef unsigned char *out = writable(text)
    cdef const unsigned char *source = <const unsigned char *>PyBytes_AS_STRING(job_id)
    cdef int i
    for i in range(ID_BYTES):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[0] = c"-"
            out += 1
        out[0] = HEX_DIGITS[source[i] >> 4]
        out[1] = HEX_DIGITS[source[i] & 15]
        out += 2
    return text


cdef inline int nibble(unsigned char digit) noexcept nogil:
    if c"0" <= digit <= c"9":
        return digit - c"0"
    digit |= 0x20
    if c"a" <= digit <= c"f":
        return digit - c"a" + 10
    return -1


def uuid_parse(bytes text not None):
    if PyBytes_GET_SIZE(text) != UUID_CHARS:
        return None
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(text)
    cdef unsigned char found[ID_BYTES]
    cdef int i, high, low
    for i in range(ID_BYTES):
        if i == 4 or i == 6 or i == 8 or i == 10:
            if p[0] != c"-":
                return None
            p += 1
        high, low = nibble(p[0]), nibble(p[1])
        if high < 0 or low < 0:
            return None
        found[i] = <unsigned char>(high << 4 | low)
        p += 2
    return PyBytes_FromStringAndSize(<char *>found, ID_BYTES)


def next_line(bytes data not None, Py_ssize_t at, Py_ssize_t limit):
    cdef const char *text = PyBytes_AS_STRING(data)
    cdef const char *found
    cdef Py_ssize_t start = at, stop, end
    cdef bint flagged = False
    cdef list words = []
    if not 0 <= at <= PyBytes_GET_SIZE(data) or limit < 0:
        raise ValueError(f"{limit} bytes from {at} on lie outside of {len(data)} bytes")
    found = <const char *>memchr(text + at, c"\n", min(limit, PyBytes_GET_SIZE(data) - at))
    if found is NULL:
        return -1, None, False
    stop = found - text
    if stop == at or text[stop - 1] != c"\r":
        return stop, None, False
    end = stop - 1
    while True:
        if at == end or text[at] == c" ":
            if at > start or not words:  # the first word may be empty, and stays
                words.append(PyBytes_FromStringAndSize(text + start, at - start))
            if at == end:
                return stop, words, flagged
            start = at + 1
        elif text[at] == c"=":
            flagged = True
        at += 1
