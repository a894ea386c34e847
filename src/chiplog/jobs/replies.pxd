# Types for the compiled form of replies.py.
from chiplog.jobs.queue cimport Job, Queue

cpdef bytes lease_reply(Job job)
cpdef bytes result_reply(Job job)
cpdef bytes queue_lines(Queue queue)
cpdef bytes inspected(Job job)
