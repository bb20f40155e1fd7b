/* Lookup tables of real inputs rounded to 8 bits, and the lookup of binary weights in plain C.
 *
 * Symmetric: with m the largest |x|, q = round(x / m · 127), an integer from -127 to 127. Four inputs have 16 sums
 *     t(w) = Σ |q_i| over the i where bit w_i is the sign of q_i,   0 to 508,
 * and Σ ±q = 2 Σ t - Σ |q|, exactly. An entry takes two bytes, t = low + 64 · high, so that four of the first and 36 of
 * the second fit a byte. A step is 16 inputs: four tables of low parts, then four of high parts. */
#include "core.h"

/* q of 16 inputs. Adding 1.5 · 2²³ rounds to the nearest integer, ties to even, in the lowest bits. */
static inline void round_bytes(const float *x, float largest, int32_t *q) {
    for (int i = 0; i < 16; i++) {
        float shifted = x[i] / largest * 127.0f + 12582912.0f;
        memcpy(q + i, &shifted, 4);
        q[i] -= 0x4b400000;
    }
}

static inline void four_tables(const int32_t *q, uint8_t *to) {
    static const int16_t set[4][16] = {{0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1},
                                       {0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1},
                                       {0, 0, 0, 0, -1, -1, -1, -1, 0, 0, 0, 0, -1, -1, -1, -1},
                                       {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1}};
    for (int group = 0; group < 4; group++, q += 4, to += 16) {
        int16_t least = 0, a = (int16_t)q[0], b = (int16_t)q[1], c = (int16_t)q[2], d = (int16_t)q[3];
        for (int i = 0; i < 4; i++) least = (int16_t)(least + (q[i] < 0 ? -q[i] : 0));
        for (int w = 0; w < 16; w++) {
            int16_t t = (int16_t)(least + (set[0][w] & a) + (set[1][w] & b) + (set[2][w] & c) + (set[3][w] & d));
            to[w] = (uint8_t)(t & 63);
            to[64 + w] = (uint8_t)(t >> 6);
        }
    }
}

/* A non-finite row has the step NaN, and so have its outputs. */
static void bytes_prepare(const float *from, int64_t count, int64_t steps, eb_bytes *head) {
    uint8_t *to = (uint8_t *)head + EB_BYTES_HEAD;
    uint32_t largest = 0, total = 0;
    float bound, x[16];
    for (int64_t i = 0; i < count; i++) { /* absolute floats are ordered as their bits */
        uint32_t bits;
        memcpy(&bits, from + i, 4);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    memcpy(&bound, &largest, 4);
    const int whole = largest < 0x7f800000;
    head->step = whole ? bound / 127.0f : __builtin_nanf("");
    if (!whole || largest == 0) {
        memset(to, 0, (size_t)(steps * EB_BYTES_STEP));
        head->total = 0;
        return;
    }
    for (int64_t step = 0; step < steps; step++, to += EB_BYTES_STEP) {
        int32_t q[16];
        const float *at = from + step * 16;
        const int64_t left = count - step * 16;
        if (left < 16) {
            memset(x, 0, sizeof x);
            if (left > 0) memcpy(x, at, (size_t)left * 4);
            at = x;
        }
        round_bytes(at, bound, q);
        for (int i = 0; i < 16; i++) total += (uint32_t)(q[i] < 0 ? -q[i] : q[i]);
        four_tables(q, to);
    }
    head->total = total;
}

#ifndef HAS_BYTES_ROW
static void bytes_row(const uint8_t *tables, const uint8_t *packed, int64_t steps, uint32_t *totals) {
    memset(totals, 0, EB_BLOCK * sizeof *totals);
    for (int64_t group = 0; group < 4 * steps; group++, packed += 16) {
        const uint8_t *low = tables + group / 4 * EB_BYTES_STEP + group % 4 * 16;
        uint32_t t[16];
        for (int w = 0; w < 16; w++) t[w] = low[w] + 64u * low[64 + w];
        for (int lane = 0; lane < 16; lane++) {
            totals[lane] += t[packed[lane] & 15];
            totals[16 + lane] += t[packed[lane] >> 4];
        }
    }
}
#endif
