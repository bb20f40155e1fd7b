/* Convolutions of bytes, see byte_convs.h: how numbers become bytes, the weights laid out, the input, and the rows. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { PIECE = 6 * EB_MOST_TILE, LOOK_UP_LEVELS = 15, MOST_TABLES = 1 << 26 };

int eb_read_quant(eb_plan *plan, const eb_recipe *recipe, eb_step *step, int64_t number, char *error) {
    const int64_t id = step->field[EB_QUANT];
    float quant[3];
    if (id < 0 || id >= recipe->tensor_count || recipe->tensors[id].bytes != sizeof quant)
        return eb_fail(error, "step %d rounds, and does not say how", (int)number);
    memcpy(quant, recipe->tensors[id].data, sizeof quant);
    const int good = quant[0] > 0 && quant[0] <= FLT_MAX && quant[1] >= -255 && quant[1] <= 0 && quant[2] >= 0 &&
                     quant[2] - quant[1] <= 255 && quant[1] == (float)(int)quant[1] && quant[2] == (float)(int)quant[2];
    if (!good) return eb_fail(error, "step %d rounds to numbers that are no bytes", (int)number);
    step->chain.unit = quant[0];
    step->chain.least = quant[1];
    step->chain.most = quant[2];
    if (step->field[EB_OUT_BYTES] == -1) return 1;
    eb_value *bytes = plan->values + step->field[EB_OUT_BYTES];
    bytes->low = (int64_t)quant[1];
    bytes->levels = (int64_t)(quant[2] - quant[1]);
    return 1;
}

/* Weights as they are given: planes of bits, or int8. */
typedef struct {
    const uint8_t *sign, *kept;
    const int8_t *whole;
    int64_t wide, row_bytes; /* connections of a filter, and bytes of a row of a plane */
} given;

static int weight_of(const given *weights, int64_t filter, int64_t connection) {
    if (weights->whole) return weights->whole[filter * weights->wide + connection];
    const int64_t byte = filter * weights->row_bytes + connection / 8;
    const int bit = (int)(connection % 8);
    if (weights->kept && !(weights->kept[byte] >> bit & 1)) return 0;
    return weights->sign[byte] >> bit & 1 ? 1 : -1;
}

/* Whether a row of the window is read as one run of bytes, since a tap's channels do not fill fours. */
static int reads_runs(const eb_step *step) {
    return step->group_in % 4 && step->field[EB_GROUPS] == 1 && step->field[EB_DILATION_W] == 1;
}

/* Where the entries look, in bytes from a window's first: `each` bytes of a tap or run at a time, `channels` a pixel. */
static int layout_entries(eb_step *step, int64_t each, int64_t channels) {
    const int64_t *field = step->field, run = !step->tables && reads_runs(step) ? field[EB_KERNEL_W] : 1;
    const int64_t wide = field[EB_KERNEL_W] / run, taps = field[EB_KERNEL_H] * wide;
    const int64_t bytes = step->tables ? step->words * 64 : run * step->group_in, line = step->padded_columns * channels;
    const int64_t of_tap = (bytes + each - 1) / each;
    step->sums = taps * of_tap;
    step->row_apart = field[EB_STRIDE_H] * line;
    step->apart = field[EB_STRIDE_W] * channels;
    step->offsets = calloc((size_t)step->sums, sizeof *step->offsets);
    for (int64_t i = 0; step->offsets && i < step->sums; i++) {
        const int64_t tap = i / of_tap;
        step->offsets[i] = (int32_t)(tap / wide * field[EB_DILATION_H] * line + tap % wide * field[EB_DILATION_W] * channels +
                                     i % of_tap * each);
    }
    return step->offsets != NULL;
}

