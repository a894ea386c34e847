# Commands of a job server to columns. Included by _kernel.pyx.

cdef enum:
    ID_BYTES = 16
    UUID_CHARS = 36
    ADD = 1
    SCHEDULE = 2
    FAIL = 4
    TIMEOUT_ATTEMPT = 8
    EMPTY = 1
    BAD_TYPE = 2
    SHORT = 3
    BAD_NUMBER = 4
    BAD_RANGE = 5
    BAD_JOB_TIME = 6
    TRAILING = 7

cdef const char *HEX_DIGITS = b"0123456789abcdef"
cdef int64_t SECOND_NS = 1000000000


cdef struct Moment:
    int64_t seconds
    uint32_t nanos


cdef struct Command:
    # One command; bounds are those in the buffer, 0 where there is none.
    int64_t name_start, name_end, ttr_ms, ttl_ms, payload_start, payload_end, result_start, result_end
    int32_t priority, max_attempts, max_fails
    Moment time, created


cdef inline int get_number(
    const unsigned char *buf, int64_t *at, int64_t stop, uint64_t most, uint64_t *number
) noexcept nogil:
    cdef int64_t place
    if at[0] < stop and buf[at[0]] < 0x80:
        number[0] = buf[at[0]]
        at[0] += 1
        return 0
    place = get_varint(buf, at[0], stop, number)
    if place < 0:
        return SHORT if place == -1 else BAD_NUMBER
    if number[0] > most:
        return BAD_RANGE
    at[0] = place
    return 0


cdef inline int get_bounds(
    const unsigned char *buf, int64_t *at, int64_t stop, int64_t *start, int64_t *end
) noexcept nogil:
    cdef uint64_t length = 0
    cdef int error = get_number(buf, at, stop, 0xFFFFFFFFFFFFFFFF, &length)
    if error:
        return error
    if length > <uint64_t>(stop - at[0]):
        return SHORT
    start[0] = at[0]
    at[0] += <int64_t>length
    end[0] = at[0]
    return 0


cdef inline int get_moment(const unsigned char *buf, int64_t *at, int64_t stop, Moment *moment) noexcept nogil:
    if stop - at[0] < TIME_BYTES:
        return SHORT
    moment.seconds = <int64_t>load_u64(buf + at[0] + 1)
    moment.nanos = load_u32(buf + at[0] + 9)
    if buf[at[0]] != 1 or moment.nanos >= 1000000000:
        return BAD_JOB_TIME
    at[0] += TIME_BYTES
    return 0


cdef inline int get_job(const unsigned char *buf, int64_t *at, int64_t stop, Command *job) noexcept nogil:
    cdef uint64_t ttr = 0, ttl = 0, zigzag = 0, attempts = 0, fails = 0
    cdef int error = get_bounds(buf, at, stop, &job.name_start, &job.name_end)
    if not error:
        error = get_number(buf, at, stop, 0xFFFFFFFF, &ttr)
    if not error:
        error = get_number(buf, at, stop, 0x7FFFFFFFFFFFFFFF, &ttl)
    if not error:
        error = get_number(buf, at, stop, 0xFFFFFFFF, &zigzag)
    if not error:
        error = get_number(buf, at, stop, 255, &attempts)
    if not error:
        error = get_number(buf, at, stop, 255, &fails)
    if not error:
        error = get_bounds(buf, at, stop, &job.payload_start, &job.payload_end)
    if not error:
        error = get_moment(buf, at, stop, &job.time)
    if not error:
        error = get_moment(buf, at, stop, &job.created)
    if error:
        return error
    job.ttr_ms = <int64_t>ttr
    job.ttl_ms = <int64_t>ttl
    job.priority = <int32_t>(<int64_t>(zigzag >> 1) ^ -<int64_t>(zigzag & 1))
    job.max_attempts = <int32_t>attempts
    job.max_fails = <int32_t>fails
    return 0


