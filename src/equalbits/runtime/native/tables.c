/* Convolutions of real inputs with binary weights by table lookup: layout, and preparation of the input.
 *
 * Every four channels of a pixel (three, if a vector holds eight numbers) become a table of their signed sums, (row,
 * word, column, table), zeros around the image. A 32-bit word of a filter, (kernel row, word, kernel column), holds the
 * indices of as many whole tables as fit: 32 channels, or 30.
 *
 * Where a window is one pixel, as in a linear layer, all pixels are one row. Then a thread makes the tables of a few
 * pixels and uses them for all filters while they are in its cache. */
#include <string.h>

#include "core.h"

enum { MOST_BYTES = 1 << 26, FEWEST_FILTERS = 64, FEWEST_CHANNELS = 4, ROWS = 8 };

static int is_one_row(const eb_step *step) {
    const int64_t *field = step->field;
    return step->padded_rows == 1 && field[EB_KERNEL_H] * field[EB_KERNEL_W] * field[EB_STRIDE_W] == 1 &&
           step->padded_columns == step->in.columns && field[EB_GROUPS] == 1 && !field[EB_POOL_H];
}

/* Return whether each table serves enough taps and filters, and all fit in memory. */
int eb_has_tables(const eb_kernels *kernels, const eb_step *step) {
    const int64_t *field = step->field, taps = field[EB_KERNEL_H] * field[EB_KERNEL_W];
    const double pixels = is_one_row(step) ? ROWS : (double)step->padded_rows * (double)step->padded_columns;
    const double bytes = pixels * (double)(field[EB_GROUPS] * (step->group_in / 30 + 1)) * 128 * 4;
    const double uses = (double)taps * (double)step->group_out / (double)(field[EB_STRIDE_H] * field[EB_STRIDE_W]);
    return kernels->table_channels && step->in.kind == EB_REAL && step->group_in >= FEWEST_CHANNELS &&
           uses >= FEWEST_FILTERS && bytes <= MOST_BYTES;
}

/* Return `count` of 1 to 32 bits from bit `first` on. */
static uint32_t take_bits(const uint8_t *bits, int64_t first, int64_t count) {
    uint64_t found = 0;
    for (int64_t byte = first / 8; byte <= (first + count - 1) / 8; byte++)
        found |= (uint64_t)bits[byte] << 8 * (byte - first / 8);
    return (uint32_t)(found >> first % 8 & ((UINT64_C(1) << count) - 1));
}

static void pack_filter(const eb_step *step, const uint8_t *sign, uint32_t *to) {
    const int64_t wide = step->field[EB_KERNEL_W], taps = step->field[EB_KERNEL_H] * wide, held = eb_word_channels(step);
    if (taps == 1) { /* the bits of a word are adjacent: many times as fast */
        for (int64_t word = 0; word < step->words; word++) {
            const int64_t left = step->group_in - held * word;
            to[word * EB_BLOCK] = take_bits(sign, held * word, left < held ? left : held);
        }
        return;
    }
    for (int64_t channel = 0; channel < step->group_in; channel++)
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t entry = (tap / wide * step->words + channel / held) * wide + tap % wide, at = channel * taps + tap;
            to[entry * EB_BLOCK] |= (uint32_t)(sign[at / 8] >> at % 8 & 1) << channel % held;
        }
}

int eb_layout_tables(const eb_kernels *kernels, eb_step *step, const uint8_t *sign, char *error) {
    const int64_t *field = step->field, taps = field[EB_KERNEL_H] * field[EB_KERNEL_W];
    step->tables = kernels->table_channels;
    if (is_one_row(step)) {
        step->table_rows = step->in.columns < ROWS ? step->in.columns : ROWS;
        step->padded_columns = 1; /* the words of a pixel are adjacent */
    }
    step->words = (step->group_in + eb_word_channels(step) - 1) / eb_word_channels(step);
    step->apart = field[EB_STRIDE_W] * eb_word_numbers(step);
    step->row_apart = field[EB_STRIDE_H] * step->words * step->padded_columns * eb_word_numbers(step);
    step->prepared_bytes = step->padded_rows * step->words * step->padded_columns * eb_word_numbers(step) * 4;
    if (step->table_rows) {
        step->apart = step->words * eb_word_numbers(step);
        step->row_bytes = ROWS * (EB_BLOCK + step->apart) * 4;
    } else step->scratch_bytes = field[EB_GROUPS] * step->prepared_bytes;
    step->block_bytes = taps * step->words * EB_BLOCK * 4;
    step->weights = eb_take(step->budget, field[EB_GROUPS] * step->blocks * step->block_bytes);
    if (!step->weights) return eb_fail(error, "there is no memory");
    for (int64_t filter = 0; filter < step->out.channels; filter++) {
        const int64_t group = filter / step->group_out, place = filter % step->group_out;
        char *block = (char *)step->weights + (group * step->blocks + place / EB_BLOCK) * step->block_bytes;
        pack_filter(step, sign + filter * ((step->group_in * taps + 7) / 8), (uint32_t *)block + place % EB_BLOCK);
    }
    return 1;
}