/* A filter's weights in its block, and what its sums start from. */
static void pack_filter(const eb_byte_kernels *kernels, eb_step *step, const given *weights, int64_t filter) {
    const int64_t *field = step->field, taps = field[EB_KERNEL_H] * field[EB_KERNEL_W], place = filter % step->group_out;
    const int64_t slot = filter / step->group_out * step->blocks * EB_BLOCK + place, lane = place % EB_BLOCK;
    int8_t *block = (int8_t *)step->weights + slot / EB_BLOCK * step->block_bytes;
    int64_t total = 0, plus = 0, run = reads_runs(step), quads = (step->group_in + 3) / 4;
    for (int64_t channel = 0; channel < step->group_in; channel++)
        for (int64_t tap = 0; tap < taps; tap++) {
            const int weight = weight_of(weights, filter, channel * taps + tap);
            const int64_t at = tap % field[EB_KERNEL_W] * step->group_in + channel; /* within a run */
            total += weight;
            plus += weight > 0;
            if (step->tables) {
                const int64_t four = (tap * step->words + channel / 16) * 4 + channel % 16 / 4;
                block[kernels->place(four, lane)] |= (int8_t)((weight > 0) << channel % 4);
            } else if (run) {
                const int64_t of_row = (field[EB_KERNEL_W] * step->group_in + 3) / 4;
                block[((tap / field[EB_KERNEL_W] * of_row + at / 4) * EB_BLOCK + lane) * 4 + at % 4] = (int8_t)weight;
            } else block[((tap * quads + channel / 4) * EB_BLOCK + lane) * 4 + channel % 4] = (int8_t)weight;
        }
    step->constants[slot] = (int32_t)(step->in.low * total);
    if (step->tables) step->constants[slot] -= (int32_t)(step->in.levels * (taps * step->words * 16 - plus));
}

/* The number of its table stands in each byte above the place in it, where the kernel wants that. */
static void pack_numbers(const eb_byte_kernels *kernels, eb_step *step) {
    const int64_t blocks = step->field[EB_GROUPS] * step->blocks;
    for (int64_t at = 0; kernels->four_shift && at < blocks * step->block_bytes / EB_BLOCK; at++)
        for (int lane = 0; lane < EB_BLOCK; lane++)
            ((uint8_t *)step->weights)[kernels->place(at, lane)] |= (uint8_t)(at % 4 << kernels->four_shift);
}

static int uses_tables(const eb_byte_kernels *kernels, const eb_step *step, const given *weights) {
    const double bytes = (double)step->padded_rows * (double)step->padded_columns * (double)(step->words * 64);
    return kernels->look_up && !weights->whole && !weights->kept && step->in.levels <= LOOK_UP_LEVELS &&
           step->group_in >= 8 && bytes * (double)step->field[EB_GROUPS] <= MOST_TABLES;
}

static int fits(const eb_step *step, const given *weights, int64_t filter) {
    int64_t most = 0;
    for (int64_t i = 0; weights->whole && i < weights->wide; i++) {
        const int weight = weights->whole[filter * weights->wide + i];
        most += weight < 0 ? -weight : weight;
    }
    return (weights->whole ? most : weights->wide) * 255 <= INT32_MAX && step->in.levels <= 255;
}

