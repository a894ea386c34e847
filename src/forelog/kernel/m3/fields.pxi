# The fields of messages of M3's commit log. Included by _kernel.pyx.
#
# Each function reads at `p[0]`, which it moves on, up to `stop`. It returns 0, or a reason.

cdef inline int get_int(
    const unsigned char **p, const unsigned char *stop, uint64_t *number, bint *negative
) noexcept nogil:
    """Read an integer of any width. `number` is its two's complement if it is negative."""
    cdef const unsigned char *at = p[0]
    cdef unsigned char code
    cdef int64_t left = stop - at - 1
    if left < 0:
        return BAD_FIELD
    code = at[0]
    negative[0] = False
    if code < 0x80:
        number[0] = code
        p[0] = at + 1
        return 0
    if code == 0xCF:
        if left < 8:
            return BAD_FIELD
        number[0] = load_u64(at + 1)
        p[0] = at + 9
        return 0
    if code >= 0xE0:
        number[0] = <uint64_t>(<int64_t>code - 0x100)
        negative[0] = True
        p[0] = at + 1
        return 0
    if code < 0xCC or code > 0xD3:
        return BAD_FIELD
    cdef int size = 1 << (code & 3), i
    if left < size:
        return BAD_FIELD
    number[0] = 0
    for i in range(size):
        number[0] = (number[0] << 8) | at[1 + i]
    if code >= 0xD0 and at[1] >= 0x80:
        negative[0] = True
        if size < 8:
            number[0] |= <uint64_t>-1 << (8 * size)
    p[0] = at + 1 + size
    return 0


cdef inline int get_int64(const unsigned char **p, const unsigned char *stop, int64_t *number) noexcept nogil:
    cdef uint64_t raw = 0
    cdef bint negative = False
    if get_int(p, stop, &raw, &negative) or (not negative and raw > <uint64_t>INT64_MAX):
        return BAD_FIELD
    number[0] = <int64_t>raw
    return 0


cdef inline int get_uint(
    const unsigned char **p, const unsigned char *stop, uint64_t most, uint64_t *number
) noexcept nogil:
    cdef bint negative = False
    if get_int(p, stop, number, &negative) or negative or number[0] > most:
        return BAD_FIELD
    return 0


cdef inline int get_float(const unsigned char **p, const unsigned char *stop, double *value) noexcept nogil:
    cdef const unsigned char *at = p[0]
    cdef uint64_t bits
    cdef uint32_t short_bits
    cdef float single
    if stop - at >= 9 and at[0] == 0xCB:
        bits = load_u64(at + 1)
        memcpy(value, &bits, 8)
        p[0] = at + 9
        return 0
    if stop - at >= 5 and at[0] == 0xCA:
        short_bits = load_u32(at + 1)
        memcpy(&single, &short_bits, 4)
        value[0] = single
        p[0] = at + 5
        return 0
    return BAD_FIELD


cdef inline int get_bytes(
    const unsigned char **p, const unsigned char *stop, const unsigned char **data, int64_t *size
) noexcept nogil:
    """Read bytes or a text. `data` is NULL for nil."""
    cdef const unsigned char *at = p[0]
    cdef int64_t left = stop - at - 1
    cdef unsigned char code
    cdef int width, i
    data[0] = NULL
    size[0] = 0
    if left < 0:
        return BAD_FIELD
    code = at[0]
    at += 1
    if code == 0xC0:
        p[0] = at
        return 0
    if 0xA0 <= code < 0xC0:
        size[0] = code - 0xA0
    else:
        if 0xC4 <= code <= 0xC6:
            width = 1 << (code - 0xC4)
        elif 0xD9 <= code <= 0xDB:
            width = 1 << (code - 0xD9)
        else:
            return BAD_FIELD
        if left < width:
            return BAD_FIELD
        for i in range(width):
            size[0] = (size[0] << 8) | at[i]
        at += width
        left -= width
    if size[0] > left:
        return BAD_FIELD
    data[0] = at
    p[0] = at + size[0]
    return 0


cdef inline bint is_message_head(const unsigned char *p) noexcept nogil:
    return memcmp(p, ENTRY_HEAD, 4) == 0 or memcmp(p, INFO_HEAD, 4) == 0


cdef bint begins_with_message(const unsigned char *data, int64_t size) noexcept nogil:
    cdef uint64_t length
    cdef int64_t body = get_varint(data, 0, size, &length)
    return (
        body >= 0 and length <= <uint64_t>MESSAGE_BYTES_MAX and size - body >= 4 and is_message_head(data + body)
    )
