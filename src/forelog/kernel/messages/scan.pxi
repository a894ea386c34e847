# Messages of a broker's log: msgpack arrays. Included by _kernel.pyx.

cdef enum:
    BAD_TOPIC = 7
    BAD_PROPERTIES = 8
    MESSAGE_HEAD = 0x95
    MESSAGE_BYTES_MIN = 7
    TOPIC_BYTES_MAX = 65535
    PROPERTIES_BYTES_MAX = 1048576
    PROPERTIES_DEPTH_MAX = 16

cdef int64_t PAYLOAD_BYTES_MAX = 269484032  # 257 MiB
cdef int64_t MESSAGE_TIME_MAX = 0x3FFFFFFFFFFFFFFF


cdef struct MessagePlaces:
    int64_t time
    int64_t topic
    int64_t topic_end
    int64_t payload
    int64_t payload_end
    int64_t properties
    int64_t properties_end
    int64_t end
    int64_t need  # for TRUNCATED
    int64_t seen  # how many bytes of properties were looked at
    uint32_t crc


cdef inline uint64_t load_uint(const unsigned char *p, int size) noexcept nogil:
    if size == 1:
        return p[0]
    if size == 2:
        return (<uint64_t>p[0] << 8) | p[1]
    return load_u32(p) if size == 4 else load_u64(p)


cdef inline int get_any_uint(
    const unsigned char *buf, int64_t at, int64_t stop, int64_t *end, uint64_t *value
) noexcept nogil:
    """Read an unsigned number. Returns END, TRUNCATED or BAD_LENGTH; `end` is where it ends, or would end."""
    cdef int size
    end[0] = at + 1
    if at >= stop:
        return TRUNCATED
    if buf[at] < 0x80:
        value[0] = buf[at]
        return END
    if not 0xCC <= buf[at] <= 0xCF:
        return BAD_LENGTH
    size = 1 << (buf[at] - 0xCC)
    end[0] = at + 1 + size
    if end[0] > stop:
        return TRUNCATED
    value[0] = load_uint(buf + at + 1, size)
    return END


cdef inline int get_sized(
    const unsigned char *buf, int64_t at, int64_t stop, int64_t largest, bint text, int64_t *start, int64_t *end
) noexcept nogil:
    """Read the head of a str or bin: where its bytes start and end. For TRUNCATED `end` is where the head would end."""
    cdef int size, first = 0xD9 if text else 0xC4
    cdef uint64_t length
    end[0] = at + 1
    if at >= stop:
        return TRUNCATED
    if text and 0xA0 <= buf[at] <= 0xBF:
        start[0] = at + 1
        end[0] = start[0] + (buf[at] & 0x1F)
        return END
    if not first <= buf[at] <= first + 2:
        return BAD_LENGTH
    size = 1 << (buf[at] - first)
    end[0] = at + 1 + size
    if end[0] > stop:
        return TRUNCATED
    length = load_uint(buf + at + 1, size)
    if length > <uint64_t>largest:
        return BAD_LENGTH
    start[0] = at + 1 + size
    end[0] = start[0] + <int64_t>length
    return END


cdef inline int element_head(unsigned char marker) noexcept nogil:
    """How many bytes an element has before its content; 0 if no element begins so."""
    if marker < 0xC0 or marker >= 0xE0 or marker == 0xC0 or marker == 0xC2 or marker == 0xC3:
        return 1
    if marker == 0xC4 or marker == 0xD9 or 0xD4 <= marker <= 0xD8:
        return 2
    if marker == 0xC5 or marker == 0xDA or marker == 0xDC or marker == 0xDE or marker == 0xC7:
        return 3
    if marker == 0xC6 or marker == 0xDB or marker == 0xDD or marker == 0xDF:
        return 5
    if marker == 0xC8:
        return 4
    if marker == 0xC9:
        return 6
    if marker == 0xCA:
        return 5
    if marker == 0xCB:
        return 9
    if 0xCC <= marker <= 0xCF:
        return 1 + (1 << (marker - 0xCC))
    if 0xD0 <= marker <= 0xD3:
        return 1 + (1 << (marker - 0xD0))
    return 0


cdef inline int64_t element_content(const unsigned char *p) noexcept nogil:
    """How many bytes of content follow an element's head."""
    cdef unsigned char marker = p[0]
    if 0xA0 <= marker <= 0xBF:
        return marker & 0x1F
    if marker == 0xC4 or marker == 0xD9 or marker == 0xC7:
        return p[1]
    if marker == 0xC5 or marker == 0xDA or marker == 0xC8:
        return <int64_t>load_uint(p + 1, 2)
    if marker == 0xC6 or marker == 0xDB or marker == 0xC9:
        return load_u32(p + 1)
    if 0xD4 <= marker <= 0xD8:
        return 1 << (marker - 0xD4)
    return 0


