/* Preparation of convolutions: weights packed in the layout of the kernels, and the correction at the border.
 *
 * Zero padding adds nothing, but a bit cannot represent 0. The padded input holds 0 bits around the image, so a window
 * that reaches outside counts the 1 bits of the weights there. With `inside` the number of connections inside,
 *     sum = inside - 2 (count - ones outside) = (inside + 2 ones outside) - 2 count,
 * and the bracket depends only on the rows and columns of the window that are inside: a border class. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { FEW_PIXELS = 4, LONG_ROW = 84, MOST_JOINED = 64 };

static int bit_at(const uint8_t *row, int64_t connection) { return row[connection / 8] >> connection % 8 & 1; }

/* Reorder the bits of a filter from (channel, row, column) in the file to words of channels per tap, (row, column,
 * word). */
static void words_of(const eb_step *step, const uint8_t *plane, int64_t filter, uint32_t *words) {
    int64_t taps = step->field[EB_KERNEL_H] * step->field[EB_KERNEL_W];
    const uint8_t *row = plane + filter * ((step->group_in * taps + 7) / 8);
    memset(words, 0, (size_t)(taps * step->words) * 4);
    for (int64_t channel = 0; channel < step->group_in; channel++)
        for (int64_t tap = 0; tap < taps; tap++)
            words[tap * step->words + channel / 32] |= (uint32_t)bit_at(row, channel * taps + tap) << channel % 32;
}

static int64_t ones_in(const uint32_t *words, int64_t count) {
    int64_t ones = 0;
    for (int64_t i = 0; i < count; i++)
        for (uint32_t word = words[i]; word; word &= word - 1) ones++;
    return ones;
}

/* Border classes along one axis: the taps that are inside, as first and end. Return the number of classes. */
static int64_t classes_of(int64_t places, int64_t size, int64_t stride, int64_t pad, int64_t taps, int64_t dilation,
                          int32_t *class_of, int64_t *first, int64_t *end) {
    int64_t classes = 0;
    for (int64_t place = 0; place < places; place++) { /* both only fall, so positions of one class are adjacent */
        const int64_t at = place * stride - pad, left = (dilation - 1 - at) / dilation;
        const int64_t right = at < size ? (size - 1 - at) / dilation + 1 : 0;
        const int64_t from = at >= 0 ? 0 : left < taps ? left : taps, within = right < taps ? right : taps;
        const int64_t to = within > from ? within : from;
        if (!classes || first[classes - 1] != from || end[classes - 1] != to) {
            first[classes] = from;
            end[classes++] = to;
        }
        class_of[place] = (int32_t)(classes - 1);
    }
    return classes;
}

typedef struct {
    int64_t *first_row, *end_row, *first_column, *end_column, row_classes;
} borders;

/* sums[row][column] = number of 1 bits in the taps above and left of it: one row and column more than the window. */
static void sum_taps(const eb_step *step, const uint32_t *words, int64_t *sums) {
    const int64_t wide = step->field[EB_KERNEL_W], tall = step->field[EB_KERNEL_H];
    for (int64_t column = 0; column <= wide; column++) sums[column] = 0;
    for (int64_t row = 0; row < tall; row++) {
        int64_t *line = sums + (row + 1) * (wide + 1), so_far = 0;
        line[0] = 0;
        for (int64_t column = 0; column < wide; column++) {
            so_far += words ? ones_in(words + (row * wide + column) * step->words, step->words) : step->group_in;
            line[column + 1] = line[column - wide] + so_far;
        }
    }
}

static int64_t ones_within(const eb_step *step, const int64_t *sums, const borders *border, int64_t i, int64_t j) {
    const int64_t line = step->field[EB_KERNEL_W] + 1, top = border->first_row[i] * line, end = border->end_row[i] * line;
    const int64_t left = border->first_column[j], right = border->end_column[j];
    if (border->first_row[i] >= border->end_row[i] || left >= right) return 0;
    return sums[end + right] - sums[top + right] - sums[end + left] + sums[top + left];
}

