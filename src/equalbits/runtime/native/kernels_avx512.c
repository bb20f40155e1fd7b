/* AVX-512 with VPOPCNTDQ and VNNI (Ice Lake, Zen 4 and later): a lane of 32 bits is a filter, a block is two vectors.
 *
 * Counting where weights and input differ takes xor, popcount and add: three instructions a vector. Adding two
 * differences x1 and x2 to a running sum s by carry-save takes fewer, because the parity x1 ^ x2 can be prepared on both
 * sides: with W = w1 ^ w2 (packed) and A = a1 ^ a2 (prepared once per pixel),
 *     next = s ^ W ^ A,   carry = s where s differs from next, else x1 = w1 ^ a1,
 * so two vectors take three logic instructions, one popcount (of the carry) and one add. The count is
 * popcount(s) + 2 · (sum of the carries). */
#ifdef __x86_64__ /* 32-bit code has a quarter of the registers */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
typedef __m512 vec;
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_set _mm512_set1_ps
#define v_add _mm512_add_ps
#define v_mul _mm512_mul_ps
#define v_fma _mm512_fmadd_ps
#define v_div _mm512_div_ps
#define v_min _mm512_min_ps /* both return their second operand if one is NaN */
#define v_max _mm512_max_ps
#define v_at_least_0(v) _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GE_OQ)
#define v_bits(v) ((uint32_t)v_at_least_0(v))
#define v_sign(v) _mm512_mask_blend_ps(v_at_least_0(v), _mm512_set1_ps(-1), _mm512_set1_ps(1))
#define v_prelu(v, slope) _mm512_mask_mul_ps(v, (__mmask16)~v_at_least_0(v), v, slope)

#define v_flip(v, bits, first)                                                                                        \
    _mm512_mask_xor_ps(v, (__mmask16)((bits) >> (first)), v, _mm512_set1_ps(-0.0f))
#define v_keep(v, bits, first) _mm512_maskz_mov_ps((__mmask16)((bits) >> (first)), v)

static inline vec v_largest(vec a, vec b) {
    return _mm512_mask_mov_ps(v_max(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}

static inline vec v_even(vec a, vec b) {
    const __m512i places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, places, b);
}
static inline vec v_odd(vec a, vec b) {
    const __m512i places = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, places, b);
}

static inline vec v_from_counts(const void *constant, const void *count) {
    __m512i twice = _mm512_slli_epi32(_mm512_loadu_si512(count), 1);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(constant), twice));
}

#define HAS_BLOCK_BYTES
static inline void store_bytes(uint8_t *to, const vec *v, int32_t least, int lanes) {
    const __m512i low = _mm512_set1_epi32(least);
    const __m128i first = _mm512_cvtepi32_epi8(_mm512_sub_epi32(_mm512_castps_si512(v[0]), low));
    const __m128i second = _mm512_cvtepi32_epi8(_mm512_sub_epi32(_mm512_castps_si512(v[1]), low));
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    if (lanes == 32) _mm256_storeu_si256((__m256i *)to, all);
    else _mm256_mask_storeu_epi8(to, (UINT32_C(1) << lanes) - 1, all);
}

#include "simd.h"

enum { BYTES = 64 };
typedef __m512i bytes;
#define b_load _mm512_loadu_si512
#define b_store _mm512_storeu_si512
#define b_set _mm512_set1_epi8
#define b_and _mm512_and_si512
#define b_upper(v) b_and(b_right(v, 4), b_set(15))
#define b_look_up _mm512_shuffle_epi8
#define b_add _mm512_add_epi8
#define b_add_16 _mm512_add_epi16
#define b_sub_16 _mm512_sub_epi16
#define b_right _mm512_srli_epi16
#define b_left _mm512_slli_epi16
#include "byte_rows.h"
#define HAS_BYTES_ROW
#include "byte_tables.h"

enum { TILE = 6, SUM_TILE = 14, AHEAD = 1024 }; /* pixels counted or summed together: they fill the registers */

