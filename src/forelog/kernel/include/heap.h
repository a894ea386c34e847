/* What malloc has free in its heaps, and how the system gets it back. Of another malloc than glibc's nothing is known,
 * and nothing is done. */
#ifndef FORELOG_HEAP_H
#define FORELOG_HEAP_H

#include <stdlib.h>

#ifdef __GLIBC__

#include <malloc.h>

static size_t heap_free_bytes(void) {
#if __GLIBC_PREREQ(2, 33)
    return mallinfo2().fordblks;
#else
    return (unsigned int)mallinfo().fordblks;
#endif
}

static void heap_trim(void) { malloc_trim(0); }

#else

static size_t heap_free_bytes(void) { return 0; }
static void heap_trim(void) {}

#endif
#endif
