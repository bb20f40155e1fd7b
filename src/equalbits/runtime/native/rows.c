/* Steps beside convolution and pooling: functions of single numbers, products of two values, and normalization of rows.
 * Everything is validated when the plan is made. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { LARGEST = 1 << 28, CHUNK = 512, DEEP = 1024, PIECE = 84, AXES = 6 };

static int64_t numbers_of(const eb_value *value) { return value->channels * value->rows * value->columns; }

/* Return the product of `axes` sizes from SIZE0 on, or 0 if one is out of range. */
static int64_t product_of_sizes(const int64_t *field, int axes) {
    int64_t product = 1;
    for (int i = 0; i < axes; i++) {
        if (field[EB_SIZE0 + i] < 1 || field[EB_SIZE0 + i] > LARGEST) return 0;
        if ((product *= field[EB_SIZE0 + i]) > LARGEST) return 0;
    }
    return product;
}

/* Strides from `first` on stay inside `value`. */
static int stays_inside(const int64_t *field, int first, const eb_value *value) {
    int64_t last = 0;
    for (int i = 0; i < AXES; i++) {
        if (field[first + i] < 0 || field[first + i] > LARGEST) return 0;
        last += (field[EB_SIZE0 + i] - 1) * field[first + i];
    }
    return last < numbers_of(value);
}

static int check_matmul(eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field, batch = field[EB_SIZE0], rows = field[EB_SIZE1], deep = field[EB_SIZE2],
                  columns = field[EB_SIZE3];
    for (int i = 0; i < 4; i++)
        if (field[EB_SIZE0 + i] < 1 || field[EB_SIZE0 + i] > LARGEST) return eb_fail(error, "step %d has an empty matrix", (int)number);
    if (batch * rows > LARGEST || batch * deep > LARGEST || batch * rows * deep != numbers_of(&step->in) ||
        batch * deep * columns != numbers_of(&step->other) || batch * rows * columns != numbers_of(&step->out))
        return eb_fail(error, "step %d multiplies matrices of other sizes than its values", (int)number);
    const int64_t count = deep < DEEP ? deep : DEEP;
    step->row_bytes = (count + PIECE + 8) * EB_BLOCK * 4;
    step->offsets = malloc((size_t)count * sizeof *step->offsets);
    if (!step->offsets) return eb_fail(error, "there is no memory");
    for (int64_t i = 0; i < count; i++) step->offsets[i] = (int32_t)i;
    return 1;
}

int eb_check_rows(eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    switch (field[EB_KIND]) {
    case EB_MATMUL: return check_matmul(step, number, error);
    case EB_POSITION: return eb_check_position(step, number, error);
    case EB_EMBED:
        if (!product_of_sizes(field, 2) || field[EB_SIZE2] < 1 || field[EB_SIZE2] > LARGEST ||
            field[EB_SIZE1] * field[EB_SIZE2] > LARGEST || field[EB_SIZE0] != numbers_of(&step->in) ||
            field[EB_SIZE0] * field[EB_SIZE1] != numbers_of(&step->out))
            return eb_fail(error, "step %d looks up a table of another size than its values", (int)number);
        return 1;
    case EB_MUL:
        if (product_of_sizes(field, AXES) != numbers_of(&step->out) || !stays_inside(field, EB_FROM0, &step->in) ||
            !stays_inside(field, EB_TO0, &step->other))
            return eb_fail(error, "step %d multiplies outside its values", (int)number);
        return 1;
    case EB_SOFTMAX:
    case EB_NORM:
    case EB_RMS_NORM:
        if (!eb_check_copy(step, number, error)) return 0;
        if (product_of_sizes(field, AXES) != numbers_of(&step->out))
            return eb_fail(error, "step %d leaves numbers out", (int)number);
        if (field[EB_CAUSAL] < 0 || (field[EB_CAUSAL] && field[EB_KIND] != EB_SOFTMAX))
            return eb_fail(error, "step %d cannot be causal", (int)number);
        if (field[EB_FROM5] != 1 || field[EB_TO5] != 1) step->row_bytes = 2 * field[EB_SIZE5] * 4;
        return 1;
    default:
        if (numbers_of(&step->in) != numbers_of(&step->out)) return eb_fail(error, "step %d changes the shape", (int)number);
        return 1;
    }
}

int64_t eb_rows_units(const eb_step *step) {
    const int64_t *field = step->field, *size = field + EB_SIZE0;
    switch (field[EB_KIND]) {
    case EB_EMBED:
    case EB_ATTEND: return size[0];
    case EB_POSITION: return 1;
    case EB_MATMUL: return size[0] * ((size[3] + EB_BLOCK - 1) / EB_BLOCK);
    case EB_MUL:
    case EB_SOFTMAX:
    case EB_NORM:
    case EB_RMS_NORM: return size[0] * size[1] * size[2] * size[3] * size[4];
    default: return (numbers_of(&step->out) + CHUNK - 1) / CHUNK;
    }
}

/* Offset of row `row`, by the strides from `first` on. */
static int64_t start_of(const int64_t *field, int first, int64_t row) {
    int64_t at = 0;
    for (int i = AXES - 2; i >= 0; row /= field[EB_SIZE0 + i], i--) at += row % field[EB_SIZE0 + i] * field[first + i];
    return at;
}

