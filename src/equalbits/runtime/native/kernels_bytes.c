/* Convolutions of bytes in plain C, and the choice of the kernels for an instruction set. */
#include <string.h>

#include "core.h"

/* Four products of each filter at a time. */
static void add_pixel(const eb_step *step, const uint8_t *input, const int8_t *weight, int32_t *sums) {
    for (int64_t k = 0; k < step->sums; k++, weight += 4 * EB_BLOCK) {
        const uint8_t *from = input + step->offsets[k];
        const int32_t a = from[0], b = from[1], c = from[2], d = from[3];
        for (int i = 0; i < EB_BLOCK; i++)
            sums[i] += a * weight[4 * i] + b * weight[4 * i + 1] + c * weight[4 * i + 2] + d * weight[4 * i + 3];
    }
}

void eb_dot_portable(const eb_step *step, const eb_byte_row *row) {
    float *sums = row->sums;
    for (int i = 0; i < row->rows; i++)
        for (int64_t x = 0; x < row->pixels; x++, sums += EB_BLOCK) {
            int32_t whole[EB_BLOCK];
            memcpy(whole, row->start, sizeof whole);
            add_pixel(step, row->input[i] + x * step->apart, row->packed, whole);
            for (int lane = 0; lane < EB_BLOCK; lane++) sums[lane] = (float)whole[lane];
        }
}

static int always(void) { return 1; }

static const eb_byte_kernels portable = {.name = "portable", .supported = always, .dot = eb_dot_portable, .dot_int8 = eb_dot_portable};

const eb_byte_kernels *eb_byte_kernels_of(const eb_kernels *kernels) {
    static const eb_byte_kernels *const all[] = {
#ifdef EB_HAVE_AVX512
        &eb_byte_kernels_avx512,
#endif
#ifdef EB_HAVE_AVX2
        &eb_byte_kernels_avx2,
#endif
    };
    int found = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) { /* those behind the set's own are of narrower ones */
        found |= !strcmp(kernels->name, all[i]->name);
        if (found && all[i]->supported()) return all[i];
    }
    return &portable;
}
