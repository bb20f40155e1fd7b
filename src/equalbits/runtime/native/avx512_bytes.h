/* Rows of bytes by weights as bytes 0 and 1, on AVX-512 with VNNI: four products of each lane in one instruction. */
enum { BYTES_TILE = 12 };

INLINE void bytes_rows(const int pixels, const int8_t *rows, int64_t apart, int64_t quads, const uint8_t *ones,
                       int32_t *sums) {
    __m512i s[BYTES_TILE][2];
    EACH_PIXEL EB_UNROLL(2) for (int i = 0; i < 2; i++) s[p][i] = _mm512_loadu_si512(sums + p * EB_BLOCK + 16 * i);
    for (int64_t quad = 0; quad < quads; quad++, rows += 4, ones += 4 * EB_BLOCK) {
        const __m512i w0 = _mm512_loadu_si512(ones), w1 = _mm512_loadu_si512(ones + 64);
        EACH_PIXEL {
            int32_t four;
            memcpy(&four, rows + p * apart, 4);
            const __m512i q = _mm512_set1_epi32(four);
            s[p][0] = _mm512_dpbusd_epi32(s[p][0], w0, q);
            s[p][1] = _mm512_dpbusd_epi32(s[p][1], w1, q);
        }
    }
    EACH_PIXEL EB_UNROLL(2) for (int i = 0; i < 2; i++) _mm512_storeu_si512(sums + p * EB_BLOCK + 16 * i, s[p][i]);
}

static void bytes_tile(const int8_t *rows, int64_t apart, int64_t count, int64_t groups, const uint8_t *ones,
                       int32_t *sums) {
    for (int64_t tiles = (count + BYTES_TILE - 1) / BYTES_TILE; tiles; tiles--) {
        const int64_t tile = (count + tiles - 1) / tiles; /* as equal as possible */
#define CASE(n) case n: bytes_rows(n, rows, apart, 8 * groups, ones, sums); break;
        switch (tile) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        default: break;
        }
#undef CASE
        count -= tile;
        rows += tile * apart;
        sums += tile * EB_BLOCK;
    }
}
