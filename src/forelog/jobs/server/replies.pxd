# Types for the compiled form of replies.py.
from forelog.jobs.machine.queue cimport Job, Queue, Waiter

cimport cython

@cython.locals(payload=bytes)
cpdef bytes lease_reply(Job job)
@cython.locals(key="long long", found=bytes)
cdef bytes _numbers(long long ttr_ms, long long size)
@cython.locals(result=bytes, reply=bytes, completed=bint, last=list)
cpdef bytes result_reply(Job job, bytes read=*)
cpdef bytes queue_lines(Queue queue)
@cython.locals(payload=bytes)
cpdef bytes inspected(Job job, bytes read=*)
cpdef bytes read_reply(Waiter waiter)
