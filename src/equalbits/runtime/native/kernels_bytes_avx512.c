/* Convolutions of bytes with AVX-512: VNNI multiplies 64 bytes and adds up each four; VBMI looks 64 up in a vector.
 *
 * Looking up: a vector is the four tables of 16 channels in a pixel, sums of either sign. A byte of the weights holds the
 * number of its table and a place in it, and the four bytes of a filter add up as the product with ones. */
#ifdef __x86_64__
#include <immintrin.h>

#include "core.h"

#define INLINE static inline __attribute__((always_inline))
#define EACH_PIXEL EB_UNROLL(14) for (int p = 0; p < rows * pixels; p++)
#define AT(p) ((p) < pixels ? first + (p) * apart : second + ((p) - pixels) * apart)

static int supported(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bw");
}

/* As it is written: compilers that know what it does move sums to and from memory around it. */
INLINE __m512i add_products(__m512i sum, __m512i bytes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
    return sum;
}

INLINE void add_tile(const int looks_up, const int rows, const int pixels, const eb_step *step, const uint8_t *first,
                     const uint8_t *second, const eb_byte_row *row, float *sums) {
    const int64_t apart = step->apart;
    const uint8_t *weight = row->packed;
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i s[EB_MOST_TILE][2];
    EACH_PIXEL EB_UNROLL(2) for (int i = 0; i < 2; i++) s[p][i] = _mm512_loadu_si512(row->start + 16 * i);
    for (int64_t k = 0; k < step->sums; k++, weight += 4 * EB_BLOCK) {
        const __m512i w0 = _mm512_load_si512(weight), w1 = _mm512_load_si512(weight + 64);
        const int64_t offset = step->offsets[k];
        EACH_PIXEL {
            const uint8_t *from = AT(p) + offset;
            if (looks_up) {
                const __m512i table = _mm512_loadu_si512(from);
                s[p][0] = add_products(s[p][0], ones, _mm512_permutexvar_epi8(w0, table));
                s[p][1] = add_products(s[p][1], ones, _mm512_permutexvar_epi8(w1, table));
            } else {
                int32_t four;
                __builtin_memcpy(&four, from, 4);
                const __m512i bytes = _mm512_set1_epi32(four);
                s[p][0] = add_products(s[p][0], bytes, w0);
                s[p][1] = add_products(s[p][1], bytes, w1);
            }
        }
    }
    EACH_PIXEL EB_UNROLL(2) for (int i = 0; i < 2; i++)
        _mm512_storeu_ps(sums + p * EB_BLOCK + 16 * i, _mm512_cvtepi32_ps(s[p][i]));
}

#define ONE(n) case n: add_tile(looks_up, 1, n, step, input, NULL, row, sums); break;
#define TWO(n) case n: add_tile(looks_up, 2, n, step, input, row->input[1], row, sums); break;
INLINE void add_row(const int looks_up, const eb_step *step, const eb_byte_row *row) {
    const uint8_t *input = row->input[0];
    float *sums = row->sums;
    if (row->rows == 2) {
        switch (row->pixels) { TWO(1) TWO(2) TWO(3) TWO(4) TWO(5) TWO(6) TWO(7) default: break; }
        return;
    }
    int64_t left = row->pixels;
    for (int64_t tiles = (left + EB_MOST_TILE - 1) / EB_MOST_TILE; tiles; tiles--) {
        const int64_t tile = (left + tiles - 1) / tiles; /* as equal as possible */
        switch (tile) {
            ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12) ONE(13) ONE(14)
        default: break;
        }
        left -= tile;
        input += tile * step->apart;
        sums += tile * EB_BLOCK;
    }
}

static void dot(const eb_step *step, const eb_byte_row *row) { add_row(0, step, row); }
static void look_up(const eb_step *step, const eb_byte_row *row) { add_row(1, step, row); }

/* Entry w of a table: Σ u_i where bit i of w is 1, - u_i where it is 0. Spread by places, and turned where the bit is 0. */
static void make_tables(const uint8_t *from, int64_t channels, uint8_t *to) {
    const __m512i entry = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i quarter = _mm512_set_epi64(0x0c0c0c0c0c0c0c0c, 0x0c0c0c0c0c0c0c0c, 0x0808080808080808, 0x0808080808080808,
                                             0x0404040404040404, 0x0404040404040404, 0, 0);
    for (int64_t c = 0; c < channels; c += 16, to += 64) {
        const __mmask16 used = channels - c >= 16 ? 0xffff : (__mmask16)((1u << (channels - c)) - 1);
        const __m512i four = _mm512_broadcast_i32x4(_mm_maskz_loadu_epi8(used, from + c));
        __m512i sum = _mm512_setzero_si512();
        EB_UNROLL(4) for (int i = 0; i < 4; i++) {
            const __m512i spread = _mm512_shuffle_epi8(four, _mm512_add_epi8(quarter, _mm512_set1_epi8((char)i)));
            const __mmask64 plus = _mm512_test_epi8_mask(entry, _mm512_set1_epi8((char)(1 << i)));
            sum = _mm512_mask_add_epi8(_mm512_sub_epi8(sum, spread), plus, sum, spread);
        }
        _mm512_storeu_si512(to, sum);
    }
}

static int64_t place(int64_t four, int64_t filter) { return four / 4 * 128 + filter / 16 * 64 + filter % 16 * 4 + four % 4; }

const eb_byte_kernels eb_byte_kernels_avx512 = {
    .name = "avx512", .supported = supported, .dot = dot, .dot_int8 = dot, .look_up = look_up, .make_tables = make_tables,
    .place = place, .four_shift = 4};
#endif
