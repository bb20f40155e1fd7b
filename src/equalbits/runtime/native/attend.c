/* Causal attention over positions that are kept from run to run, and numbers that depend on the position.
 *
 * The caller keeps the state and says at which position the first row of a run stands. A step keeps its keys from
 * FROM_OFFSET on, (head, block of EB_BLOCK positions, channel, position), and its values from TO_OFFSET on, (head, block
 * of EB_BLOCK channels, position, channel): both as the weights of a convolution are packed, so that its kernels serve.
 * They read whole vectors, so the state begins at a multiple of 64 bytes. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { LARGEST = 1 << 28, TILE = 16 }; /* queries that are answered together */

/* The sizes of both kinds: heads, rows of a run, channels, positions. */
typedef struct {
    int64_t heads, rows, wide, positions, blocks;
} shape_of;

static shape_of sizes(const eb_step *step) {
    const int64_t *size = step->field + EB_SIZE0;
    return (shape_of){size[0], size[1], size[2], size[3], (size[2] + EB_BLOCK - 1) / EB_BLOCK};
}

static int64_t numbers_of(const eb_value *value) { return value->channels * value->rows * value->columns; }

static int check_sizes(const eb_step *step) {
    int64_t product = 1;
    for (int i = 0; i < 4; i++) {
        const int64_t size = step->field[EB_SIZE0 + i];
        if (size < 1 || size > LARGEST || (i != 1 && (product *= size) > LARGEST)) return 0;
    }
    const shape_of shape = sizes(step);
    return shape.heads * shape.rows <= LARGEST && shape.heads * shape.rows * shape.wide == numbers_of(&step->in) &&
           shape.rows <= shape.positions;
}

int eb_check_attend(eb_step *step, const eb_value *values, int64_t number, char *error) {
    if (!check_sizes(step)) return eb_fail(error, "step %d attends to other sizes than its values", (int)number);
    const shape_of shape = sizes(step);
    const int64_t all = numbers_of(&step->in), keys = step->field[EB_FROM_OFFSET], kept = step->field[EB_TO_OFFSET];
    const int64_t deep = shape.positions > shape.wide ? shape.positions : shape.wide;
    if (numbers_of(&step->other) != all || numbers_of(values) != all || numbers_of(&step->out) != all ||
        shape.positions % EB_BLOCK || keys % EB_BLOCK || kept % EB_BLOCK || keys < 0 || kept < 0 || keys > LARGEST || kept > LARGEST)
        return eb_fail(error, "step %d attends to other sizes than its values", (int)number);
    step->offsets = malloc((size_t)deep * sizeof *step->offsets);
    if (!step->offsets) return eb_fail(error, "there is no memory");
    for (int64_t i = 0; i < deep; i++) step->offsets[i] = (int32_t)i;
    step->row_bytes = (2 * TILE * shape.positions + (TILE + 8) * EB_BLOCK) * 4;
    step->state_end = keys + shape.heads * shape.wide * shape.positions;
    const int64_t values_end = kept + shape.heads * shape.blocks * EB_BLOCK * shape.positions;
    if (values_end > step->state_end) step->state_end = values_end;
    return 1;
}

int eb_check_position(eb_step *step, int64_t number, char *error) {
    if (numbers_of(&step->in) != numbers_of(&step->out) || !check_sizes(step))
        return eb_fail(error, "step %d reads other positions than its values have", (int)number);
    return 1;
}

/* Row `from` of a run becomes position `from` after those before, in the state. */
static void keep_head(const eb_context *context, const eb_step *step, int64_t head) {
    const shape_of shape = sizes(step);
    const int64_t each = shape.rows * shape.wide;
    const float *key = (const float *)eb_value_at(context, step->field[EB_IN2]) + head * each;
    const float *value = (const float *)eb_value_at(context, step->field[EB_RESIDUAL]) + head * each;
    float *keys = context->state + step->field[EB_FROM_OFFSET] + head * shape.positions * shape.wide;
    float *values = context->state + step->field[EB_TO_OFFSET] + head * shape.positions * shape.blocks * EB_BLOCK;
    for (int64_t row = 0; row < shape.rows; row++) {
        const int64_t at = context->position + row;
        float *to = keys + at / EB_BLOCK * EB_BLOCK * shape.wide + at % EB_BLOCK;
        for (int64_t i = 0; i < shape.wide; i++) to[i * EB_BLOCK] = key[i * shape.rows + row];
        for (int64_t i = 0; i < shape.wide; i += EB_BLOCK) {
            const int64_t left = shape.wide - i, lanes = left < EB_BLOCK ? left : EB_BLOCK;
            memcpy(values + (i * shape.positions + at * EB_BLOCK), value + row * shape.wide + i, (size_t)lanes * 4);
        }
    }
}