static void run_functions(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t start = from * CHUNK, numbers = numbers_of(&step->out), end = to * CHUNK < numbers ? to * CHUNK : numbers;
    context->plan->kernels->function(step->field[EB_KIND], (const float *)eb_value_at(context, step->field[EB_IN]) + start,
                                     end - start, step->chain.low, (float *)eb_value_at(context, step->field[EB_OUT]) + start);
}

static void run_mul(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t *field = step->field, count = field[EB_SIZE5];
    const float *a = eb_value_at(context, field[EB_IN]), *b = eb_value_at(context, field[EB_IN2]);
    float *out = eb_value_at(context, field[EB_OUT]);
    for (int64_t row = from; row < to; row++)
        context->plan->kernels->mul_row(a + start_of(field, EB_FROM0, row), field[EB_FROM5],
                                        b + start_of(field, EB_TO0, row), field[EB_TO5], count, out + row * count);
}

static void run_embed(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t width = step->field[EB_SIZE1];
    const float *ids = eb_value_at(context, step->field[EB_IN]), rows = (float)step->field[EB_SIZE2];
    float *out = eb_value_at(context, step->field[EB_OUT]);
    for (int64_t i = from; i < to; i++) {
        if (ids[i] >= 0 && ids[i] < rows && ids[i] == (float)(int64_t)ids[i])
            memcpy(out + i * width, step->chain.scale + (int64_t)ids[i] * width, (size_t)width * 4);
        else
            for (int64_t x = 0; x < width; x++) out[i * width + x] = NAN;
    }
}

/* A strided row goes through a buffer. */
static void run_normalized(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const int64_t *field = step->field, count = field[EB_SIZE5];
    const eb_norm norm = {step->chain.scale, step->chain.bias, step->chain.low, count, field[EB_KIND] == EB_NORM};
    float *own = (float *)context->own;
    for (int64_t row = from; row < to; row++) {
        const float *read = (const float *)eb_value_at(context, field[EB_IN]) + start_of(field, EB_FROM0, row);
        float *out = (float *)eb_value_at(context, field[EB_OUT]) + start_of(field, EB_TO0, row), *made = out;
        if (field[EB_FROM5] != 1) {
            for (int64_t i = 0; i < count; i++) own[i] = read[i * field[EB_FROM5]];
            read = own;
        }
        if (field[EB_TO5] != 1) made = own + count;
        if (field[EB_KIND] == EB_SOFTMAX) {
            const int64_t seen = field[EB_CAUSAL] ? row % field[EB_CAUSAL] + 1 : count, some = seen < count ? seen : count;
            context->plan->kernels->softmax_row(read, some, made);
            for (int64_t i = some; i < count; i++) made[i] = 0;
        }
        else context->plan->kernels->norm_row(read, &norm, made);
        if (made != out) for (int64_t i = 0; i < count; i++) out[i * field[EB_TO5]] = made[i];
    }
}

/* One block of columns of one product: the second matrix is packed as a convolution's weights are, DEEP rows at a time. */
static void run_matmul(const eb_context *context, const eb_step *step, int64_t unit) {
    const int64_t rows = step->field[EB_SIZE1], deep = step->field[EB_SIZE2], columns = step->field[EB_SIZE3];
    const int64_t blocks = (columns + EB_BLOCK - 1) / EB_BLOCK, item = unit / blocks, column = unit % blocks * EB_BLOCK;
    const int64_t lanes = columns - column < EB_BLOCK ? columns - column : EB_BLOCK;
    const float *a = (const float *)eb_value_at(context, step->field[EB_IN]) + item * rows * deep;
    const float *b = (const float *)eb_value_at(context, step->field[EB_IN2]) + item * deep * columns + column;
    float *out = (float *)eb_value_at(context, step->field[EB_OUT]) + item * rows * columns + column;
    float *packed = (float *)context->own;
    for (int64_t start = 0; start < deep; start += DEEP) {
        const int64_t count = deep - start < DEEP ? deep - start : DEEP;
        float *sums = packed + count * EB_BLOCK;
        if (lanes < EB_BLOCK) memset(packed, 0, (size_t)(count * EB_BLOCK) * 4);
        for (int64_t k = 0; k < count; k++)
            memcpy(packed + k * EB_BLOCK, b + (start + k) * columns, (size_t)lanes * 4);
        for (int64_t row = 0; row < rows; row += PIECE) {
            const int64_t pixels = rows - row < PIECE ? rows - row : PIECE;
            if (eb_stopped(step)) return;
            context->plan->kernels->real_row(step->offsets, count, a + row * deep + start, deep, packed, pixels, sums);
            for (int64_t y = 0; y < pixels; y++) {
                float *to = out + (row + y) * columns;
                const float *made = sums + y * EB_BLOCK;
                if (!start) memcpy(to, made, (size_t)lanes * 4);
                else for (int64_t x = 0; x < lanes; x++) to[x] += made[x];
            }
        }
    }
}

void eb_rows_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    switch (step->field[EB_KIND]) {
    case EB_MATMUL:
        for (int64_t unit = from; unit < to; unit++) run_matmul(context, step, unit);
        return;
    case EB_EMBED: run_embed(context, step, from, to); return;
    case EB_ATTEND: eb_attend_run(context, step, from, to); return;
    case EB_POSITION: eb_position_run(context, step); return;
    case EB_MUL: run_mul(context, step, from, to); return;
    case EB_SOFTMAX:
    case EB_NORM:
    case EB_RMS_NORM: run_normalized(context, step, from, to); return;
    default: run_functions(context, step, from, to);
    }
}
