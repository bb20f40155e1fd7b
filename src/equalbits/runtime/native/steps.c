/* What each step does to one image, in units of work that threads can share: a block of filters times a row. */
#include <math.h>
#include <string.h>

#include "core.h"

static void *value_at(const eb_context *context, int64_t id) {
    return id < 0 ? NULL : context->arena + context->plan->values[id].offset;
}

static int is_conv(const eb_step *step) {
    return step->field[EB_KIND] == EB_CONV_BITS || step->field[EB_KIND] == EB_CONV_REAL;
}

static int64_t step_blocks(const eb_step *step) {
    if (is_conv(step) && !eb_is_depthwise(step)) return step->field[EB_GROUPS] * step->blocks;
    return (step->out.channels + EB_BLOCK - 1) / EB_BLOCK;
}

int64_t eb_step_units(const eb_step *step) {
    int64_t kind = step->field[EB_KIND];
    return kind == EB_COPY || kind == EB_FILL ? 1 : step_blocks(step) * step->out.rows;
}

/* The image as reals, (row, column, channel), inside `columns` columns and after `top` rows and `left` columns. */
static void load_image(const eb_context *context, const eb_step *step, float *to, int64_t columns, int64_t top,
                       int64_t left) {
    int64_t channels = step->in.channels, rows = step->in.rows, wide = step->in.columns;
    for (int64_t row = 0; row < rows; row++) {
        float *line = to + ((top + row) * columns + left) * channels;
        for (int64_t channel = 0; channel < channels; channel++) {
            int64_t start = (channel * rows + row) * wide;
            if (context->bytes) {
                const float *table = context->byte_table + channel * 256;
                for (int64_t x = 0; x < wide; x++) line[x * channels + channel] = table[context->bytes[start + x]];
            } else {
                for (int64_t x = 0; x < wide; x++) line[x * channels + channel] = context->image[start + x];
            }
        }
    }
}

/* The channels [from, from + count) of a row of bits as words of their own, shifted into place. */
static void group_words(const uint32_t *row, int64_t words, int64_t columns, int64_t from, int64_t count, uint32_t *to,
                        int64_t to_columns) {
    for (int64_t word = 0; word * 32 < count; word++) {
        int64_t bit = from + word * 32, left = count - word * 32;
        const uint32_t *low = row + bit / 32 * columns;
        int shift = (int)(bit % 32);
        int spills = shift && bit / 32 + 1 < words;
        uint32_t mask = left >= 32 ? UINT32_MAX : (UINT32_C(1) << left) - 1;
        for (int64_t x = 0; x < columns; x++) {
            uint32_t value = low[x] >> shift;
            if (spills) value |= low[x + columns] << (32 - shift);
            to[word * to_columns + x] = value & mask;
        }
    }
}

/* Bits with a border of 0 bits, by group: (group, row, word, column); then as the kernel likes them. */
static void prepare_bits(const eb_context *context, const eb_step *step) {
    const uint32_t *bits = value_at(context, step->field[EB_IN]);
    int64_t words = step->words, columns = step->padded_columns, per_row = words * columns;
    uint32_t *planes = (uint32_t *)context->scratch;
    memset(planes, 0, (size_t)(step->field[EB_GROUPS] * step->padded_rows * per_row) * 4);
    for (int64_t group = 0; group < step->field[EB_GROUPS]; group++)
        for (int64_t row = 0; row < step->in.rows; row++)
            group_words(bits + row * step->in.words * step->in.columns, step->in.words, step->in.columns,
                        group * step->group_in, step->group_in,
                        planes + (group * step->padded_rows + step->field[EB_PAD_TOP] + row) * per_row +
                            step->field[EB_PAD_LEFT],
                        columns);
    context->plan->kernels->bits_prepare(step, planes, planes + step->field[EB_GROUPS] * step->padded_rows * per_row);
}

static void prepare_reals(const eb_context *context, const eb_step *step) {
    if (!step->scratch_bytes) return;
    float *padded = (float *)context->scratch;
    int64_t channels = step->in.channels, columns = step->padded_columns;
    memset(padded, 0, (size_t)step->scratch_bytes);
    if (step->in.kind == EB_IMAGE) {
        load_image(context, step, padded, columns, step->field[EB_PAD_TOP], step->field[EB_PAD_LEFT]);
        return;
    }
    const float *from = value_at(context, step->field[EB_IN]);
    for (int64_t row = 0; row < step->in.rows; row++)
        memcpy(padded + ((step->field[EB_PAD_TOP] + row) * columns + step->field[EB_PAD_LEFT]) * channels,
               from + row * step->in.columns * channels, (size_t)(step->in.columns * channels) * 4);
}

