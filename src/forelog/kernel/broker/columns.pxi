# Messages of a broker's log to columns, and rows chosen by them. Included by _kernel.pyx.
#
# The GIL is kept: a block is done sooner than another thread would give it back, and no column changes meanwhile.

cdef enum:
    FLAG_RETAIN = 4
    FLAG_OTHER = 8
    FLAG_EXPIRY = 16


def message_columns(buffer, array offsets not None, int64_t base, Py_ssize_t first, Py_ssize_t last):
    cdef _View view = _View(buffer)
    check_column(offsets)
    if not 0 <= first <= last <= len(offsets):
        raise ValueError(f"rows {first}..{last} of {len(offsets)}")
    cdef Py_ssize_t count = last - first, row
    cdef array topic_starts = new_column(count), topic_ends = new_column(count)
    cdef array payload_starts = new_column(count), payload_ends = new_column(count)
    cdef array property_starts = new_column(count), property_ends = new_column(count)
    cdef int64_t *offset = items(offsets)
    cdef int64_t at
    cdef MessagePlaces m
    for row in range(count):
        at = offset[first + row] - base
        if not 0 <= at <= view.size or get_message_places(view.data, at, view.size, &m) != END:
            raise ValueError(f"there is no message at byte {at}")
        items(topic_starts)[row] = m.topic
        items(topic_ends)[row] = m.topic_end
        items(payload_starts)[row] = m.payload
        items(payload_ends)[row] = m.payload_end
        items(property_starts)[row] = m.properties
        items(property_ends)[row] = m.properties_end
    return MessageColumns(topic_starts, topic_ends, payload_starts, payload_ends, property_starts, property_ends)


cdef int64_t skip_element(const unsigned char *buf, int64_t at, int64_t end) noexcept nogil:
    """Where an element of msgpack ends, with all that it contains; -1 if it isn't whole or is no element."""
    cdef int64_t left = 1, children
    cdef int head
    while left:
        if at >= end:
            return -1
        head = element_head(buf[at])
        if head == 0 or head > end - at:
            return -1
        children = element_children(buf + at)
        at += head + element_content(buf + at)
        if at > end or children > end - at:
            return -1
        left += children - 1 if children > 0 else -1
    return at


cdef inline bint is_key(const unsigned char *key, int64_t size, const char *name, int64_t name_size) noexcept nogil:
    return size == name_size and memcmp(key, name, size) == 0


cdef int property_flags(const unsigned char *buf, int64_t at, int64_t end) noexcept nogil:
    """The flags of a message by its properties, a map in msgpack."""
    cdef int64_t key, key_end, value, left
    cdef int flags = 0, seen = 0
    if end - at == 1 and buf[at] == 0x80:
        return 0  # as most have
    if at >= end or not is_map(buf[at]) or element_head(buf[at]) > end - at:
        return FLAG_OTHER
    left = element_children(buf + at)
    at += element_head(buf[at])
    while left > 0:
        left -= 2
        if at >= end or not is_text(buf[at]):
            return FLAG_OTHER
        value = skip_element(buf, at, end)
        if value < 0 or value >= end:
            return FLAG_OTHER
        key, key_end = at + element_head(buf[at]), value
        at = skip_element(buf, value, end)
        if at < 0:
            return FLAG_OTHER
        if is_key(buf + key, key_end - key, b"qos", 3):
            flags |= FLAG_OTHER if seen & 1 or buf[value] > 2 else buf[value]
            seen |= 1
        elif is_key(buf + key, key_end - key, b"retain", 6):
            flags |= FLAG_OTHER if seen & 2 or not 0xC2 <= buf[value] <= 0xC3 else FLAG_RETAIN * (buf[value] - 0xC2)
            seen |= 2
        elif is_key(buf + key, key_end - key, b"expiry", 6):
            flags |= FLAG_OTHER | FLAG_EXPIRY
        elif not is_key(buf + key, key_end - key, b"from", 4) and not is_key(buf + key, key_end - key, b"id", 2):
            flags |= FLAG_OTHER
    return flags if at == end else FLAG_OTHER


