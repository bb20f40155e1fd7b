/* Steps on one image, in units of work for threads: a block of filters times a row. */
#include <string.h>

#include "core.h"

enum { PIECE = 84 }; /* whole tiles of any instruction set */

/* Filters are divided into groups and blocks; channels into blocks. */
static int by_filters(const eb_step *step) { return eb_is_conv(step) && !eb_is_depthwise(step); }

static int by_tiles(const eb_step *step) { return step->tiles && !step->field[EB_POOL_H]; }

/* Number of rows computed together; the first is a multiple of it. */
static int64_t together(const eb_step *step) {
    if (step->tiles && step->field[EB_POOL_H]) return step->strip / step->conv_columns;
    return step->quads ? 2 : 1;
}

int64_t eb_step_units(const eb_step *step) {
    int64_t kind = step->field[EB_KIND], blocks = (step->out.channels + EB_BLOCK - 1) / EB_BLOCK;
    if (kind == EB_COPY) return eb_copy_units(step);
    if (kind == EB_FILL || (kind == EB_LOAD && step->field[EB_OUT] == -1)) return 1;
    if (eb_is_rows(step)) return eb_rows_units(step);
    if (step->table_rows) return eb_table_units(step);
    if (step->quads) return step->out.rows; /* a row of the image is prepared once for all blocks */
    if (by_tiles(step)) return step->field[EB_GROUPS] * step->blocks * step->tiles;
    if (step->tiles) return step->out.rows;
    return (by_filters(step) ? step->field[EB_GROUPS] * step->blocks : blocks) * step->out.rows;
}

/* How many units, rows of a block, follow each other. */
int64_t eb_step_rows(const eb_step *step) {
    const int64_t units = eb_step_units(step);
    const int other = step->field[EB_KIND] == EB_COPY || eb_is_rows(step) || step->quads || step->tiles || step->table_rows;
    return units == 1 || other ? units : step->out.rows;
}

/* A row of a value, or of the image with channels last. */
static void plain_row(const eb_context *context, const eb_step *step, int64_t row, const eb_row *target, float *to) {
    const float *from = step->field[EB_KIND] == EB_LOAD ? (const float *)context->scratch
                                                        : eb_value_at(context, step->field[EB_IN]);
    from += row * step->in.columns * step->in.channels + target->channel;
    for (int64_t x = 0; x < step->in.columns; x++, from += step->in.channels, to += EB_BLOCK)
        memcpy(to, from, (size_t)target->lanes * 4);
}

/* Operands of a block's counts: the prepared input of its group, and its weights. */
static const void *prepared_of(const eb_context *context, const eb_step *step, int64_t block) {
    return context->scratch + step->scratch_bytes - (step->field[EB_GROUPS] - block / step->blocks) * step->prepared_bytes;
}
static const void *packed_of(const eb_step *step, int64_t block) {
    return (const char *)step->weights + block * step->block_bytes;
}

/* Counts of a row, or of a part of it, through the chain. */
static void chain_counts(const eb_context *context, const eb_step *step, int64_t row, int64_t x, int64_t block,
                         eb_row *target, const int32_t *counts) {
    const int64_t slots = step->field[EB_GROUPS] * step->blocks * EB_BLOCK;
    target->constants = step->constants + step->row_class[row] * step->column_classes * slots + block * EB_BLOCK;
    target->class_of = step->column_class + x;
    target->class_apart = slots;
    context->plan->kernels->chain_counts(&step->chain, target, counts);
}

/* Sums of some pixels, from the one at `input` on. */
static void sum_pixels(const eb_context *context, const eb_step *step, int64_t block, const float *input, int64_t pixels,
                       float *sums) {
    const eb_kernels *kernels = context->plan->kernels;
    if (step->tables)
        kernels->tables_row(step, input + block / step->blocks * step->prepared_bytes / 4, packed_of(step, block), 1,
                            pixels, sums);
    else if (step->signs)
        for (int64_t x = 0; x < pixels; x++)
            kernels->signed_row(step->offsets, step->sums, input + block / step->blocks * step->group_in + x * step->apart,
                                (const uint32_t *)((const char *)step->weights + block * step->block_bytes), step->signs,
                                sums + x * EB_BLOCK);
    else if (eb_is_depthwise(step))
        kernels->depthwise_row(step, input + block * EB_BLOCK, (const float *)step->weights + block * EB_BLOCK,
                               pixels, sums);
    else
        kernels->real_row(step->offsets, step->sums, input + block / step->blocks * step->group_in, step->apart,
                          (const float *)((const char *)step->weights + block * step->block_bytes), pixels, sums);
}