/* Unrolled, so that the sums stay in registers. */
#define EACH_PIXEL EB_UNROLL(14) for (int p = 0; p < pixels; p++)

static int supported(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni");
}

/* Words of every tap in pairs, then the unpaired ones; with pruned weights all are unpaired. */
static void bits_layout(eb_step *step) {
    const int64_t *field = step->field, words = step->words, columns = step->padded_columns;
    const int64_t taps = field[EB_KERNEL_H] * field[EB_KERNEL_W], pruned = field[EB_KEPT] >= 0;
    const int64_t paired = pruned ? 0 : words / 2;
    step->pairs = taps * paired;
    step->singles = taps * (words - 2 * paired);
    step->block_bytes = taps * words * EB_BLOCK * 4 * (pruned ? 2 : 1);
    step->prepared_bytes = step->padded_rows * words * columns * 4;
    int32_t *pair = step->offsets = calloc((size_t)(step->pairs + step->singles), sizeof *step->offsets);
    if (!pair) return;
    int32_t *single = pair + step->pairs;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t row = tap / field[EB_KERNEL_W] * field[EB_DILATION_H], column = tap % field[EB_KERNEL_W] * field[EB_DILATION_W];
        for (int64_t word = 0; word < words; word += word < 2 * paired ? 2 : 1) {
            int32_t offset = (int32_t)((row * words + word) * columns + column);
            if (word < 2 * paired) *pair++ = offset;
            else *single++ = offset;
        }
    }
}

static void bits_pack(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed) {
    const int64_t words = step->words, taps = step->field[EB_KERNEL_H] * step->field[EB_KERNEL_W];
    uint32_t *pair = packed, *single = pair + step->pairs * 2 * EB_BLOCK;
    for (int64_t i = 0; i < taps * words; i++) {
        const uint32_t *from = sign + i;
        const int64_t word = i % words, per_filter = taps * words;
        if (!kept && word < words / 2 * 2) { /* w1, then w1 ^ w2 */
            for (int lane = 0; lane < EB_BLOCK; lane++, from += per_filter) *pair++ = word % 2 ? from[0] ^ from[-1] : *from;
            continue;
        }
        for (int lane = 0; lane < EB_BLOCK; lane++, from += per_filter) *single++ = *from;
        for (int lane = 0; kept && lane < EB_BLOCK; lane++) *single++ = kept[i + lane * per_filter];
    }
}

/* a1, then a1 ^ a2: the second word of each pair becomes the parity of both. */
static void bits_prepare(const eb_step *step, const uint32_t *line, int64_t row, void *prepared) {
    const int64_t words = step->words, columns = step->padded_columns;
    const int64_t paired = step->field[EB_KEPT] >= 0 ? 0 : words / 2 * 2;
    uint32_t *to = (uint32_t *)prepared + row * words * columns;
    for (int64_t word = 0; word < words; word++, line += columns, to += columns) {
        const int second = word < paired && word % 2;
        for (int64_t x = 0; x < columns; x++) to[x] = second ? line[x] ^ line[x - columns] : line[x];
    }
}

/* Add a pair of words of a pixel to the running sums of all filters. The two vectors alternate, so that neither waits
 * for the other; with the words of the pixel as memory operands, six pixels fill the registers. */
