/* Real inputs with binary weights on AVX-512, by table lookup. tables.c describes the layout of tables and weights.
 *
 * Four bits of a filter select one of the 16 sums ±a ±b ±c ±d, a vector computed once for all filters and taps. Looking
 * up and adding the sums of 16 filters replaces four products and additions. Half of the sums are added by a multiply-
 * add with 1: it rounds as an addition does, and processors with separate units for both use them at once. */
enum { LOOK_TILE = 8, TABLE = 16, WORD_NUMBERS = 128 };

/* The 16 sums of four numbers; bit i of the index selects whether the i-th is added or subtracted. */
static void tables_make(const float *from, int64_t count, float *to) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i minus = _mm512_set1_epi32(INT32_MIN), ones = _mm512_set1_epi32(-1);
    __m512 sign[4];
    for (int i = 0; i < 4; i++) { /* bit i of the index, inverted, as the sign */
        const __m512i bit = _mm512_sll_epi32(_mm512_xor_si512(lane, ones), _mm_cvtsi32_si128(31 - i));
        sign[i] = _mm512_castsi512_ps(_mm512_and_si512(bit, minus));
    }
    for (; count > 0; count -= 4, from += 4, to += TABLE) {
        float four[4] = {0};
        const float *x = from;
        if (count < 4) x = memcpy(four, from, (size_t)count * 4);
        const __m512 a = _mm512_xor_ps(_mm512_set1_ps(x[0]), sign[0]), b = _mm512_xor_ps(_mm512_set1_ps(x[1]), sign[1]);
        const __m512 c = _mm512_xor_ps(_mm512_set1_ps(x[2]), sign[2]), d = _mm512_xor_ps(_mm512_set1_ps(x[3]), sign[3]);
        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
    }
}

/* Sum a few pixels. A single pixel has two sums per filter, so that additions do not wait for each other. */
INLINE void look_up_pixels(const int pixels, const int64_t apart, const eb_step *step, const float *tables,
                           const uint32_t *weight, float *sums) {
    enum { SIDES = 2 };
    const int64_t *field = step->field, words = step->words;
    const int64_t line = step->padded_columns * WORD_NUMBERS, last = eb_last_tables(step);
    __m512 s[LOOK_TILE][2], other[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m512 one = _mm512_set1_ps(1);
    __asm__("" : "+v"(one));
    EACH_PIXEL s[p][0] = s[p][1] = _mm512_setzero_ps();
    for (int64_t row = 0; row < field[EB_KERNEL_H]; row++)
        for (int64_t word = 0; word < words; word++) {
            const float *at = tables + (row * field[EB_DILATION_H] * words + word) * line;
            const int64_t numbers = word + 1 < words ? WORD_NUMBERS : last;
            for (int64_t column = 0; column < field[EB_KERNEL_W]; column++, weight += EB_BLOCK) {
                __m512i w0 = _mm512_load_si512(weight), w1 = _mm512_load_si512(weight + 16);
                for (int64_t i = 0; i < numbers; i += SIDES * TABLE)
                    EB_UNROLL(2) for (int side = 0; side < SIDES; side++) {
                        EACH_PIXEL {
                            __m512 table = _mm512_load_ps(at + p * apart + i + side * TABLE);
                            __asm__("" : "+v"(table)); /* read once for both */
                            __m512 *sum = pixels == 1 && side ? other : s[p];
                            sum[0] = _mm512_add_ps(sum[0], _mm512_permutexvar_ps(w0, table));
                            sum[1] = _mm512_fmadd_ps(_mm512_permutexvar_ps(w1, table), one, sum[1]);
                        }
                        w0 = _mm512_srli_epi32(w0, 4);
                        w1 = _mm512_srli_epi32(w1, 4);
                    }
                at += field[EB_DILATION_W] * WORD_NUMBERS;
            }
        }
    for (int i = 0; pixels == 1 && i < 2; i++) s[0][i] = _mm512_add_ps(s[0][i], other[i]);
    EACH_PIXEL
        EB_UNROLL(2) for (int i = 0; i < 2; i++) _mm512_storeu_ps(sums + p * EB_BLOCK + 16 * i, s[p][i]);
}

INLINE void look_up_row(const int64_t apart, const eb_step *step, const float *tables, const uint32_t *packed,
                        int64_t pixels, float *sums) {
    for (int64_t tiles = (pixels + LOOK_TILE - 1) / LOOK_TILE; tiles; tiles--) {
        const int64_t tile = (pixels + tiles - 1) / tiles; /* as equal as possible */
#define CASE(n) case n: look_up_pixels(n, apart, step, tables, packed, sums); break;
        switch (tile) {
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
        default: break;
        }
#undef CASE
        pixels -= tile;
        tables += tile * apart;
        sums += tile * EB_BLOCK;
    }
}

static void tables_row(const eb_step *step, const float *tables, const uint32_t *packed, int64_t pixels, float *sums) {
    if (step->apart == WORD_NUMBERS) look_up_row(WORD_NUMBERS, step, tables, packed, pixels, sums);
    else look_up_row(step->apart, step, tables, packed, pixels, sums);
}