int eb_layout_bytes_conv(eb_plan *plan, eb_step *step, const eb_recipe *recipe, char *error) {
    int64_t *field = step->field, groups = field[EB_GROUPS], slots = groups * step->blocks * EB_BLOCK;
    const int64_t pixels = step->padded_rows * step->padded_columns;
    const eb_byte_kernels *kernels = plan->byte_kernels;
    given weights = {.wide = step->group_in * field[EB_KERNEL_H] * field[EB_KERNEL_W]};
    weights.row_bytes = (weights.wide + 7) / 8;
    if (field[EB_KIND] == EB_CONV_BYTES) {
        if (!eb_check_planes(step, recipe, error)) return 0;
        weights.sign = recipe->tensors[field[EB_WEIGHT]].data;
        weights.kept = field[EB_KEPT] < 0 ? NULL : recipe->tensors[field[EB_KEPT]].data;
    } else {
        const int64_t id = field[EB_WEIGHT];
        if (id < 0 || id >= recipe->tensor_count || recipe->tensors[id].bytes != step->out.channels * weights.wide)
            return eb_fail(error, "a convolution of bytes has weights of another size than its shape");
        weights.whole = recipe->tensors[id].data;
    }
    for (int64_t filter = 0; filter < step->out.channels; filter++)
        if (!fits(step, &weights, filter)) return eb_fail(error, "a convolution of bytes has sums beyond 32 bits");
    if (pixels * step->in.channels > 1 << 28) return eb_fail(error, "a convolution of bytes pads too much");
    step->signs = field[EB_KIND] == EB_CONV_BYTES;
    field[EB_KIND] = EB_CONV_BYTES;
    step->words = (step->group_in + 15) / 16; /* of tables */
    step->tables = uses_tables(kernels, step, &weights);
    const int64_t channels = step->tables ? groups * step->words * 64 : step->in.channels;
    int copied = step->tables || step->padded_rows != step->in.rows || step->padded_columns != step->in.columns;
    step->prepared_bytes = step->tables ? step->words * 64 : step->group_in; /* from one group to the next, in a pixel */
    step->scratch_bytes = copied ? (pixels * channels + 63) / 64 * 64 + 64 : 0;
    step->row_bytes = (EB_MOST_TILE + 2) * EB_BLOCK * 4;
    if (!layout_entries(step, step->tables ? 64 : 4, channels)) return eb_fail(error, "there is no memory");
    step->block_bytes = step->sums * EB_BLOCK * 4;
    step->weights = eb_take(step->budget, groups * step->blocks * step->block_bytes);
    if (eb_spend(step->budget, slots * 4)) step->constants = calloc((size_t)slots, 4);
    if (!step->weights || !step->constants) return eb_fail(error, "there is no memory");
    for (int64_t filter = 0; filter < step->out.channels; filter++) pack_filter(kernels, step, &weights, filter);
    if (step->tables) pack_numbers(kernels, step);
    return 1;
}

/* Rows [first, end) of the padded input, each pixel as it is. */
static void pad_rows(const eb_step *step, const uint8_t *from, uint8_t *to, int64_t first, int64_t end) {
    const int64_t *field = step->field, wide = step->in.columns * step->in.channels, line = step->padded_columns * step->in.channels;
    const int64_t left = field[EB_PAD_LEFT] * step->in.channels;
    to += first * line;
    for (int64_t row = first - field[EB_PAD_TOP]; row < end - field[EB_PAD_TOP]; row++, to += line) {
        const int inside = row >= 0 && row < step->in.rows;
        memset(to, (uint8_t)-step->in.low, (size_t)(inside ? left : line));
        if (!inside) continue;
        memcpy(to + left, from + row * wide, (size_t)wide);
        memset(to + left + wide, (uint8_t)-step->in.low, (size_t)(line - left - wide));
    }
}

/* The same, each pixel as its tables. */
static void make_rows(const eb_byte_kernels *kernels, const eb_step *step, const uint8_t *from, uint8_t *to, int64_t first,
                      int64_t end) {
    const int64_t *field = step->field, channels = step->in.channels, groups = field[EB_GROUPS], columns = step->in.columns;
    const int64_t each = groups * step->prepared_bytes, last = step->words - 1;
    const int levels = (int)step->in.levels, whole = groups == 1 && step->group_in % 16 == 0; /* pixels follow each other */
    uint8_t around[16], border[2][64]; /* tables of 16 channels, and of a group's last */
    memset(around, (uint8_t)-step->in.low, sizeof around);
    kernels->make_tables(around, 16, levels, border[0]);
    kernels->make_tables(around, step->group_in - 16 * last, levels, border[1]);
    to += first * step->padded_columns * each;
    for (int64_t row = first - field[EB_PAD_TOP]; row < end - field[EB_PAD_TOP]; row++)
        for (int64_t x = -field[EB_PAD_LEFT]; x < columns + field[EB_PAD_RIGHT]; x++, to += each) {
            const int inside = row >= 0 && row < step->in.rows && x >= 0 && x < columns;
            const uint8_t *at = from + (row * columns + x) * channels;
            if (inside && whole) {
                kernels->make_tables(at, columns * channels, levels, to);
                x += columns - 1;
                to += (columns - 1) * each;
                continue;
            }
            for (int64_t group = 0; group < groups; group++) {
                uint8_t *tables = to + group * step->prepared_bytes;
                if (inside) kernels->make_tables(at + group * step->group_in, step->group_in, levels, tables);
                for (int64_t word = 0; !inside && word <= last; word++) memcpy(tables + word * 64, border[word == last], 64);
            }
        }
}

