# Chunks of M3's commit log, and messages put into them. Included by _kernel.pyx.

cdef enum:
    CHUNK_HEAD_BYTES = 12
    TIME_REACH = 64
    BAD_MESSAGE_LENGTH = 10
    BAD_MESSAGE = 11
    BAD_FIELD = 12
    BAD_METADATA = 13
    BAD_TAGS = 14
    UNKNOWN_SERIES = 15
    NO_MEMORY = 99

cdef int64_t MESSAGE_BYTES_MAX = 64 << 20
cdef const unsigned char *INFO_HEAD = b"\x01\x92\x07\x93"
cdef const unsigned char *ENTRY_HEAD = b"\x01\x92\x08\x97"
cdef const unsigned char *METADATA_HEAD = b"\x01\x92\x09\x93"


cdef inline uint32_t load_u16_le(const unsigned char *p) noexcept nogil:
    return p[0] | (<uint32_t>p[1] << 8)


cdef inline uint32_t load_u32_le(const unsigned char *p) noexcept nogil:
    return load_u16_le(p) | (load_u16_le(p + 2) << 16)


cdef inline void store_u32_le(unsigned char *p, uint32_t value) noexcept nogil:
    p[0] = value & 0xFF
    p[1] = (value >> 8) & 0xFF
    p[2] = (value >> 16) & 0xFF
    p[3] = value >> 24


cdef inline uint32_t size_checksum(const unsigned char *p) noexcept nogil:
    """Adler-32 of four bytes. Its sums stay so small that nothing is divided."""
    cdef uint32_t sum = 1 + p[0] + p[1] + p[2] + p[3]
    return ((4 + 4 * p[0] + 3 * p[1] + 2 * p[2] + p[3]) << 16) | sum


cdef inline int64_t get_varint(const unsigned char *p, int64_t at, int64_t stop, uint64_t *number) noexcept nogil:
    """Read a number. Returns where it ends, -1 if it goes on past `stop`, -2 if it doesn't fit into 64 bits."""
    cdef int i
    cdef unsigned char byte
    number[0] = 0
    for i in range(10):
        if at + i >= stop:
            number[0] = 0
            return -1
        byte = p[at + i]
        if i == 9 and byte > 1:
            break
        number[0] |= (<uint64_t>(byte & 0x7F)) << (7 * i)
        if byte < 0x80:
            return at + i + 1
    number[0] = 0
    return -2


cdef inline int put_varint(unsigned char *p, uint64_t number) noexcept nogil:
    cdef int size = 0
    while number >= 0x80:
        p[size] = (number & 0x7F) | 0x80
        number >>= 7
        size += 1
    p[size] = <unsigned char>number
    return size + 1


# -- reading chunks

cdef inline int get_chunk_head(const unsigned char *buf, int64_t at, int64_t stop, int64_t *size) noexcept nogil:
    """Reason (END if fine); size of the data, or for TRUNCATED the bytes that the head needs."""
    size[0] = CHUNK_HEAD_BYTES
    if stop - at < 8:
        return TRUNCATED
    if size_checksum(buf + at) != load_u32_le(buf + at + 4):
        size[0] = 0
        return BAD_LENGTH
    if stop - at < CHUNK_HEAD_BYTES:
        return TRUNCATED
    size[0] = load_u32_le(buf + at)
    return END


cdef inline int get_chunk(const unsigned char *buf, int64_t at, int64_t stop, int64_t *end) noexcept nogil:
    """Reason (END if fine); end of the chunk, or for TRUNCATED the bytes that it needs."""
    cdef int64_t size, start = at + CHUNK_HEAD_BYTES
    cdef int reason = get_chunk_head(buf, at, stop, &size)
    end[0] = size
    if reason != END:
        return reason
    if size > stop - start:
        end[0] = CHUNK_HEAD_BYTES + size
        return TRUNCATED
    if adler32_update(1, buf + start, size) != load_u32_le(buf + start - 4):
        end[0] = 0
        return BAD_CRC
    end[0] = start + size
    return END


