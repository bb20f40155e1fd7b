/* The first convolution of a network, on the image itself, with fewer products.
 *
 * Along a row, four outputs of a kernel of r taps take 4 r products; by Winograd's way (Toom and Cook's, transposed) they
 * take r + 3: the input and the kernel are evaluated as polynomials at the points 0, 1, -1, 2, -2, (1/2) and infinity,
 * multiplied point by point, and put together again. In the same way two rows take r + 1 instead of 2 r, at 0, 1, -1,
 * (1/2) and infinity; four rows at once would double the error. A stride of 2 is two such kernels side by side, on the
 * even and the odd columns or rows: two phases, whose products at a point are added before they are put together. At a
 * point, everything is the sum over phases and channels that any convolution is. A 7 × 7 kernel of stride 2 takes 351
 * instead of 1176 products for eight outputs, and its error is below 1e-6 of the values: three times torch's own. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* One half is last but one, since kernels of three taps do not need it. */
static const double points[EB_POINTS - 1] = {0, 1, -1, 2, -2, 0.5};
enum { HALF = 5, INFINITE = 6, ROW_POINTS = 5, MOST_TAPS = 4, PIECE = 32 };
static const int row_points[ROW_POINTS] = {0, 1, 2, HALF, INFINITE};
typedef enum { ROWS, COLUMNS } axis; /* in the order of the fields of a step */

static int64_t taps_of(const eb_step *step, axis along, int64_t phase) {
    int64_t stride = step->field[EB_STRIDE_H + along];
    return (step->field[EB_KERNEL_H + along] - phase + stride - 1) / stride;
}

/* Every phase needs three or four taps, and there must be enough columns, filters and connections to be worth it. */
int eb_is_winograd(const eb_kernels *kernels, const eb_step *step) {
    const int64_t *field = step->field, connections = step->in.channels * field[EB_KERNEL_H] * field[EB_KERNEL_W];
    if (step->in.kind != EB_IMAGE || field[EB_KIND] != EB_CONV_REAL || step->conv_columns < 28 ||
        step->out.channels < EB_BLOCK || connections < kernels->winograd_from)
        return 0;
    for (axis along = ROWS; along <= COLUMNS; along++) {
        if (field[EB_DILATION_H + along] != 1 || field[EB_STRIDE_H + along] > 2) return 0;
        for (int64_t phase = 0; phase < field[EB_STRIDE_H + along]; phase++)
            if (taps_of(step, along, phase) < 3 || taps_of(step, along, phase) > MOST_TAPS) return 0;
    }
    return 1;
}

static int uses(axis along, int64_t taps, int point) {
    return point == INFINITE || (point == HALF ? taps == MOST_TAPS : along == COLUMNS || point < 3);
}

/* Factor of each tap at a point, divided by the factor that the input transform omits. */
static void tap_factors(axis along, int64_t taps, int point, double *factors) {
    double divisor = 1, power = 1;
    for (int i = 0; point != INFINITE && i < INFINITE; i++)
        if (i != point && uses(along, taps, i)) divisor *= points[point] - points[i];
    for (int64_t tap = 0; tap < taps; tap++) {
        factors[tap] = point == INFINITE ? tap == taps - 1 : power / divisor;
        if (point != INFINITE) power *= points[point];
    }
}

/* Prepared columns of a phase, and columns of the padded image. */
static int64_t phase_length(const eb_step *step) { return 4 * step->quads; }
static int64_t line_length(const eb_step *step) { return phase_length(step) * step->field[EB_STRIDE_W]; }

/* Numbers of a row of the image at one point, (channel, phase, quad), and at all; rows that two rows of windows see. */
static int64_t per_point(const eb_step *step) { return step->in.channels * step->field[EB_STRIDE_W] * step->quads; }
static int64_t per_line(const eb_step *step) { return EB_POINTS * per_point(step); }
static int64_t lines_seen(const eb_step *step) { return step->field[EB_KERNEL_H] + step->field[EB_STRIDE_H]; }

/* Buffers of a thread, as offsets: sums; products for two rows, (block, row, point, quad), and at the points of rows;
 * lines at the points, in a ring buffer; those of one point at the points of rows, (point, phase); a line of the padded
 * image, and a buffer to split it. */
static int64_t per_row(const eb_step *step) { return (step->conv_columns + 3) / 4 * EB_BLOCK; }
static int64_t rows_at(const eb_step *step) { /* pooled rows may be wider: the numbers after them stay for the next */
    return (4 * step->quads > step->out.columns ? 4 * step->quads : step->out.columns) * EB_BLOCK;
}
static int64_t products_at(const eb_step *step) { return rows_at(step) + 2 * EB_POINTS * step->blocks * per_row(step); }
static int64_t ring_at(const eb_step *step) { return products_at(step) + ROW_POINTS * per_row(step); }
static int64_t input_at(const eb_step *step) { return ring_at(step) + lines_seen(step) * per_line(step); }
static int64_t line_at(const eb_step *step) {
    return input_at(step) + ROW_POINTS * step->field[EB_STRIDE_H] * per_point(step);
}

