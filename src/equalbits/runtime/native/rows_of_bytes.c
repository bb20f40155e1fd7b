/* A linear layer of binary weights whose input is several rows rounded to 8 bits: its layout, and a block of its sums. */
#include <string.h>

#include "core.h"

enum { DEEP_GROUPS = 128 }; /* groups of inputs whose weights are bytes at the same time */

/* A filter's bits: those pruned are 0 in the first plane and 1 in the second, as in bytes.c. */
static void pack_filter(const eb_step *step, const uint8_t *sign, const uint8_t *kept, int64_t filter) {
    uint8_t *block = (uint8_t *)step->weights + filter / EB_BLOCK * step->block_bytes + filter % EB_BLOCK * 4;
    const int64_t plane = step->sums * 4 * EB_BLOCK;
    for (int64_t at = 0; at < step->in.channels; at++) {
        uint8_t *to = block + at / EB_GROUP * 4 * EB_BLOCK + at % 4;
        const int bit = sign[at / 8] >> at % 8 & 1, there = kept ? kept[at / 8] >> at % 8 & 1 : 1;
        to[0] |= (uint8_t)((bit & there) << at % EB_GROUP / 4);
        if (kept) to[plane] |= (uint8_t)((bit | !there) << at % EB_GROUP / 4);
    }
}

static int64_t heads_bytes(const eb_step *step) { return (step->in.columns * (int64_t)sizeof(eb_bytes) + 63) / 64 * 64; }

static int64_t deep_groups(const eb_step *step) { return step->sums < DEEP_GROUPS ? step->sums : DEEP_GROUPS; }

int eb_layout_byte_rows(eb_step *step, const uint8_t *sign, const uint8_t *kept, char *error) {
    const int64_t rows = step->in.columns, row_bytes = (step->in.channels + 7) / 8;
    step->sums = (step->in.channels + EB_GROUP - 1) / EB_GROUP;
    step->block_bytes = step->sums * 4 * EB_BLOCK * (kept ? 2 : 1);
    step->scratch_bytes = heads_bytes(step) + rows * step->sums * EB_GROUP;
    step->row_bytes = 2 * rows * EB_BLOCK * 4 + deep_groups(step) * EB_GROUP * EB_BLOCK;
    step->weights = eb_take(step->budget, step->blocks * step->block_bytes);
    if (!step->weights) return eb_fail(error, "there is no memory");
    for (int64_t filter = 0; filter < step->out.channels; filter++)
        pack_filter(step, sign + filter * row_bytes, kept ? kept + filter * row_bytes : NULL, filter);
    return 1;
}

void eb_byte_rows_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const float *input = eb_value_at(context, step->field[EB_IN]);
    const int64_t deep = step->sums * EB_GROUP;
    eb_bytes *heads = (eb_bytes *)context->scratch;
    int8_t *rows = (int8_t *)context->scratch + heads_bytes(step);
    for (int64_t row = from; row < to; row++)
        context->plan->kernels->round_row(input + row * step->in.channels, step->in.channels, deep, rows + row * deep, heads + row);
}

/* Unsigned intermediate values may wrap around; the sum itself fits. */
void eb_byte_rows_sums(const eb_context *context, const eb_step *step, int64_t block, float *sums) {
    const eb_kernels *kernels = context->plan->kernels;
    const int64_t rows = step->in.columns, deep = step->sums * EB_GROUP, wide = 4 * EB_BLOCK;
    const int planes = step->field[EB_KEPT] < 0 ? 1 : 2;
    const eb_bytes *heads = (const eb_bytes *)context->scratch;
    const int8_t *q = (const int8_t *)context->scratch + heads_bytes(step);
    const uint8_t *packed = (const uint8_t *)step->weights + block * step->block_bytes;
    int32_t *whole = (int32_t *)(sums + rows * EB_BLOCK);
    uint8_t *ones = (uint8_t *)(whole + rows * EB_BLOCK);
    memset(whole, 0, (size_t)(rows * EB_BLOCK) * 4);
    for (int plane = 0; plane < planes; plane++)
        for (int64_t start = 0; start < step->sums; start += DEEP_GROUPS, packed += DEEP_GROUPS * wide) {
            const int64_t left = step->sums - start, groups = left < DEEP_GROUPS ? left : DEEP_GROUPS;
            if (eb_stopped(step)) return;
            kernels->bits_to_bytes(packed, groups, ones);
            kernels->bytes_tile(q + start * EB_GROUP, deep, rows, groups, ones, whole);
            if (left < DEEP_GROUPS) packed += (left - DEEP_GROUPS) * wide; /* the second plane begins here */
        }
    for (int64_t row = 0; row < rows; row++, whole += EB_BLOCK, sums += EB_BLOCK)
        for (int lane = 0; lane < EB_BLOCK; lane++) {
            const uint32_t once = (uint32_t)whole[lane];
            sums[lane] = (float)(int32_t)((planes == 1 ? 2 * once : once) - heads[row].total) * heads[row].step;
        }
}