#define ADD_PAIR(s, t, first, parity)                                                                                 \
    __asm__("vpxord %[a1]%{1to16%}, %[w0], %[x0]\n\t"                                                                 \
            "vpxord %[a1]%{1to16%}, %[w1], %[x1]\n\t"                                                                 \
            "vmovdqa64 %[s0], %[c0]\n\t"                                                                              \
            "vmovdqa64 %[s1], %[c1]\n\t"                                                                              \
            "vpternlogd $0x96, %[a12]%{1to16%}, %[v0], %[s0]\n\t"                                                     \
            "vpternlogd $0x96, %[a12]%{1to16%}, %[v1], %[s1]\n\t"                                                     \
            "vpternlogd $0xb2, %[x0], %[s0], %[c0]\n\t"                                                               \
            "vpternlogd $0xb2, %[x1], %[s1], %[c1]\n\t"                                                               \
            "vpopcntd %[c0], %[c0]\n\t"                                                                               \
            "vpopcntd %[c1], %[c1]\n\t"                                                                               \
            "vpaddd %[c0], %[t0], %[t0]\n\t"                                                                          \
            "vpaddd %[c1], %[t1], %[t1]"                                                                              \
            : [s0] "+v"((s)[0]), [s1] "+v"((s)[1]), [t0] "+v"((t)[0]), [t1] "+v"((t)[1]), [x0] "=&v"(x0),                \
              [x1] "=&v"(x1), [c0] "=&v"(c0), [c1] "=&v"(c1)                                                          \
            : [a1] "m"(first), [a12] "m"(parity), [w0] "v"(w0), [w1] "v"(w1), [v0] "v"(v0), [v1] "v"(v1))

/* A few pixels of both halves of a block; or of the first half, if the second has no filters and no pairs. */
INLINE void count_pixels(const int pixels, const int halves, const int64_t apart, const eb_step *step,
                         const uint32_t *input, const uint32_t *weight, int32_t *counts) {
    __m512i s[TILE][2], t[TILE][2];
    const int64_t columns = step->padded_columns;
    EACH_PIXEL s[p][0] = s[p][1] = t[p][0] = t[p][1] = _mm512_setzero_si512();
    for (int64_t k = 0; halves == 2 && k < step->pairs; k++, weight += 2 * EB_BLOCK) {
        const uint32_t *first = input + step->offsets[k], *parity = first + columns;
        const __m512i w0 = _mm512_load_si512(weight), w1 = _mm512_load_si512(weight + 16);
        const __m512i v0 = _mm512_load_si512(weight + 32), v1 = _mm512_load_si512(weight + 48);
        EACH_PIXEL {
            __m512i x0, x1, c0, c1;
            ADD_PAIR(s[p], t[p], first[p * apart], parity[p * apart]);
        }
    }
    EACH_PIXEL /* from here on, counts themselves */
        EB_UNROLL(2) for (int i = 0; i < 2; i++)
            s[p][i] = _mm512_add_epi32(_mm512_popcnt_epi32(s[p][i]), _mm512_slli_epi32(t[p][i], 1));
    const int pruned = step->field[EB_KEPT] >= 0;
    for (int64_t k = 0; k < step->singles; k++, weight += pruned ? 2 * EB_BLOCK : EB_BLOCK) {
        const uint32_t *first = input + step->offsets[step->pairs + k];
        const __m512i w0 = _mm512_load_si512(weight), w1 = _mm512_load_si512(weight + 16);
        const __m512i all = _mm512_set1_epi32(-1);
        const __m512i k0 = pruned ? _mm512_load_si512(weight + 32) : all, k1 = pruned ? _mm512_load_si512(weight + 48) : all;
        EACH_PIXEL { /* 0x28: (weight ^ input) & kept */
            const __m512i a = _mm512_set1_epi32((int)first[p * apart]);
            s[p][0] = _mm512_add_epi32(s[p][0], _mm512_popcnt_epi32(_mm512_ternarylogic_epi32(w0, a, k0, 0x28)));
            if (halves == 2)
                s[p][1] = _mm512_add_epi32(s[p][1], _mm512_popcnt_epi32(_mm512_ternarylogic_epi32(w1, a, k1, 0x28)));
        }
    }
    EACH_PIXEL EB_UNROLL(2) for (int i = 0; i < 2; i++) _mm512_storeu_si512(counts + p * EB_BLOCK + 16 * i, s[p][i]);
}

INLINE void count_row(const int halves, const int64_t apart, const eb_step *step, const uint32_t *input,
                      const uint32_t *packed, int32_t *counts) {
    int64_t left = step->conv_columns;
    const int64_t turns = eb_turns(2 * step->pairs + step->singles);
    for (int64_t tiles = (left + TILE - 1) / TILE; tiles; tiles--) {
        if (tiles % turns == 0 && eb_stopped(step)) return;
        const int64_t tile = (left + tiles - 1) / tiles; /* as equal as possible */
#define CASE(n) case n: count_pixels(n, halves, apart, step, input, packed, counts); break;
        switch (tile) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        default: break;
        }
#undef CASE
        left -= tile;
        input += tile * apart;
        counts += tile * EB_BLOCK;
    }
}