cdef inline int64_t element_children(const unsigned char *p) noexcept nogil:
    """How many elements a map or an array contains, keys and values; -1 for anything else."""
    cdef unsigned char marker = p[0]
    if 0x80 <= marker <= 0x8F:
        return 2 * (marker & 0x0F)
    if 0x90 <= marker <= 0x9F:
        return marker & 0x0F
    if marker == 0xDC:
        return <int64_t>load_uint(p + 1, 2)
    if marker == 0xDD:
        return load_u32(p + 1)
    if marker == 0xDE:
        return 2 * <int64_t>load_uint(p + 1, 2)
    if marker == 0xDF:
        return 2 * <int64_t>load_u32(p + 1)
    return -1


cdef inline bint is_map(unsigned char marker) noexcept nogil:
    return 0x80 <= marker <= 0x8F or marker == 0xDE or marker == 0xDF


cdef inline bint is_text(unsigned char marker) noexcept nogil:
    return 0xA0 <= marker <= 0xBF or 0xD9 <= marker <= 0xDB


cdef int skip_properties(const unsigned char *buf, int64_t at, int64_t stop, int64_t *end) noexcept nogil:
    """Find where a map with texts as keys ends; for TRUNCATED, where the missing part would end."""
    cdef int64_t left[PROPERTIES_DEPTH_MAX]
    cdef int64_t place = at, limit = at + PROPERTIES_BYTES_MAX, children, after
    cdef int depth = -1, head
    end[0] = at + 1
    if at >= stop:
        return TRUNCATED
    if not is_map(buf[at]):
        return BAD_PROPERTIES
    while True:
        end[0] = place + 1
        if place >= limit:
            return BAD_PROPERTIES
        if place >= stop:
            return TRUNCATED
        head = element_head(buf[place])
        if head == 0 or (depth == 0 and left[0] % 2 == 0 and not is_text(buf[place])):
            return BAD_PROPERTIES
        end[0] = place + head
        if place + head > limit:
            return BAD_PROPERTIES
        if place + head > stop:
            return TRUNCATED
        after = place + head + element_content(buf + place)
        children = element_children(buf + place)
        end[0] = after
        if after > limit or children > limit - after:
            return BAD_PROPERTIES
        if after > stop:
            return TRUNCATED
        if depth >= 0:
            left[depth] -= 1
        place = after
        if children >= 0:
            depth += 1
            if depth == PROPERTIES_DEPTH_MAX:
                return BAD_PROPERTIES
            left[depth] = children
        while depth >= 0 and left[depth] == 0:
            depth -= 1
        if depth < 0:
            return END


cdef int get_message_places(
    const unsigned char *buf, int64_t at, int64_t stop, MessagePlaces *m
) noexcept nogil:
    """Find the parts of a message. Returns a reason, END if they are right. The checksum isn't looked at."""
    cdef uint64_t value = 0
    cdef int64_t end = 0
    cdef int reason
    m.need = 0
    m.seen = 0
    if at < stop and buf[at] != MESSAGE_HEAD:
        return BAD_TIME
    reason = get_any_uint(buf, at + 1, stop, &end, &value)
    if reason == END and value > <uint64_t>MESSAGE_TIME_MAX:
        reason = BAD_LENGTH
    if reason != END:
        m.need = end - at if reason == TRUNCATED else 0
        return TRUNCATED if reason == TRUNCATED else BAD_TIME
    m.time = <int64_t>value
    reason = get_sized(buf, end, stop, TOPIC_BYTES_MAX, True, &m.topic, &m.topic_end)
    if reason == END and m.topic_end > stop:
        reason = TRUNCATED
    if reason != END:
        m.need = m.topic_end - at if reason == TRUNCATED else 0
        return reason
    reason = get_sized(buf, m.topic_end, stop, PAYLOAD_BYTES_MAX, False, &m.payload, &m.payload_end)
    if reason == END and m.payload_end + 2 > stop:
        m.payload_end += 2  # properties and checksum have a byte each at least
        reason = TRUNCATED
    if reason != END:
        m.need = m.payload_end - at if reason == TRUNCATED else 0
        return reason
    m.properties = m.payload_end
    reason = skip_properties(buf, m.properties, stop, &m.properties_end)
    m.seen = min(m.properties_end, stop) - m.properties
    if reason != END:
        m.need = m.properties_end - at if reason == TRUNCATED else 0
        return reason
    reason = get_any_uint(buf, m.properties_end, stop, &m.end, &value)
    if reason == END and value > <uint64_t>UINT32_MAX:
        reason = BAD_LENGTH
    if reason != END:
        m.need = m.end - at if reason == TRUNCATED else 0
        return reason
    m.crc = <uint32_t>value
    return END


cdef inline bint is_continued(const unsigned char *p, int64_t size, int count) noexcept nogil:
    """Whether `count` bytes of a character follow its first."""
    cdef int i
    if size <= count:
        return False
    for i in range(1, count + 1):
        if p[i] & 0xC0 != 0x80:
            return False
    return True


