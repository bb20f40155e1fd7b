/* Convolutions of bytes with AVX2. */
#include <immintrin.h>
#include <string.h>

#include "core.h"

#define INLINE static inline __attribute__((always_inline))
enum { TILE = 2, VECS = EB_BLOCK / 8, STEPS = 64 };
#define EACH EB_UNROLL(4) for (int i = 0; i < VECS; i++)
#define EACH_PIXEL EB_UNROLL(2) for (int p = 0; p < pixels; p++)

static int supported(void) { return __builtin_cpu_supports("avx2"); }

/* Binary weights: two products of a filter add up to 510 at most, so that 64 of these fit 16 bits. */
INLINE void add_tile(const int pixels, const eb_step *step, const uint8_t *input, const eb_byte_row *row, float *sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int64_t apart = step->apart;
    const int8_t *weight = row->packed;
    __m256i wide[TILE][VECS];
    EACH_PIXEL EACH wide[p][i] = _mm256_loadu_si256((const __m256i *)(row->start + 8 * i));
    for (int64_t k = 0; k < step->sums;) {
        const int64_t end = k + STEPS < step->sums ? k + STEPS : step->sums;
        __m256i s[TILE][VECS];
        EACH_PIXEL EACH s[p][i] = _mm256_setzero_si256();
        for (; k < end; k++, weight += 4 * EB_BLOCK) {
            __m256i a[TILE];
            EACH_PIXEL {
                int32_t four;
                memcpy(&four, input + step->offsets[k] + p * apart, 4);
                a[p] = _mm256_set1_epi32(four);
            }
            EACH {
                const __m256i w = _mm256_load_si256((const __m256i *)(weight + 32 * i));
                EACH_PIXEL s[p][i] = _mm256_add_epi16(s[p][i], _mm256_maddubs_epi16(a[p], w));
            }
        }
        EACH_PIXEL EACH wide[p][i] = _mm256_add_epi32(wide[p][i], _mm256_madd_epi16(s[p][i], ones));
    }
    EACH_PIXEL EACH _mm256_storeu_ps(sums + p * EB_BLOCK + 8 * i, _mm256_cvtepi32_ps(wide[p][i]));
}

static void dot(const eb_step *step, const eb_byte_row *row) {
    float *sums = row->sums;
    for (int i = 0; i < row->rows; i++) {
        const uint8_t *input = row->input[i];
        int64_t left = row->pixels;
        for (; left >= TILE; left -= TILE, input += TILE * step->apart, sums += TILE * EB_BLOCK)
            add_tile(TILE, step, input, row, sums);
        if (left) add_tile(1, step, input, row, sums);
        sums += left * EB_BLOCK;
    }
}

const eb_byte_kernels eb_byte_kernels_avx2 = {.name = "avx2", .supported = supported, .dot = dot};