/* A row of a real convolution, a few tiles at a time, which stay in the cache. */
static void real_row(const eb_context *context, const eb_step *step, int64_t row, int64_t block, eb_row target) {
    const float *input = step->scratch_bytes ? (const float *)context->scratch : eb_value_at(context, step->field[EB_IN]);
    const int64_t columns = target.pixels;
    float *sums = (float *)context->own;
    for (int64_t x = 0; x < columns; x += PIECE) {
        if (x && x % (eb_turns(step->sums * PIECE / 8) * PIECE) == 0 && eb_stopped(step)) return;
        target.pixels = columns - x < PIECE ? columns - x : PIECE;
        sum_pixels(context, step, block, input + row * step->row_apart + x * step->apart, target.pixels, sums);
        context->plan->kernels->chain_reals(&step->chain, &target, sums);
        eb_move_along(&target, PIECE);
    }
}

/* Tiles of rows that are pooled later. They are gathered for the first block of a group and reused by the others. */
static void count_pooled_rows(const eb_context *context, const eb_step *step, int64_t block, int64_t strip, int32_t *counts) {
    const eb_kernels *kernels = context->plan->kernels;
    char *gathered = (char *)(counts + step->tiles * EB_TILE * EB_BLOCK);
    for (int64_t i = 0; i < step->tiles; i++, gathered += step->tile_bytes, counts += EB_TILE * EB_BLOCK) {
        const int64_t tile = strip * step->tiles + i;
        if (i && eb_turns_of(step, EB_TILE) == 1 && eb_stopped(step)) return;
        if (block % step->blocks == 0) kernels->gather_tile(step, prepared_of(context, step, block), tile, gathered);
        kernels->bits_tile(step, gathered, tile, packed_of(step, block), counts);
    }
}

/* Compute a row of numbers and apply the chain. */
static void run_row(const eb_context *context, const eb_step *step, int64_t block, int64_t row, eb_row *target) {
    const eb_kernels *kernels = context->plan->kernels;
    float *sums = (float *)context->own;
    int32_t *counts = (int32_t *)context->own;
    switch (step->field[EB_KIND]) {
    case EB_CONV_BITS:
        if (step->tiles && row % together(step) == 0) /* the counts of the others follow */
            count_pooled_rows(context, step, block, row / together(step), counts);
        if (step->tiles) counts += row % together(step) * step->conv_columns * EB_BLOCK;
        else kernels->bits_row(step, prepared_of(context, step, block), row, packed_of(step, block), counts);
        chain_counts(context, step, row, 0, block, target, counts);
        return;
    case EB_CONV_REAL:
        if (step->quads) eb_winograd_row(context, step, row, block, *target);
        else real_row(context, step, row, block, *target);
        return;
    case EB_CONV_BYTES: eb_bytes_conv_row(context, step, row, block, *target); return;
    case EB_LINEAR_BYTES: eb_bytes_sums(context, step, block, sums); break;
    case EB_LOAD:
    case EB_CHAIN: plain_row(context, step, row, target, sums); break;
    default: eb_pool_row(context, step, row, target->channel, sums);
    }
    context->plan->kernels->chain_reals(&step->chain, target, sums);
}

/* Channels of a block. */
eb_row eb_block_row(const eb_step *step, int64_t block, int64_t pixels) {
    int64_t within = by_filters(step) ? block % step->blocks * EB_BLOCK : block * EB_BLOCK;
    int64_t left = (by_filters(step) ? step->group_out : step->out.channels) - within;
    eb_row row = {.channel = by_filters(step) ? block / step->blocks * step->group_out + within : within,
                  .pixels = pixels, .lanes = (int)(left < EB_BLOCK ? left : EB_BLOCK)};
    return row;
}