/* Brackets of the formula above for one filter, in every class. `sums` holds two tables of sum_taps. */
static void write_constants(eb_step *step, const borders *border, const uint32_t *sign, const uint32_t *kept,
                            int64_t slot, int64_t slots, int64_t *sums) {
    const int64_t size = (step->field[EB_KERNEL_W] + 1) * (step->field[EB_KERNEL_H] + 1);
    int64_t *there = sums + size;
    sum_taps(step, sign, sums);
    sum_taps(step, kept, there);
    for (int64_t i = 0; i < border->row_classes; i++)
        for (int64_t j = 0; j < step->column_classes; j++) {
            int64_t outside = sums[size - 1] - ones_within(step, sums, border, i, j);
            int64_t constant = ones_within(step, there, border, i, j) + 2 * outside;
            step->constants[(i * step->column_classes + j) * slots + slot] = (int32_t)constant;
        }
}

static int pack_bits(const eb_kernels *kernels, eb_step *step, const uint8_t *sign, const uint8_t *kept,
                     const borders *border) {
    int64_t per_filter = step->field[EB_KERNEL_H] * step->field[EB_KERNEL_W] * step->words;
    int64_t slots = step->field[EB_GROUPS] * step->blocks * EB_BLOCK;
    const int64_t room = 2 * EB_BLOCK * per_filter * 4; /* kept in the budget, to bound planning time */
    if (!eb_spend(step->budget, room)) return 0;
    uint32_t *words = calloc((size_t)room / 4, 4);
    int64_t *sums = calloc((size_t)(2 * (step->field[EB_KERNEL_H] + 1) * (step->field[EB_KERNEL_W] + 1)), sizeof *sums);
    if (!words || !sums) {
        free(words);
        free(sums);
        return 0;
    }
    uint32_t *kept_words = words + EB_BLOCK * per_filter;
    for (int64_t slot = 0; slot < slots; slot += EB_BLOCK) {
        int64_t group = slot / (step->blocks * EB_BLOCK), start = slot % (step->blocks * EB_BLOCK);
        memset(words, 0, (size_t)(2 * EB_BLOCK * per_filter) * 4);
        for (int64_t i = 0; i < EB_BLOCK && start + i < step->group_out; i++) {
            int64_t filter = group * step->group_out + start + i;
            words_of(step, sign, filter, words + i * per_filter);
            if (kept) words_of(step, kept, filter, kept_words + i * per_filter);
            write_constants(step, border, words + i * per_filter, kept ? kept_words + i * per_filter : NULL, slot + i,
                            slots, sums);
        }
        kernels->bits_pack(step, words, kept ? kept_words : NULL,
                           (char *)step->weights + slot / EB_BLOCK * step->block_bytes);
    }
    free(words);
    free(sums);
    return 1;
}

/* Return whether the planes of a layer exist and have the size of its shape. */
int eb_check_planes(const eb_step *step, const eb_recipe *recipe, char *error) {
    const int64_t *field = step->field, weight = field[EB_WEIGHT], kept = field[EB_KEPT];
    int64_t bytes = step->out.channels * ((step->group_in * field[EB_KERNEL_H] * field[EB_KERNEL_W] + 7) / 8);
    if (weight < 0 || weight >= recipe->tensor_count || recipe->tensors[weight].bytes != bytes || kept < -1 ||
        kept >= recipe->tensor_count || (kept >= 0 && recipe->tensors[kept].bytes != bytes))
        return eb_fail(error, "a binary convolution has weights of another size than its shape");
    return 1;
}

