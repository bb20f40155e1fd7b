/* Checks of single steps: windows fit, pooling windows overlap the image, copies stay inside their values. */
#include <float.h>

#include "core.h"

enum { LARGEST = 1 << 28 };

static int check_windows(eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    for (int i = EB_KERNEL_H; i <= EB_DILATION_W; i++)
        if (field[i] < 1 || field[i] > 1 << 20) return eb_fail(error, "step %d has a window out of range", (int)number);
    for (int i = EB_PAD_TOP; i <= EB_PAD_RIGHT; i++)
        if (field[i] < 0 || field[i] > 1 << 20) return eb_fail(error, "step %d has padding out of range", (int)number);
    int64_t rows = field[EB_PAD_TOP] + step->in.rows + field[EB_PAD_BOTTOM];
    int64_t columns = field[EB_PAD_LEFT] + step->in.columns + field[EB_PAD_RIGHT];
    int64_t tall = field[EB_DILATION_H] * (field[EB_KERNEL_H] - 1) + 1;
    int64_t wide = field[EB_DILATION_W] * (field[EB_KERNEL_W] - 1) + 1;
    if (tall > rows || wide > columns) return eb_fail(error, "step %d has a window that does not fit", (int)number);
    if (rows * columns > LARGEST) return eb_fail(error, "step %d pads too much", (int)number);
    step->conv_rows = (rows - tall) / field[EB_STRIDE_H] + 1;
    step->conv_columns = (columns - wide) / field[EB_STRIDE_W] + 1;
    return 1;
}

static int shape_fits(const eb_step *step, int64_t rows, int64_t columns, int64_t number, char *error) {
    if (step->out.rows == rows && step->out.columns == columns) return 1;
    return eb_fail(error, "step %d makes a value of another shape than its window says", (int)number);
}

/* Return whether the chain keeps the order of numbers: then max pooling may come first. */
static int keeps_order(const eb_step *step) {
    const eb_chain *chain = &step->chain;
    const float *factors[] = {chain->scale, chain->gain1,  chain->slope1, chain->gain2,
                              chain->gain3, chain->slope2, chain->gain4};
    const float *terms[] = {chain->bias, chain->shift1, chain->shift2, chain->shift3, chain->shift4};
    for (int64_t i = 0; i < step->out.channels; i++) {
        for (int j = 0; j < 7; j++)
            if (factors[j] && !(factors[j][i] > 0 && factors[j][i] <= FLT_MAX)) return 0;
        for (int j = 0; j < 5; j++)
            if (terms[j] && !(terms[j][i] >= -FLT_MAX && terms[j][i] <= FLT_MAX)) return 0;
    }
    return !(chain->parts & EB_HAS_CLAMP) || chain->low <= chain->high;
}

/* A convolution may be pooled by windows that overlap it. */
int eb_check_conv(eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    if (!check_windows(step, number, error)) return 0;
    if (!field[EB_POOL_H]) return shape_fits(step, step->conv_rows, step->conv_columns, number, error);
    for (int i = EB_POOL_H; i <= EB_POOL_RIGHT; i++)
        if (field[i] < (i <= EB_POOL_STRIDE_W) || field[i] > 1 << 20)
            return eb_fail(error, "step %d pools out of range", (int)number);
    int64_t rows = field[EB_POOL_TOP] + step->conv_rows + field[EB_POOL_BOTTOM] - field[EB_POOL_H];
    int64_t columns = field[EB_POOL_LEFT] + step->conv_columns + field[EB_POOL_RIGHT] - field[EB_POOL_W];
    if (field[EB_RESIDUAL] != -1 || field[EB_POOL_H] > EB_POOL || rows < 0 || columns < 0 || field[EB_POOL_TOP] >= field[EB_POOL_H] ||
        field[EB_POOL_BOTTOM] >= field[EB_POOL_H] || field[EB_POOL_LEFT] >= field[EB_POOL_W] ||
        field[EB_POOL_RIGHT] >= field[EB_POOL_W])
        return eb_fail(error, "step %d pools with a window that may lie outside", (int)number);
    step->ring_bytes = ((field[EB_POOL_H] + 1) * step->out.columns + step->conv_columns + 3) * EB_BLOCK * 4;
    step->after = keeps_order(step) ? ~0 : EB_HAS_OUT | EB_HAS_BITS | EB_HAS_SIGN_REAL | EB_HAS_AFFINE5 | EB_HAS_BYTES | EB_HAS_ROUND_REAL;
    if (step->ring_bytes > LARGEST) return eb_fail(error, "step %d pools too much", (int)number);
    return shape_fits(step, rows / field[EB_POOL_STRIDE_H] + 1, columns / field[EB_POOL_STRIDE_W] + 1, number, error);
}