/* Pointers of a row into input and output values. */
void eb_point_at_values(const eb_context *context, const eb_step *step, int64_t row, eb_row *target) {
    const int64_t channels = step->out.channels, columns = step->out.columns;
    const int64_t at = row * columns * channels + target->channel;
    const float *residual = eb_value_at(context, step->field[EB_RESIDUAL]);
    float *out = eb_value_at(context, step->field[EB_OUT]);
    uint32_t *bits = eb_value_at(context, step->field[EB_OUT_BITS]);
    uint8_t *bytes = eb_value_at(context, step->field[EB_OUT_BYTES]);
    target->apart = channels;
    target->residual = residual ? residual + at : NULL;
    target->out = out ? out + at : NULL;
    target->bytes = bytes ? bytes + at : NULL;
    target->bits = bits ? bits + (target->channel / 32 * step->out.rows + row) * columns : NULL;
}

/* Pool a block of a row from the rows [top, bottom) of a convolution in the ring buffer. */
static void pool_ring(const eb_context *context, const eb_step *step, const float *ring, int64_t top, int64_t bottom,
                      int64_t row, int64_t block) {
    const int64_t wide = step->out.columns * EB_BLOCK;
    const float *rows[EB_POOL];
    eb_chain after = step->chain;
    after.parts &= step->after;
    for (int64_t i = top; i < bottom; i++) rows[i - top] = ring + i % (step->field[EB_POOL_H] + 1) * wide;
    context->plan->kernels->pool_rows(rows, bottom - top, wide, (float *)context->own);
    eb_row target = eb_block_row(step, block, step->out.columns);
    eb_point_at_values(context, step, row, &target);
    context->plan->kernels->chain_reals(&after, &target, (float *)context->own);
}

/* Rows of a pooled convolution. Each row of the convolution is computed and pooled horizontally once, and kept while
 * needed. */
static void run_pooled(const eb_context *context, const eb_step *step, int64_t block, int64_t blocks, int64_t from,
                       int64_t to) {
    const int64_t *field = step->field, wide = step->out.columns * EB_BLOCK, kept = field[EB_POOL_H] + 1;
    const eb_window window = {field[EB_POOL_W], field[EB_POOL_STRIDE_W], field[EB_POOL_LEFT]};
    float *rings = (float *)(context->own + step->row_bytes), *line = rings + blocks * kept * wide;
    eb_step before = *step; /* the same step with a shorter chain */
    before.chain.parts = (before.chain.parts & ~step->after) | EB_HAS_OUT;
    const int64_t turns = eb_turns_of(step, step->conv_columns * blocks * together(step));
    int64_t made = 0, lines = 0, turn = 0;
    for (int64_t row = from; row < to; row++) {
        int64_t top, bottom;
        eb_inside(row * field[EB_POOL_STRIDE_H] - field[EB_POOL_TOP], field[EB_POOL_H], step->conv_rows, &top, &bottom);
        if (row == from || made < top) made = top - top % together(step);
        for (; made < bottom; made += together(step)) {
            if (++turn % turns == 0 && eb_stopped(step)) return;
            if (step->quads) eb_winograd_rows(context, step, made, &lines);
            for (int64_t i = 0; i < blocks; i++) {
                for (int64_t y = made; y < made + together(step) && y < step->conv_rows; y++) {
                    eb_row target = eb_block_row(step, block + i, step->conv_columns);
                    target.out = line;
                    target.apart = target.lanes = EB_BLOCK;
                    run_row(context, &before, block + i, y, &target);
                    context->plan->kernels->pool_line(line, step->conv_columns, &window, step->out.columns,
                                                      rings + (i * kept + y % kept) * wide);
                }
            }
        }
        for (int64_t i = 0; i < blocks; i++)
            pool_ring(context, step, rings + i * kept * wide, top, bottom, row, block + i);
    }
}

/* While a block is computed row by row, prefetch the weights of the next, a slice per row. */
void eb_call_in_weights(const eb_step *step, int64_t block, int64_t row) {
    const int64_t rows = step->out.rows, end = step->field[EB_GROUPS] * step->blocks;
    if (!by_filters(step) || block + 1 >= end || rows < 4) return;
    const char *next = (const char *)step->weights + (block + 1) * step->block_bytes;
    for (int64_t at = step->block_bytes * row / rows; at < step->block_bytes * (row + 1) / rows; at += 64)
        __builtin_prefetch(next + at);
}

