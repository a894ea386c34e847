/* CRC-32C (Castagnoli), as fast as the processor allows.
 *
 * Three ways to the same number: the crc32 instruction of x86-64 (SSE 4.2), that of ARMv8, and
 * slicing-by-8 tables where there is neither. Which one runs is decided once, by crc32c_init().
 *
 * The instruction takes three cycles but can start every cycle, so a long buffer is walked in three
 * lanes at once and the lanes are joined by a table that advances a CRC over LANE_BYTES zero bytes.
 * Short buffers (a log record) take one lane: consecutive records overlap in the pipeline by themselves.
 */
#ifndef FORELOG_CRC32C_H
#define FORELOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#include <nmmintrin.h>
#define CRC32C_HARDWARE 1
#if defined(__clang__) && __clang_major__ >= 14 /* here the instruction is a feature of its own */
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC32C_STEP8(crc, word) _mm_crc32_u64((crc), (word))
#define CRC32C_STEP4(crc, word) _mm_crc32_u32((uint32_t)(crc), (word))
#define CRC32C_STEP1(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_HARDWARE 1
#define CRC32C_TARGET
#define CRC32C_STEP8(crc, word) __crc32cd((uint32_t)(crc), (word))
#define CRC32C_STEP4(crc, word) __crc32cw((uint32_t)(crc), (word))
#define CRC32C_STEP1(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#endif

#define CRC32C_POLYNOMIAL 0x82f63b78u /* reflected 0x1edc6f41 */
#define CRC32C_LANE_BYTES 1024

static uint32_t crc32c_slices[8][256];
static uint32_t crc32c_zeros[4][256]; /* advances a CRC over CRC32C_LANE_BYTES zero bytes */
static int crc32c_has_hardware = 0;

static inline uint64_t crc32c_load8(const unsigned char *p) {
    uint64_t word;
    memcpy(&word, p, 8); /* records start at any address; memcpy is the aligned-or-not load */
    return word;
}

static uint32_t crc32c_portable(uint32_t crc, const unsigned char *p, size_t n) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (n >= 8) {
        uint64_t word = crc32c_load8(p) ^ crc;
        crc = crc32c_slices[7][word & 0xff] ^ crc32c_slices[6][(word >> 8) & 0xff] ^
              crc32c_slices[5][(word >> 16) & 0xff] ^ crc32c_slices[4][(word >> 24) & 0xff] ^
              crc32c_slices[3][(word >> 32) & 0xff] ^ crc32c_slices[2][(word >> 40) & 0xff] ^
              crc32c_slices[1][(word >> 48) & 0xff] ^ crc32c_slices[0][word >> 56];
        p += 8;
        n -= 8;
    }
#endif
    while (n--) crc = crc32c_slices[0][(crc ^ *p++) & 0xff] ^ (crc >> 8);
    return crc;
}

#ifdef CRC32C_HARDWARE
static inline uint64_t crc32c_advance(uint64_t crc) {
    return crc32c_zeros[0][crc & 0xff] ^ crc32c_zeros[1][(crc >> 8) & 0xff] ^
           crc32c_zeros[2][(crc >> 16) & 0xff] ^ crc32c_zeros[3][(crc >> 24) & 0xff];
}

CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t start, const unsigned char *p, size_t n) {
    uint64_t crc = start;
    while (n >= 3 * CRC32C_LANE_BYTES) {
        uint64_t lane1 = 0, lane2 = 0;
        for (size_t i = 0; i < CRC32C_LANE_BYTES; i += 8) {
            crc = CRC32C_STEP8(crc, crc32c_load8(p + i));
            lane1 = CRC32C_STEP8(lane1, crc32c_load8(p + CRC32C_LANE_BYTES + i));
            lane2 = CRC32C_STEP8(lane2, crc32c_load8(p + 2 * CRC32C_LANE_BYTES + i));
        }
        crc = crc32c_advance(crc) ^ lane1;
        crc = crc32c_advance(crc) ^ lane2;
        p += 3 * CRC32C_LANE_BYTES;
        n -= 3 * CRC32C_LANE_BYTES;
    }
    for (; n >= 8; p += 8, n -= 8) crc = CRC32C_STEP8(crc, crc32c_load8(p));
    if (n >= 4) {
        uint32_t word;
        memcpy(&word, p, 4);
        crc = CRC32C_STEP4(crc, word);
        p += 4;
        n -= 4;
    }
    for (; n; p++, n--) crc = CRC32C_STEP1(crc, *p);
    return (uint32_t)crc;
}
#endif

