# What malloc keeps of freed memory. Included by _kernel.pyx.

cdef extern from "heap.h" nogil:
    size_t c_heap_free_bytes "heap_free_bytes"()
    void c_heap_trim "heap_trim"()


def heap_free_bytes():
    return c_heap_free_bytes()


def heap_trim():
    with nogil:
        c_heap_trim()
