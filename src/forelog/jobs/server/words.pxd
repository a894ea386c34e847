# Types for the compiled form of words.py.
cimport cython

from forelog.jobs.machine.limits cimport is_id, is_name

cdef int _ZERO, _NINE
cdef long long _WAIT_MS_MAX, ATTEMPTS_MAX, PAYLOAD_BYTES_MAX, TTL_MS_MAX, TTR_MS_MAX


@cython.locals(job_id=bytes)
cpdef bytes parse_id(bytes text)
cpdef tuple split_flags(list words)
@cython.locals(value="long long", digit="unsigned char")
cpdef long long number(bytes word) except? -2
@cython.locals(size="long long")
cpdef long long payload_size(bytes word) except? -2
cpdef bint is_signed(bytes word) except -1
cpdef bytes refuse_job(bytes job_id, bytes name, long long ttr_ms, long long ttl_ms, dict flags)
cpdef bytes refuse_flags(dict flags)
cpdef bytes refuse_run(bytes job_id, bytes name, long long ttr_ms, long long wait_ms, dict flags)
cpdef bytes refuse_wait(list names, long long wait_ms)
