/* Rows of bytes by weights as bytes 0 and 1, on AVX2: pairs of products add up in 16 bits, as long as they fit. */
enum { BYTES_TILE = 3, FULL_QUADS = 128 }; /* 128 · 2 · 127 < 2¹⁵ */

INLINE void bytes_rows(const int pixels, const int8_t *rows, int64_t apart, int64_t quads, const uint8_t *ones,
                       int32_t *sums) {
    const __m256i one = _mm256_set1_epi16(1);
    for (int64_t left = quads; left > 0; left -= FULL_QUADS) {
        __m256i s[BYTES_TILE][4];
        EACH_PIXEL EB_UNROLL(4) for (int i = 0; i < 4; i++) s[p][i] = _mm256_setzero_si256();
        for (int64_t quad = left < FULL_QUADS ? left : FULL_QUADS; quad; quad--, rows += 4, ones += 4 * EB_BLOCK) {
            __m256i q[BYTES_TILE];
            EACH_PIXEL {
                int32_t four;
                memcpy(&four, rows + p * apart, 4);
                q[p] = _mm256_set1_epi32(four);
            }
            EB_UNROLL(4) for (int i = 0; i < 4; i++) {
                const __m256i w = _mm256_loadu_si256((const __m256i *)(ones + 32 * i));
                EACH_PIXEL s[p][i] = _mm256_add_epi16(s[p][i], _mm256_maddubs_epi16(w, q[p]));
            }
        }
        EACH_PIXEL EB_UNROLL(4) for (int i = 0; i < 4; i++) {
            __m256i *sum = (__m256i *)(sums + p * EB_BLOCK + 8 * i);
            _mm256_storeu_si256(sum, _mm256_add_epi32(_mm256_loadu_si256(sum), _mm256_madd_epi16(s[p][i], one)));
        }
    }
}

static void bytes_tile(const int8_t *rows, int64_t apart, int64_t count, int64_t groups, const uint8_t *ones,
                       int32_t *sums) {
    for (; count >= BYTES_TILE; count -= BYTES_TILE, rows += BYTES_TILE * apart, sums += BYTES_TILE * EB_BLOCK)
        bytes_rows(BYTES_TILE, rows, apart, 8 * groups, ones, sums);
    if (count == 2) bytes_rows(2, rows, apart, 8 * groups, ones, sums);
    if (count == 1) bytes_rows(1, rows, apart, 8 * groups, ones, sums);
}
