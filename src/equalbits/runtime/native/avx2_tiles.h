/* AVX2 counting by tiles: the vectors of tiles_layout.h and tiles_run.h. */
#define PIXELS EB_BLOCK
#define AT_ONCE 5
#include "tiles_layout.h"

/* Split 32 words into their eight quads, 32 bytes each, at a distance of `apart`. */
INLINE void take_apart(const uint32_t *words, uint8_t *to, int64_t apart) {
    const __m256i low = _mm256_set1_epi8(15), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13,
                                           2, 6, 10, 14, 3, 7, 11, 15);
    __m256i v[4], q[4];
    for (int i = 0; i < 4; i++) { /* the first bytes of eight words, then their second, third and fourth */
        v[i] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(words + 8 * i)), bytes);
        v[i] = _mm256_permutevar8x32_epi32(v[i], order);
    }
    for (int i = 0; i < 4; i += 2) {
        q[i] = _mm256_unpacklo_epi64(v[i], v[i + 1]);
        q[i + 1] = _mm256_unpackhi_epi64(v[i], v[i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        const __m256i eight = i < 2 ? _mm256_permute2x128_si256(q[i], q[i + 2], 0x20)
                                    : _mm256_permute2x128_si256(q[i - 2], q[i], 0x31);
        _mm256_storeu_si256((__m256i *)(to + 2 * i * apart), _mm256_and_si256(eight, low));
        _mm256_storeu_si256((__m256i *)(to + (2 * i + 1) * apart), _mm256_and_si256(_mm256_srli_epi16(eight, 4), low));
    }
}

/* Up to 32 pixels, a window's stride apart. */
INLINE void copy_chunk(const int64_t apart, const uint8_t *from, uint8_t *to, int64_t count) {
    const __m256i *at = (const __m256i *)from, even = _mm256_set1_epi16(255);
    if (apart == 1) _mm256_storeu_si256((__m256i *)to, _mm256_loadu_si256(at));
    else if (apart == 2) {
        const __m256i a = _mm256_and_si256(_mm256_loadu_si256(at), even), b = _mm256_and_si256(_mm256_loadu_si256(at + 1), even);
        _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8));
    } else
        for (int64_t i = 0; i < count; i++) to[i] = from[i * apart];
}

#define EACH_VECTOR EB_UNROLL(5) for (int v = 0; v < vectors; v++)
#define PLACES(entry, vector) (((const __m256i_u *)(input + (entry) * EB_TILE))[vector])

/* Add three entries to the sums of one vector of pixels. A shift moves words of two bytes, so the low half of each
 * second byte lands in the high half of the first, which is corrected at the end. In this order the compiler moves no
 * registers. */
#define ADD_THREE(whole, high, v)                                                                                     \
    __asm__("vpshufb %[pa], %[a], %[t]\n\t"                                                                           \
            "vpshufb %[pb], %[b], %[u]\n\t"                                                                           \
            "vpaddb %[u], %[t], %[t]\n\t"                                                                             \
            "vpshufb %[pc], %[c], %[u]\n\t"                                                                           \
            "vpaddb %[u], %[t], %[t]\n\t"                                                                             \
            "vpaddb %[t], %[w], %[w]\n\t"                                                                             \
            "vpsrlw $4, %[t], %[t]\n\t"                                                                               \
            "vpaddb %[t], %[h], %[h]"                                                                                 \
            : [w] "+x"(whole), [h] "+x"(high), [t] "=&x"(t), [u] "=&x"(u)                                             \
            : [a] "x"(a), [b] "x"(b), [c] "x"(c), [pa] "m"(PLACES(0, v)), [pb] "m"(PLACES(1, v)),                       \
              [pc] "m"(PLACES(2, v)))

INLINE __m256i table_of(uint8_t pair) {
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)tables[pair]));
}

INLINE void add_words(uint16_t *sums, __m256i words, int first) {
    __m256i *at = (__m256i *)sums;
    _mm256_store_si256(at, first ? words : _mm256_add_epi16(_mm256_load_si256(at), words));
}

