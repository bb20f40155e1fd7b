/* AVX2: counting by table lookup. A byte of weights holds four bits of one filter, so a vector is a block of filters.
 *
 * Four bits of two adjacent pixels select one of 256 tables of 16 entries, 4 kB in all: entry w of a table holds in its
 * low half the number of bits of w that differ from the first pixel's, in its high half from the second's. One vpshufb
 * looks up 32 filters for two pixels. Three lookups add up before a half can overflow (3 · 4 < 16). Then the whole
 * bytes are added to one sum and their high halves to another. After 63 lookups the low halves are the first sum minus
 * 16 times the second: they are below 256, so the first sum may have wrapped around. */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
typedef __m256 vec;
#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_set _mm256_set1_ps
#define v_add _mm256_add_ps
#define v_mul _mm256_mul_ps
#define v_fma _mm256_fmadd_ps
#define v_div _mm256_div_ps
#define v_min _mm256_min_ps /* both return their second operand if one is NaN */
#define v_max _mm256_max_ps
#define v_at_least_0(v) _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GE_OQ)
#define v_bits(v) ((uint32_t)_mm256_movemask_ps(v_at_least_0(v)))
#define v_sign(v) _mm256_blendv_ps(_mm256_set1_ps(-1), _mm256_set1_ps(1), v_at_least_0(v))
#define v_prelu(v, slope) _mm256_blendv_ps(v, _mm256_mul_ps(v, slope), v) /* by its sign: 0 stays 0 */

static inline vec v_largest(vec a, vec b) {
    return _mm256_blendv_ps(v_max(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

/* The bits of a word from `first` on, each at the top of its own lane. */
static inline __m256i v_top(uint32_t bits, int first) {
    const __m256i places = _mm256_sub_epi32(_mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24), _mm256_set1_epi32(first));
    return _mm256_sllv_epi32(_mm256_set1_epi32((int)bits), places); /* one word for all, spread once */
}
#define v_flip(v, bits, first)                                                                                        \
    _mm256_xor_ps(v, _mm256_and_ps(_mm256_castsi256_ps(v_top(bits, first)), _mm256_set1_ps(-0.0f)))
#define v_keep(v, bits, first)                                                                                        \
    _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_srai_epi32(v_top(bits, first), 31)))

/* A shuffle within halves gives a0 a2 b0 b2 | a4 a6 b4 b6; the middle quarters are exchanged. */
#define v_picked(a, b, which)                                                                                         \
    _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, which)), 0xd8))
#define v_even(a, b) v_picked(a, b, 0x88)
#define v_odd(a, b) v_picked(a, b, 0xdd)

static inline vec v_from_counts(const void *constant, const void *count) {
    const __m256i once = _mm256_loadu_si256(count), twice = _mm256_add_epi32(once, once); /* adding has more ports */
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(constant), twice));
}

#include "simd.h"

enum { BYTES = 32 };
typedef __m256i bytes;
#define b_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define b_store(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define b_set _mm256_set1_epi8
#define b_and _mm256_and_si256
#define b_upper(v) b_and(b_right(v, 4), b_set(15))
#define b_look_up _mm256_shuffle_epi8
#define b_add _mm256_add_epi8
#define b_add_16 _mm256_add_epi16
#define b_sub_16 _mm256_sub_epi16
#define b_right _mm256_srli_epi16
#define b_left _mm256_slli_epi16
#include "byte_rows.h"
#define HAS_BYTES_ROW
#include "byte_tables.h"

enum { PAIRS = 4, SUM_TILE = 3, AHEAD = 1024 };

/* Unrolled, so that the sums stay in registers. */
#define EACH_PAIR EB_UNROLL(4) for (int p = 0; p < pairs; p++)
#define EACH_PIXEL EB_UNROLL(3) for (int p = 0; p < pixels; p++)

static int supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#include "avx2_tiles.h"
#include "avx2_bytes.h"
#define HAS_BYTES_TILE
#include "byte_tiles.h"

