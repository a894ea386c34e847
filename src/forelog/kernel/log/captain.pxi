# Records of the captain format. Included by _kernel.pyx.

def payload_bytes(payload):
    if PyBytes_CheckExact(payload):
        return payload
    if isinstance(payload, str):
        raise TypeError(f"a payload is bytes, and {payload[:40]!r} is a text: text.encode() makes bytes of it")
    return bytes(memoryview(payload))


def varint(uint64_t number):
    cdef unsigned char out[10]
    return PyBytes_FromStringAndSize(<char *>out, put_varint(out, number))


cdef inline Py_ssize_t varint_bytes(uint64_t number) noexcept nogil:
    cdef Py_ssize_t n = 1
    while number >= 0x80:
        number >>= 7
        n += 1
    return n


cdef inline Py_ssize_t record_bytes(Py_ssize_t length) noexcept nogil:
    return TIME_BYTES + varint_bytes(length) + length + CRC_BYTES


cdef inline unsigned char *put_record(
    unsigned char *out, const unsigned char *time, uint32_t time_crc, const unsigned char *payload, Py_ssize_t length
) noexcept nogil:
    """Put a record at `out`. `time_crc` is the checksum of TIME, the same for all records of a batch.

    The payload is summed where it came from: reading back what was just stored in smaller pieces would stall.
    """
    cdef unsigned char *p = out + TIME_BYTES
    cdef uint64_t rest = length
    cdef uint32_t crc
    memcpy(out, time, TIME_BYTES)
    while rest >= 0x80:
        p[0] = (rest & 0x7F) | 0x80
        rest >>= 7
        p += 1
    p[0] = <unsigned char>rest
    p += 1
    crc = crc32c_update(time_crc, out + TIME_BYTES, p - out - TIME_BYTES)
    memcpy(p, payload, length)
    store_u32(p + length, crc32c_update(crc, payload, length))
    return p + length + CRC_BYTES


cdef inline void put_time(unsigned char *out, int64_t time_ns) noexcept nogil:
    cdef int64_t seconds = time_ns // 1000000000
    cdef int64_t nanos = time_ns - seconds * 1000000000
    if nanos < 0:  # C divides toward zero
        nanos += 1000000000
        seconds -= 1
    out[0] = 1
    store_u64(out + 1, <uint64_t>(seconds + UNIX_EPOCH_SECONDS))
    store_u32(out + 9, <uint32_t>nanos)
    out[13] = 0
    out[14] = 0


cdef put_time_object(unsigned char *out, time_ns):
    """Put a time that int64 nanoseconds can't hold, such as the year 9999."""
    seconds, nanos = divmod(time_ns, 1000000000)
    cdef int64_t on_disk = seconds + UNIX_EPOCH_SECONDS
    cdef uint32_t rest = nanos
    out[0] = 1
    store_u64(out + 1, <uint64_t>on_disk)
    store_u32(out + 9, rest)
    out[13] = 0
    out[14] = 0


cdef int take_time(unsigned char *out, time_ns) except -1:
    cdef int64_t small
    try:
        small = time_ns
    except OverflowError:
        put_time_object(out, time_ns)
        return 0
    put_time(out, small)
    return 0


cdef bytes encode_record(const unsigned char *time, payload):
    cdef uint32_t time_crc = crc32c_update(0, time, TIME_BYTES)
    cdef Py_buffer view
    cdef bytes out
    if PyBytes_CheckExact(payload):
        out = PyBytes_FromStringAndSize(NULL, record_bytes(PyBytes_GET_SIZE(payload)))
        put_record(
            <unsigned char *>PyBytes_AS_STRING(out),
            time,
            time_crc,
            <const unsigned char *>PyBytes_AS_STRING(payload),
            PyBytes_GET_SIZE(payload),
        )
        return out
    PyObject_GetBuffer(payload_bytes(payload) if isinstance(payload, str) else payload, &view, PyBUF_SIMPLE)
    try:
        out = PyBytes_FromStringAndSize(NULL, record_bytes(view.len))
        put_record(<unsigned char *>PyBytes_AS_STRING(out), time, time_crc, address(&view), view.len)
        return out
    finally:
        PyBuffer_Release(&view)


def captain_encode(payload, time_ns):
    cdef unsigned char time[TIME_BYTES]
    take_time(time, time_ns)
    return encode_record(time, payload)


cdef list as_bytes(payloads):
    """The payloads as a list of bytes: the same list if it is one already."""
    cdef list given = payloads if type(payloads) is list else list(payloads)
    for payload in given:
        if not PyBytes_CheckExact(payload):
            return [payload_bytes(p) for p in given]
    return given