/* Convert the byte sums of one vector to 16-bit sums, first those of even bytes, then of odd ones. The high halves of
 * odd bytes are complete; subtracting 16 times them gives their low halves, subtracting 16 times those the high halves
 * of even bytes, and so on. All are below 256. */
INLINE void add_sums(uint16_t *low, uint16_t *high, __m256i whole, __m256i halves, int first) {
    const __m256i byte = _mm256_set1_epi16(255), top = _mm256_set1_epi16((short)0xf000);
    const __m256i less = _mm256_sub_epi16(whole, _mm256_and_si256(_mm256_slli_epi16(halves, 4), top));
    const __m256i low2 = _mm256_srli_epi16(less, 8);
    const __m256i high1 = _mm256_and_si256(_mm256_sub_epi16(halves, _mm256_slli_epi16(low2, 4)), byte);
    add_words(low, _mm256_and_si256(_mm256_sub_epi16(whole, _mm256_slli_epi16(high1, 4)), byte), first);
    add_words(low + 16, low2, first);
    add_words(high, high1, first);
    add_words(high + 16, _mm256_srli_epi16(halves, 8), first);
}

/* Up to LOOKUPS entries of two filters for a tile of pixels. */
INLINE void count_two(const int vectors, const uint8_t *input, const uint8_t *weight, int64_t count, int first,
                      uint16_t sums[2][EB_TILE]) {
    __m256i whole[VECTORS], high[VECTORS];
    EACH_VECTOR whole[v] = high[v] = _mm256_setzero_si256();
    for (; count >= 3; count -= 3, weight += 3, input += 3 * EB_TILE) {
        const __m256i a = table_of(weight[0]), b = table_of(weight[1]), c = table_of(weight[2]);
        EACH_VECTOR {
            __m256i t, u;
            ADD_THREE(whole[v], high[v], v);
        }
    }
    for (; count; count--, weight++, input += EB_TILE) {
        const __m256i a = table_of(*weight);
        EACH_VECTOR {
            __m256i t = _mm256_shuffle_epi8(a, PLACES(0, v));
            whole[v] = _mm256_add_epi8(whole[v], t);
            high[v] = _mm256_add_epi8(high[v], _mm256_srli_epi16(t, 4));
        }
    }
    EACH_VECTOR add_sums(sums[0] + EB_BLOCK * v, sums[1] + EB_BLOCK * v, whole[v], high[v], first);
}

/* Transpose the 16-bit sums of eight filters to eight numbers for each of 32 pixels. */
INLINE void turn(const uint16_t sums[8][EB_TILE], int32_t *counts) {
    for (int half = 0; half < 2; half++) { /* the even pixels, then the odd ones */
        __m256i a[8], b[8];
        for (int i = 0; i < 8; i++) a[i] = _mm256_load_si256((const __m256i *)sums[i] + half);
        for (int i = 0; i < 4; i++) {
            b[2 * i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; j++) {
                a[i + 2 * j] = _mm256_unpacklo_epi32(b[i + j], b[i + j + 2]);
                a[i + 2 * j + 1] = _mm256_unpackhi_epi32(b[i + j], b[i + j + 2]);
            }
        for (int j = 0; j < 4; j++) {
            b[2 * j] = _mm256_unpacklo_epi64(a[j], a[j + 4]);
            b[2 * j + 1] = _mm256_unpackhi_epi64(a[j], a[j + 4]);
        }
        for (int pixel = 0; pixel < 8; pixel++) {
            int32_t *to = counts + (2 * pixel + half) * EB_BLOCK;
            _mm256_storeu_si256((__m256i *)to, _mm256_cvtepu16_epi32(_mm256_castsi256_si128(b[pixel])));
            _mm256_storeu_si256((__m256i *)(to + 16 * EB_BLOCK),
                                _mm256_cvtepu16_epi32(_mm256_extracti128_si256(b[pixel], 1)));
        }
    }
}

#include "tiles_run.h"