static void bits_row(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts) {
    const int64_t apart = step->field[EB_STRIDE_W];
    const uint32_t *input = prepared;
    input += row * step->field[EB_STRIDE_H] * step->words * step->padded_columns;
    if (apart == 1 && step->group_out <= 16 && !step->pairs) count_row(1, 1, step, input, packed, counts);
    else if (apart == 1) count_row(2, 1, step, input, packed, counts);
    else if (apart == 2) count_row(2, 2, step, input, packed, counts);
    else count_row(2, apart, step, input, packed, counts);
}

INLINE void sum_pixels(const int pixels, const int32_t *offsets, int64_t count, const float *input, const int64_t apart,
                       const float *weight, float *sums) {
    __m512 s[SUM_TILE][2];
    EACH_PIXEL s[p][0] = s[p][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < count; k++, weight += EB_BLOCK) {
        const float *from = input + offsets[k];
        if (pixels == 1) { /* every weight is read once, from memory */
            _mm_prefetch((const char *)(weight + AHEAD), _MM_HINT_T0);
            _mm_prefetch((const char *)(weight + AHEAD + 16), _MM_HINT_T0);
        }
        const __m512 w0 = _mm512_load_ps(weight), w1 = _mm512_load_ps(weight + 16);
        EACH_PIXEL {
            const __m512 a = _mm512_set1_ps(from[p * apart]);
            s[p][0] = _mm512_fmadd_ps(w0, a, s[p][0]);
            s[p][1] = _mm512_fmadd_ps(w1, a, s[p][1]);
        }
    }
    EACH_PIXEL
        EB_UNROLL(2) for (int i = 0; i < 2; i++) _mm512_storeu_ps(sums + p * EB_BLOCK + 16 * i, s[p][i]);
}

INLINE void sum_row(const int64_t apart, const int32_t *offsets, int64_t count, const float *input, const float *packed,
                    int64_t pixels, float *sums) {
    for (int64_t tiles = (pixels + SUM_TILE - 1) / SUM_TILE; tiles; tiles--) {
        const int64_t tile = (pixels + tiles - 1) / tiles; /* as equal as possible */
#define CASE(n) case n: sum_pixels(n, offsets, count, input, apart, packed, sums); break;
        switch (tile) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
            CASE(14)
        default: break;
        }
#undef CASE
        pixels -= tile;
        input += tile * apart;
        sums += tile * EB_BLOCK;
    }
}

static void real_row(const int32_t *offsets, int64_t count, const float *input, int64_t apart, const float *packed,
                     int64_t pixels, float *sums) {
    if (apart == 1) sum_row(1, offsets, count, input, packed, pixels, sums);
    else sum_row(apart, offsets, count, input, packed, pixels, sums);
}

enum { CHANNELS = 4, LOOK_TILE = 8, WIDE = 8 };
typedef __m512i words_vec;
#define i_load _mm512_load_si512
#define i_right _mm512_srli_epi32

INLINE void look_up_two(const float *table, const words_vec *w, vec one, vec *sums) {
    vec both = v_load(table);
    __asm__("" : "+v"(both)); /* read once for both */
    sums[0] = v_add(sums[0], _mm512_permutexvar_ps(w[0], both));
    sums[1] = v_fma(_mm512_permutexvar_ps(w[1], both), one, sums[1]);
}
#include "avx_look_up.h"
#include "avx512_bytes.h"
#define HAS_BYTES_TILE
#include "byte_tiles.h"

const eb_kernels eb_kernels_avx512 = {.name = "avx512", EVERY_KERNEL, .winograd_from = 32, .table_channels = CHANNELS,
                                      .tables_make = tables_make, .tables_row = tables_row};
#endif