/* Tables of the channels of a word in one pixel, inside or outside the image; the last word has an even number of them.
 */
static void make_word(const eb_kernels *kernels, const eb_step *step, int64_t word, const float *from, float *to) {
    const int64_t held = eb_word_channels(step), left = step->group_in - held * word, count = left < held ? left : held;
    const int64_t made = (count + step->tables - 1) / step->tables << step->tables;
    const int64_t all = left < held ? eb_last_tables(step) : eb_word_numbers(step);
    if (from) kernels->tables_make(from + held * word, count, to);
    else memset(to, 0, (size_t)all * 4);
    if (all > made) memset(to + made, 0, (size_t)(all - made) * 4);
}

/* Units: rows of the padded input, of each group. */
void eb_tables_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t *field = step->field, channels = step->in.channels, columns = step->in.columns;
    const float *input = eb_value_at(context, field[EB_IN]);
    float *tables = (float *)context->scratch + from * step->words * step->padded_columns * eb_word_numbers(step);
    for (int64_t i = from; i < to; i++) {
        const int64_t group = i / step->padded_rows, row = i % step->padded_rows - field[EB_PAD_TOP];
        for (int64_t word = 0; word < step->words; word++)
            for (int64_t x = -field[EB_PAD_LEFT]; x < step->padded_columns - field[EB_PAD_LEFT]; x++) {
                const int inside = row >= 0 && row < step->in.rows && x >= 0 && x < columns;
                const float *at = inside ? input + (row * columns + x) * channels + group * step->group_in : NULL;
                make_word(context->plan->kernels, step, word, at, tables);
                tables += eb_word_numbers(step);
            }
    }
}

/* A unit is a block of filters for some pixels. */
int64_t eb_table_units(const eb_step *step) {
    return (step->in.columns + step->table_rows - 1) / step->table_rows * step->blocks;
}

/* Tables of `pixels` pixels from `first` on. */
static void make_tables(const eb_context *context, const eb_step *step, int64_t first, int64_t pixels, float *to) {
    const float *from = (const float *)eb_value_at(context, step->field[EB_IN]) + first * step->in.channels;
    for (int64_t x = 0; x < pixels; x++, from += step->in.channels, to += step->apart)
        for (int64_t word = 0; word < step->words; word++)
            make_word(context->plan->kernels, step, word, from, to + word * eb_word_numbers(step));
}

void eb_tables_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const eb_kernels *kernels = context->plan->kernels;
    float *sums = (float *)context->own, *tables = sums + ROWS * EB_BLOCK;
    const int64_t turns = eb_turns(step->group_in * step->table_rows / 8);
    for (int64_t i = from, count; i < to; i += count) {
        const int64_t block = i % step->blocks, first = i / step->blocks * step->table_rows, left = step->in.columns - first;
        const int64_t pixels = left < step->table_rows ? left : step->table_rows;
        count = step->table_rows > 1 ? 1 : to - i < ROWS ? to - i : ROWS;
        if ((i + 1) % turns < count && eb_stopped(step)) return;
        if (i == from || block == 0) make_tables(context, step, first, pixels, tables);
        kernels->tables_row(step, tables, (const uint32_t *)((const char *)step->weights + block * step->block_bytes), count,
                            pixels, sums);
        for (int64_t j = 0; j < count; j++) {
            eb_row target = eb_block_row(step, block + j, pixels);
            eb_point_at_values(context, step, 0, &target);
            eb_move_along(&target, first);
            kernels->chain_reals(&step->chain, &target, sums + j * EB_BLOCK);
        }
    }
}
