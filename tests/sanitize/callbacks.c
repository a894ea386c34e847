/* What gcc calls at each place of a library that was compiled with -fsanitize-coverage=trace-pc,trace-cmp.
 *
 * This file is compiled into each such library, without that option. The functions are hidden, so the library
 * calls its own and not the empty ones of the sanitizers' runtime. All note what they see in one table, that of
 * the module _reached, which is loaded before them. Without it they do nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "reached.h"

#define HIDDEN __attribute__((visibility("hidden")))

extern const char __ehdr_start HIDDEN; /* where the library was loaded: places count from there */

static Reached *reached;

__attribute__((constructor)) static void find_table(void) { reached = dlsym(RTLD_DEFAULT, "forelog_reached"); }

HIDDEN void __sanitizer_cov_trace_pc(void) {
    if (reached == NULL || !reached->on) return;
    reach(reached, (uint64_t)((const char *)__builtin_return_address(0) - &__ehdr_start) + ((uint64_t)LIBRARY << 40));
}

static void compare(uint64_t left, uint64_t right, uint32_t bytes) {
    if (reached == NULL || !reached->on || left == right) return;
    Compared *compared = &reached->compared[reached->compared_count++ % REACHED_COMPARED];
    compared->left = left;
    compared->right = right;
    compared->bytes = bytes;
}

HIDDEN void __sanitizer_cov_trace_cmp1(uint8_t left, uint8_t right) { (void)left, (void)right; }
HIDDEN void __sanitizer_cov_trace_cmp2(uint16_t left, uint16_t right) { compare(left, right, 2); }
HIDDEN void __sanitizer_cov_trace_cmp4(uint32_t left, uint32_t right) { compare(left, right, 4); }
HIDDEN void __sanitizer_cov_trace_cmp8(uint64_t left, uint64_t right) { compare(left, right, 8); }
HIDDEN void __sanitizer_cov_trace_const_cmp1(uint8_t left, uint8_t right) { (void)left, (void)right; }
HIDDEN void __sanitizer_cov_trace_const_cmp2(uint16_t left, uint16_t right) { compare(left, right, 2); }
HIDDEN void __sanitizer_cov_trace_const_cmp4(uint32_t left, uint32_t right) { compare(left, right, 4); }
HIDDEN void __sanitizer_cov_trace_const_cmp8(uint64_t left, uint64_t right) { compare(left, right, 8); }
HIDDEN void __sanitizer_cov_trace_cmpf(float left, float right) { (void)left, (void)right; }
HIDDEN void __sanitizer_cov_trace_cmpd(double left, double right) { (void)left, (void)right; }
HIDDEN void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    uint64_t count = cases[0], bits = cases[1];
    for (uint64_t i = 0; i < count && i < 8; i++) compare(value, cases[2 + i], (uint32_t)bits / 8);
}