/* Entries of a phase at two points, one per channel: input offsets and weights. The offsets at a point follow their
 * count. */
static void put_entries(eb_step *step, const float *given, int row_point, int point, const int64_t phase[2]) {
    const int64_t *field = step->field, channels = step->in.channels, wide = field[EB_KERNEL_W];
    const int64_t tall = taps_of(step, ROWS, phase[ROWS]), broad = taps_of(step, COLUMNS, phase[COLUMNS]);
    double down[MOST_TAPS], along[MOST_TAPS];
    tap_factors(ROWS, tall, row_points[row_point], down);
    tap_factors(COLUMNS, broad, point, along);
    const int64_t place = point * ROW_POINTS + row_point;
    int32_t *offsets = step->offsets + place * (1 + step->sums);
    for (int64_t channel = 0; channel < channels; channel++) {
        const int64_t entry = place * step->sums + offsets[0];
        offsets[++offsets[0]] = (int32_t)((row_point * field[EB_STRIDE_H] + phase[ROWS]) * per_point(step) +
                                          (channel * field[EB_STRIDE_W] + phase[COLUMNS]) * step->quads);
        for (int64_t filter = 0; filter < step->out.channels; filter++) {
            const float *kernel = given + (filter * channels + channel) * field[EB_KERNEL_H] * wide;
            double sum = 0;
            for (int64_t i = 0; i < tall; i++)
                for (int64_t j = 0; j < broad; j++) {
                    const int64_t y = i * field[EB_STRIDE_H] + phase[ROWS], x = j * field[EB_STRIDE_W] + phase[COLUMNS];
                    sum += down[i] * along[j] * kernel[y * wide + x];
                }
            float *block = (float *)step->weights + filter / EB_BLOCK * step->block_bytes / 4;
            block[entry * EB_BLOCK + filter % EB_BLOCK] = (float)sum;
        }
    }
}

int eb_layout_winograd(eb_step *step, const float *given) {
    const int64_t *field = step->field, channels = step->in.channels;
    step->sums = channels * field[EB_STRIDE_H] * field[EB_STRIDE_W];
    step->quads = ((step->conv_columns + 3) / 4 / EB_QUADS + 1) * EB_QUADS; /* one at least is there to be read alone */
    step->row_bytes = (line_at(step) + (2 + channels) * line_length(step) + phase_length(step) + EB_QUADS) * 4;
    step->block_bytes = EB_POINTS * ROW_POINTS * step->sums * EB_BLOCK * 4;
    step->offsets = calloc((size_t)(EB_POINTS * ROW_POINTS * (1 + step->sums)), sizeof *step->offsets);
    step->weights = eb_take(step->budget, step->blocks * step->block_bytes);
    if (!step->offsets || !step->weights) return 0;
    for (int point = 0; point < EB_POINTS; point++)
        for (int row_point = 0; row_point < ROW_POINTS; row_point++) {
            int64_t phase[2];
            for (phase[ROWS] = 0; phase[ROWS] < field[EB_STRIDE_H]; phase[ROWS]++)
                for (phase[COLUMNS] = 0; phase[COLUMNS] < field[EB_STRIDE_W]; phase[COLUMNS]++)
                    if (uses(ROWS, taps_of(step, ROWS, phase[ROWS]), row_points[row_point]) &&
                        uses(COLUMNS, taps_of(step, COLUMNS, phase[COLUMNS]), point))
                        put_entries(step, given, row_point, point, phase);
        }
    return 1;
}

/* Split a line of the padded image into its phases, each in fours of columns. */
static void take_apart(const eb_step *step, const eb_kernels *kernels, const float *line, float *room, float *to) {
    const int64_t stride = step->field[EB_STRIDE_W], length = phase_length(step);
    float *halves = room + stride * length;
    if (stride == 2) kernels->split(line, length, room, room + length);
    for (int64_t phase = 0; phase < stride; phase++, to += length) {
        kernels->split(stride == 2 ? room + phase * length : line, length / 2, halves, halves + length / 2);
        kernels->split(halves, length / 4, to, to + length / 2);
        kernels->split(halves + length / 2, length / 4, to + length / 4, to + 3 * length / 4);
    }
}

/* Transform a row of the image, or of the padding. `line` is 0 outside the columns of the image. All channels are split
 * first, since numbers just written are slow to read in other vectors. */
