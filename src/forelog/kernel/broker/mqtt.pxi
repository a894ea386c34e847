# MQTT's packets to columns, and messages to packets. Included by _kernel.pyx.

cdef enum:
    MQTT_ALL = 0
    MQTT_LIMIT = 1
    MQTT_INCOMPLETE = 2
    MQTT_BAD_LENGTH = 3
    MQTT_TOO_LARGE = 4
    MQTT_NOT_PLAIN = 5
    MQTT_BAD_PUBLISH = 6
    MQTT_REMAINING_MAX = 0x0FFFFFFF
    MQTT_FORMAT = 0x01
    MQTT_EXPIRY = 0x02
    MQTT_CONTENT_TYPE = 0x03
    MQTT_RESPONSE_TOPIC = 0x08
    MQTT_CORRELATION = 0x09
    MQTT_ALIAS = 0x23
    MQTT_USER = 0x26

cdef uint64_t EVERY_BYTE = 0x0101010101010101
cdef uint64_t EVERY_HIGH_BIT = 0x8080808080808080


cdef struct MqttFrame:
    int64_t start, body, end, need
    # need: how many bytes are missing, of an incomplete one
    unsigned char first


cdef struct MqttPublish:
    # One message; bounds are those in the buffer, and payload_end is where the next packet starts.
    int64_t topic_start, topic_end, property_start, property_end, payload_start, payload_end, packet_id
    int64_t need
    unsigned char flags


cdef inline int64_t mqtt_number(const unsigned char *buf, int64_t at, int64_t stop, int64_t *number) noexcept nogil:
    """Read a number. Returns where it ends, -1 if it is cut off, -2 if it has more than four bytes."""
    cdef int i
    number[0] = 0
    for i in range(4):
        if at + i >= stop:
            return -1
        number[0] |= <int64_t>(buf[at + i] & 0x7F) << (7 * i)
        if buf[at + i] < 0x80:
            return at + i + 1
    return -2


cdef inline bint is_shortest(int64_t number, int64_t byte_count) noexcept nogil:
    """Whether the number needs as many bytes as it has."""
    return byte_count == 1 or number >= <int64_t>1 << (7 * (byte_count - 1))


cdef inline int mqtt_frame(
    const unsigned char *buf, int64_t start, int64_t stop, int64_t packet_bytes_max, MqttFrame *frame
) noexcept nogil:
    """Find a packet. Returns 0, or why there is no whole one. There must be a byte at `start`."""
    cdef int64_t length = 0
    frame.start = start
    frame.first = buf[start]
    frame.need = 0
    frame.body = mqtt_number(buf, start + 1, stop, &length)
    if frame.body == -1:
        frame.need = 1
        return MQTT_INCOMPLETE
    if frame.body < 0:
        return MQTT_BAD_LENGTH
    if frame.body - start + length > packet_bytes_max:
        return MQTT_TOO_LARGE
    if length > stop - frame.body:
        frame.need = length - (stop - frame.body)
        return MQTT_INCOMPLETE
    frame.end = frame.body + length
    return 0


cdef inline bint has_byte(uint64_t word, unsigned char byte) noexcept nogil:
    """Whether one of the word's eight bytes is this byte."""
    cdef uint64_t zeros = word ^ (EVERY_BYTE * byte)
    return ((zeros - EVERY_BYTE) & ~zeros & EVERY_HIGH_BIT) != 0


cdef inline int utf8_length(const unsigned char *p, int64_t room) noexcept nogil:
    """How many bytes the character has that isn't ASCII; 0 if it is malformed, by Unicode's table 3-7."""
    cdef unsigned char low = 0x80, high = 0xBF
    cdef int length, i
    if 0xC2 <= p[0] <= 0xDF:
        length = 2
    elif 0xE0 <= p[0] <= 0xEF:
        length = 3
        if p[0] == 0xE0:
            low = 0xA0
        elif p[0] == 0xED:
            high = 0x9F  # what comes after are the surrogates
    elif 0xF0 <= p[0] <= 0xF4:
        length = 4
        if p[0] == 0xF0:
            low = 0x90
        elif p[0] == 0xF4:
            high = 0x8F
    else:
        return 0
    if length > room or not low <= p[1] <= high:
        return 0
    for i in range(2, length):
        if p[i] & 0xC0 != 0x80:
            return 0
    return length


