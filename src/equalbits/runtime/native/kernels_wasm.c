/* WebAssembly: vectors of 16 bytes. Counting by looking up where there are many pixels (wasm_tiles.h); else a lane of 32
 * bits is a filter, and bytes count their own bits. */
#include "core.h"

#ifdef __wasm_simd128__
#include <stdlib.h>
#include <string.h>
#include <wasm_simd128.h>

#define LANES 4
#define ONE_CHAIN /* chains of their own would make the module half as large again, and 2 % quicker */
typedef v128_t vec;
#define v_load(from) wasm_v128_load(from)
#define v_store(to, v) wasm_v128_store(to, v)
#define v_set wasm_f32x4_splat
#define v_add wasm_f32x4_add
#define v_mul wasm_f32x4_mul
#define v_fma(a, b, c) v_add(v_mul(a, b), c)
#define v_div wasm_f32x4_div
#define v_min(a, b) wasm_f32x4_pmin(b, a) /* both return their second operand if one is NaN */
#define v_max(a, b) wasm_f32x4_pmax(b, a)
#define v_at_least_0(v) wasm_f32x4_ge(v, v_set(0))
#define v_bits(v) ((uint32_t)wasm_i32x4_bitmask(v_at_least_0(v)))
#define v_sign(v) wasm_v128_bitselect(v_set(1), v_set(-1), v_at_least_0(v))
#define v_prelu(v, slope) wasm_v128_bitselect(v, v_mul(v, slope), v_at_least_0(v))
#define v_even(a, b) wasm_i32x4_shuffle(a, b, 0, 2, 4, 6)
#define v_odd(a, b) wasm_i32x4_shuffle(a, b, 1, 3, 5, 7)

static inline vec v_largest(vec a, vec b) { return wasm_v128_bitselect(a, v_max(a, b), wasm_f32x4_ne(a, a)); }

/* All ones in the lanes whose bits are 1: one word for all, with a position for each lane of a block. */
static inline v128_t v_where(uint32_t bits, int first) {
    const v128_t places = wasm_i32x4_shl(wasm_i32x4_const(1, 2, 4, 8), (uint32_t)first);
    return wasm_i32x4_eq(wasm_v128_and(wasm_i32x4_splat((int32_t)bits), places), places);
}
#define v_flip(v, bits, first) wasm_v128_xor(v, wasm_v128_and(v_where(bits, first), v_set(-0.0f)))
#define v_keep(v, bits, first) wasm_v128_and(v, v_where(bits, first))

static inline vec v_from_counts(const int32_t *constant, const int32_t *count) {
    return wasm_f32x4_convert_i32x4(wasm_i32x4_sub(wasm_v128_load(constant), wasm_i32x4_shl(wasm_v128_load(count), 1)));
}

#include "simd.h"

enum { BYTES = 16 };
typedef v128_t bytes;
#define b_load(p) wasm_v128_load(p)
#define b_store(p, v) wasm_v128_store(p, v)
#define b_set(byte) wasm_i8x16_splat(byte)
#define b_and wasm_v128_and
#define b_upper(v) b_and(b_right(v, 4), b_set(15))
#define b_look_up wasm_i8x16_swizzle
#define b_add wasm_i8x16_add
#define b_add_16 wasm_i16x8_add
#define b_sub_16 wasm_i16x8_sub
#define b_right(v, bits) wasm_u16x8_shr(v, bits)
#define b_left(v, bits) wasm_i16x8_shl(v, bits)
#include "byte_rows.h"
#define HAS_BYTES_ROW
#include "byte_tables.h"
#include "byte_tiles.h"

/* Both ways of binary weights under names of their own. */
#define bits_layout words_layout
#define bits_pack words_pack
#define bits_prepare words_prepare
#include "plain_bits.h"
#undef bits_layout
#undef bits_pack
#undef bits_prepare
#define bits_layout quads_layout
#define bits_pack quads_pack
#include "wasm_tiles.h"
#undef bits_layout
#undef bits_pack

/* Words whose bits a byte can count; pixels, and vectors of filters, whose real sums stay in registers. */
enum { WORDS = 31, SUM_TILE = 2, SUM_VECS = VECS / 2 };

static int supported(void) { return 1; }