cdef enum:
    TRIPLE_BYTES_MAX = 2048  # longer ones are summed in three lanes each


cdef int put_records(unsigned char *out, const int64_t *start, list given, int64_t time_ns) except -1:
    """Put records of these payloads, all of them bytes, at `out` plus their starts."""
    cdef unsigned char time[TIME_BYTES]
    cdef const unsigned char *payload[3]
    cdef uint32_t time_crc
    cdef Py_ssize_t row = 0, count = len(given), length
    put_time(time, time_ns)
    time_crc = crc32c_update(0, time, TIME_BYTES)
    while row < count:
        length = bytes_at(given, row, &payload[0])
        if (
            row + 3 <= count
            and length <= TRIPLE_BYTES_MAX
            and bytes_at(given, row + 1, &payload[1]) == length
            and bytes_at(given, row + 2, &payload[2]) == length
        ):
            put_triple(out, start + row, time, time_crc, payload, length)
            row += 3
        else:
            put_record(out + start[row], time, time_crc, payload[0], length)
            row += 1
    return 0


cdef inline Py_ssize_t bytes_at(list given, Py_ssize_t row, const unsigned char **data):
    cdef void *item = PyList_GET_ITEM(given, row)
    data[0] = <const unsigned char *>PyBytes_AS_STRING(<object>item)
    return PyBytes_GET_SIZE(<object>item)


cdef inline void put_triple(
    unsigned char *out, const int64_t *start, const unsigned char *time, uint32_t time_crc,
    const unsigned char **payload, Py_ssize_t length
) noexcept nogil:
    """Put three records of one length. Their heads are the same, and their checksums are computed side by side."""
    cdef unsigned char head[TIME_BYTES + 10]
    cdef uint32_t crc[3]
    cdef Py_ssize_t head_bytes = TIME_BYTES + put_varint(head + TIME_BYTES, length)
    cdef int lane
    memcpy(head, time, TIME_BYTES)
    crc32c_update3(
        crc32c_update(time_crc, head + TIME_BYTES, head_bytes - TIME_BYTES), payload, length, crc
    )
    for lane in range(3):
        memcpy(out + start[lane], head, head_bytes)
        memcpy(out + start[lane] + head_bytes, payload[lane], length)
        store_u32(out + start[lane] + head_bytes + length, crc[lane])


def captain_encode_many(payloads, time_ns):
    cdef list given = as_bytes(payloads)
    cdef Py_ssize_t count = len(given), row
    cdef int64_t total = 0, small
    cdef array starts = new_column(count)
    cdef int64_t *start = items(starts)
    try:
        small = time_ns
    except OverflowError:  # a time of another program's record, such as the year 9999
        return encode_far_off(given, time_ns)
    for row in range(count):
        start[row] = total
        total += record_bytes(PyBytes_GET_SIZE(<object>PyList_GET_ITEM(given, row)))
    result = PyBytes_FromStringAndSize(NULL, total)
    # The GIL is held and nothing below runs Python: the list stays as it was measured.
    put_records(<unsigned char *>PyBytes_AS_STRING(result), start, given, small)
    return result, starts


cdef tuple encode_far_off(list given, time_ns):
    """Encode records of a time that doesn't fit into 64 bits."""
    cdef list records = [captain_encode(payload, time_ns) for payload in given]
    cdef array starts = new_column(len(records))
    cdef int64_t total = 0
    for row, record in enumerate(records):
        items(starts)[<Py_ssize_t>row] = total
        total += len(record)
    return b"".join(records), starts


cdef inline int64_t get_time(const unsigned char *p) noexcept nogil:
    cdef uint64_t seconds = load_u64(p + 1)
    cdef int64_t unix
    if <int64_t>seconds < INT64_MIN + UNIX_EPOCH_SECONDS:
        return INT64_MIN
    unix = <int64_t>seconds - UNIX_EPOCH_SECONDS
    if unix > UNIX_SECONDS_MAX:
        return INT64_MAX
    if unix < -UNIX_SECONDS_MAX:
        return INT64_MIN
    return unix * 1000000000 + <int32_t>load_u32(p + 9)