def messages_flags(buffer, array property_starts not None, array property_ends not None):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t count = len(property_starts), row
    check_columns(count, (property_starts, property_ends))
    cdef bytes flags = PyBytes_FromStringAndSize(NULL, count)
    cdef unsigned char *flag = writable(flags)
    cdef int64_t *start = items(property_starts)
    cdef int64_t *end = items(property_ends)
    for row in range(count):
        if not 0 <= start[row] <= end[row] <= view.size:
            raise ValueError(f"range {row} lies outside of its buffer")
        flag[row] = <unsigned char>property_flags(view.data, start[row], end[row])
    return flags


cdef struct TopicSlot:
    uint64_t hash
    int64_t code, row
    # row: the first that has this topic, plus one; 0 is an empty slot


cdef TopicSlot *grow_topics(TopicSlot *slots, uint64_t old_count, uint64_t count) noexcept:
    """Replace the table by a larger one with the same topics. Returns NULL and keeps the old one if memory is short."""
    cdef TopicSlot *grown = <TopicSlot *>PyMem_RawRealloc(NULL, count * sizeof(TopicSlot))
    cdef uint64_t i, at
    if grown == NULL:
        return NULL
    memset(grown, 0, count * sizeof(TopicSlot))
    for i in range(old_count):
        if slots[i].row:
            at = slots[i].hash & (count - 1)
            while grown[at].row:
                at = (at + 1) & (count - 1)
            grown[at] = slots[i]
    PyMem_RawFree(slots)
    return grown


cdef int64_t find_topic(
    const unsigned char *buf, const int64_t *start, const int64_t *end, int64_t row, TopicSlot *slots, uint64_t mask,
    int64_t next_code
) noexcept nogil:
    """The code of a row's topic, `next_code` if the topic is new. There must be an empty slot."""
    cdef int64_t size = end[row] - start[row], other
    cdef uint64_t digest = keyed_hash(buf + start[row], size), at = digest & mask
    while slots[at].row:
        other = slots[at].row - 1
        if (
            slots[at].hash == digest
            and end[other] - start[other] == size
            and memcmp(buf + start[other], buf + start[row], size) == 0
        ):
            return slots[at].code
        at = (at + 1) & mask
    slots[at].hash = digest
    slots[at].code = next_code
    slots[at].row = row + 1
    return next_code


def topic_codes(buffer, array starts not None, array ends not None):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t count = len(starts), row
    check_columns(count, (starts, ends))
    cdef array codes = new_column(count)
    cdef list topics = []
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef int64_t *code = items(codes)
    cdef uint64_t slot_count = 0
    cdef int64_t found = 0, size, last_size = -1
    cdef TopicSlot *slots = NULL
    cdef TopicSlot *grown
    try:
        for row in range(count):
            if not 0 <= start[row] <= end[row] <= view.size:
                raise ValueError(f"range {row} lies outside of its buffer")
            size = end[row] - start[row]
            if size == last_size and memcmp(view.data + start[row], view.data + start[row - 1], size) == 0:
                code[row] = code[row - 1]
                continue
            last_size = size
            if 2 * <uint64_t>found >= slot_count:
                grown = grow_topics(slots, slot_count, max(<uint64_t>64, 4 * slot_count))
                if grown == NULL:
                    raise MemoryError
                slots, slot_count = grown, max(<uint64_t>64, 4 * slot_count)
            code[row] = find_topic(view.data, start, end, row, slots, slot_count - 1, found)
            if code[row] == found:
                topics.append(PyBytes_FromStringAndSize(<const char *>view.data + start[row], size))
                found += 1
        return codes, topics
    finally:
        PyMem_RawFree(slots)


def rows_where(
    array codes not None, wanted, Py_ssize_t first=0, flags=None, int64_t flags_mask=0, int64_t flags_value=0
):
    cdef _View chosen = _View(wanted), flag = _View(b"" if flags is None else flags)
    cdef bint has_flags = flags is not None
    check_column(codes)
    cdef Py_ssize_t count = len(codes), row, kept = 0
    if not 0 <= first <= count:
        raise ValueError(f"row {first} of {count}")
    if has_flags and flag.size != count:
        raise ValueError("flags has another length than codes")
    cdef array rows = new_column(count - first)
    cdef int64_t *code = items(codes)
    cdef int64_t *out = items(rows)
    for row in range(first, count):
        if not 0 <= code[row] < chosen.size:
            raise ValueError(f"code {code[row]} of {chosen.size}")
        out[kept] = row
        kept += chosen.data[code[row]] != 0 and (not has_flags or flag.data[row] & flags_mask == flags_value)
    resize(rows, kept)
    return rows