static void bits_layout(eb_step *step) {
    quads_layout(step);
    if (step->tiles) return;
    free(step->offsets);
    words_layout(step);
}

static void bits_pack(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed) {
    if (step->tiles) quads_pack(step, sign, kept, packed);
    else words_pack(step, sign, kept, packed);
}

static void bits_prepare(const eb_step *step, const uint32_t *line, int64_t row, void *prepared) {
    if (step->tiles) tiles_prepare(step, line, row, prepared);
    else words_prepare(step, line, row, prepared);
}

INLINE void count_pixel(const int pruned, const eb_step *step, const uint32_t *from, const uint32_t *weight, int32_t *counts) {
    const int64_t entry = pruned ? 2 * EB_BLOCK : EB_BLOCK;
    memset(counts, 0, EB_BLOCK * sizeof *counts);
    for (int64_t start = 0; start < step->singles; start += WORDS) {
        v128_t sum[VECS];
        EACH sum[i] = wasm_i8x16_const_splat(0);
        for (int64_t k = start; k < least(start + WORDS, step->singles); k++, weight += entry) {
            const v128_t word = wasm_v128_load32_splat(from + step->offsets[k]);
            EACH {
                v128_t differ = wasm_v128_xor(word, wasm_v128_load(weight + i * LANES));
                if (pruned) differ = wasm_v128_and(differ, wasm_v128_load(weight + EB_BLOCK + i * LANES));
                sum[i] = wasm_i8x16_add(sum[i], wasm_i8x16_popcnt(differ));
            }
        }
        EACH {
            const v128_t wide = wasm_u32x4_extadd_pairwise_u16x8(wasm_u16x8_extadd_pairwise_u8x16(sum[i]));
            v_store(counts + i * LANES, wasm_i32x4_add(v_load(counts + i * LANES), wide));
        }
    }
}

static void bits_row(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts) {
    const uint32_t *from = prepared;
    const int64_t turns = eb_turns(step->singles);
    from += row * step->field[EB_STRIDE_H] * step->words * step->padded_columns;
    for (int64_t x = 0; x < step->conv_columns; x++, from += step->field[EB_STRIDE_W], counts += EB_BLOCK) {
        if ((x + 1) % turns == 0 && eb_stopped(step)) return;
        if (step->field[EB_KEPT] >= 0) count_pixel(1, step, from, packed, counts);
        else count_pixel(0, step, from, packed, counts);
    }
}

/* Half a block of filters at a time: there are sixteen registers on many machines. */
INLINE void sum_pixels(const int pixels, const int32_t *offsets, int64_t count, const float *input, int64_t apart,
                       const float *weight, float *sums) {
    vec s[SUM_TILE][SUM_VECS];
    for (int p = 0; p < pixels; p++) for (int i = 0; i < SUM_VECS; i++) s[p][i] = v_set(0);
    for (int64_t k = 0; k < count; k++, weight += EB_BLOCK) {
        vec a[SUM_TILE];
        for (int p = 0; p < pixels; p++) a[p] = wasm_v128_load32_splat(input + offsets[k] + p * apart);
        for (int i = 0; i < SUM_VECS; i++) {
            const vec w = v_load(weight + i * LANES);
            for (int p = 0; p < pixels; p++) s[p][i] = v_add(s[p][i], v_mul(w, a[p]));
        }
    }
    for (int p = 0; p < pixels; p++) for (int i = 0; i < SUM_VECS; i++) v_store(sums + p * EB_BLOCK + i * LANES, s[p][i]);
}

static void real_row(const int32_t *offsets, int64_t count, const float *input, int64_t apart, const float *packed,
                     int64_t pixels, float *sums) {
    for (; pixels > 0; pixels -= SUM_TILE, input += SUM_TILE * apart, sums += SUM_TILE * EB_BLOCK)
        for (int half = 0; half < EB_BLOCK; half += EB_BLOCK / 2) {
            if (pixels >= SUM_TILE) sum_pixels(SUM_TILE, offsets, count, input, apart, packed + half, sums + half);
            else sum_pixels(1, offsets, count, input, apart, packed + half, sums + half);
        }
}

const eb_kernels eb_kernels_wasm = {
    .name = "wasm", EVERY_KERNEL, .winograd_from = 32, .gather_tile = gather_tile, .bits_tile = bits_tile};
#endif