cdef int64_t chunk_time(const unsigned char *buf, int64_t at, int64_t stop, int64_t before) noexcept nogil:
    cdef uint64_t length, ignored
    cdef int64_t time
    cdef const unsigned char *place
    cdef int i
    for i in range(2):
        at = get_varint(buf, at, stop, &length)
        if at < 0 or stop - at < 4:
            break
        if memcmp(buf + at, ENTRY_HEAD, 4) == 0:
            place = buf + at + 4
            if get_uint(&place, buf + stop, 0xFFFFFFFFFFFFFFFF, &ignored) or get_int64(&place, buf + stop, &time):
                break
            return time
        if memcmp(buf + at, INFO_HEAD, 4) or length > <uint64_t>(stop - at):
            break
        at += <int64_t>length
    return before


def m3_time(buffer, int64_t start, int64_t stop, int64_t before):
    cdef _View view = _View(buffer)
    check_range("time in", start, stop, view.size)
    return chunk_time(view.data, start, stop, before)


def m3_scan(buffer, int64_t start, int64_t stop, int64_t base, int64_t limit):
    cdef _View view = _View(buffer)
    check_range("scan of", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t room = min(max(limit, 0), (stop - start) // CHUNK_HEAD_BYTES + 1)
    cdef array offsets = new_column(room), starts = new_column(room)
    cdef array ends = new_column(room), times = new_column(room)
    cdef int64_t *offset = items(offsets)
    cdef int64_t *data_start = items(starts)
    cdef int64_t *data_end = items(ends)
    cdef int64_t *time = items(times)
    cdef int64_t at = start, count = 0, end = 0, last_time = INT64_MIN, unknown = 0
    cdef int reason
    with nogil:
        while True:
            if at == stop or count >= limit:
                reason = END if at == stop else LIMIT
                end = 0
                break
            reason = get_chunk(buf, at, stop, &end)
            if reason != END:
                break
            last_time = chunk_time(buf, at + CHUNK_HEAD_BYTES, end, last_time)
            offset[count] = base + at
            data_start[count] = at + CHUNK_HEAD_BYTES
            data_end[count] = end
            time[count] = last_time
            if unknown == count and last_time == INT64_MIN:
                unknown += 1
            count += 1
            at = end
        if unknown == count:
            last_time = 0
        else:
            last_time = time[unknown]
        while unknown:
            unknown -= 1
            time[unknown] = last_time
    for column in (offsets, starts, ends, times):
        resize(column, count)
    return Scan(offsets, starts, ends, times, at, reason, end)


def m3_hop(buffer, int64_t start, int64_t stop, int64_t offset_min, int64_t time_min):
    cdef _View view = _View(buffer)
    check_range("hop over", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t at = start, size = 0, data, end, time = 0
    cdef int reason = END
    with nogil:
        while at < stop:
            reason = get_chunk_head(buf, at, stop, &size)
            if reason != END:
                break
            data = at + CHUNK_HEAD_BYTES
            end = data + size
            if time_min > INT64_MIN:
                if end > stop and stop - data < TIME_REACH:
                    reason = TRUNCATED
                    size = min(end - at, CHUNK_HEAD_BYTES + TIME_REACH)
                    break
                time = chunk_time(buf, data, min(end, stop), time)
            if at >= offset_min and (time_min == INT64_MIN or time >= time_min):
                reason = FOUND
                size = 0
                break
            at = end
    return at, reason, 0 if reason == END else size


def m3_find(buffer, int64_t start, int64_t stop, bint final):
    cdef _View view = _View(buffer)
    check_range("find in", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t at, size, end, ignored, found = -1, budget = 64 * (stop - start) + 65536
    with nogil:
        for at in range(start, stop - CHUNK_HEAD_BYTES + 1):
            # Sums of four bytes are small: most places are ruled out by a look at two bytes.
            if buf[at + 5] > 3 or buf[at + 7] > 9 or get_chunk_head(buf, at, stop, &size) != END:
                continue
            if size > stop - at - CHUNK_HEAD_BYTES:
                continue
            budget -= size + CHUNK_HEAD_BYTES
            if budget < 0:
                break
            if get_chunk(buf, at, stop, &end) != END:
                continue
            if final if end == stop else get_chunk(buf, end, stop, &ignored) == END:
                found = at
                break
    return found


# -- messages into chunks

cdef class _Messages:
    """Messages, back to back, and their chunks."""
    cdef Stretch bodies, ends, sizes

    def __dealloc__(self):
        PyMem_RawFree(self.bodies.data)
        PyMem_RawFree(self.ends.data)
        PyMem_RawFree(self.sizes.data)

    cdef int clear(self) except -1:
        self.bodies.size = self.ends.size = self.sizes.size = 0
        return 0

    cdef int64_t count(self) noexcept nogil:
        return self.ends.size // <int64_t>sizeof(int64_t)

    cdef int close_message(self) except -1:
        """End a message: what was put into `bodies` since the last one."""
        if extend(&self.ends, <const unsigned char *>&self.bodies.size, sizeof(int64_t)):
            raise MemoryError
        return 0

    cdef int close_chunk(self, int64_t size) except -1:
        if size and extend(&self.sizes, <const unsigned char *>&size, sizeof(int64_t)):
            raise MemoryError
        return 0

    cdef int64_t plan(self, int64_t chunk_bytes, int64_t *place) except -1:
        """Plan the chunks: their sizes, and where each message's chunk starts. Returns how many bytes they take."""
        cdef int64_t total = 0, filled = 0, size, start = 0, i
        cdef int64_t *ends = <int64_t *>self.ends.data
        for i in range(self.count()):
            size = varint_bytes(ends[i] - start) + ends[i] - start
            start = ends[i]
            if filled and size > chunk_bytes - filled:
                self.close_chunk(filled)
                total += CHUNK_HEAD_BYTES + filled
                filled = 0
            place[i] = total
            if size <= chunk_bytes:
                filled += size
                continue
            self.close_chunk(chunk_bytes)
            total += CHUNK_HEAD_BYTES + chunk_bytes
            filled = size - chunk_bytes
            if filled > chunk_bytes:
                self.close_chunk(filled)
                total += CHUNK_HEAD_BYTES + filled
                filled = 0
        self.close_chunk(filled)
        return total + (CHUNK_HEAD_BYTES + filled if filled else 0)

    cdef void write(self, unsigned char *out, int64_t *starts) noexcept nogil:
        """Put all messages, cut to the planned sizes, each part after its head."""
        cdef int64_t *ends = <int64_t *>self.ends.data
        cdef int64_t *sizes = <int64_t *>self.sizes.data
        cdef int64_t at = 0, start = 0, chunk = 0, filled = 0, i, part, rest
        cdef unsigned char length[10]
        cdef const unsigned char *source
        cdef int step
        for i in range(self.count()):
            for step in range(2):
                if step == 0:
                    source = &length[0]
                    rest = put_varint(length, ends[i] - start)
                else:
                    source = self.bodies.data + start
                    rest = ends[i] - start
                while rest:
                    part = min(rest, sizes[chunk] - filled)
                    memcpy(out + at + CHUNK_HEAD_BYTES + filled, source, part)
                    source += part
                    rest -= part
                    filled += part
                    if filled == sizes[chunk]:
                        put_chunk_head(out + at, filled)
                        starts[chunk] = at
                        at += CHUNK_HEAD_BYTES + filled
                        chunk += 1
                        filled = 0
            start = ends[i]

    cdef tuple chunks(self, int64_t chunk_bytes):
        """The chunks' bytes, where they start, and for each message where its chunk starts."""
        if chunk_bytes < 1:
            raise ValueError(f"chunks of {chunk_bytes} bytes")
        cdef array places = new_column(self.count())
        cdef int64_t total = self.plan(chunk_bytes, items(places))
        cdef array starts = new_column(self.sizes.size // <int64_t>sizeof(int64_t))
        cdef bytes result = PyBytes_FromStringAndSize(NULL, total)
        cdef unsigned char *out = <unsigned char *>PyBytes_AS_STRING(result)
        cdef int64_t *start = items(starts)
        with nogil:
            self.write(out, start)
        return result, starts, places


cdef inline void put_chunk_head(unsigned char *head, int64_t size) noexcept nogil:
    store_u32_le(head, <uint32_t>size)
    store_u32_le(head + 4, size_checksum(head))
    store_u32_le(head + 8, adler32_update(1, head + CHUNK_HEAD_BYTES, size))


def m3_chunks(messages, int64_t chunk_bytes):
    cdef _Messages all_messages = _Messages()
    cdef bytes message
    for message in messages:
        if extend(&all_messages.bodies, <const unsigned char *>PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message)):
            raise MemoryError
        all_messages.close_message()
    return all_messages.chunks(chunk_bytes)