/* The answers to `rows` queries of a head from row `first` on. */
static void answer_tile(const eb_context *context, const eb_step *step, int64_t head, int64_t first, int64_t rows) {
    const shape_of shape = sizes(step);
    const eb_kernels *kernels = context->plan->kernels;
    const int64_t at = (head * shape.rows + first) * shape.wide, seen = context->position + first + rows;
    const float *query = (const float *)eb_value_at(context, step->field[EB_IN]) + at;
    const float *keys = context->state + step->field[EB_FROM_OFFSET] + head * shape.positions * shape.wide;
    const float *values = context->state + step->field[EB_TO_OFFSET] + head * shape.positions * shape.blocks * EB_BLOCK;
    float *scores = (float *)context->own, *shares = scores + TILE * shape.positions, *sums = shares + TILE * shape.positions;
    float *out = (float *)eb_value_at(context, step->field[EB_OUT]) + at;
    for (int64_t block = 0; block < seen; block += EB_BLOCK) {
        kernels->real_row(step->offsets, shape.wide, query, shape.wide, keys + block * shape.wide, rows, sums);
        for (int64_t row = 0; row < rows; row++)
            memcpy(scores + row * shape.positions + block, sums + row * EB_BLOCK, EB_BLOCK * 4);
    }
    for (int64_t row = 0; row < rows; row++) {
        const int64_t own = seen - rows + row + 1;
        float *to = shares + row * shape.positions;
        kernels->softmax_row(scores + row * shape.positions, own, to);
        memset(to + own, 0, (size_t)(seen - own) * 4);
    }
    for (int64_t i = 0; i < shape.wide; i += EB_BLOCK) {
        const int64_t left = shape.wide - i, lanes = left < EB_BLOCK ? left : EB_BLOCK;
        kernels->real_row(step->offsets, seen, shares, shape.positions, values + i * shape.positions, rows, sums);
        for (int64_t row = 0; row < rows; row++)
            memcpy(out + row * shape.wide + i, sums + row * EB_BLOCK, (size_t)lanes * 4);
    }
}

void eb_attend_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t rows = step->field[EB_SIZE1];
    for (int64_t head = from; head < to; head++) {
        keep_head(context, step, head);
        for (int64_t row = 0; row < rows; row += TILE) {
            if (eb_stopped(step)) return;
            answer_tile(context, step, head, row, rows - row < TILE ? rows - row : TILE);
        }
    }
}

/* The rows of the table that belong to the positions of this run. */
void eb_position_run(const eb_context *context, const eb_step *step) {
    const shape_of shape = sizes(step);
    float *out = eb_value_at(context, step->field[EB_OUT]);
    for (int64_t part = 0; part < shape.heads; part++)
        memcpy(out + part * shape.rows * shape.wide,
               step->chain.scale + (part * shape.positions + context->position) * shape.wide,
               (size_t)(shape.rows * shape.wide) * 4);
}

/* All steps that depend on the position have as many positions, and as many rows in a run. */
int eb_keep_state(eb_plan *plan, const eb_step *step, int64_t number, char *error) {
    const int64_t positions = step->field[EB_SIZE3] - step->field[EB_SIZE1] + 1;
    if (plan->positions && plan->positions != positions)
        return eb_fail(error, "step %d has other positions than those before it", (int)number);
    plan->positions = positions;
    if (step->state_end > plan->state_numbers) plan->state_numbers = step->state_end;
    return 1;
}

int64_t eb_plan_state(const eb_plan *plan) { return plan->state_numbers; }
int64_t eb_plan_positions(const eb_plan *plan) { return plan->positions; }