static int layout_bits(eb_plan *plan, eb_step *step, const eb_recipe *recipe, char *error) {
    const int64_t *field = step->field, weight = field[EB_WEIGHT], kept = field[EB_KEPT];
    if (!eb_check_planes(step, recipe, error)) return 0;
    step->words = (step->group_in + 31) / 32;
    if (step->padded_rows * step->padded_columns * step->words * field[EB_GROUPS] > 1 << 28)
        return eb_fail(error, "a binary convolution pads too much");
    plan->kernels->bits_layout(step); /* sets offsets, block_bytes and prepared_bytes */
    step->scratch_bytes = field[EB_GROUPS] * step->prepared_bytes;
    const int64_t line_bytes = (step->padded_columns * step->words + EB_BLOCK) * 4; /* where a row is padded */
    if (step->row_bytes < line_bytes) step->row_bytes = line_bytes;
    int64_t most = (step->conv_rows > step->conv_columns ? step->conv_rows : step->conv_columns) + 1;
    int64_t *space = calloc((size_t)most * 4, sizeof *space);
    step->row_class = calloc((size_t)step->conv_rows, sizeof *step->row_class);
    step->column_class = calloc((size_t)step->conv_columns, sizeof *step->column_class);
    int64_t slots = field[EB_GROUPS] * step->blocks * EB_BLOCK;
    int good = space && step->row_class && step->column_class && step->offsets;
    if (good) {
        borders border = {space, space + most, space + 2 * most, space + 3 * most, 0};
        border.row_classes = classes_of(step->conv_rows, step->in.rows, field[EB_STRIDE_H], field[EB_PAD_TOP],
                                        field[EB_KERNEL_H], field[EB_DILATION_H], step->row_class, border.first_row,
                                        border.end_row);
        step->column_classes = classes_of(step->conv_columns, step->in.columns, field[EB_STRIDE_W], field[EB_PAD_LEFT],
                                          field[EB_KERNEL_W], field[EB_DILATION_W], step->column_class,
                                          border.first_column, border.end_column);
        if (border.row_classes * step->column_classes * slots > 1 << 28) {
            free(space);
            return eb_fail(error, "a binary convolution has too many kinds of border");
        }
        const int64_t constants = border.row_classes * step->column_classes * slots;
        if (eb_spend(step->budget, constants * 4)) step->constants = calloc((size_t)constants, 4);
        step->weights = eb_take(step->budget, slots / EB_BLOCK * step->block_bytes);
        good = step->constants && step->weights &&
               pack_bits(plan->kernels, step, recipe->tensors[weight].data,
                         kept < 0 ? NULL : recipe->tensors[kept].data, &border);
    }
    free(space);
    return good ? 1 : eb_fail(error, "there is no memory");
}

/* Offsets of the windows of a real convolution. An image has its channels in planes, a value has them adjacent. */
static void layout_offsets(eb_step *step) {
    const int64_t *field = step->field, wide = field[EB_KERNEL_W], taps = field[EB_KERNEL_H] * wide;
    const int planar = step->in.kind == EB_IMAGE, depthwise = eb_is_depthwise(step);
    const int64_t channels = planar ? 1 : step->in.channels, line = step->padded_columns * channels;
    const int64_t channel_apart = planar ? step->padded_rows * line : 1;
    step->row_apart = field[EB_STRIDE_H] * line;
    step->apart = field[EB_STRIDE_W] * channels;
    step->sums = depthwise ? taps : taps * step->group_in;
    step->offsets = calloc((size_t)step->sums, sizeof *step->offsets);
    for (int64_t i = 0; step->offsets && i < step->sums; i++) {
        int64_t tap = i / (depthwise ? 1 : step->group_in), channel = depthwise ? 0 : i % step->group_in;
        step->offsets[i] = (int32_t)(channel * channel_apart + tap / wide * field[EB_DILATION_H] * line +
                                     tap % wide * field[EB_DILATION_W] * channels);
    }
}