/* Four bits of each pixel, and of the next one of a window, as the index of a table. */
static void pairs_prepare(const eb_step *step, const uint32_t *line, uint16_t *to) {
    const int64_t quads = quads_of(step), columns = step->padded_columns, apart = step->field[EB_STRIDE_W];
    for (int64_t quad = 0; quad < quads; quad++, to += columns) {
        const uint32_t *from = line + quad / 8 * columns;
        const int shift = (int)(quad % 8 * 4);
        for (int64_t x = 0; x < columns; x++) to[x] = (uint16_t)((from[x] >> shift & 15) << 4);
        for (int64_t x = 0; x + apart < columns; x++) to[x] |= (uint16_t)((from[x + apart] >> shift & 15) << 8);
    }
}

static void bits_prepare(const eb_step *step, const uint32_t *line, int64_t row, void *prepared) {
    if (step->tiles) tiles_prepare(step, line, row, prepared);
    else pairs_prepare(step, line, (uint16_t *)prepared + row * quads_of(step) * step->padded_columns);
}

INLINE __m256i look_up(const uint16_t *pair, __m256i weight) {
    const __m128i *table = (const __m128i *)((const char *)tables + *pair);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(table)), weight);
}

static void add_bytes(int32_t *counts, __m256i bytes) {
    uint8_t spread[EB_BLOCK];
    _mm256_storeu_si256((__m256i *)spread, bytes);
    for (int i = 0; i < EB_BLOCK; i += 8) {
        __m256i *at = (__m256i *)(counts + i);
        __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(spread + i)));
        _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), wide));
    }
}

/* Counts of adjacent pixels in pairs; a last odd one is counted with the bytes after it. */
INLINE void count_pairs(const int pairs, const int64_t apart, const eb_step *step, const uint16_t *input,
                        const uint8_t *weight, int32_t *counts) {
    const __m256i low = _mm256_set1_epi8(15);
    memset(counts, 0, sizeof *counts * 2 * EB_BLOCK * (size_t)pairs);
    for (int64_t start = 0; start < step->singles; start += LOOKUPS) {
        int64_t end = start + LOOKUPS < step->singles ? start + LOOKUPS : step->singles;
        __m256i whole[PAIRS], high[PAIRS];
        EACH_PAIR whole[p] = high[p] = _mm256_setzero_si256();
        int64_t k = start;
        for (; k + 3 <= end; k += 3, weight += 3 * EB_BLOCK) {
            const uint16_t *a = input + step->offsets[k], *b = input + step->offsets[k + 1], *c = input + step->offsets[k + 2];
            const __m256i w0 = _mm256_loadu_si256((const __m256i *)weight);
            const __m256i w1 = _mm256_loadu_si256((const __m256i *)(weight + 32));
            const __m256i w2 = _mm256_loadu_si256((const __m256i *)(weight + 64));
            EACH_PAIR {
                const int64_t at = 2 * p * apart;
                __m256i t = _mm256_add_epi8(_mm256_add_epi8(look_up(a + at, w0), look_up(b + at, w1)), look_up(c + at, w2));
                whole[p] = _mm256_add_epi8(whole[p], t);
                high[p] = _mm256_add_epi8(high[p], _mm256_and_si256(_mm256_srli_epi16(t, 4), low));
            }
        }
        for (; k < end; k++, weight += EB_BLOCK) {
            const uint16_t *a = input + step->offsets[k];
            const __m256i w0 = _mm256_loadu_si256((const __m256i *)weight);
            EACH_PAIR {
                __m256i t = look_up(a + 2 * p * apart, w0);
                whole[p] = _mm256_add_epi8(whole[p], t);
                high[p] = _mm256_add_epi8(high[p], _mm256_and_si256(_mm256_srli_epi16(t, 4), low));
            }
        }
        EACH_PAIR {
            __m256i sixteen = _mm256_andnot_si256(low, _mm256_slli_epi16(high[p], 4));
            add_bytes(counts + 2 * p * EB_BLOCK, _mm256_sub_epi8(whole[p], sixteen));
            add_bytes(counts + (2 * p + 1) * EB_BLOCK, high[p]);
        }
    }
}

INLINE void count_row(const int64_t apart, const eb_step *step, const uint16_t *input, const uint8_t *weight,
                      int32_t *counts) {
    const int64_t turns = eb_turns(2 * step->field[EB_KERNEL_H] * step->field[EB_KERNEL_W] * step->words);
    for (int64_t left = step->conv_columns; left > 0; left -= 2 * PAIRS, input += 2 * PAIRS * apart, counts += 2 * PAIRS * EB_BLOCK) {
        if ((left / (2 * PAIRS) + 1) % turns == 0 && eb_stopped(step)) return;
        switch (left > 6 ? 4 : (left + 1) / 2) {
        case 4: count_pairs(4, apart, step, input, weight, counts); break;
        case 3: count_pairs(3, apart, step, input, weight, counts); break;
        case 2: count_pairs(2, apart, step, input, weight, counts); break;
        default: count_pairs(1, apart, step, input, weight, counts);
        }
    }
}

