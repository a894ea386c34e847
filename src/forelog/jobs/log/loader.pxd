# Types for the compiled form of loader.py.
cimport cython

from forelog.jobs.machine.machine cimport Machine
from forelog.jobs.machine.queue cimport Job, new_job

cdef int ADD, SCHEDULE, FAIL, DELETE, EXPIRE, TIMEOUT_ATTEMPT, _CRC_BYTES
cdef long long NOT_SCHEDULED, _TIME_MAX


@cython.locals(
    types=bytes, ids=list, names=list, payloads=list, timed=bytes, dated=bytes, rows="Py_ssize_t", kind="int",
    job_id=bytes, job=Job,
    end="long long", final=bint, scheduled_ns="long long", size="long long",
    payload_ends="long long[:]", due="long long[:]", created="long long[:]",
    ttrs="long long[:]", ttls="long long[:]", priorities="int[:]", attempts="int[:]", fails="int[:]",
)
cpdef tuple load(
    Machine machine, commands, tuple pieces, int segment, bytes data, long long[:] times, long long[:] offsets,
    long long[:] places, long long[:] ends, long long base, Py_ssize_t first, Py_ssize_t row, long long now_ns
)
cpdef bint is_foreign(bytes data, Py_ssize_t offset)
@cython.locals(
    types=bytes, ids=bytes, leaving=set, rows="Py_ssize_t", row="Py_ssize_t", kind="int",
    job_id=bytes, mask=bytearray, certain=bint, job=Job, place="long long", size="long long",
    kept_bytes="long long", other_bytes="long long",
)
cpdef tuple needed(
    Machine machine, commands, int segment, long long[:] places, long long[:] offsets, long long stop,
    Py_ssize_t first, set fresh
)
cdef bint _is_of(Job job, int segment, long long place)
