# Sockets that are read together, and written to without a wait. Included by _kernel.pyx.
#
# All of it holds the interpreter's lock: none of these calls waits, and to give the lock up costs more than a tenth
# of each.

cdef extern from "sys/socket.h" nogil:
    int MSG_DONTWAIT
    ssize_t send(int descriptor, const void *data, size_t size, int flags)
    ssize_t recv(int descriptor, void *data, size_t size, int flags)

cdef extern from "unistd.h" nogil:
    int close_descriptor "close"(int descriptor)

cdef extern from "readiness.h" nogil:
    enum: READINESS_MAX
    int readiness_open()
    int readiness_add(int ready, int descriptor)
    int readiness_remove(int ready, int descriptor)
    int readiness_look(int ready, int *descriptors)

cdef enum:
    READ_BYTES_MAX = 1 << 16


def socket_send(int descriptor, bytes data not None):
    return send(descriptor, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT)


cdef class SocketSet:
    cdef int _ready
    cdef dict _owners
    cdef unsigned char _data[READ_BYTES_MAX]

    def __cinit__(self):
        self._owners = {}
        self._ready = readiness_open()
        if self._ready < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._ready >= 0:
            close_descriptor(self._ready)

    def __len__(self):
        return len(self._owners)

    def fileno(self):
        return self._ready

    def add(self, int descriptor, owner):
        if readiness_add(self._ready, descriptor) < 0:
            PyErr_SetFromErrno(OSError)
        self._owners[descriptor] = owner

    def remove(self, int descriptor):
        if self._owners.pop(descriptor, None) is not None and readiness_remove(self._ready, descriptor) < 0:
            PyErr_SetFromErrno(OSError)

    def forget(self, int descriptor, owner):
        if self._owners.get(descriptor) is owner:
            del self._owners[descriptor]

    def read(self):
        cdef int ready[READINESS_MAX]
        cdef int descriptor, count = readiness_look(self._ready, ready)
        cdef ssize_t size
        cdef list found = []
        if count < 0 and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        for i in range(count):
            descriptor = ready[i]
            owner = self._owners.get(descriptor)
            if owner is None:
                continue
            size = recv(descriptor, self._data, READ_BYTES_MAX, MSG_DONTWAIT)
            if size >= 0:
                found.append((owner, PyBytes_FromStringAndSize(<char *> self._data, size)))
            elif errno != EAGAIN and errno != EINTR:
                found.append((owner, None))
        return found

    def close(self):
        self._owners.clear()
        if self._ready >= 0:
            close_descriptor(self._ready)
            self._ready = -1
