# Messages of M3's commit log to columns. Included by _kernel.pyx.

cdef class _Rows:
    """Maps the file's numbers of series to rows: a table with open addressing, each key beside its row."""
    cdef uint64_t *keys
    cdef int64_t *rows
    cdef int64_t room, count
    cdef int shift

    def __cinit__(self):
        if self.grow():
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.keys)
        PyMem_RawFree(self.rows)

    cdef inline int64_t slot(self, uint64_t key) noexcept nogil:
        """The key's slot, or the one where it belongs."""
        cdef int64_t at = <int64_t>((key * <uint64_t>0x9E3779B97F4A7C15) >> self.shift)
        while self.rows[at] >= 0 and self.keys[at] != key:
            at = (at + 1) & (self.room - 1)
        return at

    cdef int put(self, uint64_t key, int64_t row) noexcept nogil:
        cdef int64_t at = self.slot(key)
        if self.rows[at] < 0:
            if 2 * (self.count + 1) > self.room:
                if self.grow():
                    return NO_MEMORY
                at = self.slot(key)
            self.count += 1
        self.keys[at] = key
        self.rows[at] = row
        return 0

    cdef int grow(self) noexcept nogil:
        cdef int64_t old_room = self.room, i, at
        cdef uint64_t *old_keys = self.keys
        cdef int64_t *old_rows = self.rows
        cdef int64_t room = 2 * old_room if old_room else 64
        cdef uint64_t *keys = <uint64_t *>PyMem_RawRealloc(NULL, room * sizeof(uint64_t))
        cdef int64_t *rows = <int64_t *>PyMem_RawRealloc(NULL, room * sizeof(int64_t))
        if keys == NULL or rows == NULL:
            PyMem_RawFree(keys)
            PyMem_RawFree(rows)
            return -1
        memset(rows, 0xFF, room * sizeof(int64_t))
        self.keys, self.rows, self.room = keys, rows, room
        self.shift = 64
        while room > 1:
            room >>= 1
            self.shift -= 1
        for i in range(old_room):
            if old_rows[i] >= 0:
                at = self.slot(old_keys[i])
                keys[at] = old_keys[i]
                rows[at] = old_rows[i]
        PyMem_RawFree(old_keys)
        PyMem_RawFree(old_rows)
        return 0


cdef class _EntryColumns:
    """The columns while they are filled, with room for as many entries as the bytes could hold."""
    cdef array series, timestamps, created, offsets, values, annotation_offsets
    cdef bytearray units, annotated
    cdef Stretch annotations
    cdef int64_t *series_at
    cdef int64_t *timestamp_at
    cdef int64_t *created_at
    cdef int64_t *offset_at
    cdef double *value_at
    cdef int32_t *annotation_at
    cdef unsigned char *unit_at
    cdef unsigned char *annotated_at
    cdef int64_t count, unknown, unknown_offset, lost, lost_offset

    def __cinit__(self, int64_t room):
        self.series, self.timestamps = new_column(room), new_column(room)
        self.created, self.offsets = new_column(room), new_column(room)
        self.values = clone(_double_template, room, False)
        self.annotation_offsets = clone(_int32_template, room + 1, False)
        self.units, self.annotated = bytearray(room), bytearray(room)
        self.series_at, self.timestamp_at = items(self.series), items(self.timestamps)
        self.created_at, self.offset_at = items(self.created), items(self.offsets)
        self.value_at = self.values.data.as_doubles
        self.annotation_at = <int32_t *>self.annotation_offsets.data.as_ints
        self.unit_at = <unsigned char *>PyByteArray_AS_STRING(self.units)
        self.annotated_at = <unsigned char *>PyByteArray_AS_STRING(self.annotated)
        self.annotation_at[0] = 0
        self.unknown_offset = self.lost_offset = -1

    def __dealloc__(self):
        PyMem_RawFree(self.annotations.data)

    cdef object entries(self, int64_t row, int reason, int64_t offset, int64_t place):
        for column in (self.series, self.timestamps, self.created, self.offsets, self.values):
            resize(column, self.count)
        resize(self.annotation_offsets, self.count + 1)
        return Entries(
            self.series,
            self.timestamps,
            self.values,
            PyBytes_FromStringAndSize(<char *>self.unit_at, self.count),
            self.created,
            PyBytes_FromStringAndSize(<char *>self.annotated_at, self.count),
            self.annotation_offsets,
            PyBytes_FromStringAndSize(<char *>self.annotations.data, self.annotations.size),
            self.offsets,
            row,
            reason,
            offset,
            place,
            self.unknown,
            self.unknown_offset,
            self.lost,
            self.lost_offset,
        )


