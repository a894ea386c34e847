# Properties to JSON. Included by _kernel.pyx.

cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char format, int precision, int flags, int *kind) except NULL
    int Py_DTSF_ADD_DOT_0
    void PyMem_Free(void *data)

cdef extern from "stdio.h" nogil:
    int snprintf(char *text, size_t size, const char *format, ...)

cdef const char *BASE64_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef int say(Stretch *out, const char *text, int64_t size) except -1:
    if extend(out, <const unsigned char *>text, size):
        raise MemoryError()
    return 0


cdef int say_escaped(Stretch *out, const unsigned char *p, int64_t size) except -1:
    """Put a text in UTF-8 between quotation marks."""
    cdef int64_t i, begun = 0
    cdef char escape[8]
    cdef const char *short
    say(out, b'"', 1)
    for i in range(size):
        if p[i] >= 0x20 and p[i] != c'"' and p[i] != c"\\":
            continue
        say(out, <const char *>p + begun, i - begun)
        begun = i + 1
        short = NULL
        if p[i] == c'"':
            short = b'\\"'
        elif p[i] == c"\\":
            short = b"\\\\"
        elif p[i] == c"\n":
            short = b"\\n"
        elif p[i] == c"\r":
            short = b"\\r"
        elif p[i] == c"\t":
            short = b"\\t"
        elif p[i] == 8:
            short = b"\\b"
        elif p[i] == 12:
            short = b"\\f"
        if short != NULL:
            say(out, short, 2)
        else:
            snprintf(escape, 8, b"\\u%04x", <int>p[i])
            say(out, escape, 6)
    say(out, <const char *>p + begun, size - begun)
    say(out, b'"', 1)
    return 0


cdef int say_text(Stretch *out, const unsigned char *p, int64_t size) except -1:
    cdef bytes mended
    if is_utf8(p, size):
        return say_escaped(out, p, size)
    mended = (<const char *>p)[:size].decode("utf-8", "replace").encode()
    return say_escaped(out, <const unsigned char *>PyBytes_AS_STRING(mended), PyBytes_GET_SIZE(mended))


cdef int say_base64(Stretch *out, const unsigned char *p, int64_t size) except -1:
    cdef int64_t i
    cdef uint32_t three
    cdef char four[4]
    say(out, b'"', 1)
    for i in range(0, size, 3):
        three = <uint32_t>p[i] << 16
        if i + 1 < size:
            three |= <uint32_t>p[i + 1] << 8
        if i + 2 < size:
            three |= p[i + 2]
        four[0] = BASE64_DIGITS[three >> 18]
        four[1] = BASE64_DIGITS[(three >> 12) & 63]
        four[2] = BASE64_DIGITS[(three >> 6) & 63] if i + 1 < size else c"="
        four[3] = BASE64_DIGITS[three & 63] if i + 2 < size else c"="
        say(out, four, 4)
    say(out, b'"', 1)
    return 0