static void bits_row(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts) {
    const int64_t apart = step->field[EB_STRIDE_W], *field = step->field;
    const int32_t *pruned = packed;
    const uint8_t *weight = (const uint8_t *)(pruned + EB_BLOCK);
    const uint16_t *input = prepared;
    input += row * field[EB_STRIDE_H] * quads_of(step) * step->padded_columns;
    if (apart == 1) count_row(1, step, input, weight, counts);
    else if (apart == 2) count_row(2, step, input, weight, counts);
    else count_row(apart, step, input, weight, counts);
    for (int64_t i = 0; field[EB_KEPT] >= 0 && i < step->conv_columns * EB_BLOCK; i++)
        counts[i] = (counts[i] - pruned[i % EB_BLOCK]) / 2;
}

INLINE void sum_pixels(const int pixels, const int32_t *offsets, int64_t count, const float *input, int64_t apart,
                       const float *weight, float *sums) {
    __m256 s[SUM_TILE][VECS];
    EACH_PIXEL EACH s[p][i] = _mm256_setzero_ps();
    for (int64_t k = 0; k < count; k++, weight += EB_BLOCK) {
        __m256 a[SUM_TILE];
        if (pixels == 1) { /* every weight is read once, from memory */
            _mm_prefetch((const char *)(weight + AHEAD), _MM_HINT_T0);
            _mm_prefetch((const char *)(weight + AHEAD + 16), _MM_HINT_T0);
        }
        EACH_PIXEL a[p] = _mm256_broadcast_ss(input + offsets[k] + p * apart);
        EACH {
            const __m256 w = _mm256_loadu_ps(weight + i * LANES);
            EACH_PIXEL s[p][i] = _mm256_fmadd_ps(w, a[p], s[p][i]);
        }
    }
    EACH_PIXEL EACH _mm256_storeu_ps(sums + p * EB_BLOCK + i * LANES, s[p][i]);
}

static void real_row(const int32_t *offsets, int64_t count, const float *input, int64_t apart, const float *packed,
                     int64_t pixels, float *sums) {
    for (; pixels >= SUM_TILE; pixels -= SUM_TILE, input += SUM_TILE * apart, sums += SUM_TILE * EB_BLOCK)
        sum_pixels(SUM_TILE, offsets, count, input, apart, packed, sums);
    if (pixels == 2) sum_pixels(2, offsets, count, input, apart, packed, sums);
    if (pixels == 1) sum_pixels(1, offsets, count, input, apart, packed, sums);
}

enum { CHANNELS = 3, LOOK_TILE = 6, WIDE = 4 };
typedef __m256i words_vec;
#define i_load(from) _mm256_load_si256((const __m256i *)(from))
#define i_right _mm256_srli_epi32

/* In this order four units of a processor are busy, and `one` stays in memory, since there are too few registers.
 * Compilers choose other orders, which take up to 1.4 times as long on Zen 5. */
INLINE void look_up_two(const float *table, const words_vec *w, vec one, vec *sums) {
    vec a, b;
    __asm__("vmovaps %[table], %[b]\n\t"
            "vpermps %[b], %[first], %[a]\n\t"
            "vaddps %[a], %[sum], %[sum]\n\t"
            "vpermps %[b], %[second], %[b]\n\t"
            "vfmadd231ps %[one], %[b], %[other]"
            : [a] "=&x"(a), [b] "=&x"(b), [sum] "+x"(sums[0]), [other] "+x"(sums[1])
            : [table] "m"(*(const vec *)table), [first] "x"(w[0]), [second] "x"(w[1]), [one] "m"(one));
}
#include "avx_look_up.h"

const eb_kernels eb_kernels_avx2 = {
    .name = "avx2", EVERY_KERNEL, .winograd_from = 32, .gather_tile = gather_tile, .bits_tile = bits_tile,
    .table_channels = CHANNELS, .tables_make = tables_make, .tables_row = tables_row};