cdef inline int get_command(const unsigned char *buf, int64_t start, int64_t stop, Command *command) noexcept nogil:
    """Read a command. Returns 0, or why it can't be read; then `command` is half filled."""
    cdef int64_t at = start + 1 + ID_BYTES
    cdef int error = 0
    memset(command, 0, sizeof(Command))
    if start == stop:
        return EMPTY
    if not ADD <= buf[start] <= TIMEOUT_ATTEMPT:
        return BAD_TYPE
    if at > stop:
        return SHORT
    if buf[start] <= SCHEDULE:
        error = get_job(buf, &at, stop, command)
    elif buf[start] <= FAIL and at < stop:
        error = get_bounds(buf, &at, stop, &command.result_start, &command.result_end)
    if error:
        return error
    return TRAILING if at != stop else 0


cdef inline void set_bit(unsigned char *bitmap, int64_t row) noexcept nogil:
    bitmap[row >> 3] |= <unsigned char>(1 << (row & 7))


cdef inline unsigned char *writable(bytes column) noexcept:
    """The memory of new bytes, which nothing else has a reference to yet."""
    return <unsigned char *>PyBytes_AS_STRING(column)


cdef bytes zeros(Py_ssize_t size):
    cdef bytes column = PyBytes_FromStringAndSize(NULL, size)
    memset(PyBytes_AS_STRING(column), 0, size)
    return column


