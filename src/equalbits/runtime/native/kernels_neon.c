/* NEON, on every 64-bit Arm: a lane of 32 bits is a filter, and bytes count their own bits. */
#include <arm_neon.h>
#include <stdint.h>

#define LANES 4
typedef float32x4_t vec;
#define v_load vld1q_f32
#define v_store vst1q_f32
#define v_set vdupq_n_f32
#define v_add vaddq_f32
#define v_mul vmulq_f32
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_div vdivq_f32
#define v_min(a, b) vbslq_f32(vcltq_f32(a, b), a, b) /* both give their second operand where one is not a number */
#define v_max(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define v_at_least_0(v) vcgeq_f32(v, vdupq_n_f32(0))
#define v_sign(v) vbslq_f32(v_at_least_0(v), vdupq_n_f32(1), vdupq_n_f32(-1))
#define v_prelu(v, slope) vbslq_f32(v_at_least_0(v), v, vmulq_f32(v, slope))

static inline uint32_t v_bits(vec v) {
    const uint32x4_t places = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(v_at_least_0(v), places));
}

/* All ones in the lanes whose bits are 1. */
static inline uint32x4_t v_where(uint32_t bits, int first) {
    const uint32x4_t places = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits >> first), places);
}
#define v_flip(v, bits, first) vbslq_f32(v_where(bits, first), vnegq_f32(v), v)
#define v_keep(v, bits, first) vbslq_f32(v_where(bits, first), v, vdupq_n_f32(0))

#define v_even vuzp1q_f32
#define v_odd vuzp2q_f32

static inline vec v_from_counts(const int32_t *constant, const int32_t *count) {
    return vcvtq_f32_s32(vsubq_s32(vld1q_s32(constant), vshlq_n_s32(vld1q_s32(count), 1)));
}

#include "plain_bits.h"
#include "simd.h"
#include "byte_tables.h"

enum { SUM_TILE = 3, WORDS = 31 /* that a byte can count the bits of */ };

#define EACH_PIXEL EB_UNROLL(3) for (int p = 0; p < pixels; p++)

static int supported(void) { return 1; }

static void bits_row(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts) {
    const uint32_t *from = prepared;
    const int64_t pruned = step->field[EB_KEPT] >= 0, entry = pruned ? 2 * EB_BLOCK : EB_BLOCK;
    from += row * step->field[EB_STRIDE_H] * step->words * step->padded_columns;
    for (int64_t x = 0; x < step->conv_columns; x++, from += step->field[EB_STRIDE_W], counts += EB_BLOCK) {
        const uint32_t *weight = packed;
        uint32x4_t sum[VECS];
        EACH sum[i] = vdupq_n_u32(0);
        for (int64_t start = 0; start < step->singles; start += WORDS) {
            const int64_t end = start + WORDS < step->singles ? start + WORDS : step->singles;
            uint8x16_t bytes[VECS];
            EACH bytes[i] = vdupq_n_u8(0);
            for (int64_t k = start; k < end; k++, weight += entry) {
                const uint32x4_t word = vdupq_n_u32(from[step->offsets[k]]);
                EACH {
                    uint32x4_t differ = veorq_u32(word, vld1q_u32(weight + i * LANES));
                    if (pruned) differ = vandq_u32(differ, vld1q_u32(weight + EB_BLOCK + i * LANES));
                    bytes[i] = vaddq_u8(bytes[i], vcntq_u8(vreinterpretq_u8_u32(differ)));
                }
            }
            EACH sum[i] = vpadalq_u16(sum[i], vpaddlq_u8(bytes[i]));
        }
        EACH vst1q_s32(counts + i * LANES, vreinterpretq_s32_u32(sum[i]));
    }
}

INLINE void sum_pixels(const int pixels, const int32_t *offsets, int64_t count, const float *input, int64_t apart,
                       const float *weight, float *sums) {
    vec s[SUM_TILE][VECS];
    EACH_PIXEL EACH s[p][i] = vdupq_n_f32(0);
    for (int64_t k = 0; k < count; k++, weight += EB_BLOCK) {
        vec a[SUM_TILE];
        EACH_PIXEL a[p] = vld1q_dup_f32(input + offsets[k] + p * apart);
        EACH {
            const vec w = vld1q_f32(weight + i * LANES);
            EACH_PIXEL s[p][i] = vfmaq_f32(s[p][i], w, a[p]);
        }
    }
    EACH_PIXEL EACH vst1q_f32(sums + p * EB_BLOCK + i * LANES, s[p][i]);
}

static void real_row(const int32_t *offsets, int64_t count, const float *input, int64_t apart, const float *packed,
                     int64_t pixels, float *sums) {
    for (; pixels >= SUM_TILE; pixels -= SUM_TILE, input += SUM_TILE * apart, sums += SUM_TILE * EB_BLOCK)
        sum_pixels(SUM_TILE, offsets, count, input, apart, packed, sums);
    if (pixels == 2) sum_pixels(2, offsets, count, input, apart, packed, sums);
    if (pixels == 1) sum_pixels(1, offsets, count, input, apart, packed, sums);
}

const eb_kernels eb_kernels_neon = {.name = "neon", EVERY_KERNEL};
