# Messages to bytes. Included by _kernel.pyx.

cdef inline int64_t message_bytes(int64_t topic, int64_t payload, int64_t properties) noexcept nogil:
    """How many bytes a message takes whose parts have these sizes."""
    return (
        1 + 9
        + (1 if topic < 32 else 2 if topic < 256 else 3) + topic
        + (2 if payload < 256 else 3 if payload < 65536 else 5) + payload
        + properties + 5
    )


cdef inline unsigned char *put_size(unsigned char *out, unsigned char first, int64_t size) noexcept nogil:
    """Put the head of a bin or str of at most 2^32 - 1 bytes. `first` is the marker with a size in one byte."""
    if size < 256:
        out[0] = first
        out[1] = <unsigned char>size
        return out + 2
    if size < 65536:
        out[0] = first + 1
        out[1] = <unsigned char>(size >> 8)
        out[2] = <unsigned char>(size & 0xFF)
        return out + 3
    out[0] = first + 2
    store_u32(out + 1, <uint32_t>size)
    return out + 5


cdef unsigned char *put_message(
    unsigned char *out,
    int64_t time_ns,
    const unsigned char *topic,
    int64_t topic_bytes,
    const unsigned char *payload,
    int64_t payload_bytes,
    const unsigned char *properties,
    int64_t properties_bytes,
) noexcept nogil:
    """Put one message, of message_bytes() bytes. Returns where it ends.

    Everything has been checked: the topic is UTF-8, the sizes are within their limits, and the properties are a
    map in msgpack, b"\\x80" if there are none.
    """
    cdef unsigned char *p = out + 10
    cdef uint32_t crc
    out[0] = MESSAGE_HEAD
    out[1] = 0xCF
    store_u64(out + 2, <uint64_t>time_ns)
    if topic_bytes < 32:
        p[0] = 0xA0 | <unsigned char>topic_bytes
        p += 1
    else:
        p = put_size(p, 0xD9, topic_bytes)
    memcpy(p, topic, topic_bytes)
    p = put_size(p + topic_bytes, 0xC4, payload_bytes)
    memcpy(p, payload, payload_bytes)
    p += payload_bytes
    memcpy(p, properties, properties_bytes)
    p += properties_bytes
    crc = crc32c_update(0, out + 1, p - out - 1)  # all at once: most messages are small
    p[0] = 0xCE
    store_u32(p + 1, crc)
    return p + 5


cdef inline int add_message(
    Stretch *out,
    int64_t time_ns,
    const unsigned char *topic,
    int64_t topic_bytes,
    const unsigned char *payload,
    int64_t payload_bytes,
    const unsigned char *properties,
    int64_t properties_bytes,
) noexcept nogil:
    """Append one message. Returns -1 if memory is short."""
    cdef int64_t size = message_bytes(topic_bytes, payload_bytes, properties_bytes)
    if reserve(out, size):
        return -1
    put_message(
        out.data + out.size, time_ns, topic, topic_bytes, payload, payload_bytes, properties, properties_bytes
    )
    out.size += size
    return 0


cdef int64_t check_message(item, int64_t time_ns) except -1:
    """How many bytes an item (topic, payload, properties) takes. Raises if it can't be written."""
    cdef int64_t end = 0, size
    if type(item) is not tuple or len(item) != 3:
        raise TypeError("a message is a tuple of topic, payload and properties, all bytes: see Messages.item()")
    for part in item:
        if not PyBytes_CheckExact(part):
            raise TypeError("a message is a tuple of topic, payload and properties, all bytes: see Messages.item()")
    topic, payload, properties = item
    if not 0 <= time_ns <= MESSAGE_TIME_MAX:
        raise TimeOutOfRange(f"a message can't have the time {time_ns}: expected 0 to {MESSAGE_TIME_MAX}")
    size = PyBytes_GET_SIZE(topic)
    if size > TOPIC_BYTES_MAX or not is_utf8(<const unsigned char *>PyBytes_AS_STRING(topic), size):
        raise ValueError(f"a topic is UTF-8 of at most {TOPIC_BYTES_MAX} bytes")
    if PyBytes_GET_SIZE(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes")
    size = PyBytes_GET_SIZE(properties)
    if skip_properties(<const unsigned char *>PyBytes_AS_STRING(properties), 0, size, &end) != END or end != size:
        raise ValueError("properties are a map in msgpack with texts as keys, not too large and not too deep")
    return message_bytes(PyBytes_GET_SIZE(topic), PyBytes_GET_SIZE(payload), size)


cdef inline void put_item(unsigned char *out, item, int64_t time_ns) noexcept:
    cdef tuple parts = <tuple>item
    topic, payload, properties = parts[0], parts[1], parts[2]
    put_message(
        out,
        time_ns,
        <const unsigned char *>PyBytes_AS_STRING(topic),
        PyBytes_GET_SIZE(topic),
        <const unsigned char *>PyBytes_AS_STRING(payload),
        PyBytes_GET_SIZE(payload),
        <const unsigned char *>PyBytes_AS_STRING(properties),
        PyBytes_GET_SIZE(properties),
    )


def messages_encode(item, int64_t time_ns):
    out = PyBytes_FromStringAndSize(NULL, check_message(item, time_ns))
    put_item(<unsigned char *>PyBytes_AS_STRING(out), item, time_ns)
    return out


def messages_encode_many(given, int64_t time_ns):
    cdef list batch = list(given)
    cdef Py_ssize_t count = len(batch), i
    cdef int64_t total = 0
    cdef array starts = new_column(count)
    cdef int64_t *start = items(starts)
    cdef unsigned char *out
    if not 0 <= time_ns <= MESSAGE_TIME_MAX - count:
        raise TimeOutOfRange(f"a message can't have the time {time_ns}: expected 0 to {MESSAGE_TIME_MAX}")
    for i in range(count):
        start[i] = total
        total += check_message(batch[i], time_ns + i)
    result = PyBytes_FromStringAndSize(NULL, total)
    out = <unsigned char *>PyBytes_AS_STRING(result)
    for i in range(count):
        put_item(out + start[i], batch[i], time_ns + i)
    return result, starts
