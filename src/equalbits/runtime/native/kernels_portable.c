/* Plain C for any machine: what the other kernels are measured against, and what runs where they cannot. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
typedef struct {
    float lane[LANES];
} vec;

#define LANE for (int j = 0; j < LANES; j++)
static inline vec v_load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
static inline void v_store(float *p, vec v) { memcpy(p, &v, sizeof v); }
static inline vec v_set(float x) { vec v; LANE v.lane[j] = x; return v; }
static inline vec v_add(vec a, vec b) { LANE a.lane[j] += b.lane[j]; return a; }
static inline vec v_mul(vec a, vec b) { LANE a.lane[j] *= b.lane[j]; return a; }
static inline vec v_min(vec a, vec b) { LANE b.lane[j] = a.lane[j] < b.lane[j] ? a.lane[j] : b.lane[j]; return b; }
static inline vec v_max(vec a, vec b) { LANE b.lane[j] = a.lane[j] > b.lane[j] ? a.lane[j] : b.lane[j]; return b; }
static inline vec v_prelu(vec a, vec s) { LANE a.lane[j] = a.lane[j] >= 0 ? a.lane[j] : a.lane[j] * s.lane[j]; return a; }
static inline vec v_sign(vec a) { LANE a.lane[j] = a.lane[j] >= 0 ? 1.0f : -1.0f; return a; }
static inline uint32_t v_bits(vec a) {
    uint32_t bits = 0;
    LANE bits |= (uint32_t)(a.lane[j] >= 0) << j;
    return bits;
}
static inline vec v_from_counts(const int32_t *constant, const int32_t *count) {
    vec v;
    LANE v.lane[j] = (float)(constant[j] - 2 * count[j]);
    return v;
}

#include "simd_chain.h"

static int supported(void) { return 1; }

static int ones(uint32_t x) {
    x -= x >> 1 & 0x55555555;
    x = (x & 0x33333333) + (x >> 2 & 0x33333333);
    return (int)(((x + (x >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24);
}

/* A word of every tap; the input as it is. */
static void bits_layout(eb_step *step) {
    const int64_t *field = step->field, words = step->words, columns = step->padded_columns;
    step->singles = field[EB_KERNEL_H] * field[EB_KERNEL_W] * words;
    step->block_bytes = step->singles * EB_BLOCK * 4 * (field[EB_KEPT] < 0 ? 1 : 2);
    step->prepared_bytes = step->padded_rows * words * columns * 4;
    step->offsets = calloc((size_t)step->singles, sizeof *step->offsets);
    for (int64_t i = 0; step->offsets && i < step->singles; i++) {
        int64_t tap = i / words, row = tap / field[EB_KERNEL_W], column = tap % field[EB_KERNEL_W];
        step->offsets[i] = (int32_t)((row * field[EB_DILATION_H] * words + i % words) * columns +
                                     column * field[EB_DILATION_W]);
    }
}

static void bits_pack(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed) {
    uint32_t *to = packed;
    for (int64_t i = 0; i < step->singles; i++) {
        for (int64_t lane = 0; lane < EB_BLOCK; lane++) *to++ = sign[lane * step->singles + i];
        for (int64_t lane = 0; kept && lane < EB_BLOCK; lane++) *to++ = kept[lane * step->singles + i];
    }
}

static void bits_prepare(const eb_step *step, const uint32_t *planes, void *prepared) {
    memcpy(prepared, planes, (size_t)(step->field[EB_GROUPS] * step->prepared_bytes));
}

static void bits_tile(const eb_step *step, const void *prepared, const void *packed, const eb_place *place,
                      int32_t *counts) {
    const uint32_t *input = (const uint32_t *)prepared +
                            place->row * step->field[EB_STRIDE_H] * step->words * step->padded_columns;
    const int pruned = step->field[EB_KEPT] >= 0;
    for (int pixel = 0; pixel < place->pixels; pixel++) {
        const uint32_t *from = input + (place->column + pixel) * step->field[EB_STRIDE_W], *weight = packed;
        int32_t *count = counts + pixel * EB_BLOCK;
        memset(count, 0, EB_BLOCK * sizeof *count);
        for (int64_t i = 0; i < step->singles; i++) {
            const uint32_t word = from[step->offsets[i]];
            for (int lane = 0; lane < EB_BLOCK; lane++)
                count[lane] += ones((word ^ weight[lane]) & (pruned ? weight[EB_BLOCK + lane] : UINT32_MAX));
            weight += pruned ? 2 * EB_BLOCK : EB_BLOCK;
        }
    }
}

static void real_tile(const eb_step *step, const float *input, const float *packed, const eb_place *place, float *sums) {
    for (int pixel = 0; pixel < place->pixels; pixel++) {
        const float *from = input + pixel * step->field[EB_STRIDE_W] * step->in.channels, *weight = packed;
        vec v[VECS];
        EACH v[i] = v_set(0);
        for (int64_t run = 0; run < step->runs; run++)
            for (int64_t j = 0; j < step->run_length; j++, weight += EB_BLOCK)
                EACH v[i] = v_add(v[i], v_mul(v_load(weight + i * LANES), v_set(from[step->offsets[run] + j])));
        EACH v_store(sums + pixel * EB_BLOCK + i * LANES, v[i]);
    }
}

const eb_kernels eb_kernels_portable = {
    .name = "portable",
    .supported = supported,
    .bits_layout = bits_layout,
    .bits_pack = bits_pack,
    .bits_prepare = bits_prepare,
    .bits_tile = bits_tile,
    .bits_pixels = EB_TILE,
    .real_tile = real_tile,
    .depthwise_tile = depthwise_tile,
    .real_pixels = EB_TILE,
    .chain_counts = chain_counts,
    .chain_reals = chain_reals,
};
