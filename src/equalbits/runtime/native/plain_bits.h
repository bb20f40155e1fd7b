/* Binary weights and input in plain words, for kernels without a layout of their own. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* A word of every tap; the input as it is. */
static void bits_layout(eb_step *step) {
    const int64_t *field = step->field, words = step->words, columns = step->padded_columns;
    step->singles = field[EB_KERNEL_H] * field[EB_KERNEL_W] * words;
    step->block_bytes = step->singles * EB_BLOCK * 4 * (field[EB_KEPT] < 0 ? 1 : 2);
    step->prepared_bytes = step->padded_rows * words * columns * 4;
    step->offsets = calloc((size_t)step->singles, sizeof *step->offsets);
    for (int64_t i = 0; step->offsets && i < step->singles; i++) {
        int64_t tap = i / words, row = tap / field[EB_KERNEL_W], column = tap % field[EB_KERNEL_W];
        step->offsets[i] = (int32_t)((row * field[EB_DILATION_H] * words + i % words) * columns +
                                     column * field[EB_DILATION_W]);
    }
}

static void bits_pack(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed) {
    uint32_t *to = packed;
    for (int64_t i = 0; i < step->singles; i++) {
        for (int64_t lane = 0; lane < EB_BLOCK; lane++) *to++ = sign[lane * step->singles + i];
        for (int64_t lane = 0; kept && lane < EB_BLOCK; lane++) *to++ = kept[lane * step->singles + i];
    }
}

static void bits_prepare(const eb_step *step, const uint32_t *line, int64_t row, void *prepared) {
    const int64_t numbers = step->words * step->padded_columns;
    memcpy((uint32_t *)prepared + row * numbers, line, (size_t)numbers * 4);
}