/* Tiles cross row ends: every part is written to its row. */
static void run_tile(const eb_context *context, const eb_step *step, int64_t tile, int64_t block) {
    const int64_t columns = step->out.columns, left = step->strip - tile * EB_TILE, pixels = left < EB_TILE ? left : EB_TILE;
    int32_t *counts = (int32_t *)context->own;
    const void *gathered = counts + EB_TILE * EB_BLOCK;
    context->plan->kernels->bits_tile(step, gathered, tile, packed_of(step, block), counts);
    for (int64_t done = 0, count; done < pixels; done += count) {
        const int64_t row = (tile * EB_TILE + done) / columns, x = (tile * EB_TILE + done) % columns;
        count = columns - x < pixels - done ? columns - x : pixels - done;
        eb_row target = eb_block_row(step, block, count);
        eb_point_at_values(context, step, row, &target);
        eb_move_along(&target, x);
        chain_counts(context, step, row, x, block, &target, counts + done * EB_BLOCK);
    }
}

/* Units [from, to): for each tile, all blocks. A tile is gathered once for the blocks of a group. */
static void run_tiles(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t blocks = step->field[EB_GROUPS] * step->blocks;
    void *gathered = (int32_t *)context->own + EB_TILE * EB_BLOCK;
    for (int64_t i = from; i < to; i++) {
        if ((i + 1) % eb_turns_of(step, EB_TILE) == 0 && eb_stopped(step)) return;
        if (i == from || i % step->blocks == 0)
            context->plan->kernels->gather_tile(step, prepared_of(context, step, i % blocks), i / blocks, gathered);
        run_tile(context, step, i / blocks, i % blocks);
    }
}

/* Rows [from, to) of `blocks` blocks. */
static void run_rows(const eb_context *context, const eb_step *step, int64_t block, int64_t blocks, int64_t from,
                     int64_t to) {
    const int64_t turns = eb_turns_of(step, step->out.columns * blocks * together(step));
    int64_t lines = 0, turn = 0;
    if (eb_is_conv(step) && step->field[EB_POOL_H]) {
        run_pooled(context, step, block, blocks, from, to);
        return;
    }
    if (step->field[EB_KIND] == EB_CONV_BYTES) {
        eb_bytes_conv_rows(context, step, block, from, to);
        return;
    }
    for (int64_t row = from - from % together(step); row < to; row += together(step)) {
        if (++turn % turns == 0 && eb_stopped(step)) return;
        if (step->quads) eb_winograd_rows(context, step, row, &lines);
        else eb_call_in_weights(step, block, row);
        for (int64_t i = block; i < block + blocks; i++) {
            for (int64_t y = row < from ? from : row; y < row + together(step) && y < to; y++) {
                eb_row target = eb_block_row(step, i, step->out.columns);
                eb_point_at_values(context, step, y, &target);
                run_row(context, step, i, y, &target);
            }
        }
    }
}

void eb_step_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t *field = step->field, rows = step->out.rows;
    if (field[EB_KIND] == EB_FILL) eb_fill(context, step);
    else if (field[EB_KIND] == EB_COPY) eb_copy(context, step, from, to);
    else if (field[EB_KIND] == EB_LOAD && field[EB_OUT] == -1) return; /* all was done when it was prepared */
    else if (eb_is_rows(step)) eb_rows_run(context, step, from, to);
    else if (step->table_rows) eb_tables_run(context, step, from, to);
    else if (step->quads) run_rows(context, step, 0, step->blocks, from, to);
    else if (by_tiles(step)) run_tiles(context, step, from, to);
    else if (step->tiles) run_rows(context, step, 0, field[EB_GROUPS] * step->blocks, from, to);
    else
        while (from < to) { /* the remainder of a block */
            int64_t block = from / rows, end = (block + 1) * rows < to ? (block + 1) * rows : to;
            run_rows(context, step, block, 1, from % rows, end - block * rows);
            from = end;
        }
}
