/* What an input has reached, as the compiled code notes it and the search reads it.
 *
 * An edge is a pair of places that ran one after the other, hashed into a table of counters. The values that were
 * compared are kept too: if the input has one of two that differ, the next input may have the other.
 */
#ifndef FORELOG_REACHED_H
#define FORELOG_REACHED_H

#include <stdint.h>

#define REACHED_EDGES (1u << 18)
#define REACHED_COMPARED 256

typedef struct {
    uint64_t left, right;
    uint32_t bytes;
} Compared;

typedef struct {
    int on;
    uint32_t before;          /* the place that ran last */
    uint32_t touched_count;
    uint32_t compared_count;  /* of all; the last REACHED_COMPARED are kept */
    uint32_t touched[REACHED_EDGES];
    uint8_t counts[REACHED_EDGES];
    Compared compared[REACHED_COMPARED];
} Reached;

static inline void reach(Reached *reached, uint64_t place) {
    uint32_t hashed = (uint32_t)((place * 0x9E3779B97F4A7C15u) >> 32);
    uint32_t edge = (hashed ^ reached->before) & (REACHED_EDGES - 1);
    reached->before = hashed >> 1;
    if (!reached->counts[edge]) reached->touched[reached->touched_count++] = edge;
    if (reached->counts[edge] != 255) reached->counts[edge]++;
}

#endif
