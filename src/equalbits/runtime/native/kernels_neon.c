/* NEON, on every 64-bit Arm: a lane of 32 bits is a filter; bits are counted per byte. */
#include "core.h"

#ifdef EB_HAVE_NEON
#include <arm_neon.h>

#define LANES 4
typedef float32x4_t vec;
#define v_load vld1q_f32
#define v_store vst1q_f32
#define v_set vdupq_n_f32
#define v_add vaddq_f32
#define v_mul vmulq_f32
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_div vdivq_f32
#define v_min(a, b) vbslq_f32(vcltq_f32(a, b), a, b) /* both return their second operand if one is NaN */
#define v_max(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define v_largest vmaxq_f32
#define v_at_least_0(v) vcgeq_f32(v, vdupq_n_f32(0))
#define v_sign(v) vbslq_f32(v_at_least_0(v), vdupq_n_f32(1), vdupq_n_f32(-1))
#define v_prelu(v, slope) vbslq_f32(v_at_least_0(v), v, vmulq_f32(v, slope))

/* A bit for each number of a block that is at least 0. The results of a lane for each vector are placed side by side,
 * four equal bits each; each lane keeps one of the four, and a sum joins them. */
#define HAS_BLOCK_BITS
static inline uint32_t block_bits(const vec *v) {
    const uint32x4_t own = {0x11111111, 0x22222222, 0x44444444, 0x88888888};
    uint32x4_t two[4], four[2];
    EB_UNROLL(4) for (int i = 0; i < 4; i++) two[i] = vsliq_n_u32(v_at_least_0(v[2 * i]), v_at_least_0(v[2 * i + 1]), 4);
    EB_UNROLL(2) for (int i = 0; i < 2; i++) four[i] = vsliq_n_u32(two[2 * i], two[2 * i + 1], 8);
    return vaddvq_u32(vandq_u32(vsliq_n_u32(four[0], four[1], 16), own));
}

/* All ones in the lanes whose bits are 1: one word for all, with a position for each lane of a block. */
static inline uint32x4_t v_where(uint32_t bits, int first) {
    const uint32x4_t places = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits), places << (unsigned)first);
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

enum { BYTES = 16 };
typedef uint8x16_t bytes;
#define as_words(v) vreinterpretq_u16_u8(v)
#define b_load(p) vld1q_u8((const uint8_t *)(p))
#define b_store(p, v) vst1q_u8((uint8_t *)(p), v)
#define b_set vdupq_n_u8
#define b_and vandq_u8
#define b_upper(v) vshrq_n_u8(v, 4)
#define b_look_up vqtbl1q_u8
#define b_add vaddq_u8
#define b_add_16(a, b) vreinterpretq_u8_u16(vaddq_u16(as_words(a), as_words(b)))
#define b_sub_16(a, b) vreinterpretq_u8_u16(vsubq_u16(as_words(a), as_words(b)))
#define b_right(v, bits) vreinterpretq_u8_u16(vshrq_n_u16(as_words(v), bits))
#define b_left(v, bits) vreinterpretq_u8_u16(vshlq_n_u16(as_words(v), bits))
#include "byte_rows.h"
#define HAS_BYTES_ROW
#include "byte_tables.h"
#include "byte_tiles.h"

/* Pixels whose counts or sums stay in registers; and words whose bits a byte can count. */
enum { COUNT_TILE = 2, SUM_TILE = 3, WORDS = 31 };

#define EACH_PIXEL EB_UNROLL(3) for (int p = 0; p < pixels; p++)
/* Weights are read two vectors at a time: all at once would spill the sums. */
#define TWO_AT_A_TIME if (i % 2 == 0) __asm__ volatile("" ::: "memory")

static int supported(void) { return 1; }

INLINE void count_pixels(const int pixels, const int pruned, const eb_step *step, const uint32_t *from,
                         const uint32_t *weight, int32_t *counts) {
    const int64_t entry = pruned ? 2 * EB_BLOCK : EB_BLOCK, apart = step->field[EB_STRIDE_W], singles = step->singles;
    const int32_t *offset = step->offsets;
    for (int64_t start = 0; start < singles; start += WORDS) {
        uint8x16_t sum[COUNT_TILE][VECS];
        EACH_PIXEL EACH sum[p][i] = vdupq_n_u8(0);
        for (int64_t left = singles - start < WORDS ? singles - start : WORDS; left; left--, weight += entry) {
            uint32x4_t word[COUNT_TILE];
            EACH_PIXEL word[p] = vld1q_dup_u32(from + *offset + p * apart);
            offset++;
            EACH {
                TWO_AT_A_TIME;
                const uint32x4_t w = vld1q_u32(weight + i * LANES), kept = vld1q_u32(weight + entry - EB_BLOCK + i * LANES);
                EACH_PIXEL {
                    const uint32x4_t differ = veorq_u32(word[p], w);
                    const uint32x4_t counted = pruned ? vandq_u32(differ, kept) : differ;
                    sum[p][i] = vaddq_u8(sum[p][i], vcntq_u8(vreinterpretq_u8_u32(counted)));
                }
            }
        }
        EACH_PIXEL EACH {
            int32_t *to = counts + p * EB_BLOCK + i * LANES;
            const uint32x4_t before = start ? vreinterpretq_u32_s32(vld1q_s32(to)) : vdupq_n_u32(0);
            vst1q_s32(to, vreinterpretq_s32_u32(vpadalq_u16(before, vpaddlq_u8(sum[p][i]))));
        }
    }
}

INLINE void count_row(const int pruned, const eb_step *step, const uint32_t *from, const uint32_t *packed, int32_t *counts) {
    int64_t pixels = step->conv_columns;
    const int64_t turns = eb_turns(step->singles);
    for (; pixels >= COUNT_TILE; pixels -= COUNT_TILE, counts += COUNT_TILE * EB_BLOCK) {
        if (pixels / COUNT_TILE % turns == 0 && eb_stopped(step)) return;
        count_pixels(COUNT_TILE, pruned, step, from, packed, counts);
        from += COUNT_TILE * step->field[EB_STRIDE_W];
    }
    if (pixels) count_pixels(1, pruned, step, from, packed, counts);
}

static void bits_row(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts) {
    const uint32_t *from = prepared;
    from += row * step->field[EB_STRIDE_H] * step->words * step->padded_columns;
    if (step->field[EB_KEPT] >= 0) count_row(1, step, from, packed, counts);
    else count_row(0, step, from, packed, counts);
}

INLINE void sum_pixels(const int pixels, const int32_t *offsets, int64_t count, const float *input, int64_t apart,
                       const float *weight, float *sums) {
    vec s[SUM_TILE][VECS];
    EACH_PIXEL EACH s[p][i] = vdupq_n_f32(0);
    for (int64_t k = 0; k < count; k++, weight += EB_BLOCK) {
        vec a[SUM_TILE];
        EACH_PIXEL a[p] = vld1q_dup_f32(input + offsets[k] + p * apart);
        EACH {
            TWO_AT_A_TIME;
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

const eb_kernels eb_kernels_neon = {.name = "neon", EVERY_KERNEL, .winograd_from = 32};
#endif