static void make_line(const eb_context *context, const eb_step *step, int64_t y, float *line, float *to) {
    const int64_t columns = step->in.columns, length = line_length(step), left = step->field[EB_PAD_LEFT];
    const int64_t used = length - left < columns ? length - left : columns, stride = step->field[EB_STRIDE_W];
    float *room = line + length, *apart = room + length + phase_length(step);
    if (y < 0 || y >= step->in.rows) {
        memset(to, 0, (size_t)per_line(step) * 4);
        return;
    }
    for (int64_t channel = 0; channel < step->in.channels; channel++) {
        const int64_t start = (channel * step->in.rows + y) * columns;
        if (context->bytes)
            for (int64_t x = 0; x < used; x++)
                line[left + x] = context->byte_table[channel * 256 + context->bytes[start + x]];
        else memcpy(line + left, context->image + start, (size_t)used * 4);
        take_apart(step, context->plan->kernels, line, room, apart + channel * length);
    }
    for (int64_t i = 0; i < step->in.channels * stride; i++, apart += phase_length(step), to += step->quads)
        context->plan->kernels->winograd_in(taps_of(step, COLUMNS, i % stride), apart, step->quads, to, per_point(step));
}

/* Transform lines from `made` on, as far as two rows of windows need, into the ring buffer. */
static void make_lines(const eb_context *context, const eb_step *step, int64_t row, int64_t *made) {
    const int64_t first = row * step->field[EB_STRIDE_H], seen = lines_seen(step);
    float *ring = (float *)context->own + ring_at(step), *line = (float *)context->own + line_at(step);
    if (*made < first) *made = first;
    memset(line, 0, (size_t)line_length(step) * 4);
    for (; *made < first + seen; ++*made)
        make_line(context, step, *made - step->field[EB_PAD_TOP], line, ring + *made % seen * per_line(step));
}

/* Transform along columns: one point of the lines of two rows of windows. */
static void transform_rows(const eb_context *context, const eb_step *step, int64_t row, int point, float *to) {
    const int64_t stride = step->field[EB_STRIDE_H], seen = lines_seen(step), apart = stride * per_point(step);
    const float *ring = (const float *)context->own + ring_at(step) + point * per_point(step), *lines[MOST_TAPS + 1];
    for (int64_t phase = 0; phase < stride; phase++, to += per_point(step)) {
        for (int64_t i = 0; i <= MOST_TAPS; i++) lines[i] = ring + ((row + i) * stride + phase) % seen * per_line(step);
        context->plan->kernels->winograd_down(taps_of(step, ROWS, phase), lines, per_point(step), to, apart);
    }
}

static void call_in(const float *from, int64_t numbers) {
    for (int64_t i = 0; i < numbers; i += 16) __builtin_prefetch(from + i);
}

/* The products of one point for two rows of a block. */
static void multiply(const eb_context *context, const eb_step *step, int64_t block, int point) {
    const eb_kernels *kernels = context->plan->kernels;
    const int64_t numbers = per_row(step);
    float *own = (float *)context->own, *products = own + products_at(step);
    float *first = own + rows_at(step) + (2 * EB_POINTS * block + point) * numbers, *second = first + EB_POINTS * numbers;
    call_in(first, numbers);
    call_in(second, numbers);
    for (int i = 0; i < ROW_POINTS; i++) {
        const int64_t place = point * ROW_POINTS + i;
        const float *packed = (const float *)((const char *)step->weights + block * step->block_bytes);
        const int32_t *offsets = step->offsets + place * (1 + step->sums);
        kernels->real_row(offsets + 1, offsets[0], own + input_at(step), 1, packed + place * step->sums * EB_BLOCK,
                          numbers / EB_BLOCK, products + i * numbers);
    }
    kernels->winograd_up(products, numbers, first, second);
}

/* Products of two rows of the convolution, point by point, so that the data of a point stay in the cache. */
void eb_winograd_rows(const eb_context *context, const eb_step *step, int64_t row, int64_t *lines) {
    make_lines(context, step, row, lines);
    for (int point = 0; point < EB_POINTS; point++) {
        transform_rows(context, step, row, point, (float *)context->own + input_at(step));
        for (int64_t block = 0; block < step->blocks; block++) multiply(context, step, block, point);
    }
}

/* Apply the chain to one of those rows, a few quads at a time, which stay in the cache. */
void eb_winograd_row(const eb_context *context, const eb_step *step, int64_t row, int64_t block, eb_row target) {
    const eb_kernels *kernels = context->plan->kernels;
    const int64_t pixels = target.pixels, apart = per_row(step);
    float *sums = (float *)context->own;
    const float *products = sums + rows_at(step) + (2 * block + row % 2) * EB_POINTS * apart;
    if (step->field[EB_POOL_H] && step->chain.parts == EB_HAS_OUT) { /* the line holds whole quads */
        kernels->winograd_out(products, apart, (pixels + 3) / 4, target.out);
        return;
    }
    for (int64_t x = 0; x < pixels; x += PIECE) {
        target.pixels = pixels - x < PIECE ? pixels - x : PIECE;
        kernels->winograd_out(products + x / 4 * EB_BLOCK, apart, (target.pixels + 3) / 4, sums);
        kernels->chain_reals(&step->chain, &target, sums);
        eb_move_along(&target, PIECE);
    }
}
