# What clients publish, as messages of the log. Included by _kernel.pyx.

cdef int64_t INBOX_RUN_BYTES_MAX = 16777216  # 16 MiB
cdef int64_t INBOX_KEPT_BYTES = 1048576  # more isn't kept when the box is emptied


cdef struct InboxRow:
    int64_t start, topic, topic_end, payload, payload_end


cdef struct Received:
    int64_t count, bytes, end, need


cdef int check_properties(bytes properties) except -1:
    cdef int64_t size = PyBytes_GET_SIZE(properties), end = 0
    if skip_properties(<const unsigned char *>PyBytes_AS_STRING(properties), 0, size, &end) != END or end != size:
        raise ValueError("properties are a map in msgpack with texts as keys, not too large and not too deep")
    return 0


cdef void clear(Stretch *stretch) noexcept:
    stretch.size = 0
    if stretch.room > INBOX_KEPT_BYTES:
        PyMem_RawFree(stretch.data)
        stretch.data = NULL
        stretch.room = 0


cdef class Inbox:
    """Each method holds the interpreter's lock throughout: nothing can change what it works on."""
    cdef readonly list runs
    cdef public int64_t last_ns
    cdef Stretch data, rows, flags, acks
    cdef int64_t run_start, run_row

    def __cinit__(self):
        self.runs = []

    def __dealloc__(self):
        PyMem_RawFree(self.data.data)
        PyMem_RawFree(self.rows.data)
        PyMem_RawFree(self.flags.data)
        PyMem_RawFree(self.acks.data)

    def __len__(self):
        return self.flags.size

    @property
    def byte_count(self):
        return self.data.size

    def take(
        self, owner, buffer, int64_t start, int64_t stop, int version, int64_t packet_bytes_max, int64_t time_ns,
        bytes properties0 not None, bytes properties1 not None, int64_t packets_max=4096
    ):
        cdef _View view = _View(buffer)
        cdef Received received
        cdef int reason
        check_range("messages in", start, stop, view.size)
        check_mqtt_version(version)
        check_properties(properties0)
        check_properties(properties1)
        time_ns = max(time_ns, self.last_ns + 1)
        if not 0 <= time_ns <= MESSAGE_TIME_MAX - view.size:
            raise TimeOutOfRange(f"a message can't have the time {time_ns}: expected 0 to {MESSAGE_TIME_MAX}")
        self.begin()
        memset(&received, 0, sizeof(received))
        received.end = start
        reason = self.receive(
            view.data, stop, version, packet_bytes_max, packets_max, time_ns, properties0, properties1, &received
        )
        if reason < 0:
            self.rewind()
            raise MemoryError
        if received.count:
            self.runs.append((owner, PyBytes_FromStringAndSize(<char *>self.acks.data, self.acks.size)))
            self.last_ns = time_ns + received.count - 1
        return received.count, received.end, reason, received.need

    def put(self, owner, bytes message not None, int64_t time_ns, bytes acks not None):
        cdef MessagePlaces places
        cdef int64_t size = PyBytes_GET_SIZE(message)
        cdef const unsigned char *buf = <const unsigned char *>PyBytes_AS_STRING(message)
        cdef unsigned char flags
        if get_message_places(buf, 0, size, &places) != END:
            raise ValueError("that is no message")
        self.begin()
        flags = <unsigned char>property_flags(buf, places.properties, places.properties_end)
        if reserve(&self.data, size) or self.add_row(
            flags, places.topic, places.topic_end, places.payload, places.payload_end
        ):
            self.rewind()
            raise MemoryError
        extend(&self.data, buf, size)
        self.runs.append((owner, acks))
        self.last_ns = max(self.last_ns, time_ns)

    def topics(self):
        cdef InboxRow *rows = <InboxRow *>self.rows.data
        cdef int64_t row, count = self.flags.size - self.run_row
        cdef array starts = new_column(count), ends = new_column(count)
        if count == 0:
            return []
        for row in range(count):
            items(starts)[row] = rows[self.run_row + row].topic - self.run_start
            items(ends)[row] = rows[self.run_row + row].topic_end - self.run_start
        cdef bytes run = PyBytes_FromStringAndSize(
            <char *>self.data.data + self.run_start, self.data.size - self.run_start
        )
        return topic_codes(run, starts, ends)[1]

    def undo(self):
        if self.flags.size == self.run_row:
            raise ValueError("there is nothing to undo")
        self.runs.pop()
        self.rewind()

    def drain(self):
        cdef int64_t row, count = self.flags.size
        cdef InboxRow *rows = <InboxRow *>self.rows.data
        cdef bytes data = PyBytes_FromStringAndSize(<char *>self.data.data, self.data.size)
        cdef bytes flags = PyBytes_FromStringAndSize(<char *>self.flags.data, count)
        cdef array starts = new_column(count)
        cdef array topic_starts = new_column(count), topic_ends = new_column(count)
        cdef array payload_starts = new_column(count), payload_ends = new_column(count)
        for row in range(count):
            items(starts)[row] = rows[row].start
            items(topic_starts)[row] = rows[row].topic
            items(topic_ends)[row] = rows[row].topic_end
            items(payload_starts)[row] = rows[row].payload
            items(payload_ends)[row] = rows[row].payload_end
        runs, self.runs = self.runs, []
        clear(&self.data)
        clear(&self.rows)
        clear(&self.flags)
        self.begin()
        return Drained(data, starts, topic_starts, topic_ends, payload_starts, payload_ends, flags, runs)

    cdef void begin(self) noexcept:
        """Begin a run."""
        self.run_start = self.data.size
        self.run_row = self.flags.size
        clear(&self.acks)

    cdef void rewind(self) noexcept:
        """Go back to where the last run began."""
        self.data.size = self.run_start
        self.flags.size = self.run_row
        self.rows.size = self.run_row * <int64_t>sizeof(InboxRow)

    cdef int add_row(
        self, unsigned char flags, int64_t topic, int64_t topic_end, int64_t payload, int64_t payload_end
    ) noexcept:
        """Note a message that will begin at the end of the data. Its places count from its beginning."""
        cdef int64_t at = self.data.size
        cdef InboxRow row
        row.start = at
        row.topic, row.topic_end = at + topic, at + topic_end
        row.payload, row.payload_end = at + payload, at + payload_end
        return extend(&self.rows, <const unsigned char *>&row, sizeof(row)) or extend(&self.flags, &flags, 1)

    cdef int receive(
        self, const unsigned char *buf, int64_t stop, int version, int64_t packet_bytes_max, int64_t packets_max,
        int64_t time_ns, bytes properties0, bytes properties1, Received *received
    ) noexcept:
        """Take messages. Returns why it stopped, or -1 if memory is short."""
        cdef MqttPublish publish
        cdef bytes properties
        cdef int64_t size, topic, topic_end, payload, payload_start, payload_end
        cdef int reason
        while received.end < stop:
            if received.count >= packets_max:
                return MQTT_LIMIT
            reason = parse_publish(buf, received.end, stop, version, packet_bytes_max, &publish)
            if reason:
                received.need = publish.need
                return reason
            if publish.property_end > publish.property_start:
                return MQTT_NOT_PLAIN
            properties = properties1 if publish.packet_id else properties0
            topic = publish.topic_end - publish.topic_start
            payload = publish.payload_end - publish.payload_start
            size = message_bytes(topic, payload, PyBytes_GET_SIZE(properties))
            if received.count and size > INBOX_RUN_BYTES_MAX - received.bytes:
                return MQTT_LIMIT
            if reserve(&self.data, size) or reserve(&self.acks, 4):
                return -1
            payload_end = size - 5 - PyBytes_GET_SIZE(properties)
            payload_start = payload_end - payload
            topic_end = payload_start - (2 if payload < 256 else 3 if payload < 65536 else 5)
            if self.add_row(publish.packet_id != 0, topic_end - topic, topic_end, payload_start, payload_end):
                return -1
            put_message(
                self.data.data + self.data.size, time_ns + received.count,
                buf + publish.topic_start, topic, buf + publish.payload_start, payload,
                <const unsigned char *>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties),
            )
            self.data.size += size
            if publish.packet_id:
                store_u32(self.acks.data + self.acks.size, 0x40020000 | <uint32_t>publish.packet_id)
                self.acks.size += 4
            received.bytes += size
            received.count += 1
            received.end = publish.payload_end
        return MQTT_ALL