void eb_step_prepare(const eb_context *context, const eb_step *step) {
    if (step->field[EB_KIND] == EB_CONV_BITS) prepare_bits(context, step);
    if (step->field[EB_KIND] == EB_CONV_REAL) prepare_reals(context, step);
    if (step->field[EB_KIND] == EB_LOAD) load_image(context, step, (float *)context->scratch, step->in.columns, 0, 0);
}

static void bits_tile(const eb_context *context, const eb_step *step, const eb_place *place, int64_t block) {
    const eb_kernels *kernels = context->plan->kernels;
    int32_t counts[EB_TILE * EB_BLOCK];
    const int32_t *constants[EB_TILE];
    int64_t group = block / step->blocks, slots = step->field[EB_GROUPS] * step->blocks * EB_BLOCK;
    const char *prepared = context->scratch + step->scratch_bytes;
    prepared -= (step->field[EB_GROUPS] - group) * step->prepared_bytes;
    kernels->bits_tile(step, prepared, (const char *)step->weights + block * step->block_bytes, place, counts);
    const int32_t *row = step->constants + step->row_class[place->row] * step->column_classes * slots + block * EB_BLOCK;
    for (int pixel = 0; pixel < place->pixels; pixel++)
        constants[pixel] = row + step->column_class[place->column + pixel] * slots;
    kernels->chain_counts(&step->chain, place, counts, constants);
}

static void real_tile(const eb_context *context, const eb_step *step, const eb_place *place, int64_t block) {
    const eb_kernels *kernels = context->plan->kernels;
    float sums[EB_TILE * EB_BLOCK];
    const float *input = step->scratch_bytes ? (const float *)context->scratch : value_at(context, step->field[EB_IN]);
    input += (place->row * step->field[EB_STRIDE_H] * step->padded_columns + place->column * step->field[EB_STRIDE_W]) *
             step->in.channels;
    if (eb_is_depthwise(step)) {
        kernels->depthwise_tile(step, input, step->weights, place, sums);
    } else {
        const float *packed = (const float *)((const char *)step->weights + block * step->block_bytes);
        kernels->real_tile(step, input + block / step->blocks * step->group_in, packed, place, sums);
    }
    kernels->chain_reals(&step->chain, place, sums);
}

/* The part of a window along one axis that lies inside the image. */
static void inside(int64_t at, int64_t kernel, int64_t size, int64_t *from, int64_t *to) {
    *from = at < 0 ? 0 : at;
    *to = at + kernel > size ? size : at + kernel;
}

static void pool_tile(const eb_context *context, const eb_step *step, const eb_place *place) {
    const int64_t *field = step->field, channels = step->in.channels;
    const float *input = value_at(context, field[EB_IN]);
    float sums[EB_TILE * EB_BLOCK];
    for (int pixel = 0; pixel < place->pixels; pixel++) {
        float *sum = sums + pixel * EB_BLOCK;
        int64_t top, bottom, left, right, column = place->column + pixel, divisor;
        if (field[EB_KIND] == EB_ADAPTIVE) {
            top = place->row * step->in.rows / step->out.rows;
            bottom = ((place->row + 1) * step->in.rows + step->out.rows - 1) / step->out.rows;
            left = column * step->in.columns / step->out.columns;
            right = ((column + 1) * step->in.columns + step->out.columns - 1) / step->out.columns;
            divisor = (bottom - top) * (right - left);
        } else {
            inside(place->row * field[EB_STRIDE_H] - field[EB_PAD_TOP], field[EB_KERNEL_H], step->in.rows, &top, &bottom);
            inside(column * field[EB_STRIDE_W] - field[EB_PAD_LEFT], field[EB_KERNEL_W], step->in.columns, &left, &right);
            divisor = field[EB_COUNT_PADDING] ? field[EB_KERNEL_H] * field[EB_KERNEL_W] : (bottom - top) * (right - left);
        }
        int max = field[EB_KIND] == EB_MAX_POOL;
        for (int lane = 0; lane < EB_BLOCK; lane++) sum[lane] = max ? -INFINITY : 0;
        for (int64_t y = top; y < bottom; y++)
            for (int64_t x = left; x < right; x++) {
                const float *from = input + (y * step->in.columns + x) * channels + place->channel;
                if (max) for (int lane = 0; lane < place->lanes; lane++) sum[lane] = from[lane] > sum[lane] ? from[lane] : sum[lane];
                else for (int lane = 0; lane < place->lanes; lane++) sum[lane] += from[lane];
            }
        if (!max) for (int lane = 0; lane < EB_BLOCK; lane++) sum[lane] /= (float)divisor;
    }
    context->plan->kernels->chain_reals(&step->chain, place, sums);
}