cdef bint is_mqtt_text(const unsigned char *buf, int64_t at, int64_t end, bint is_topic) noexcept nogil:
    """Whether this is well-formed UTF-8 without U+0000. A topic isn't empty, and has no wildcards."""
    cdef uint64_t word
    cdef int length
    if is_topic and at == end:
        return False
    while at < end:
        while end - at >= 8:
            memcpy(&word, buf + at, 8)
            if word & EVERY_HIGH_BIT or has_byte(word, 0):
                break
            if is_topic and (has_byte(word, c"+") or has_byte(word, c"#")):
                return False
            at += 8
        if at == end:
            break
        if buf[at] < 0x80:
            if buf[at] == 0 or is_topic and (buf[at] == c"+" or buf[at] == c"#"):
                return False
            at += 1
            continue
        length = utf8_length(buf + at, end - at)
        if length == 0:
            return False
        at += length
    return True


cdef inline int64_t mqtt_bytes(const unsigned char *buf, int64_t at, int64_t stop) noexcept nogil:
    """Where a field ends that begins with its length in two bytes; -1 if it is cut off."""
    cdef int64_t end
    if stop - at < 2:
        return -1
    end = at + 2 + (<int64_t>buf[at] << 8 | buf[at + 1])
    return end if end <= stop else -1


cdef int check_publish_properties(const unsigned char *buf, int64_t at, int64_t stop) noexcept nogil:
    """0 if a client's message may have these properties and stays plain with them."""
    cdef uint64_t seen = 0
    cdef unsigned char name
    cdef int64_t end
    while at < stop:
        name = buf[at]
        at += 1
        if name == MQTT_ALIAS:
            return MQTT_NOT_PLAIN
        if name > MQTT_USER or seen >> name & 1:
            return MQTT_BAD_PUBLISH
        if name == MQTT_FORMAT:
            if at >= stop or buf[at] > 1:
                return MQTT_BAD_PUBLISH
            at += 1
        elif name == MQTT_EXPIRY:
            if stop - at < 4:
                return MQTT_BAD_PUBLISH
            at += 4
        elif name == MQTT_CONTENT_TYPE or name == MQTT_RESPONSE_TOPIC or name == MQTT_CORRELATION or name == MQTT_USER:
            end = mqtt_bytes(buf, at, stop)
            if end < 0:
                return MQTT_BAD_PUBLISH
            if name != MQTT_CORRELATION and not is_mqtt_text(buf, at + 2, end, name == MQTT_RESPONSE_TOPIC):
                return MQTT_BAD_PUBLISH
            at = end
            if name == MQTT_USER:
                end = mqtt_bytes(buf, at, stop)
                if end < 0 or not is_mqtt_text(buf, at + 2, end, False):
                    return MQTT_BAD_PUBLISH
                at = end
                continue  # it may come again
        else:
            return MQTT_BAD_PUBLISH
        seen |= <uint64_t>1 << name
    return 0


cdef int parse_publish(
    const unsigned char *buf, int64_t start, int64_t stop, int version, int64_t packet_bytes_max, MqttPublish *publish
) noexcept nogil:
    """Read a plain message. Returns 0, or why there is none. There must be a byte at `start`."""
    cdef MqttFrame frame
    cdef int64_t at, end, length = 0
    cdef int reason, qos
    publish.need = 0
    if buf[start] >> 4 != 3:
        return MQTT_NOT_PLAIN
    reason = mqtt_frame(buf, start, stop, packet_bytes_max, &frame)
    if reason:
        publish.need = frame.need
        return reason
    publish.flags = frame.first & 0x0F
    end = frame.end
    qos = publish.flags >> 1 & 3
    if qos == 3 or publish.flags & 8 and qos == 0:
        return MQTT_BAD_PUBLISH
    if qos == 2 or publish.flags & 1:
        return MQTT_NOT_PLAIN
    if version == 5 and not is_shortest(end - frame.body, frame.body - start - 1):
        return MQTT_BAD_PUBLISH
    at = mqtt_bytes(buf, frame.body, end)
    if at < 0:
        return MQTT_BAD_PUBLISH
    publish.topic_start = frame.body + 2
    publish.topic_end = at
    publish.packet_id = 0
    if qos:
        if end - at < 2:
            return MQTT_BAD_PUBLISH
        publish.packet_id = <int64_t>buf[at] << 8 | buf[at + 1]
        at += 2
        if publish.packet_id == 0:
            return MQTT_BAD_PUBLISH
    publish.property_start = at
    if version == 5:
        publish.property_start = mqtt_number(buf, at, end, &length)
        if publish.property_start < 0 or not is_shortest(length, publish.property_start - at):
            return MQTT_BAD_PUBLISH
        at = publish.property_start
        if length > end - at:
            return MQTT_BAD_PUBLISH
        at += length
        reason = check_publish_properties(buf, publish.property_start, at)
        if reason:
            return reason
    publish.property_end = at
    publish.payload_start = at
    publish.payload_end = end
    if not is_mqtt_text(buf, publish.topic_start, publish.topic_end, True):
        return MQTT_BAD_PUBLISH
    return MQTT_NOT_PLAIN if buf[publish.topic_start] == c"$" else 0