/* Real weights: per block of filters, an entry for each connection, (kernel row, kernel column, channel). */
static int layout_real(const eb_kernels *kernels, eb_step *step, const float *given, char *error) {
    const int64_t *field = step->field, taps = field[EB_KERNEL_H] * field[EB_KERNEL_W], part = step->group_in;
    const int64_t channels = step->in.channels;
    if (step->padded_rows * step->padded_columns * channels > 1 << 28)
        return eb_fail(error, "a real convolution pads too much");
    const int planar = step->in.kind == EB_IMAGE, depthwise = eb_is_depthwise(step);
    if (planar && field[EB_GROUPS] > 1) return eb_fail(error, "a grouped convolution reads the image as given");
    if (eb_is_winograd(kernels, step)) return eb_layout_winograd(step, given) ? 1 : eb_fail(error, "there is no memory");
    int copied = planar || step->padded_rows != step->in.rows || step->padded_columns != step->in.columns;
    step->scratch_bytes = copied ? (step->padded_rows * step->padded_columns * channels + 64) * 4 : 0;
    step->block_bytes = part * taps * EB_BLOCK * 4;
    layout_offsets(step);
    if (!step->offsets) return eb_fail(error, "there is no memory");
    if (!given) return 1; /* the weights are packed in another way */
    step->weights = eb_take(step->budget, depthwise ? taps * (channels + EB_BLOCK) * 4
                                                    : field[EB_GROUPS] * step->blocks * step->block_bytes);
    if (!step->weights) return eb_fail(error, "there is no memory");
    float *packed = step->weights;
    for (int64_t filter = 0; filter < step->out.channels; filter++) {
        int64_t group = filter / step->group_out, place = filter % step->group_out;
        float *block = packed + (group * step->blocks + place / EB_BLOCK) * step->block_bytes / 4 + place % EB_BLOCK;
        for (int64_t channel = 0; channel < part; channel++)
            for (int64_t tap = 0; tap < taps; tap++) {
                float value = given[(filter * part + channel) * taps + tap];
                if (depthwise) packed[tap * channels + filter] = value;
                else block[(tap * part + channel) * EB_BLOCK] = value;
            }
    }
    return 1;
}

/* Binary weights for real inputs. They are looked up if a kernel supports it (tables.c). Otherwise a weight that is
 * used once or twice stays a bit, since reading takes the time, and one that is used more often becomes a float. */
static int layout_signed(const eb_kernels *kernels, eb_step *step, const eb_recipe *recipe, char *error) {
    int64_t *field = step->field, wide = step->group_in * field[EB_KERNEL_H] * field[EB_KERNEL_W];
    const int64_t filters = step->out.channels, row_bytes = (wide + 7) / 8, taps = wide / step->group_in;
    if (!eb_check_planes(step, recipe, error)) return 0;
    const uint8_t *sign = recipe->tensors[field[EB_WEIGHT]].data;
    const uint8_t *kept = field[EB_KEPT] < 0 ? NULL : recipe->tensors[field[EB_KEPT]].data;
    field[EB_KIND] = EB_CONV_REAL; /* before the check for depthwise */
    if (!kept && eb_has_tables(kernels, step)) return eb_layout_tables(kernels, step, sign, error);
    int stay = step->conv_rows * step->conv_columns <= FEW_PIXELS && step->in.kind == EB_REAL && !eb_is_depthwise(step);
    float *reals = eb_take(step->budget, stay ? 0 : filters * wide * 4);
    if (!reals) return eb_fail(error, "there is no memory");
    for (int64_t i = 0; !stay && i < filters * wide; i++) {
        int64_t at = i / wide * row_bytes * 8 + i % wide;
        reals[i] = kept && !bit_at(kept, at) ? 0.0f : bit_at(sign, at) ? 1.0f : -1.0f;
    }
    int good = layout_real(kernels, step, stay ? NULL : reals, error);
    eb_aligned_free(reals);
    if (!good || !stay) return good;
    step->signs = kept ? 2 : 1;
    step->block_bytes = wide * step->signs * 4;
    step->weights = eb_take(step->budget, field[EB_GROUPS] * step->blocks * step->block_bytes);
    if (!step->weights) return eb_fail(error, "there is no memory");
    for (int64_t filter = 0; filter < filters; filter++) {
        int64_t group = filter / step->group_out, place = filter % step->group_out;
        uint32_t *block = (uint32_t *)((char *)step->weights + (group * step->blocks + place / EB_BLOCK) * step->block_bytes);
        for (int64_t i = 0; i < wide; i++) {
            uint32_t *entry = block + (i % taps * step->group_in + i / taps) * step->signs;
            entry[0] |= (uint32_t)!bit_at(sign + filter * row_bytes, i) << place % EB_BLOCK;
            if (kept) entry[1] |= (uint32_t)bit_at(kept + filter * row_bytes, i) << place % EB_BLOCK;
        }
    }
    return 1;
}