#ifdef CRC32C_HARDWARE
/* Three of one length at once: each step waits for the one before it, so three chains take hardly longer than one. */
CRC32C_TARGET static void crc32c_hardware3(uint32_t start, const unsigned char *const p[3], size_t n, uint32_t out[3]) {
    uint64_t a = start, b = start, c = start;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        a = CRC32C_STEP8(a, crc32c_load8(p[0] + i));
        b = CRC32C_STEP8(b, crc32c_load8(p[1] + i));
        c = CRC32C_STEP8(c, crc32c_load8(p[2] + i));
    }
    if (i + 4 <= n) {
        uint32_t word[3];
        for (int lane = 0; lane < 3; lane++) memcpy(&word[lane], p[lane] + i, 4);
        a = CRC32C_STEP4(a, word[0]);
        b = CRC32C_STEP4(b, word[1]);
        c = CRC32C_STEP4(c, word[2]);
        i += 4;
    }
    for (; i < n; i++) {
        a = CRC32C_STEP1(a, p[0][i]);
        b = CRC32C_STEP1(b, p[1][i]);
        c = CRC32C_STEP1(c, p[2][i]);
    }
    out[0] = (uint32_t)a;
    out[1] = (uint32_t)b;
    out[2] = (uint32_t)c;
}
#endif

static void crc32c_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_slices[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = crc32c_slices[slice - 1][byte];
            crc32c_slices[slice][byte] = crc32c_slices[0][before & 0xff] ^ (before >> 8);
        }
    static const unsigned char zeros[CRC32C_LANE_BYTES];
    for (int slice = 0; slice < 4; slice++)
        for (uint32_t byte = 0; byte < 256; byte++)
            crc32c_zeros[slice][byte] = crc32c_portable(byte << (8 * slice), zeros, CRC32C_LANE_BYTES);
#if defined(CRC32C_HARDWARE) && defined(__x86_64__)
    /* Not by __builtin_cpu_supports(): it needs a library of gcc's that other compilers come without. */
    unsigned int a, b, c, d;
    crc32c_has_hardware = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
#elif defined(CRC32C_HARDWARE)
    crc32c_has_hardware = 1;
#endif
}

/* `crc` and the result are finished values: start with 0, feed the result back in to go on. */
static inline uint32_t crc32c_update(uint32_t crc, const unsigned char *p, size_t n) {
#ifdef CRC32C_HARDWARE
    if (crc32c_has_hardware) return ~crc32c_hardware(~crc, p, n);
#endif
    return ~crc32c_portable(~crc, p, n);
}

/* Three payloads of one length, which continue from the same bytes. */
static inline void crc32c_update3(uint32_t crc, const unsigned char *const p[3], size_t n, uint32_t out[3]) {
#ifdef CRC32C_HARDWARE
    if (crc32c_has_hardware) {
        crc32c_hardware3(~crc, p, n, out);
        for (int lane = 0; lane < 3; lane++) out[lane] = ~out[lane];
        return;
    }
#endif
    for (int lane = 0; lane < 3; lane++) out[lane] = crc32c_update(crc, p[lane], n);
}

static inline uint32_t crc32c_update_portable(uint32_t crc, const unsigned char *p, size_t n) {
    return ~crc32c_portable(~crc, p, n);
}

#endif