cdef int say_double(Stretch *out, double value) except -1:
    cdef char *text
    if value != value or value - value != 0:
        return say(out, b"null", 4)  # neither infinity nor NaN is a number in JSON
    text = PyOS_double_to_string(value, c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    try:
        say(out, text, len(text))
    finally:
        PyMem_Free(text)
    return 0


cdef int say_number(Stretch *out, const unsigned char *p) except -1:
    cdef char digits[32]
    cdef unsigned char marker = p[0]
    cdef uint64_t bits
    cdef uint32_t half
    cdef float single
    cdef double value
    if marker < 0x80:
        return say(out, digits, snprintf(digits, 32, b"%d", <int>marker))
    if marker >= 0xE0:
        return say(out, digits, snprintf(digits, 32, b"%d", <int>marker - 256))
    if marker == 0xCA:
        half = load_u32(p + 1)
        memcpy(&single, &half, 4)
        return say_double(out, single)
    if marker == 0xCB:
        bits = load_u64(p + 1)
        memcpy(&value, &bits, 8)
        return say_double(out, value)
    if marker <= 0xCF:
        bits = load_uint(p + 1, 1 << (marker - 0xCC))
        return say(out, digits, snprintf(digits, 32, b"%llu", <unsigned long long>bits))
    bits = load_uint(p + 1, 1 << (marker - 0xD0))
    if marker == 0xD0:
        bits = <uint64_t><int64_t><signed char>bits
    elif marker == 0xD1:
        bits = <uint64_t><int64_t><short>bits
    elif marker == 0xD2:
        bits = <uint64_t><int64_t><int32_t>bits
    return say(out, digits, snprintf(digits, 32, b"%lld", <long long><int64_t>bits))


cdef int64_t say_value(Stretch *out, const unsigned char *buf, int64_t at, int64_t stop, bint in_key) except -1:
    """Put one element, which is well-formed and ends before `stop`. Returns where it ends."""
    cdef unsigned char marker = buf[at]
    cdef int64_t start = at + element_head(marker), end = start + element_content(buf + at)
    cdef int64_t children = element_children(buf + at), i
    cdef char digits[48]
    if children >= 0:
        say(out, b"{" if is_map(marker) else b"[", 1)
        for i in range(children):
            if i:
                say(out, b":" if is_map(marker) and i % 2 else b",", 1)
            if is_map(marker) and i % 2 == 0:
                end = say_key(out, buf, end, stop, in_key)
            else:
                end = say_value(out, buf, end, stop, in_key)
        say(out, b"}" if is_map(marker) else b"]", 1)
    elif is_text(marker):
        say_text(out, buf + start, end - start)
    elif 0xC4 <= marker <= 0xC6:
        say_base64(out, buf + start, end - start)
    elif 0xC7 <= marker <= 0xC9 or 0xD4 <= marker <= 0xD8:
        say(out, digits, snprintf(digits, 48, b'{"ext":%d,"data":', <int><signed char>buf[start - 1]))
        say_base64(out, buf + start, end - start)
        say(out, b"}", 1)
    elif marker == 0xC0:
        say(out, b"null", 4)
    elif marker == 0xC2:
        say(out, b"false", 5)
    elif marker == 0xC3:
        say(out, b"true", 4)
    else:
        say_number(out, buf + at)
    return end


cdef int64_t say_key(Stretch *out, const unsigned char *buf, int64_t at, int64_t stop, bint in_key) except -1:
    """A key is a text; what isn't one is the text of its JSON. Within a key, a list or a map as a key is its bytes in
    base64: texts of texts would double in length with each key inside of another."""
    cdef int64_t begun = out.size, end
    cdef bytes said
    if in_key and element_children(buf + at) >= 0:
        end = skip_element(buf, at, stop)
        say_base64(out, buf + at, end - at)
        return end
    end = say_value(out, buf, at, stop, not is_text(buf[at]))
    if not is_text(buf[at]):
        said = PyBytes_FromStringAndSize(<const char *>out.data + begun, out.size - begun)
        out.size = begun
        say_escaped(out, <const unsigned char *>PyBytes_AS_STRING(said), PyBytes_GET_SIZE(said))
    return end


def messages_json(buffer, array starts, array ends):
    cdef _View view = _View(buffer)
    check_column(starts)
    check_column(ends)
    cdef Py_ssize_t count = len(starts), row
    cdef array places = clone(_int32_template, count + 1, False)
    cdef int32_t *place = <int32_t *>places.data.as_ints
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef int64_t after = 0
    cdef Stretch out
    if len(ends) != count:
        raise ValueError("columns of different lengths")
    out.data = NULL
    out.size = out.room = 0
    place[0] = 0
    try:
        for row in range(count):
            if (
                not 0 <= start[row] <= end[row] <= view.size
                or skip_properties(view.data, start[row], end[row], &after) != END
                or after != end[row]
            ):
                raise ValueError(f"row {row} has no properties")
            if end[row] - start[row] == 1:
                say(&out, b"{}", 2)  # as most have
            else:
                say_value(&out, view.data, start[row], end[row], False)
            if out.size > 0x7FFFFFFF:
                raise ValueError("too many properties at once")
            place[row + 1] = <int32_t>out.size
        return places, PyBytes_FromStringAndSize(<const char *>out.data, out.size)
    finally:
        PyMem_RawFree(out.data)
