# Messages of a broker's log to packets. Included by _kernel.pyx.

cdef int64_t GIL_BYTES = 262144  # it takes longer to get the GIL back than to go through fewer bytes


cdef struct Delivery:
    # One packet to write, checked. The places are copies: a column could change while the GIL is away.
    int64_t topic, topic_bytes, payload, payload_bytes, remaining
    uint32_t packet_id
    unsigned char first


cdef unsigned char *put_delivery(
    unsigned char *out, const unsigned char *buf, const Delivery *one, const unsigned char *properties, int64_t size
) noexcept nogil:
    """Put one PUBLISH. `properties` begin with their length; `size` is 0 in MQTT 3.1.1."""
    out[0] = one.first
    out = put_mqtt_number(out + 1, one.remaining)
    out[0] = <unsigned char>(one.topic_bytes >> 8)
    out[1] = <unsigned char>(one.topic_bytes & 0xFF)
    out = put_mqtt_bytes(out + 2, buf + one.topic, one.topic_bytes)
    if one.packet_id:
        out[0] = <unsigned char>(one.packet_id >> 8)
        out[1] = <unsigned char>(one.packet_id & 0xFF)
        out += 2
    out = put_mqtt_bytes(out, properties, size)
    return put_mqtt_bytes(out, buf + one.payload, one.payload_bytes)


cdef void put_deliveries(
    unsigned char *out, const unsigned char *buf, const Delivery *deliveries, int64_t count,
    const unsigned char *properties, int64_t size
) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        out = put_delivery(out, buf, deliveries + i, properties, size)


cdef int check_columns(int64_t count, tuple columns) except -1:
    for column in columns:
        check_column(column)
        if len(column) != count:
            raise ValueError("columns of different lengths")
    return 0


cdef int64_t plan_deliveries(
    Delivery *deliveries, array rows, tuple columns, _View flags, _View view, int64_t qos_max, int64_t *packet_id,
    unsigned char first, int64_t properties_size
) except -1:
    """Check the rows and fill `deliveries`. Returns how many bytes the packets take, and the next id in `packet_id`."""
    cdef int64_t *topic = items(columns[0])
    cdef int64_t *topic_end = items(columns[1])
    cdef int64_t *payload = items(columns[2])
    cdef int64_t *payload_end = items(columns[3])
    cdef int64_t i, row, qos, total = 0
    cdef Delivery *one
    for i in range(len(rows)):
        row = items(rows)[i]
        if not 0 <= row < flags.size:
            raise ValueError(f"row {row} of {flags.size}")
        if not 0 <= topic[row] <= topic_end[row] <= view.size or not 0 <= payload[row] <= payload_end[row] <= view.size:
            raise ValueError(f"row {row} lies outside of its buffer")
        one = deliveries + i
        one.topic, one.topic_bytes = topic[row], topic_end[row] - topic[row]
        one.payload, one.payload_bytes = payload[row], payload_end[row] - payload[row]
        if one.topic_bytes > 0xFFFF:
            raise ValueError(f"a topic of {one.topic_bytes} bytes: at most 65,535 can be sent")
        qos = min(<int64_t>(flags.data[row] & 3), qos_max)
        one.first = <unsigned char>(first | qos << 1) if qos else first & 0xF7  # only 1 and 2 are sent again
        one.packet_id = 0
        if qos:
            one.packet_id = <uint32_t>packet_id[0]
            packet_id[0] = packet_id[0] + 1 if packet_id[0] < 0xFFFF else 1
        one.remaining = 2 + one.topic_bytes + (2 if qos else 0) + properties_size + one.payload_bytes
        if one.remaining > MQTT_REMAINING_MAX:
            raise ValueError(f"a packet of {one.remaining} bytes: at most {MQTT_REMAINING_MAX} can be sent")
        total += 1 + mqtt_number_size(one.remaining) + one.remaining
    return total


cdef bytes sized_properties(int version, bytes properties):
    """The properties after their length, as in MQTT 5; nothing in MQTT 3.1.1."""
    cdef unsigned char length[4]
    cdef int64_t size = PyBytes_GET_SIZE(properties)
    if version == 4:
        return b""
    if size > MQTT_REMAINING_MAX:
        raise ValueError(f"{size} bytes of properties: at most {MQTT_REMAINING_MAX} can be sent")
    return PyBytes_FromStringAndSize(<char *>length, put_mqtt_number(length, size) - length) + properties


def mqtt_deliver(
    int version, buffer, array rows not None, array topic_starts not None, array topic_ends not None,
    array payload_starts not None, array payload_ends not None, flags, int64_t qos_max, int64_t first_id,
    bytes properties not None, bint retain=False, bint dup=False
):
    cdef _View view = _View(buffer), qos = _View(flags)
    cdef tuple columns = (topic_starts, topic_ends, payload_starts, payload_ends)
    cdef int64_t count = len(rows), used = 0, packet_id = first_id, size, i
    cdef const unsigned char *prefix
    cdef unsigned char *out
    cdef Delivery *deliveries = NULL
    check_mqtt_version(version)
    check_column(rows)
    check_columns(qos.size, columns)
    if not 0 <= qos_max <= 2:
        raise ValueError(f"QoS {qos_max}: expected 0, 1 or 2")
    if not 1 <= first_id <= 0xFFFF:
        raise ValueError(f"packet id {first_id}: expected 1 to 65,535")
    sized = sized_properties(version, properties)
    prefix, size = writable(sized), len(sized)
    try:
        if count:
            deliveries = <Delivery *>PyMem_RawRealloc(NULL, count * sizeof(Delivery))
            if deliveries == NULL:
                raise MemoryError
        packets = PyBytes_FromStringAndSize(NULL, plan_deliveries(
            deliveries, rows, columns, qos, view, qos_max, &packet_id, 0x30 | dup << 3 | retain, size
        ))
        for i in range(count):
            used += deliveries[i].packet_id != 0
        if used > 0xFFFF:
            raise ValueError(f"{used} messages need packet ids: there are 65,535")
        out = writable(packets)
        if len(packets) > GIL_BYTES:
            with nogil:
                put_deliveries(out, view.data, deliveries, count, prefix, size)
        else:
            put_deliveries(out, view.data, deliveries, count, prefix, size)
        return packets, used
    finally:
        PyMem_RawFree(deliveries)