/* For windows of one pixel rows do not matter: long rows fill tiles better. A power of two of them, for threads to share. */
static void join_rows(eb_step *step) {
    const int64_t *field = step->field;
    if (field[EB_KERNEL_H] * field[EB_KERNEL_W] * field[EB_STRIDE_H] * field[EB_STRIDE_W] > 1 || field[EB_POOL_H] ||
        (step->in.kind != EB_REAL && step->in.kind != EB_BYTES) || step->padded_rows != step->in.rows ||
        step->padded_columns != step->in.columns)
        return;
    int64_t rows = 1, columns = step->in.rows * step->in.columns;
    for (; rows < MOST_JOINED && step->in.rows % (2 * rows) == 0 && columns / 2 >= LONG_ROW; rows *= 2) columns /= 2;
    step->in.rows = step->out.rows = step->conv_rows = step->padded_rows = rows;
    step->in.columns = step->out.columns = step->conv_columns = step->padded_columns = columns;
}

int eb_layout_conv(eb_plan *plan, eb_step *step, const eb_recipe *recipe, char *error) {
    int64_t *field = step->field, groups = field[EB_GROUPS];
    if (groups < 1 || step->in.channels % groups || step->out.channels % groups)
        return eb_fail(error, "a convolution has channels that cannot be shared out to its groups");
    step->group_in = step->in.channels / groups;
    step->group_out = step->out.channels / groups;
    step->blocks = (step->group_out + EB_BLOCK - 1) / EB_BLOCK;
    step->padded_rows = field[EB_PAD_TOP] + step->in.rows + field[EB_PAD_BOTTOM];
    step->padded_columns = field[EB_PAD_LEFT] + step->in.columns + field[EB_PAD_RIGHT];
    if (groups > 1 && step->group_out % EB_BLOCK && field[EB_OUT_BITS] != -1)
        return eb_fail(error, "a grouped convolution writes bits, and its groups do not fill words");
    join_rows(step);
    int64_t most = 1 << 24; /* so that counts and offsets fit 32 bits, and sums of signs are exact */
    if (step->group_in * field[EB_KERNEL_H] >= most || step->group_in * field[EB_KERNEL_H] * field[EB_KERNEL_W] >= most)
        return eb_fail(error, "a convolution has too many connections");
    if (field[EB_KIND] == EB_CONV_BITS) return layout_bits(plan, step, recipe, error);
    if (field[EB_KIND] == EB_CONV_BYTES || field[EB_KIND] == EB_CONV_INT8) return eb_layout_bytes_conv(plan, step, recipe, error);
    if (field[EB_KIND] == EB_CONV_SIGNED) return layout_signed(plan->kernels, step, recipe, error);
    int64_t bytes = step->out.channels * step->group_in * field[EB_KERNEL_H] * field[EB_KERNEL_W] * 4;
    if (field[EB_WEIGHT] < 0 || field[EB_WEIGHT] >= recipe->tensor_count || recipe->tensors[field[EB_WEIGHT]].bytes != bytes)
        return eb_fail(error, "a real convolution has weights of another size than its shape");
    return layout_real(plan->kernels, step, recipe->tensors[field[EB_WEIGHT]].data, error);
}
