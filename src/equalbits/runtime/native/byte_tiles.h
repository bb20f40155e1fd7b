/* Several rows rounded to 8 bits, by binary weights as bytes 0 and 1: each byte is used for all rows.
 *
 * With weights b of 0 and 1, Σ ±q = 2 Σ b·q - Σ q, exactly. Weights lie in groups of EB_GROUP inputs: bit i of the byte
 * (filter, j) belongs to input 4 i + j of the group, so a few instructions on whole vectors make bytes of them.
 * What is behind the last input is 0, in the weights and in the rows. */
#include "core.h"

/* Round a row to q as byte_tables.h does; `deep` bytes, zeros behind the input. A row that is not finite becomes zeros,
 * with a step that is no number. */
static void round_row(const float *from, int64_t count, int64_t deep, int8_t *to, eb_bytes *head) {
    uint32_t largest = 0, total = 0;
    float bound;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, 4);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    memcpy(&bound, &largest, 4);
    const int whole = largest < 0x7f800000;
    head->step = whole ? bound / 127.0f : __builtin_nanf("");
    head->total = 0;
    if (!whole || largest == 0) {
        memset(to, 0, (size_t)deep);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float shifted = from[i] / bound * 127.0f + 12582912.0f;
        int32_t q;
        memcpy(&q, &shifted, 4);
        q -= 0x4b400000;
        total += (uint32_t)q;
        to[i] = (int8_t)q;
    }
    memset(to + count, 0, (size_t)(deep - count));
    head->total = total;
}

static void bits_to_bytes(const uint8_t *packed, int64_t groups, uint8_t *ones) {
    enum { WIDE = 4 * EB_BLOCK };
    for (int64_t group = 0; group < groups; group++, packed += WIDE)
        for (int bit = 0; bit < 8; bit++, ones += WIDE)
            for (int i = 0; i < WIDE; i++) ones[i] = packed[i] >> bit & 1;
}

#ifndef HAS_BYTES_TILE
static void bytes_tile(const int8_t *rows, int64_t apart, int64_t count, int64_t groups, const uint8_t *ones,
                       int32_t *sums) {
    for (int64_t row = 0; row < count; row++, rows += apart, sums += EB_BLOCK)
        for (int64_t quad = 0; quad < 8 * groups; quad++) {
            const int8_t *q = rows + 4 * quad;
            const uint8_t *w = ones + 4 * EB_BLOCK * quad;
            for (int lane = 0; lane < EB_BLOCK; lane++, w += 4)
                sums[lane] += w[0] * q[0] + w[1] * q[1] + w[2] * q[2] + w[3] * q[3];
        }
}
#endif
