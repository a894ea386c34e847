/* Adler-32, as zlib has it, with the two sums kept in lanes that compilers turn into vectors.
 *
 * Of a run of bytes p[0..n), the first sum grows by their sum, and the second by n times the first one
 * before it plus (n - i) * p[i]. In groups of LANES bytes, `sum` counts each lane's bytes and `sums` how
 * much of that lies in earlier groups, so that inside of the loop lanes never meet and nothing is divided.
 */

#ifndef FORELOG_ADLER32_H
#define FORELOG_ADLER32_H

#include <stddef.h>
#include <stdint.h>

#define ADLER_BASE 65521u
#define ADLER_LANES 32
#define ADLER_GROUPS 256 /* 256 * 255 still fits into 16 bits */

static uint32_t adler32_update(uint32_t adler, const unsigned char *p, size_t n) {
    uint64_t a = adler & 0xFFFF, b = adler >> 16;
    while (n >= ADLER_LANES) {
        uint16_t sum[ADLER_LANES] = {0};
        uint32_t sums[ADLER_LANES] = {0};
        size_t groups = n / ADLER_LANES, g;
        int lane;
        if (groups > ADLER_GROUPS) groups = ADLER_GROUPS;
        for (g = 0; g < groups; g++, p += ADLER_LANES) {
            for (lane = 0; lane < ADLER_LANES; lane++) sums[lane] += sum[lane];
            for (lane = 0; lane < ADLER_LANES; lane++) sum[lane] = (uint16_t)(sum[lane] + p[lane]);
        }
        b += a * groups * ADLER_LANES;
        for (lane = 0; lane < ADLER_LANES; lane++) {
            a += sum[lane];
            b += (uint64_t)ADLER_LANES * sums[lane] + (uint64_t)(ADLER_LANES - lane) * sum[lane];
        }
        a %= ADLER_BASE;
        b %= ADLER_BASE;
        n -= groups * ADLER_LANES;
    }
    while (n--) {
        a += *p++;
        b += a;
    }
    return (uint32_t)(b % ADLER_BASE) << 16 | (uint32_t)(a % ADLER_BASE);
}

#endif