cdef class M3Decoder:
    """Decodes the entries of one file, from its first chunk on."""
    cdef readonly int64_t number, pending_offset
    cdef bint lenient, begun, entry_first, lost, busy
    cdef int64_t annotation_bytes_max, place, resume, stopped_at
    cdef Stretch pending, metadata_bytes, metadata_ends
    cdef _Rows rows

    def __cinit__(self, bint lenient=False, int64_t annotation_bytes_max=0x7FFFFFFF):
        self.number = self.pending_offset = self.stopped_at = -1
        self.lenient = lenient
        self.annotation_bytes_max = min(annotation_bytes_max, 0x7FFFFFFF)
        self.rows = _Rows()

    def __dealloc__(self):
        PyMem_RawFree(self.pending.data)
        PyMem_RawFree(self.metadata_bytes.data)
        PyMem_RawFree(self.metadata_ends.data)

    cdef inline int64_t series_count(self) noexcept nogil:
        return self.metadata_ends.size // <int64_t>sizeof(int64_t)

    cdef inline int64_t metadata_end(self, int64_t row) noexcept nogil:
        return (<int64_t *>self.metadata_ends.data)[row] if row >= 0 else 0

    def __len__(self):
        return self.series_count()

    def metadata(self, int64_t first, int64_t last):
        cdef int64_t row, start
        if self.busy:
            raise RuntimeError("another thread is using this decoder")
        if not 0 <= first <= last <= self.series_count():
            raise ValueError(f"rows {first}..{last} of {self.series_count()}")
        found = []
        for row in range(first, last):
            start = self.metadata_end(row - 1)
            found.append(
                PyBytes_FromStringAndSize(
                    <char *>self.metadata_bytes.data + start, self.metadata_end(row) - start
                )
            )
        return found

    def resync(self):
        if self.busy:
            raise RuntimeError("another thread is using this decoder")
        self.drop()
        self.lost = self.entry_first = True
        self.resume = 0

    def feed(self, buffer, array starts, array ends, array offsets, int64_t first, int64_t last):
        if self.busy:
            raise RuntimeError("another thread is using this decoder")
        self.busy = True
        try:
            return self.decode(buffer, starts, ends, offsets, first, last)
        finally:
            self.busy = False

    cdef object decode(self, buffer, array starts, array ends, array offsets, int64_t first, int64_t last):
        cdef _View view = _View(buffer)
        cdef int64_t count = min(len(starts), len(ends), len(offsets)), total = self.pending.size, row = first, begin
        cdef int reason = END
        for column in (starts, ends, offsets):
            check_column(column)
        if not 0 <= first <= last <= count:
            raise ValueError(f"rows {first}..{last} of {count}")
        cdef int64_t *start = items(starts)
        cdef int64_t *end = items(ends)
        cdef int64_t *offset = items(offsets)
        for row in range(first, last):
            check_range("chunk", start[row], end[row], view.size)
            total += end[row] - start[row]
        cdef _EntryColumns columns = _EntryColumns(total // 16 + 1)
        with nogil:
            row = first
            while row < last:
                begin = self.resume
                self.resume = 0
                reason = self.chunk(view.data + start[row], end[row] - start[row], offset[row], begin, columns)
                if reason != END:
                    break
                row += 1
        if reason == NO_MEMORY:
            raise MemoryError
        if reason != END:
            return columns.entries(row, reason, self.stopped_at, self.place)
        return columns.entries(last, END, -1, -1)

    cdef int chunk(
        self, const unsigned char *data, int64_t size, int64_t offset, int64_t at, _EntryColumns columns
    ) noexcept nogil:
        cdef int reason
        if self.lost and not at:
            if not begins_with_message(data, size):
                columns.lost += 1
                if columns.lost == 1:
                    columns.lost_offset = offset
                return END
            self.lost = False
        while at < size or (self.pending.size and self.missing() == 0):
            if not self.pending.size:
                self.pending_offset = offset
                self.place = at
                reason = self.fresh(data, size, &at, columns)
            else:
                reason = self.collected(data, size, &at, columns)
            if reason != END:
                self.resume = at
                self.stopped_at = self.pending_offset
                if reason != LIMIT:
                    self.resume = size
                    self.lost = self.entry_first = True
                    self.drop()
                return reason
        return END

    cdef void drop(self) noexcept nogil:
        self.pending.size = 0
        self.pending_offset = -1

    cdef int fresh(
        self, const unsigned char *data, int64_t size, int64_t *at, _EntryColumns columns
    ) noexcept nogil:
        """Read a message that begins in this chunk."""
        cdef uint64_t length
        cdef int64_t body = get_varint(data, at[0], size, &length)
        cdef int reason
        if body == -2 or length > <uint64_t>MESSAGE_BYTES_MAX:
            return BAD_MESSAGE_LENGTH
        if body >= 0 and <int64_t>length <= size - body:
            reason = self.read(data + body, <int64_t>length, columns)
            if reason == END:
                self.pending_offset = -1
            if reason != LIMIT:
                at[0] = body + <int64_t>length
            return reason
        if body >= 0 and size - body >= 4 and not is_message_head(data + body):
            return BAD_MESSAGE
        if extend(&self.pending, data + at[0], size - at[0]):
            return NO_MEMORY
        at[0] = size
        return END

    cdef int collected(
        self, const unsigned char *data, int64_t size, int64_t *at, _EntryColumns columns
    ) noexcept nogil:
        """Read on in a message that began in an earlier chunk: its length first, then the rest."""
        cdef int64_t missing = self.missing(), part
        cdef uint64_t length
        cdef int reason
        while missing > 0 and at[0] < size:
            part = min(missing, size - at[0])
            if extend(&self.pending, data + at[0], part):
                return NO_MEMORY
            at[0] += part
            missing = self.missing()
        if missing < 0:
            return BAD_MESSAGE_LENGTH
        if missing > 0:
            return END
        part = get_varint(self.pending.data, 0, self.pending.size, &length)
        reason = self.read(self.pending.data + part, self.pending.size - part, columns)
        if reason == END:
            self.drop()
        return reason

    cdef int64_t missing(self) noexcept nogil:
        """How many bytes the pending message still needs, as far as is known; -1 if it can't be one."""
        cdef uint64_t length
        cdef int64_t body = get_varint(self.pending.data, 0, self.pending.size, &length)
        if body == -2 or length > <uint64_t>MESSAGE_BYTES_MAX:
            return -1
        return 1 if body == -1 else body + <int64_t>length - self.pending.size

    cdef int read(self, const unsigned char *message, int64_t size, _EntryColumns columns) noexcept nogil:
        cdef int reason = BAD_MESSAGE
        if size >= 4:
            if memcmp(message, ENTRY_HEAD, 4) == 0:
                if self.begun or self.entry_first:
                    reason = self.read_entry(message, size, columns)
            elif memcmp(message, INFO_HEAD, 4) == 0 and not self.begun:
                reason = self.read_info(message, size)
        if reason == END:
            self.begun = True
        return reason

    cdef int read_info(self, const unsigned char *message, int64_t size) noexcept nogil:
        cdef const unsigned char *p = message + 4
        cdef const unsigned char *stop = message + size
        cdef uint64_t ignored
        cdef bint negative
        cdef int64_t number
        if get_int(&p, stop, &ignored, &negative) or get_int(&p, stop, &ignored, &negative):
            return BAD_FIELD
        if get_int64(&p, stop, &number) or p != stop:
            return BAD_FIELD
        self.number = number
        return END

    cdef int read_entry(self, const unsigned char *message, int64_t size, _EntryColumns columns) noexcept nogil:
        cdef const unsigned char *p = message + 4
        cdef const unsigned char *stop = message + size
        cdef const unsigned char *metadata
        cdef const unsigned char *annotation
        cdef uint64_t index, unit
        cdef int64_t created, timestamp, metadata_size, annotation_size, row, at = columns.count
        cdef double value
        cdef int reason
        if (
            get_uint(&p, stop, 0xFFFFFFFFFFFFFFFF, &index)
            or get_int64(&p, stop, &created)
            or get_bytes(&p, stop, &metadata, &metadata_size)
            or get_int64(&p, stop, &timestamp)
            or get_float(&p, stop, &value)
            or get_uint(&p, stop, 255, &unit)
            or get_bytes(&p, stop, &annotation, &annotation_size)
            or p != stop
        ):
            return BAD_FIELD
        if annotation_size and at and annotation_size > self.annotation_bytes_max - columns.annotations.size:
            return LIMIT
        row = self.rows.rows[self.rows.slot(index)]
        if metadata_size:
            reason = self.learn(index, metadata, metadata_size, &row)
            if reason != END:
                return reason
        if row < 0:
            if not self.lenient:
                return UNKNOWN_SERIES
            columns.unknown += 1
            if columns.unknown == 1:
                columns.unknown_offset = self.pending_offset
            return END
        if annotation_size and extend(&columns.annotations, annotation, annotation_size):
            return NO_MEMORY
        columns.series_at[at] = row
        columns.timestamp_at[at] = timestamp
        columns.value_at[at] = value
        columns.unit_at[at] = <unsigned char>unit
        columns.created_at[at] = created
        columns.annotated_at[at] = annotation != NULL
        columns.annotation_at[at + 1] = <int32_t>columns.annotations.size
        columns.offset_at[at] = self.pending_offset
        columns.count = at + 1
        return END

    cdef int learn(
        self, uint64_t index, const unsigned char *metadata, int64_t size, int64_t *row
    ) noexcept nogil:
        """Find the row of a series, whose metadata has mostly come before and is the same; else make a new row."""
        cdef int64_t start
        cdef int reason = check_metadata(metadata, size)
        if reason != END:
            return reason
        if row[0] >= 0:
            start = self.metadata_end(row[0] - 1)
            if self.metadata_end(row[0]) - start == size:
                if memcmp(self.metadata_bytes.data + start, metadata, size) == 0:
                    return END
        row[0] = self.series_count()
        if extend(&self.metadata_bytes, metadata, size):
            return NO_MEMORY
        if extend(&self.metadata_ends, <const unsigned char *>&self.metadata_bytes.size, sizeof(int64_t)):
            return NO_MEMORY
        return self.rows.put(index, row[0])


cdef class M3Checker:
    """Finds where a file may be cut without leaving half a message."""
    cdef readonly int64_t end
    cdef int64_t left
    cdef bint foreign

    def feed(self, buffer, scan):
        cdef _View view = _View(buffer)
        cdef array starts = scan.starts, ends = scan.ends, offsets = scan.offsets
        cdef int64_t i, count = len(starts)
        for column in (starts, ends, offsets):
            check_column(column)
            if len(column) != count:
                raise ValueError("columns of different lengths")
        cdef int64_t *start = items(starts)
        cdef int64_t *end = items(ends)
        cdef int64_t *offset = items(offsets)
        for i in range(count):
            check_range("chunk", start[i], end[i], view.size)
        with nogil:
            for i in range(count):
                self.chunk(view.data + start[i], end[i] - start[i])
                if self.foreign or not self.left:
                    self.end = offset[i] + CHUNK_HEAD_BYTES + end[i] - start[i]

    cdef void chunk(self, const unsigned char *data, int64_t size) noexcept nogil:
        cdef int64_t at = min(self.left, size), body
        cdef uint64_t length
        self.left -= at
        while at < size and not self.foreign:
            body = get_varint(data, at, size, &length)
            if body < 0 or size - body < 4 or not is_message_head(data + body):
                self.foreign = True
            elif length > <uint64_t>MESSAGE_BYTES_MAX or (<int64_t>length > size - body and at):
                self.foreign = True
            else:
                self.left = max(<int64_t>length - (size - body), 0)
                at = body + <int64_t>length
