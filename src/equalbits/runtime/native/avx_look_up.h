/* Real inputs with binary weights by table lookup, for every instruction set that can permute a vector by another.
 * tables.c describes the layout of tables and weights.
 *
 * A few bits of a filter select one of the sums ±a ±b ±c (±d), a vector computed once for all filters and taps. Looking
 * up and adding the sums of a vector of filters replaces three (four) products and additions. Half of the sums are added
 * by a multiply-add with 1: it rounds as an addition does, and processors with separate units for both use them at once.
 *
 * The file that includes this defines, beside what simd.h needs: CHANNELS of a table; LOOK_TILE, the most pixels that
 * are summed together; WIDE vectors of filters for a single pixel; words_vec, a vector of words, with i_load and i_right (a
 * shift); look_up_two(table, w, one, sums), which looks up the words of two vectors and adds the sums found. */
enum { WORD_NUMBERS = 32 / CHANNELS * LANES, SUMS = 2 };

/* All sums of a few numbers; bit i of the index selects whether the i-th is added or subtracted. */
static void tables_make(const float *from, int64_t count, float *to) {
    static const uint32_t minus[4] = {0x5555, 0x3333, 0x0f0f, 0x00ff};
    vec sign[CHANNELS];
    EB_UNROLL(4) for (int i = 0; i < CHANNELS; i++) sign[i] = v_flip(v_set(1), minus[i], 0);
    for (; count > 0; count -= CHANNELS, from += CHANNELS, to += LANES) {
        float all[CHANNELS] = {0};
        const float *x = from;
        if (count < CHANNELS) x = memcpy(all, from, (size_t)count * 4);
        const vec sum = v_fma(v_set(x[1]), sign[1], v_mul(v_set(x[0]), sign[0])), next = v_mul(v_set(x[2]), sign[2]);
        v_store(to, v_add(sum, CHANNELS == 4 ? v_fma(v_set(x[CHANNELS - 1]), sign[CHANNELS - 1], next) : next));
    }
}

/* Sum a few pixels for some vectors of filters, over several blocks if they are more than a block. A single pixel has two
 * sums per filter, so that additions do not wait for each other. */
INLINE void look_up_sums(const int pixels, const int vectors, const int64_t apart, const eb_step *step, const float *tables,
                    const uint32_t *weight, float *sums) {
    const int64_t *field = step->field, words = step->words, block = step->block_bytes / 4;
    const int64_t line = step->padded_columns * WORD_NUMBERS, last = eb_last_tables(step);
    vec s[LOOK_TILE][WIDE], other[WIDE], one = v_set(1);
    __asm__("" : "+v"(one)); /* else compilers turn multiply-adds into additions */
    EB_UNROLL(8) for (int v = 0; v < vectors; v++) {
        other[v] = v_set(0);
        EB_UNROLL(8) for (int p = 0; p < pixels; p++) s[p][v] = v_set(0);
    }
    for (int64_t row = 0; row < field[EB_KERNEL_H]; row++)
        for (int64_t word = 0; word < words; word++) {
            const float *at = tables + (row * field[EB_DILATION_H] * words + word) * line;
            const int64_t numbers = word + 1 < words ? WORD_NUMBERS : last;
            for (int64_t column = 0; column < field[EB_KERNEL_W]; column++, weight += EB_BLOCK) {
                words_vec w[WIDE];
                EB_UNROLL(8) for (int v = 0; v < vectors; v++) {
                    const uint32_t *from = weight + v * LANES / EB_BLOCK * block + v * LANES % EB_BLOCK;
                    w[v] = i_load(from);
                    /* read once, from memory: those of the next blocks */
                    if (pixels == 1) __builtin_prefetch(from + vectors * LANES / EB_BLOCK * block);
                }
                for (int64_t i = 0; i < numbers; i += SUMS * LANES)
                    EB_UNROLL(2) for (int side = 0; side < SUMS; side++) {
                        EB_UNROLL(8) for (int p = 0; p < pixels; p++) {
                            vec *sum = pixels == 1 && side ? other : s[p];
                            EB_UNROLL(4) for (int v = 0; v < vectors; v += 2)
                                look_up_two(at + p * apart + i + side * LANES, w + v, one, sum + v);
                        }
                        EB_UNROLL(8) for (int v = 0; v < vectors; v++) w[v] = i_right(w[v], CHANNELS);
                    }
                at += field[EB_DILATION_W] * WORD_NUMBERS;
            }
        }
    EB_UNROLL(8) for (int v = 0; v < vectors; v++) {
        if (pixels == 1) s[0][v] = v_add(s[0][v], other[v]);
        EB_UNROLL(8) for (int p = 0; p < pixels; p++) v_store(sums + p * EB_BLOCK + v * LANES, s[p][v]);
    }
}

INLINE void look_up_tile(const int pixels, const int64_t apart, const eb_step *step, const float *tables,
                         const uint32_t *packed, float *sums) {
    for (int i = 0; i < EB_BLOCK; i += 2 * LANES) look_up_sums(pixels, 2, apart, step, tables, packed + i, sums + i);
}

INLINE void look_up_row(const int64_t apart, const eb_step *step, const float *tables, const uint32_t *packed,
                        int64_t pixels, float *sums) {
    for (int64_t tiles = (pixels + LOOK_TILE - 1) / LOOK_TILE; tiles; tiles--) {
        const int64_t tile = (pixels + tiles - 1) / tiles; /* as equal as possible */
#define CASE(n) case n: look_up_tile(n < LOOK_TILE ? n : LOOK_TILE, apart, step, tables, packed, sums); break;
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

/* Several blocks for a single pixel, or one. */
static void tables_row(const eb_step *step, const float *tables, const uint32_t *packed, int64_t blocks, int64_t pixels,
                       float *sums) {
    enum { TOGETHER = WIDE * LANES / EB_BLOCK };
    for (; pixels == 1 && blocks >= TOGETHER; blocks -= TOGETHER, sums += TOGETHER * EB_BLOCK) {
        look_up_sums(1, WIDE, WORD_NUMBERS, step, tables, packed, sums);
        packed += TOGETHER * step->block_bytes / 4;
    }
    for (; blocks > 0; blocks--, packed += step->block_bytes / 4, sums += EB_BLOCK)
        if (step->apart == WORD_NUMBERS) look_up_row(WORD_NUMBERS, step, tables, packed, pixels, sums);
        else look_up_row(step->apart, step, tables, packed, pixels, sums);
}