/* The chain alone, or the image put in order: the numbers as they stand. */
static void plain_tile(const eb_context *context, const eb_step *step, const eb_place *place) {
    const float *input = step->field[EB_KIND] == EB_LOAD ? (const float *)context->scratch
                                                         : value_at(context, step->field[EB_IN]);
    float sums[EB_TILE * EB_BLOCK];
    for (int pixel = 0; pixel < place->pixels; pixel++)
        memcpy(sums + pixel * EB_BLOCK,
               input + (place->row * step->in.columns + place->column + pixel) * step->in.channels + place->channel,
               (size_t)place->lanes * 4);
    context->plan->kernels->chain_reals(&step->chain, place, sums);
}

static void copy_axis(const int64_t *field, const float *from, float *to, int axis) {
    int64_t size = field[EB_SIZE0 + axis], stride_from = field[EB_FROM0 + axis], stride_to = field[EB_TO0 + axis];
    if (axis == 5)
        for (int64_t i = 0; i < size; i++) to[i * stride_to] = from[i * stride_from];
    else
        for (int64_t i = 0; i < size; i++) copy_axis(field, from + i * stride_from, to + i * stride_to, axis + 1);
}

static void fill(const eb_context *context, const eb_step *step) {
    float *to = value_at(context, step->field[EB_OUT]);
    int64_t numbers = step->out.channels * step->out.rows * step->out.columns;
    for (int64_t i = 0; i < numbers; i++) to[i] = step->chain.low;
}

static void run_tile(const eb_context *context, const eb_step *step, const eb_place *place, int64_t block) {
    switch (step->field[EB_KIND]) {
    case EB_CONV_BITS: bits_tile(context, step, place, block); break;
    case EB_CONV_REAL: real_tile(context, step, place, block); break;
    case EB_LOAD:
    case EB_CHAIN: plain_tile(context, step, place); break;
    default: pool_tile(context, step, place);
    }
}

void eb_step_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t *field = step->field, rows = step->out.rows;
    const eb_kernels *kernels = context->plan->kernels;
    if (field[EB_KIND] == EB_FILL) { fill(context, step); return; }
    if (field[EB_KIND] == EB_COPY) {
        copy_axis(field, (const float *)value_at(context, field[EB_IN]) + field[EB_FROM_OFFSET],
                  (float *)value_at(context, field[EB_OUT]) + field[EB_TO_OFFSET], 0);
        return;
    }
    int64_t tile = field[EB_KIND] == EB_CONV_BITS ? kernels->bits_pixels : kernels->real_pixels;
    int grouped = is_conv(step) && !eb_is_depthwise(step);
    eb_place place = {.residual = value_at(context, field[EB_RESIDUAL]), .out = value_at(context, field[EB_OUT]),
                      .bits = value_at(context, field[EB_OUT_BITS]), .channels = step->out.channels,
                      .columns = step->out.columns, .words = step->out.words};
    for (int64_t unit = from; unit < to; unit++) {
        int64_t block = unit / rows, within = grouped ? block % step->blocks * EB_BLOCK : block * EB_BLOCK;
        int64_t left = (grouped ? step->group_out : step->out.channels) - within;
        place.row = unit % rows;
        place.channel = grouped ? block / step->blocks * step->group_out + within : within;
        place.lanes = (int)(left < EB_BLOCK ? left : EB_BLOCK);
        for (place.column = 0; place.column < step->out.columns; place.column += tile) {
            int64_t rest = step->out.columns - place.column;
            place.pixels = (int)(rest < tile ? rest : tile);
            run_tile(context, step, &place, block);
        }
    }
}
