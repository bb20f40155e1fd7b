/* Plain C for any machine: the reference of the other kernels, and the fallback. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
#define ONE_CHAIN
typedef struct {
    float lane[LANES];
} vec;

#define LANE for (int j = 0; j < LANES; j++)
static inline vec v_load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
static inline void v_store(float *p, vec v) { memcpy(p, &v, sizeof v); }
static inline vec v_set(float x) { vec v; LANE v.lane[j] = x; return v; }
static inline vec v_add(vec a, vec b) { LANE a.lane[j] += b.lane[j]; return a; }
static inline vec v_mul(vec a, vec b) { LANE a.lane[j] *= b.lane[j]; return a; }
static inline vec v_fma(vec a, vec b, vec c) { return v_add(v_mul(a, b), c); }
static inline vec v_div(vec a, vec b) { LANE a.lane[j] /= b.lane[j]; return a; }
static inline vec v_min(vec a, vec b) { LANE b.lane[j] = a.lane[j] < b.lane[j] ? a.lane[j] : b.lane[j]; return b; }
static inline vec v_max(vec a, vec b) { LANE b.lane[j] = a.lane[j] > b.lane[j] ? a.lane[j] : b.lane[j]; return b; }
static inline vec v_largest(vec a, vec b) {
    b = v_max(a, b);
    LANE b.lane[j] = a.lane[j] != a.lane[j] ? a.lane[j] : b.lane[j];
    return b;
}
static inline vec v_prelu(vec a, vec s) { LANE a.lane[j] = a.lane[j] >= 0 ? a.lane[j] : a.lane[j] * s.lane[j]; return a; }
static inline vec v_sign(vec a) { LANE a.lane[j] = a.lane[j] >= 0 ? 1.0f : -1.0f; return a; }
static inline uint32_t v_bits(vec a) {
    uint32_t bits = 0;
    LANE bits |= (uint32_t)(a.lane[j] >= 0) << j;
    return bits;
}
/* With integers: a branch on random bits is mispredicted half the time. */
static inline vec v_flip(vec a, uint32_t bits, int first) {
    uint32_t whole[LANES];
    memcpy(whole, &a, sizeof a);
    LANE whole[j] ^= (bits >> (first + j) & 1) << 31;
    memcpy(&a, whole, sizeof a);
    return a;
}
static inline vec v_keep(vec a, uint32_t bits, int first) {
    uint32_t whole[LANES];
    memcpy(whole, &a, sizeof a);
    LANE whole[j] &= 0u - (bits >> (first + j) & 1);
    memcpy(&a, whole, sizeof a);
    return a;
}
static inline vec v_even(vec a, vec b) {
    vec even;
    LANE even.lane[j] = j < LANES / 2 ? a.lane[2 * j] : b.lane[2 * j - LANES];
    return even;
}
static inline vec v_odd(vec a, vec b) {
    vec odd;
    LANE odd.lane[j] = j < LANES / 2 ? a.lane[2 * j + 1] : b.lane[2 * j + 1 - LANES];
    return odd;
}
static inline vec v_from_counts(const int32_t *constant, const int32_t *count) {
    vec v;
    LANE v.lane[j] = (float)(constant[j] - 2 * count[j]);
    return v;
}

#include "plain_bits.h"
#include "simd.h"
#include "byte_tables.h"
#include "byte_tiles.h"

static int supported(void) { return 1; }

static int ones(uint32_t x) {
    x -= x >> 1 & 0x55555555;
    x = (x & 0x33333333) + (x >> 2 & 0x33333333);
    return (int)(((x + (x >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24);
}

static void bits_row(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts) {
    const uint32_t *from = prepared;
    const int pruned = step->field[EB_KEPT] >= 0;
    const int64_t turns = eb_turns(step->singles);
    from += row * step->field[EB_STRIDE_H] * step->words * step->padded_columns;
    for (int64_t x = 0; x < step->conv_columns; x++, from += step->field[EB_STRIDE_W], counts += EB_BLOCK) {
        const uint32_t *weight = packed;
        if ((x + 1) % turns == 0 && eb_stopped(step)) return;
        memset(counts, 0, EB_BLOCK * sizeof *counts);
        for (int64_t i = 0; i < step->singles; i++, weight += pruned ? 2 * EB_BLOCK : EB_BLOCK) {
            const uint32_t word = from[step->offsets[i]];
            for (int lane = 0; lane < EB_BLOCK; lane++)
                counts[lane] += ones((word ^ weight[lane]) & (pruned ? weight[EB_BLOCK + lane] : UINT32_MAX));
        }
    }
}

static void real_row(const int32_t *offsets, int64_t count, const float *input, int64_t apart, const float *packed,
                     int64_t pixels, float *sums) {
    for (int64_t pixel = 0; pixel < pixels; pixel++, input += apart, sums += EB_BLOCK) {
        vec v[VECS];
        EACH v[i] = v_set(0);
        for (int64_t k = 0; k < count; k++)
            EACH v[i] = v_add(v[i], v_mul(v_load(packed + k * EB_BLOCK + i * LANES), v_set(input[offsets[k]])));
        EACH v_store(sums + i * LANES, v[i]);
    }
}

const eb_kernels eb_kernels_portable = {.name = "portable", EVERY_KERNEL};