cdef class _CommandColumns:
    """The columns while they are filled."""
    cdef bytes types, errors, ids, known, jobs, resulted, timed, dated
    cdef list wide, narrow
    cdef unsigned char *type_at
    cdef unsigned char *error_at
    cdef unsigned char *id_at
    cdef unsigned char *known_at
    cdef unsigned char *jobs_at
    cdef unsigned char *resulted_at
    cdef unsigned char *timed_at
    cdef unsigned char *dated_at
    cdef int64_t *wide_at[10]
    cdef int32_t *narrow_at[3]
    cdef int64_t ticks, nanos_per_tick, reach

    def __cinit__(self, Py_ssize_t rows, int64_t ticks):
        cdef Py_ssize_t i
        self.ticks, self.nanos_per_tick, self.reach = ticks, SECOND_NS // ticks, INT64_MAX // ticks - 1
        self.types, self.errors, self.ids = zeros(rows), zeros(rows), zeros(ID_BYTES * rows)
        self.known, self.jobs = zeros((rows + 7) // 8), zeros((rows + 7) // 8)
        self.resulted = zeros((rows + 7) // 8)
        self.timed, self.dated = zeros((rows + 7) // 8), zeros((rows + 7) // 8)
        self.wide = [new_column(rows) for i in range(10)]
        self.narrow = [clone(_int32_template, rows, False) for i in range(3)]
        self.type_at, self.error_at = writable(self.types), writable(self.errors)
        self.id_at, self.known_at, self.jobs_at = writable(self.ids), writable(self.known), writable(self.jobs)
        self.resulted_at, self.timed_at = writable(self.resulted), writable(self.timed)
        self.dated_at = writable(self.dated)
        for i in range(10):
            self.wide_at[i] = items(<array>self.wide[i])
        for i in range(3):
            self.narrow_at[i] = <int32_t *>(<array>self.narrow[i]).data.as_ints

    cdef inline int64_t tick(self, Moment moment, unsigned char *bitmap, int64_t row) noexcept nogil:
        """Ticks since 1970, and set the row's bit. 0 and no bit for the zero time, and for one that doesn't fit."""
        cdef int64_t unix
        if moment.seconds == 0 and moment.nanos == 0 or moment.seconds < INT64_MIN + UNIX_EPOCH_SECONDS:
            return 0
        unix = moment.seconds - UNIX_EPOCH_SECONDS
        if unix < -self.reach or unix > self.reach:
            return 0
        set_bit(bitmap, row)
        return unix * self.ticks + <int64_t>moment.nanos // self.nanos_per_tick

    cdef inline void put(self, int64_t row, int kind, const unsigned char *job_id, Command *command) noexcept nogil:
        self.type_at[row] = <unsigned char>kind
        if kind:
            memcpy(self.id_at + ID_BYTES * row, job_id, ID_BYTES)
            set_bit(self.known_at, row)
            if kind <= SCHEDULE:
                set_bit(self.jobs_at, row)
            if command.result_start:
                set_bit(self.resulted_at, row)
        self.wide_at[0][row] = command.name_start
        self.wide_at[1][row] = command.name_end
        self.wide_at[2][row] = command.ttr_ms
        self.wide_at[3][row] = command.ttl_ms
        self.wide_at[4][row] = command.payload_start
        self.wide_at[5][row] = command.payload_end
        self.wide_at[6][row] = command.result_start
        self.wide_at[7][row] = command.result_end
        self.wide_at[8][row] = self.tick(command.time, self.timed_at, row)
        self.wide_at[9][row] = self.tick(command.created, self.dated_at, row)
        self.narrow_at[0][row] = command.priority
        self.narrow_at[1][row] = command.max_attempts
        self.narrow_at[2][row] = command.max_fails

    cdef object commands(self):
        return Commands(
            self.types, self.errors, self.ids, *self.wide[:4], *self.narrow, *self.wide[4:],
            self.known, self.jobs, self.resulted, self.timed, self.dated,
        )


def commands_decode(
    buffer, array starts, array ends, Py_ssize_t first, Py_ssize_t last, int64_t ticks_per_second=1000000000
):
    cdef _View view = _View(buffer)
    cdef Py_ssize_t rows = min(len(starts), len(ends)), i
    cdef int64_t outside = -1
    cdef int error
    cdef Command command
    check_column(starts)
    check_column(ends)
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    if ticks_per_second < 1 or SECOND_NS % ticks_per_second:
        raise ValueError(f"{ticks_per_second} ticks per second: expected a divisor of 1,000,000,000")
    cdef int64_t *start = items(starts)
    cdef int64_t *end = items(ends)
    cdef _CommandColumns columns = _CommandColumns(last - first, ticks_per_second)
    with nogil:
        for i in range(first, last):
            if start[i] < 0 or end[i] < start[i] or end[i] > view.size:
                outside = i
                break
            error = get_command(view.data, start[i], end[i], &command)
            if error:
                columns.error_at[i - first] = <unsigned char>error
                memset(&command, 0, sizeof(Command))
                columns.put(i - first, 0, NULL, &command)
            else:
                columns.put(i - first, view.data[start[i]], view.data + start[i] + 1, &command)
    if outside >= 0:
        raise ValueError(f"range {outside} lies outside of its buffer")
    return columns.commands()


def uuid_texts(ids):
    cdef _View view = _View(ids)
    cdef Py_ssize_t count = view.size // ID_BYTES, row
    cdef int i
    if view.size % ID_BYTES:
        raise ValueError(f"{view.size} bytes are no ids of {ID_BYTES}")
    if UUID_CHARS * count > 0x7FFFFFFF:
        raise ValueError(f"{count} ids are more than one column of texts can hold")
    cdef bytes texts = PyBytes_FromStringAndSize(NULL, UUID_CHARS * count)
    cdef array offsets = clone(_int32_template, count + 1, False)
    cdef int32_t *place = <int32_t *>offsets.data.as_ints
    cdef const unsigned char *source = view.data
    cdef unsigned char *out = writable(texts)
    with nogil:
        for row in range(count):
            place[row] = <int32_t>(UUID_CHARS * row)
            for i in range(ID_BYTES):
                if i == 4 or i == 6 or i == 8 or i == 10:
                    out[0] = c"-"
                    out += 1
                out[0] = HEX_DIGITS[source[0] >> 4]
                out[1] = HEX_DIGITS[source[0] & 15]
                out += 2
                source += 1
        place[count] = <int32_t>(UUID_CHARS * count)
    return offsets, texts
