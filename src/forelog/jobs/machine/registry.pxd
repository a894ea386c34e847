# Types for the compiled form of registry.py.
cimport cython

from forelog.jobs.machine.ledger cimport Ledger
from forelog.jobs.machine.queue cimport Queue


cdef class Registry:
    cdef public dict queues
    cdef public object names
    cdef Ledger _ledger
    cdef dict _idle

    @cython.locals(queue=Queue)
    cpdef Queue queue(self, bytes name)
    @cython.locals(idle=dict, old=Queue)
    cpdef rest(self, Queue queue)
