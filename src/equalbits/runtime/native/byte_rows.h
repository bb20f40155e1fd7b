/* Lookup of binary weights in the tables of byte_tables.h, each 16 bytes of a vector in a table of their own.
 *
 * The including file defines a vector of BYTES bytes: bytes, b_load, b_store, b_set (broadcast a byte), b_and, b_upper
 * (the upper half of each byte), b_look_up (within each 16 bytes), b_add (bytes), b_add_16, b_sub_16, b_right and
 * b_left (shift words by bits). The 64 bytes of weights of a step hold 16 filters in their low halves and 16 in their
 * high halves. Byte sums are added to words twice, whole and as their upper bytes: in the end the sum of the lower
 * bytes is the first minus 256 times the second, even if the first has wrapped around. */
enum { PARTS = 64 / BYTES, LOW_STEPS = 4 / PARTS, HIGH_STEPS = 32 / PARTS, WORD_STEPS = 1024 / PARTS, AHEAD_BYTES = 4096 };

typedef struct {
    bytes all, upper;
} words_sum;

INLINE void add_to_words(words_sum *sum, bytes some) {
    sum->all = b_add_16(sum->all, some);
    sum->upper = b_add_16(sum->upper, b_right(some, 8));
}

/* Add words to wider sums, first those of the even filters, then of the odd: low + 64 · high. */
INLINE void flush_words(const words_sum *low, const words_sum *high, uint32_t sums[2][8]) {
    uint16_t words[4][BYTES / 2];
    b_store(words[0], b_sub_16(low->all, b_left(low->upper, 8)));
    b_store(words[1], low->upper);
    b_store(words[2], b_sub_16(high->all, b_left(high->upper, 8)));
    b_store(words[3], high->upper);
    for (int odd = 0; odd < 2; odd++)
        for (int at = 0; at < BYTES / 2; at += 8)
            for (int i = 0; i < 8; i++) sums[odd][i] += words[odd][at + i] + 64u * words[2 + odd][at + i];
}

static void bytes_row(const uint8_t *tables, const uint8_t *packed, int64_t steps, uint32_t *totals) {
    const bytes mask = b_set(15), zero = b_set(0);
    uint32_t sums[2][2][8] = {0};
    for (int64_t step = 0; step < steps;) {
        const int64_t flush = step + WORD_STEPS < steps ? step + WORD_STEPS : steps;
        words_sum low[2] = {{zero, zero}, {zero, zero}}, high[2] = {{zero, zero}, {zero, zero}};
        while (step < flush) {
            const int64_t full = step + HIGH_STEPS < flush ? step + HIGH_STEPS : flush;
            bytes h0 = zero, h1 = zero;
            for (; step < full; step += LOW_STEPS) {
                bytes l0 = zero, l1 = zero;
                EB_UNROLL(4) for (int i = 0; i < 4; i++, packed += BYTES) {
                    const uint8_t *table = tables + (step + i / PARTS) * EB_BYTES_STEP + i % PARTS * BYTES;
                    const bytes lows = b_load(table), highs = b_load(table + 64), both = b_load(packed);
                    const bytes w0 = b_and(both, mask), w1 = b_upper(both);
                    if (i % PARTS == 0) __builtin_prefetch(packed + AHEAD_BYTES); /* all are read once, from memory */
                    l0 = b_add(l0, b_look_up(lows, w0));
                    l1 = b_add(l1, b_look_up(lows, w1));
                    h0 = b_add(h0, b_look_up(highs, w0));
                    h1 = b_add(h1, b_look_up(highs, w1));
                }
                add_to_words(low, l0);
                add_to_words(low + 1, l1);
            }
            add_to_words(high, h0);
            add_to_words(high + 1, h1);
        }
        flush_words(low, high, sums[0]);
        flush_words(low + 1, high + 1, sums[1]);
    }
    for (int lane = 0; lane < EB_BLOCK; lane++) totals[lane] = sums[lane / 16][lane % 2][lane % 16 / 2];
}
