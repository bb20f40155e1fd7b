/* The first convolution of a network, on the image itself, with fewer products.
 *
 * Along a row, four outputs of a kernel of r taps take 4 r products; by Winograd's way (Toom and Cook's, transposed) they
 * take r + 3: the input and the kernel are evaluated as polynomials at the points 0, 1, -1, 2, -2, (1/2) and infinity,
 * multiplied point by point, and put together again. A stride of 2 is two such rows side by side, the even and the odd
 * columns, whose products at a point are added before they are put together. Between points, everything is the sum over
 * kernel rows and channels that any convolution is. A 7 × 7 kernel of stride 2 takes 273 instead of 588 products for four
 * outputs, and is as exact as adding in another order: its error is below 1e-6 of the values. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* The half comes last but one, since kernels of three taps do without it. */
static const double points[EB_POINTS - 1] = {0, 1, -1, 2, -2, 0.5};
enum { HALF = 5, INFINITE = 6 };

static int64_t phase_taps(const eb_step *step, int64_t phase) {
    int64_t stride = step->field[EB_STRIDE_W];
    return (step->field[EB_KERNEL_W] - phase + stride - 1) / stride;
}

/* Every phase needs three or four taps, and the image enough columns to be worth it. */
int eb_is_winograd(const eb_step *step) {
    const int64_t *field = step->field;
    if (step->in.kind != EB_IMAGE || field[EB_KIND] != EB_CONV_REAL || field[EB_DILATION_W] != 1 ||
        field[EB_DILATION_H] != 1 || field[EB_STRIDE_W] > 2 || step->conv_columns < 28 || step->out.channels < EB_BLOCK)
        return 0;
    for (int64_t phase = 0; phase < field[EB_STRIDE_W]; phase++)
        if (phase_taps(step, phase) < 3 || phase_taps(step, phase) > 4) return 0;
    return 1;
}

static int uses(int64_t taps, int point) { return taps == 4 || point != HALF; }

/* The coefficients of the product of (x - q) over the finite points used, all but `left_out`. */
static void product(int64_t taps, int left_out, double *coefficients) {
    int degree = 0;
    memset(coefficients, 0, EB_POINTS * sizeof *coefficients);
    coefficients[0] = 1;
    for (int i = 0; i < INFINITE; i++) {
        if (i == left_out || !uses(taps, i)) continue;
        for (int j = ++degree; j >= 0; j--)
            coefficients[j] = (j ? coefficients[j - 1] : 0) - points[i] * coefficients[j];
    }
}

/* A kernel's taps at a point, divided by what the input's side leaves out. */
static double kernel_at(int64_t taps, int point, const float *kernel, int64_t apart) {
    if (point == INFINITE) return kernel[(taps - 1) * apart];
    double sum = 0, divisor = 1, power = 1;
    for (int i = 0; i < INFINITE; i++)
        if (i != point && uses(taps, i)) divisor *= points[point] - points[i];
    for (int64_t j = 0; j < taps; j++, power *= points[point]) sum += kernel[j * apart] * power;
    return sum / divisor;
}

/* Columns of a phase that are made ready, and of the padded image. */
static int64_t phase_length(const eb_step *step) { return 4 * (step->quads + EB_QUADS); }
static int64_t line_length(const eb_step *step) { return phase_length(step) * step->field[EB_STRIDE_W]; }

/* Numbers in a row of the image at one point, (channel, phase, quad); at a point, for the rows of a kernel; and in a line,
 * its phases, a phase in halves and in quarters. */
static int64_t per_row(const eb_step *step) { return step->in.channels * step->field[EB_STRIDE_W] * step->quads; }
static int64_t per_point(const eb_step *step) { return step->field[EB_KERNEL_H] * per_row(step); }
static int64_t spare(const eb_step *step) { return 2 * line_length(step) + 2 * phase_length(step); }

/* Offsets and weights: for each point, the entries of the phases of four taps, then of three; (kernel row, channel). */
int eb_layout_winograd(eb_step *step, const float *given) {
    const int64_t *field = step->field, tall = field[EB_KERNEL_H], wide = field[EB_KERNEL_W], stride = field[EB_STRIDE_W];
    const int64_t channels = step->in.channels, filters = step->out.channels, per_phase = tall * channels;
    step->sums = stride * per_phase;
    step->half_sums = 0;
    step->quads = ((step->conv_columns + 3) / 4 + EB_QUADS - 1) / EB_QUADS * EB_QUADS;
    step->row_bytes = ((4 + EB_POINTS) * (step->quads + EB_QUADS) * EB_BLOCK + EB_POINTS * per_point(step) + spare(step)) * 4;
    step->block_bytes = EB_POINTS * step->sums * EB_BLOCK * 4;
    step->offsets = calloc((size_t)(tall * step->sums), sizeof *step->offsets);
    step->weights = eb_aligned((size_t)(step->blocks * step->block_bytes));
    step->transform = calloc((size_t)stride * EB_POINTS * EB_POINTS, sizeof *step->transform);
    if (!step->offsets || !step->weights || !step->transform) return 0;
    int64_t entry = 0;
    for (int64_t taps = 4; taps >= 3; taps--)
        for (int64_t phase = 0; phase < stride; phase++) {
            if (phase_taps(step, phase) != taps) continue;
            if (taps == 4) step->half_sums += per_phase;
            for (int point = 0; point < EB_POINTS; point++) {
                double row[EB_POINTS];
                product(taps, point, row);
                for (int j = 0; j < EB_POINTS; j++)
                    step->transform[(phase * EB_POINTS + point) * EB_POINTS + j] = uses(taps, point) ? (float)row[j] : 0;
            }
            for (int64_t i = 0; i < per_phase; i++, entry++) {
                for (int64_t first = 0; first < tall; first++) /* lines stand in a ring: a table for each first one */
                    step->offsets[first * step->sums + entry] =
                        (int32_t)((first + i / channels) % tall * per_row(step) +
                                  (i % channels * stride + phase) * step->quads);
                for (int64_t filter = 0; filter < filters; filter++) {
                    const float *kernel = given + ((filter * channels + i % channels) * tall + i / channels) * wide + phase;
                    float *block = (float *)step->weights + filter / EB_BLOCK * step->block_bytes / 4 + filter % EB_BLOCK;
                    for (int point = 0; point < EB_POINTS; point++)
                        if (uses(taps, point))
                            block[(point * step->sums + entry) * EB_BLOCK] = (float)kernel_at(taps, point, kernel, stride);
                }
            }
        }
    return 1;
}