int eb_check_pool(eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    if (step->in.channels != step->out.channels) return eb_fail(error, "step %d changes the channels", (int)number);
    int64_t tall = field[EB_KERNEL_H], wide = field[EB_KERNEL_W];
    if (field[EB_KIND] == EB_ADAPTIVE) /* its windows follow from the shapes */
        return (tall == 1 && wide == 1) || eb_fail(error, "step %d pools with a window that it does not take", (int)number);
    if (field[EB_PAD_TOP] >= tall || field[EB_PAD_BOTTOM] >= tall || field[EB_PAD_LEFT] >= wide ||
        field[EB_PAD_RIGHT] >= wide || field[EB_DILATION_H] != 1 || field[EB_DILATION_W] != 1)
        return eb_fail(error, "step %d pools with a window that may lie outside", (int)number);
    return check_windows(step, number, error) && shape_fits(step, step->conv_rows, step->conv_columns, number, error);
}

/* Copies stay inside both values whatever their sizes and strides are. */
int eb_check_copy(const eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    int64_t last_from = field[EB_FROM_OFFSET], last_to = field[EB_TO_OFFSET], numbers = 1;
    if (last_from < 0 || last_from > LARGEST || last_to < 0 || last_to > LARGEST)
        return eb_fail(error, "step %d copies from or to outside", (int)number);
    for (int i = 0; i < 6; i++) {
        int64_t size = field[EB_SIZE0 + i], stride_from = field[EB_FROM0 + i], stride_to = field[EB_TO0 + i];
        if (size < 1 || size > LARGEST || stride_from < 0 || stride_from > LARGEST || stride_to < 0 ||
            stride_to > LARGEST || (numbers *= size) > LARGEST)
            return eb_fail(error, "step %d copies more than there is", (int)number);
        last_from += (size - 1) * stride_from;
        last_to += (size - 1) * stride_to;
    }
    if (last_from >= step->in.channels * step->in.rows * step->in.columns ||
        last_to >= step->out.channels * step->out.rows * step->out.columns)
        return eb_fail(error, "step %d copies from or to outside", (int)number);
    return field[EB_IN] != field[EB_OUT] ? 1 : eb_fail(error, "step %d copies a value onto itself", (int)number);
}

/* A layer with weights may read a list as SIZE0 rows, and make as many: a row is then a column of the image. */
int eb_view_rows(eb_step *step, int64_t number, char *error) {
    const int64_t kind = step->field[EB_KIND], rows = step->field[EB_SIZE0];
    const int is_layer = kind == EB_CONV_REAL || kind == EB_CONV_SIGNED || kind == EB_LINEAR_BYTES;
    if (!is_layer || rows == -1) return 1;
    eb_value *both[] = {&step->in, &step->out};
    for (int i = 0; i < 2; i++) {
        eb_value *value = both[i];
        if (value->kind != EB_REAL || value->rows * value->columns != 1 || rows < 1 || value->channels % rows ||
            step->field[EB_OUT_BITS] != -1)
            return eb_fail(error, "step %d reads or makes a list that is not %lld rows", (int)number, (long long)rows);
        value->channels /= rows;
        value->columns = rows;
    }
    return 1;
}
