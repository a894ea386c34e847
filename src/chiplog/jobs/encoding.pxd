# Types for the compiled form of encoding.py.
cimport cython


@cython.locals(out=bytearray)
cpdef bytes varint(number)
cpdef bytes time_bytes(time_ns)
cpdef bytes job_head(bytes name, ttr_ms, ttl_ms, priority, max_attempts, max_fails)
@cython.locals(kind=bytes, time=bytes)
cpdef bytes encode_job(bytes job_id, bytes head, bytes payload, long long scheduled_ns, long long created_ns)