/* A line of the padded image at the points: (phase, quad) at each. `room` has place for the line taken apart. */
static void transform_line(const eb_step *step, const eb_kernels *kernels, const float *line, float *room, float *to) {
    const int64_t stride = step->field[EB_STRIDE_W], length = phase_length(step);
    float *halves = room + stride * length, *columns = halves + length;
    if (stride == 2) kernels->split(line, length, room, room + length);
    for (int64_t phase = 0; phase < stride; phase++, to += step->quads) {
        kernels->split(stride == 2 ? room + phase * length : line, length / 2, halves, halves + length / 2);
        kernels->split(halves, length / 4, columns, columns + length / 2);
        kernels->split(halves + length / 2, length / 4, columns + length / 4, columns + 3 * length / 4);
        kernels->winograd_in(step->transform + phase * EB_POINTS * EB_POINTS, columns, step->quads, to, per_point(step));
    }
}

/* What a thread has to itself: sums, products, a ring of rows at the points, a line of the padded image. */
static float *ring_of(const eb_context *context, const eb_step *step) {
    return (float *)context->own + (4 + EB_POINTS) * (step->quads + EB_QUADS) * EB_BLOCK;
}

void eb_winograd_lines(const eb_context *context, const eb_step *step, int64_t row, int64_t *made) {
    const int64_t *field = step->field, channels = step->in.channels, columns = step->in.columns, tall = field[EB_KERNEL_H];
    const int64_t per_line = per_row(step) / channels, length = line_length(step);
    float *line = ring_of(context, step) + EB_POINTS * per_point(step), *room = line + length;
    int64_t used = length - field[EB_PAD_LEFT] < columns ? length - field[EB_PAD_LEFT] : columns;
    if (*made < row * field[EB_STRIDE_H]) *made = row * field[EB_STRIDE_H];
    memset(line, 0, (size_t)length * 4);
    for (; *made < row * field[EB_STRIDE_H] + tall; ++*made) {
        int64_t y = *made - field[EB_PAD_TOP];
        float *to = ring_of(context, step) + *made % tall * per_row(step);
        if (y < 0 || y >= step->in.rows) {
            for (int point = 0; point < EB_POINTS; point++)
                memset(to + point * per_point(step), 0, (size_t)per_row(step) * 4);
            continue;
        }
        for (int64_t channel = 0; channel < channels; channel++) {
            int64_t start = (channel * step->in.rows + y) * columns;
            if (context->bytes)
                for (int64_t x = 0; x < used; x++)
                    line[field[EB_PAD_LEFT] + x] = context->byte_table[channel * 256 + context->bytes[start + x]];
            else memcpy(line + field[EB_PAD_LEFT], context->image + start, (size_t)used * 4);
            transform_line(step, context->plan->kernels, line, room, to + channel * per_line);
        }
    }
}

/* What a row of the convolution is made of. Point by point, so that what a point needs stays close. */
void eb_winograd_products(const eb_context *context, const eb_step *step, int64_t row, int64_t block) {
    const int64_t quads = (step->conv_columns + 3) / 4, first = row * step->field[EB_STRIDE_H] % step->field[EB_KERNEL_H];
    float *products = (float *)context->own + 4 * (step->quads + EB_QUADS) * EB_BLOCK;
    const float *input = ring_of(context, step);
    const float *packed = (const float *)((const char *)step->weights + block * step->block_bytes);
    for (int point = 0; point < EB_POINTS; point++, packed += step->sums * EB_BLOCK)
        context->plan->kernels->real_row(step->offsets + first * step->sums,
                                         point == HALF ? step->half_sums : step->sums, input + point * per_point(step), 1,
                                         packed, quads, products + point * quads * EB_BLOCK);
}

/* The sums of some quads of that row, at the start of what the thread has to itself. */
void eb_winograd_sums(const eb_context *context, const eb_step *step, int64_t quad, int64_t quads) {
    float *sums = (float *)context->own, *products = sums + 4 * (step->quads + EB_QUADS) * EB_BLOCK;
    context->plan->kernels->winograd_out(products + quad * EB_BLOCK, (step->conv_columns + 3) / 4 * EB_BLOCK, quads, sums);
}
