/* Real inputs with binary weights on AVX2, by table lookup. tables.c describes the layout of tables and weights.
 *
 * As on AVX-512, with vectors of half the size: three bits of a filter select one of the eight sums ±a ±b ±c. */
enum { LOOK_TILE = 6, TABLE = 8, WORD_NUMBERS = 80 };

/* The 8 sums of three numbers; bit i of the index selects whether the i-th is added or subtracted. */
static void tables_make(const float *from, int64_t count, float *to) {
    const __m256 a = _mm256_setr_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0);
    const __m256 b = _mm256_setr_ps(-0.0f, -0.0f, 0, 0, -0.0f, -0.0f, 0, 0);
    const __m256 c = _mm256_setr_ps(-0.0f, -0.0f, -0.0f, -0.0f, 0, 0, 0, 0);
    for (; count > 0; count -= 3, from += 3, to += TABLE) {
        float three[3] = {0};
        const float *x = from;
        if (count < 3) x = memcpy(three, from, (size_t)count * 4);
        const __m256 first = _mm256_xor_ps(_mm256_broadcast_ss(x), a), second = _mm256_xor_ps(_mm256_broadcast_ss(x + 1), b);
        const __m256 third = _mm256_xor_ps(_mm256_broadcast_ss(x + 2), c);
        _mm256_storeu_ps(to, _mm256_add_ps(_mm256_add_ps(first, second), third));
    }
}

/* Sum a few pixels for half a block. A single pixel has two sums per filter, so that additions do not wait for each
 * other. */
INLINE void look_up_pixels(const int pixels, const int64_t apart, const eb_step *step, const float *tables,
                           const uint32_t *weight, float *sums) {
    enum { SIDES = 2, HALF = EB_BLOCK / 2 };
    const int64_t *field = step->field, words = step->words;
    const int64_t line = step->padded_columns * WORD_NUMBERS, last = eb_last_tables(step);
    __m256 s[LOOK_TILE][2], other[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 one = _mm256_set1_ps(1);
    __asm__("" : "+x"(one));
    for (int p = 0; p < LOOK_TILE; p++) s[p][0] = s[p][1] = _mm256_setzero_ps();
    for (int64_t row = 0; row < field[EB_KERNEL_H]; row++)
        for (int64_t word = 0; word < words; word++) {
            const float *at = tables + (row * field[EB_DILATION_H] * words + word) * line;
            const int64_t numbers = word + 1 < words ? WORD_NUMBERS : last;
            for (int64_t column = 0; column < field[EB_KERNEL_W]; column++, weight += EB_BLOCK) {
                __m256i w0 = _mm256_load_si256((const __m256i *)weight), w1 = _mm256_load_si256((const __m256i *)(weight + 8));
                for (int64_t i = 0; i < numbers; i += SIDES * TABLE)
                    EB_UNROLL(2) for (int side = 0; side < SIDES; side++) {
                        EB_UNROLL(6) for (int p = 0; p < pixels; p++) {
                            __m256 table = _mm256_load_ps(at + p * apart + i + side * TABLE);
                            if (pixels != 4) __asm__("" : "+x"(table)); /* read once for both; four pixels are faster without */
                            __m256 *sum = pixels == 1 && side ? other : s[p];
                            sum[0] = _mm256_add_ps(sum[0], _mm256_permutevar8x32_ps(table, w0));
                            sum[1] = _mm256_fmadd_ps(_mm256_permutevar8x32_ps(table, w1), one, sum[1]);
                        }
                        w0 = _mm256_srli_epi32(w0, 3);
                        w1 = _mm256_srli_epi32(w1, 3);
                    }
                at += field[EB_DILATION_W] * WORD_NUMBERS;
            }
        }
    for (int i = 0; pixels == 1 && i < 2; i++) s[0][i] = _mm256_add_ps(s[0][i], other[i]);
    EB_UNROLL(6) for (int p = 0; p < pixels; p++)
        EB_UNROLL(2) for (int i = 0; i < 2; i++) _mm256_storeu_ps(sums + p * EB_BLOCK + 8 * i, s[p][i]);
}

INLINE void look_up_row(const int64_t apart, const eb_step *step, const float *tables, const uint32_t *packed,
                        int64_t pixels, float *sums) {
    for (int64_t tile; pixels > 0; pixels -= tile) { /* tiles of 6, 4 and 3 are faster than those of 5, 2 and 1 */
        const int64_t rest = pixels % LOOK_TILE;
        tile = pixels < LOOK_TILE ? pixels : pixels > LOOK_TILE && (rest == 1 || rest == 2 || rest == 5) ? 4 : LOOK_TILE;
        for (int half = 0; half < EB_BLOCK; half += EB_BLOCK / 2)
#define CASE(n) case n: look_up_pixels(n, apart, step, tables, packed + half, sums + half); break;
            switch (tile) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            default: break;
            }
#undef CASE
        tables += tile * apart;
        sums += tile * EB_BLOCK;
    }
}

static void tables_row(const eb_step *step, const float *tables, const uint32_t *packed, int64_t pixels, float *sums) {
    if (step->apart == WORD_NUMBERS) look_up_row(WORD_NUMBERS, step, tables, packed, pixels, sums);
    else look_up_row(step->apart, step, tables, packed, pixels, sums);
}
