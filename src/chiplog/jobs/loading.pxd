# Types for the compiled form of loading.py.
cimport cython

from chiplog.jobs.machine cimport Machine
from chiplog.jobs.queue cimport Job, new_job

cdef int ADD, SCHEDULE, FAIL, DELETE, EXPIRE
cdef long long NOT_SCHEDULED, _TIME_MAX


@cython.locals(
    types=bytes, ids=list, names=list, payloads=list, timed=bytes, dated=bytes, rows="Py_ssize_t", kind="int",
    job_id=bytes, job=Job,
    end="long long", final=bint, scheduled_ns="long long",
    payload_ends="long long[:]", due="long long[:]", created="long long[:]",
    ttrs="long long[:]", ttls="long long[:]", priorities="int[:]", attempts="int[:]", fails="int[:]",
)
cpdef tuple load(
    Machine machine, commands, int segment, bytes data, long long[:] times, long long[:] offsets, long long base,
    Py_ssize_t first, Py_ssize_t row, long long now_ns
)
cpdef bint is_foreign(bytes data, Py_ssize_t offset)
@cython.locals(
    types=bytes, ids=bytes, jobs=dict, leaving=set, outlived=set, rows="Py_ssize_t", row="Py_ssize_t", kind="int",
    job_id=bytes, mask=bytearray,
)
cpdef bytearray needed(Machine machine, commands, bint settled)
@cython.locals(types=bytes, ids=bytes, count="Py_ssize_t", total="double", row="Py_ssize_t", job=Job)
cpdef tuple mean_expiry(Machine machine, commands)
