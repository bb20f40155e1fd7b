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

/* Numbers of 4 bits are looked up: what is looked up is 60 at most, so that four add up in a byte. Bytes are added to words twice, whole and as their upper bytes: at the end the lower bytes' sum is the
 * first less 256 times the second, whether or not the first has wrapped around. */
enum { LOOK_TILE = 3, WORDS = 256 };
#define EACH_LOOKED EB_UNROLL(3) for (int p = 0; p < pixels; p++)

INLINE void look_tile(const int pixels, const eb_step *step, const uint8_t *input, const eb_byte_row *row, float *sums) {
    const int64_t apart = step->apart;
    const uint8_t *weight = row->packed;
    __m256i wide[LOOK_TILE][VECS];
    EACH_LOOKED EACH wide[p][i] = _mm256_loadu_si256((const __m256i *)(row->start + 8 * i));
    for (int64_t k = 0; k < step->sums;) {
        const int64_t end = k + WORDS < step->sums ? k + WORDS : step->sums;
        __m256i all[LOOK_TILE], upper[LOOK_TILE];
        EACH_LOOKED all[p] = upper[p] = _mm256_setzero_si256();
        for (; k < end; k++, weight += 4 * EB_BLOCK) {
            const uint8_t *from = input + step->offsets[k];
            __m256i some[LOOK_TILE];
            EB_UNROLL(4) for (int four = 0; four < 4; four++) {
                const __m256i w = _mm256_load_si256((const __m256i *)(weight + four * EB_BLOCK));
                EACH_LOOKED {
                    const __m128i *table = (const __m128i *)(from + p * apart + four * 16);
                    const __m256i looked = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table)), w);
                    some[p] = four ? _mm256_add_epi8(some[p], looked) : looked;
                }
            }
            EACH_LOOKED all[p] = _mm256_add_epi16(all[p], some[p]);
            EACH_LOOKED upper[p] = _mm256_add_epi16(upper[p], _mm256_srli_epi16(some[p], 8));
        }
        EACH_LOOKED {
            const __m256i lower = _mm256_sub_epi16(all[p], _mm256_slli_epi16(upper[p], 8));
            EACH {
                const __m256i words = i < 2 ? lower : upper[p];
                const __m128i half = i % 2 ? _mm256_extracti128_si256(words, 1) : _mm256_castsi256_si128(words);
                wide[p][i] = _mm256_add_epi32(wide[p][i], _mm256_cvtepu16_epi32(half));
            }
        }
    }
    EACH_LOOKED EACH _mm256_storeu_ps(sums + p * EB_BLOCK + 8 * i, _mm256_cvtepi32_ps(wide[p][i]));
}

static void look_up(const eb_step *step, const eb_byte_row *row) {
    float *sums = row->sums;
    for (int i = 0; i < row->rows; i++) {
        for (int64_t x = 0, tile; x < row->pixels; x += tile, sums += tile * EB_BLOCK) {
            const uint8_t *input = row->input[i] + x * step->apart;
            tile = row->pixels - x < LOOK_TILE ? row->pixels - x : LOOK_TILE;
            if (tile == 3) look_tile(3, step, input, row, sums);
            else if (tile == 2) look_tile(2, step, input, row, sums);
            else look_tile(1, step, input, row, sums);
        }
    }
}

/* Each byte of eight tables takes number i of its four channels, or where bit i of its place is 0 what complements it,
 * which is 8 bytes behind. */
static void make_tables(const uint8_t *from, int64_t channels, int levels, uint8_t *to) {
    const __m256i entry = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m256i first = _mm256_set_epi64x(0x0404040404040404, 0x0404040404040404, 0, 0);
    __m256i places[4];
    EB_UNROLL(4) for (int i = 0; i < 4; i++) {
        const __m256i bit = _mm256_set1_epi8((char)(1 << i)), plus = _mm256_cmpeq_epi8(_mm256_and_si256(entry, bit), bit);
        const __m256i place = _mm256_blendv_epi8(_mm256_set1_epi8((char)(8 + i)), _mm256_set1_epi8((char)i), plus);
        places[i] = _mm256_add_epi8(first, place);
    }
    for (int64_t c = 0; c < channels; c += 16, to += 64) {
        uint8_t rest[16] = {0};
        if (channels - c < 16) memcpy(rest, from + c, (size_t)(channels - c));
        const __m128i u = _mm_loadu_si128((const __m128i *)(channels - c < 16 ? rest : from + c));
        const __m128i other = _mm_sub_epi8(_mm_set1_epi8((char)levels), u);
        EB_UNROLL(2) for (int half = 0; half < 2; half++) {
            const __m256i both = _mm256_broadcastsi128_si256(half ? _mm_unpackhi_epi64(u, other) : _mm_unpacklo_epi64(u, other));
            __m256i sum = _mm256_shuffle_epi8(both, places[0]);
            EB_UNROLL(3) for (int bit = 1; bit < 4; bit++) sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(both, places[bit]));
            _mm256_storeu_si256((__m256i *)(to + 32 * half), sum);
        }
    }
}

static int64_t place(int64_t four, int64_t filter) { return four * EB_BLOCK + filter % 16 * 2 + filter / 16; }

const eb_byte_kernels eb_byte_kernels_avx2 = {
    .name = "avx2", .supported = supported, .dot = dot, .dot_int8 = eb_dot_portable, .look_up = look_up,
    .make_tables = make_tables, .place = place};