void eb_bytes_conv_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const uint8_t *given = eb_value_at(context, step->field[EB_IN]);
    if (!step->scratch_bytes) return;
    if (step->tables) make_rows(context->plan->byte_kernels, step, given, (uint8_t *)context->scratch, from, to);
    else pad_rows(step, given, (uint8_t *)context->scratch, from, to);
}

/* Rows of a block: one a few tiles at a time, so that what a piece needs stays close; or two narrow ones together. */
static void run_rows(const eb_context *context, const eb_step *step, int64_t row, int rows, int64_t block, eb_row *targets) {
    const eb_byte_kernels *kernels = context->plan->byte_kernels;
    const int64_t group = block / step->blocks, columns = targets[0].pixels;
    const uint8_t *input = step->scratch_bytes ? (const uint8_t *)context->scratch : eb_value_at(context, step->field[EB_IN]);
    eb_byte_row part = {.rows = rows,
                        .packed = (const char *)step->weights + block * step->block_bytes,
                        .start = step->constants + block * EB_BLOCK};
    for (int64_t x = 0; x < columns; x += PIECE) {
        if (x && x % (eb_turns(step->sums * PIECE / 8) * PIECE) == 0 && eb_stopped(step)) return;
        part.pixels = columns - x < PIECE ? columns - x : PIECE;
        for (int i = 0; i < rows; i++)
            part.input[i] = input + (row + i) * step->row_apart + x * step->apart + group * step->prepared_bytes;
        const int plain = rows == 1 && step->chain.parts == EB_HAS_OUT && targets->lanes == EB_BLOCK && targets->apart == EB_BLOCK;
        part.sums = plain ? targets->out : (float *)context->own; /* in rows that are pooled, the sums are all */
        (step->tables ? kernels->look_up : step->signs ? kernels->dot : kernels->dot_int8)(step, &part);
        for (int i = 0; i < rows; i++) {
            targets[i].pixels = part.pixels;
            if (!plain) context->plan->kernels->chain_reals(&step->chain, targets + i, part.sums + i * part.pixels * EB_BLOCK);
            eb_move_along(targets + i, part.pixels);
        }
    }
}

void eb_bytes_conv_row(const eb_context *context, const eb_step *step, int64_t row, int64_t block, eb_row target) {
    run_rows(context, step, row, 1, block, &target);
}

void eb_bytes_conv_rows(const eb_context *context, const eb_step *step, int64_t block, int64_t from, int64_t to) {
    const int64_t columns = step->out.columns, turns = eb_turns_of(step, columns);
    for (int64_t row = from, rows = 1, turn = 0; row < to; row += rows) {
        eb_row targets[2];
        if (++turn % turns == 0 && eb_stopped(step)) return;
        rows = row + 1 < to && 2 * columns <= EB_MOST_TILE ? 2 : 1;
        for (int i = 0; i < rows; i++) {
            targets[i] = eb_block_row(step, block, columns);
            eb_point_at_values(context, step, row + i, targets + i);
            eb_call_in_weights(step, block, row + i);
        }
        run_rows(context, step, row, (int)rows, block, targets);
    }
}