cdef inline int get_head(
    const unsigned char *buf, int64_t at, int64_t stop, int64_t *start, uint64_t *length
) noexcept nogil:
    """Reason (END if fine); start of the payload, or for TRUNCATED the bytes that the head needs."""
    cdef int64_t place = at + TIME_BYTES
    cdef unsigned char byte
    cdef int i
    start[0] = 0
    length[0] = 0
    if at < stop and buf[at] != 1:
        return BAD_TIME
    if stop - at < TIME_BYTES + 1:
        start[0] = TIME_BYTES + 1
        return TRUNCATED
    byte = buf[place]
    if byte < 0x80:
        length[0] = byte
        start[0] = place + 1
        return END
    for i in range(10):
        if place >= stop:
            start[0] = TIME_BYTES + i + 1
            return TRUNCATED
        byte = buf[place]
        place += 1
        if i == 9 and byte > 1:
            return BAD_LENGTH
        length[0] |= (<uint64_t>(byte & 0x7F)) << (7 * i)
        if byte < 0x80:
            start[0] = place
            return END
    return BAD_LENGTH


cdef inline int get_record(
    const unsigned char *buf, int64_t at, int64_t stop, int64_t *start, int64_t *end
) noexcept nogil:
    """Reason (END if fine); payload start and end, or for TRUNCATED the bytes that the record needs."""
    cdef uint64_t length
    cdef int reason = get_head(buf, at, stop, start, &length)
    end[0] = 0
    if reason != END:
        return reason
    if stop - start[0] < CRC_BYTES or length > <uint64_t>(stop - start[0] - CRC_BYTES):
        if length > <uint64_t>(INT64_MAX - (start[0] - at) - CRC_BYTES):
            start[0] = INT64_MAX
        else:
            start[0] = start[0] - at + <int64_t>length + CRC_BYTES
        return TRUNCATED
    end[0] = start[0] + <int64_t>length
    if crc32c_update(0, buf + at, end[0] - at) != load_u32(buf + end[0]):
        start[0] = 0
        return BAD_CRC
    return END


def captain_scan(buffer, int64_t start, int64_t stop, int64_t base, int64_t limit):
    cdef _View view = _View(buffer)
    check_range("scan of", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t room = min(max(limit, 0), (stop - start) // RECORD_BYTES_MIN + 1)
    cdef array offsets = new_column(room), starts = new_column(room)
    cdef array ends = new_column(room), times = new_column(room)
    cdef int64_t *offset = items(offsets)
    cdef int64_t *payload_start = items(starts)
    cdef int64_t *payload_end = items(ends)
    cdef int64_t *time = items(times)
    cdef int64_t at = start, count = 0, payload = 0, end = 0
    cdef int reason
    with nogil:
        while True:
            if at == stop:
                reason = END
                payload = 0
                break
            if count >= limit:
                reason = LIMIT
                payload = 0
                break
            reason = get_record(buf, at, stop, &payload, &end)
            if reason != END:
                break
            offset[count] = base + at
            payload_start[count] = payload
            payload_end[count] = end
            time[count] = get_time(buf + at)
            count += 1
            at = end + CRC_BYTES
    resize(offsets, count)
    resize(starts, count)
    resize(ends, count)
    resize(times, count)
    return Scan(offsets, starts, ends, times, at, reason, payload)


def captain_hop(buffer, int64_t start, int64_t stop, int64_t offset_min, int64_t time_min):
    cdef _View view = _View(buffer)
    check_range("hop over", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t at = start, payload = 0
    cdef uint64_t length
    cdef int reason = END
    with nogil:
        while at < stop:
            reason = get_head(buf, at, stop, &payload, &length)
            if reason != END:
                break
            if at >= offset_min and get_time(buf + at) >= time_min:
                reason = FOUND
                payload = 0
                break
            if length > <uint64_t>(INT64_MAX - payload - CRC_BYTES):
                reason = TRUNCATED
                payload = INT64_MAX
                break
            at = payload + <int64_t>length + CRC_BYTES
    if reason == END:
        payload = 0
    return at, reason, payload


def captain_find(buffer, int64_t start, int64_t stop, bint final):
    cdef _View view = _View(buffer)
    check_range("find in", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef const unsigned char *hit
    cdef int64_t at = start, payload = 0, end = 0, ignored = 0, budget = 64 * (stop - start) + 65536
    cdef int64_t found = -1
    cdef uint64_t length
    with nogil:
        while at < stop:
            hit = <const unsigned char *>memchr(buf + at, 1, stop - at)
            if hit == NULL:
                break
            at = hit - buf
            if (
                get_head(buf, at, stop, &payload, &length) == END
                and stop - payload >= CRC_BYTES
                and length <= <uint64_t>(stop - payload - CRC_BYTES)
            ):
                budget -= <int64_t>length + RECORD_BYTES_MIN
                if budget < 0:
                    break
                if get_record(buf, at, stop, &payload, &end) == END:
                    end += CRC_BYTES
                    if end == stop:
                        if final:
                            found = at
                            break
                    elif get_record(buf, end, stop, &payload, &ignored) == END:
                        found = at
                        break
            at += 1
    return found
