# Entries of M3's commit log to messages. Included by _kernel.pyx.

cdef inline unsigned char *put_code(unsigned char *p, unsigned char code, uint64_t number, int size) noexcept nogil:
    cdef int i
    p[0] = code
    for i in range(size):
        p[1 + i] = <unsigned char>(number >> (8 * (size - 1 - i)))
    return p + 1 + size


cdef inline unsigned char *put_uint(unsigned char *p, uint64_t number) noexcept nogil:
    if number < 0x80:
        p[0] = <unsigned char>number
        return p + 1
    if number < 0x100:
        return put_code(p, 0xCC, number, 1)
    if number < 0x10000:
        return put_code(p, 0xCD, number, 2)
    if number <= <uint64_t>UINT32_MAX:
        return put_code(p, 0xCE, number, 4)
    p[0] = 0xCF
    store_u64(p + 1, number)
    return p + 9


cdef inline unsigned char *put_int(unsigned char *p, int64_t number) noexcept nogil:
    if number >= 0:
        return put_uint(p, <uint64_t>number)
    if number >= -32:
        p[0] = <unsigned char>number
        return p + 1
    if number >= -0x80:
        return put_code(p, 0xD0, <uint64_t>number, 1)
    if number >= -0x8000:
        return put_code(p, 0xD1, <uint64_t>number, 2)
    if number >= -<int64_t>0x80000000:
        return put_code(p, 0xD2, <uint64_t>number, 4)
    return put_code(p, 0xD3, <uint64_t>number, 8)


cdef inline unsigned char *put_bytes(unsigned char *p, data) noexcept:
    """Put bytes or None. The caller has checked that it is one of them."""
    cdef int64_t size
    if data is None:
        p[0] = 0xC0
        return p + 1
    size = PyBytes_GET_SIZE(data)
    if size < 0x100:
        p = put_code(p, 0xC4, size, 1)
    elif size < 0x10000:
        p = put_code(p, 0xC5, size, 2)
    else:
        p = put_code(p, 0xC6, size, 4)
    memcpy(p, PyBytes_AS_STRING(data), size)
    return p + size


cdef inline int64_t bytes_size(data) except -1:
    if data is None:
        return 0
    if not PyBytes_CheckExact(data):
        raise TypeError(f"{data!r}: expected bytes or None")
    if PyBytes_GET_SIZE(data) > UINT32_MAX:
        raise OverflowError(f"{PyBytes_GET_SIZE(data)} bytes are too many for a message")
    return PyBytes_GET_SIZE(data)


cdef int put_entry(
    Stretch *out,
    uint64_t series,
    int64_t created,
    metadata,
    int64_t timestamp,
    double value,
    uint64_t unit,
    annotation,
) except -1:
    cdef uint64_t bits
    cdef unsigned char *p
    if reserve(out, 64 + bytes_size(metadata) + bytes_size(annotation)):
        raise MemoryError
    p = out.data + out.size
    memcpy(p, ENTRY_HEAD, 4)
    p = put_int(put_uint(p + 4, series), created)
    p = put_int(put_bytes(p, metadata), timestamp)
    memcpy(&bits, &value, 8)
    p[0] = 0xCB
    store_u64(p + 1, bits)
    p = put_bytes(put_uint(p + 9, unit), annotation)
    out.size = p - out.data
    return 0


def m3_message(
    uint64_t series, int64_t created, metadata, int64_t timestamp, double value, uint64_t unit, annotation
):
    cdef _Messages message = _Messages()
    put_entry(&message.bodies, series, created, metadata, timestamp, value, unit, annotation)
    return PyBytes_FromStringAndSize(<char *>message.bodies.data, message.bodies.size)


cdef class M3Encoder:
    """Encodes the entries of one file. What a batch teaches it is kept once the batch is accepted."""
    cdef int64_t number, chunk_bytes
    cdef dict known, staged
    cdef bint begun, busy
    cdef array last_places
    cdef _Messages messages

    def __init__(self, int64_t number, int64_t chunk_bytes):
        self.number = number
        self.chunk_bytes = chunk_bytes
        self.known = {}
        self.staged = {}
        self.last_places = new_column(0)
        self.messages = _Messages()

    def encode_many(self, entries, time_ns):
        if self.busy:
            raise RuntimeError("another thread is using this encoder")
        self.busy = True
        try:
            return self.encode(entries, time_ns)
        finally:
            self.busy = False

    cdef tuple encode(self, entries, int64_t time):
        cdef bint info = not self.begun
        self.staged = {}
        self.last_places = new_column(0)
        self.messages.clear()
        if info:
            self.put_info()
        for entry in entries:
            self.put(entry, time)
        if self.messages.count() == info:
            return b"", new_column(0)
        data, starts, places = self.messages.chunks(self.chunk_bytes)
        self.last_places = places[1:] if info else places
        return data, starts

    cdef int put_info(self) except -1:
        cdef Stretch *out = &self.messages.bodies
        if reserve(out, 16):
            raise MemoryError
        memcpy(out.data + out.size, INFO_HEAD, 4)
        memset(out.data + out.size + 4, 0, 2)
        out.size = put_int(out.data + out.size + 6, self.number) - out.data
        return self.messages.close_message()

    cdef int put(self, entry, int64_t time) except -1:
        cdef uint64_t index
        metadata, timestamp, value, unit, annotation, created = entry
        given = metadata
        found = self.known.get(metadata)
        if found is None:
            found = self.staged.get(metadata)
        if found is None:
            index = len(self.known) + len(self.staged)
            self.staged[metadata] = index
        else:
            index = found
            given = None
        put_entry(
            &self.messages.bodies,
            index,
            time if created is None else created,
            given,
            timestamp,
            value,
            unit,
            annotation,
        )
        return self.messages.close_message()

    def places(self):
        return self.last_places

    def accept(self):
        self.known.update(self.staged)
        self.staged = {}
        self.begun = self.begun or len(self.last_places) > 0
