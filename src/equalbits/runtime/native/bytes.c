/* Binary linear layer with input rounded to 8 bits: layout of the weights, and sums of a block. */
#include "core.h"

enum { MOST = 1 << 24, STEPS = 4 }; /* so that sums of 127 fit 32 bits; steps come in fours */

/* Four bits of a filter, from the input `at` on. */
static unsigned four_bits(const uint8_t *row, int64_t at) { return row[at / 8] >> at % 8 & 15u; }

/* Pruned bits are stored as 0, and in a second plane as 1: their sum is half of what is subtracted. */
static void pack_filter(const eb_step *step, const uint8_t *sign, const uint8_t *kept, int64_t filter) {
    const int64_t wide = step->in.channels, plane = step->sums * 64, place = filter % EB_BLOCK;
    uint8_t *block = (uint8_t *)step->weights + filter / EB_BLOCK * step->block_bytes + place % 16;
    for (int64_t at = 0; at < wide; at += 4) {
        const unsigned bits = four_bits(sign, at), there = kept ? four_bits(kept, at) : 15;
        block[at * 4] |= (uint8_t)((bits & there) << place / 16 * 4);
        if (kept) block[plane + at * 4] |= (uint8_t)(((bits | ~there) & 15) << place / 16 * 4);
    }
}

int eb_layout_bytes(eb_step *step, const eb_recipe *recipe, char *error) {
    const int64_t *field = step->field, weight = field[EB_WEIGHT], kept = field[EB_KEPT], wide = step->in.channels;
    const int64_t row_bytes = (wide + 7) / 8, bytes = step->out.channels * row_bytes;
    if (step->in.rows * step->out.rows != 1 || step->in.columns != step->out.columns || wide >= MOST)
        return eb_fail(error, "a linear layer makes other rows than it reads, or reads too long ones");
    if (weight < 0 || weight >= recipe->tensor_count || recipe->tensors[weight].bytes != bytes || kept < -1 ||
        kept >= recipe->tensor_count || (kept >= 0 && recipe->tensors[kept].bytes != bytes))
        return eb_fail(error, "a linear layer has weights of another size than its shape");
    step->blocks = (step->out.channels + EB_BLOCK - 1) / EB_BLOCK;
    if (step->in.columns > 1)
        return eb_layout_byte_rows(step, recipe->tensors[weight].data, kept < 0 ? NULL : recipe->tensors[kept].data, error);
    step->sums = (wide + 16 * STEPS - 1) / (16 * STEPS) * STEPS;
    step->block_bytes = step->sums * 64 * (kept < 0 ? 1 : 2);
    step->scratch_bytes = EB_BYTES_HEAD + step->sums * EB_BYTES_STEP;
    step->weights = eb_take(step->budget, step->blocks * step->block_bytes);
    if (!step->weights) return eb_fail(error, "there is no memory");
    for (int64_t filter = 0; filter < step->out.channels; filter++)
        pack_filter(step, (const uint8_t *)recipe->tensors[weight].data + filter * row_bytes,
                    kept < 0 ? NULL : (const uint8_t *)recipe->tensors[kept].data + filter * row_bytes, filter);
    return 1;
}

void eb_bytes_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    if (step->in.columns > 1) {
        eb_byte_rows_prepare(context, step, from, to);
        return;
    }
    context->plan->kernels->bytes_prepare(eb_value_at(context, step->field[EB_IN]), step->in.channels, step->sums,
                                          (eb_bytes *)context->scratch);
}

/* Unsigned intermediate values may wrap around; the sum itself fits. */
void eb_bytes_sums(const eb_context *context, const eb_step *step, int64_t block, float *sums) {
    if (step->in.columns > 1) {
        eb_byte_rows_sums(context, step, block, sums);
        return;
    }
    const eb_bytes *head = (const eb_bytes *)context->scratch;
    const uint8_t *tables = (const uint8_t *)head + EB_BYTES_HEAD;
    const uint8_t *packed = (const uint8_t *)step->weights + block * step->block_bytes;
    uint32_t first[EB_BLOCK], second[EB_BLOCK];
    const uint32_t *other = first;
    context->plan->kernels->bytes_row(tables, packed, step->sums, first);
    if (step->field[EB_KEPT] >= 0) {
        context->plan->kernels->bytes_row(tables, packed + step->sums * 64, step->sums, second);
        other = second;
    }
    for (int lane = 0; lane < EB_BLOCK; lane++)
        sums[lane] = (float)(int32_t)(first[lane] + other[lane] - head->total) * head->step;
}