def mqtt_split(buffer, int64_t start, int64_t stop, int64_t packet_bytes_max, int64_t packets_max=4096):
    cdef _View view = _View(buffer)
    check_range("packets in", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef Stretch found
    cdef MqttFrame frame
    cdef int64_t at = start, count = 0
    cdef int reason = MQTT_ALL
    cdef bint is_full = False
    memset(&found, 0, sizeof(found))
    frame.need = 0
    try:
        with nogil:
            while at < stop:
                if count >= packets_max:
                    reason = MQTT_LIMIT
                    break
                reason = mqtt_frame(buf, at, stop, packet_bytes_max, &frame)
                if reason:
                    break
                if extend(&found, <const unsigned char *>&frame, sizeof(frame)):
                    is_full = True
                    break
                count += 1
                at = frame.end
        if is_full:
            raise MemoryError
        return mqtt_packets(<MqttFrame *>found.data, count, at, reason, frame.need)
    finally:
        PyMem_RawFree(found.data)


cdef object mqtt_packets(const MqttFrame *frames, int64_t count, int64_t end, int reason, int64_t need):
    cdef bytes firsts = PyBytes_FromStringAndSize(NULL, count)
    cdef array starts = new_column(count), bodies = new_column(count), ends = new_column(count)
    cdef unsigned char *first = writable(firsts)
    cdef int64_t i
    for i in range(count):
        first[i] = frames[i].first
        items(starts)[i] = frames[i].start
        items(bodies)[i] = frames[i].body
        items(ends)[i] = frames[i].end
    return Packets(firsts, starts, bodies, ends, end, reason, need)


def mqtt_publishes(
    buffer, int64_t start, int64_t stop, int version, int64_t packet_bytes_max, int64_t packets_max=4096
):
    cdef _View view = _View(buffer)
    check_range("messages in", start, stop, view.size)
    check_mqtt_version(version)
    cdef const unsigned char *buf = view.data
    cdef Stretch found
    cdef MqttPublish publish
    cdef int64_t at = start, count = 0
    cdef int reason = MQTT_ALL
    cdef bint is_full = False
    memset(&found, 0, sizeof(found))
    publish.need = 0
    try:
        with nogil:
            while at < stop:
                if count >= packets_max:
                    reason = MQTT_LIMIT
                    break
                reason = parse_publish(buf, at, stop, version, packet_bytes_max, &publish)
                if reason:
                    break
                if extend(&found, <const unsigned char *>&publish, sizeof(publish)):
                    is_full = True
                    break
                count += 1
                at = publish.payload_end
        if is_full:
            raise MemoryError
        return publish_columns(<MqttPublish *>found.data, count, at, reason, publish.need)
    finally:
        PyMem_RawFree(found.data)


cdef int check_mqtt_version(int version) except -1:
    if version != 4 and version != 5:
        raise ValueError(f"MQTT {version}: expected 4 (for 3.1.1) or 5")
    return 0


cdef object publish_columns(const MqttPublish *messages, int64_t count, int64_t end, int reason, int64_t need):
    cdef bytes flags = PyBytes_FromStringAndSize(NULL, count)
    cdef unsigned char *flag = writable(flags)
    cdef array topic_starts = new_column(count), topic_ends = new_column(count)
    cdef array property_starts = new_column(count), property_ends = new_column(count)
    cdef array payload_starts = new_column(count), payload_ends = new_column(count)
    cdef array packet_ids = new_column(count)
    cdef int64_t i, acked = 0
    for i in range(count):
        flag[i] = messages[i].flags
        items(topic_starts)[i] = messages[i].topic_start
        items(topic_ends)[i] = messages[i].topic_end
        items(property_starts)[i] = messages[i].property_start
        items(property_ends)[i] = messages[i].property_end
        items(payload_starts)[i] = messages[i].payload_start
        items(payload_ends)[i] = messages[i].payload_end
        items(packet_ids)[i] = messages[i].packet_id
        acked += messages[i].packet_id != 0
    return Publishes(
        flags, topic_starts, topic_ends, property_starts, property_ends, payload_starts, payload_ends, packet_ids,
        mqtt_acks(messages, count, acked), end, reason, need,
    )


cdef bytes mqtt_acks(const MqttPublish *messages, int64_t count, int64_t acked):
    cdef bytes acks = PyBytes_FromStringAndSize(NULL, 4 * acked)
    cdef unsigned char *out = writable(acks)
    cdef int64_t i
    for i in range(count):
        if messages[i].packet_id:
            store_u32(out, 0x40020000 | <uint32_t>messages[i].packet_id)
            out += 4
    return acks


def mqtt_pubacks(buffer, int64_t start, int64_t stop):
    cdef _View view = _View(buffer)
    check_range("acknowledgements in", start, stop, view.size)
    cdef const unsigned char *buf = view.data
    cdef int64_t at = start, i
    cdef array packet_ids
    while stop - at >= 4 and load_u32(buf + at) >> 16 == 0x4002 and load_u32(buf + at) & 0xFFFF:
        at += 4
    packet_ids = new_column((at - start) // 4)
    for i in range((at - start) // 4):
        items(packet_ids)[i] = load_u32(buf + start + 4 * i) & 0xFFFF
    return Pubacks(packet_ids, at)


cdef inline int64_t mqtt_number_size(int64_t number) noexcept nogil:
    return 1 + (number >= 1 << 7) + (number >= 1 << 14) + (number >= 1 << 21)


cdef inline unsigned char *put_mqtt_number(unsigned char *out, int64_t number) noexcept nogil:
    while number >= 0x80:
        out[0] = <unsigned char>(number & 0x7F | 0x80)
        number >>= 7
        out += 1
    out[0] = <unsigned char>number
    return out + 1


cdef inline unsigned char *put_mqtt_bytes(unsigned char *out, const unsigned char *data, int64_t size) noexcept nogil:
    memcpy(out, data, size)
    return out + size


def mqtt_encode_publish(
    int version, bytes topic not None, payload, int qos, bint retain, bint dup, int64_t packet_id,
    bytes properties not None
):
    cdef _View view
    cdef const unsigned char *data
    cdef int64_t topic_size = PyBytes_GET_SIZE(topic), properties_size = 0, payload_size, remaining
    cdef bytes packet
    cdef unsigned char *out
    if PyBytes_CheckExact(payload):
        data, payload_size = <const unsigned char *>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload)
    else:
        view = _View(payload)
        data, payload_size = view.data, view.size
    check_mqtt_version(version)
    if topic_size > 0xFFFF:
        raise ValueError(f"a topic of {topic_size} bytes: at most 65,535 can be sent")
    if not 0 <= qos <= 2 or dup and qos == 0:
        again = " sent again" if dup else ""
        raise ValueError(f"QoS {qos}{again}: expected 0, 1 or 2, and only 1 and 2 sent again")
    if not 0 <= packet_id <= 0xFFFF or (packet_id != 0) != (qos != 0):
        raise ValueError(f"packet id {packet_id} at QoS {qos}: expected 1 to 65,535, and 0 at QoS 0")
    remaining = 2 + topic_size + (2 if qos else 0) + payload_size
    if version == 5:
        properties_size = PyBytes_GET_SIZE(properties)
        if properties_size > MQTT_REMAINING_MAX:
            raise ValueError(f"{properties_size} bytes of properties: at most {MQTT_REMAINING_MAX} can be sent")
        remaining += mqtt_number_size(properties_size) + properties_size
    if remaining > MQTT_REMAINING_MAX:
        raise ValueError(f"a packet of {remaining} bytes: at most {MQTT_REMAINING_MAX} can be sent")
    packet = PyBytes_FromStringAndSize(NULL, 1 + mqtt_number_size(remaining) + remaining)
    out = writable(packet)
    out[0] = <unsigned char>(0x30 | dup << 3 | qos << 1 | retain)
    out = put_mqtt_number(out + 1, remaining)
    out[0] = <unsigned char>(topic_size >> 8)
    out[1] = <unsigned char>(topic_size & 0xFF)
    out = put_mqtt_bytes(out + 2, <const unsigned char *>PyBytes_AS_STRING(topic), topic_size)
    if qos:
        out[0] = <unsigned char>(packet_id >> 8)
        out[1] = <unsigned char>(packet_id & 0xFF)
        out += 2
    if version == 5:
        out = put_mqtt_number(out, properties_size)
        out = put_mqtt_bytes(out, <const unsigned char *>PyBytes_AS_STRING(properties), properties_size)
    put_mqtt_bytes(out, data, payload_size)
    return packet