cdef bint is_utf8(const unsigned char *p, int64_t size) noexcept nogil:
    cdef uint64_t eight
    while size > 0:
        if size >= 8:
            memcpy(&eight, p, 8)
            if not eight & <uint64_t>0x8080808080808080:
                p += 8
                size -= 8
                continue
        if p[0] < 0x80:
            p += 1
            size -= 1
        elif 0xC2 <= p[0] <= 0xDF:
            if not is_continued(p, size, 1):
                return False
            p += 2
            size -= 2
        elif 0xE0 <= p[0] <= 0xEF:
            if not is_continued(p, size, 2):
                return False
            if (p[0] == 0xE0 and p[1] < 0xA0) or (p[0] == 0xED and p[1] > 0x9F):
                return False
            p += 3
            size -= 3
        elif 0xF0 <= p[0] <= 0xF4:
            if not is_continued(p, size, 3):
                return False
            if (p[0] == 0xF0 and p[1] < 0x90) or (p[0] == 0xF4 and p[1] > 0x8F):
                return False
            p += 4
            size -= 4
        else:
            return False
    return True


cdef inline int get_message(const unsigned char *buf, int64_t at, int64_t stop, MessagePlaces *m) noexcept nogil:
    """Find the parts of a message, and check its checksum and its topic."""
    cdef int reason = get_message_places(buf, at, stop, m)
    if reason != END:
        return reason
    if crc32c_update(0, buf + at + 1, m.properties_end - at - 1) != m.crc:
        return BAD_CRC
    return END if is_utf8(buf + m.topic, m.topic_end - m.topic) else BAD_TOPIC


def messages_scan(buffer, int64_t start, int64_t stop, int64_t base, int64_t limit):
    cdef _View view = _View(buffer)
    check_range("scan of", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t room = min(max(limit, 0), (stop - start) // MESSAGE_BYTES_MIN + 1)
    cdef array offsets = new_column(room), starts = new_column(room)
    cdef array ends = new_column(room), times = new_column(room)
    cdef int64_t *offset = items(offsets)
    cdef int64_t *payload_start = items(starts)
    cdef int64_t *payload_end = items(ends)
    cdef int64_t *time = items(times)
    cdef int64_t at = start, count = 0, need = 0
    cdef MessagePlaces m
    cdef int reason
    with nogil:
        while True:
            if at == stop:
                reason = END
                break
            if count >= limit:
                reason = LIMIT
                break
            reason = get_message(buf, at, stop, &m)
            if reason != END:
                need = m.need
                break
            offset[count] = base + at
            payload_start[count] = m.payload
            payload_end[count] = m.payload_end
            time[count] = m.time
            count += 1
            at = m.end
    resize(offsets, count)
    resize(starts, count)
    resize(ends, count)
    resize(times, count)
    return Scan(offsets, starts, ends, times, at, reason, need)


def messages_hop(buffer, int64_t start, int64_t stop, int64_t offset_min, int64_t time_min):
    cdef _View view = _View(buffer)
    check_range("hop over", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t at = start, need = 0
    cdef MessagePlaces m
    cdef int reason = END
    with nogil:
        while at < stop:
            reason = get_message_places(buf, at, stop, &m)
            if reason != END:
                need = m.need
                break
            if at >= offset_min and m.time >= time_min:
                reason = FOUND
                break
            at = m.end
    return at, reason, need


def messages_find(buffer, int64_t start, int64_t stop, bint final):
    cdef _View view = _View(buffer)
    check_range("find in", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef const unsigned char *hit
    cdef int64_t at = start, budget = 64 * (stop - start) + 65536, found = -1
    cdef MessagePlaces m, following
    cdef int reason
    with nogil:
        while at < stop:
            hit = <const unsigned char *>memchr(buf + at, MESSAGE_HEAD, stop - at)
            if hit == NULL:
                break
            at = hit - buf
            reason = get_message_places(buf, at, stop, &m)
            budget -= m.end - at if reason == END else m.seen
            if budget < 0:
                break
            if reason == END and get_message(buf, at, stop, &m) == END:
                if m.end == stop:
                    if final:
                        found = at
                        break
                elif get_message(buf, m.end, stop, &following) == END:
                    found = at
                    break
            at += 1
    return found


def message_split(frame):
    cdef _View view = _View(frame)
    cdef MessagePlaces m
    cdef const char *data = <const char *>view.data
    if get_message_places(view.data, 0, view.size, &m) != END:
        raise ValueError("this is no message")
    return (
        data[m.topic:m.topic_end].decode("utf-8"),
        PyBytes_FromStringAndSize(data + m.payload, m.payload_end - m.payload),
        PyBytes_FromStringAndSize(data + m.properties, m.properties_end - m.properties),
    )
