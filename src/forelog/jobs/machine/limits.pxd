# Types for the compiled form of limits.py.
cdef long long _TTR_MS_MAX, _TTL_MS_MAX, _PAYLOAD_BYTES_MAX
cdef set _names

cpdef refuse(bytes job_id, bytes name, long long ttr_ms, long long ttl_ms, Py_ssize_t payload_bytes)
cpdef bint is_name(bytes name) except -1
cpdef bint is_id(bytes job_id) except -1
