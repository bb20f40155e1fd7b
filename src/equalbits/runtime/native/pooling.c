/* Poolings that are steps of their own. */
#include "core.h"

/* Part of a window along one axis inside the image. */
void eb_inside(int64_t at, int64_t kernel, int64_t size, int64_t *from, int64_t *to) {
    *from = at < 0 ? 0 : at;
    *to = at + kernel > size ? size : at + kernel;
}

/* One row of pooling; windows are clipped to the image. */
void eb_pool_row(const eb_context *context, const eb_step *step, int64_t row, int64_t channel, float *to) {
    const int64_t *field = step->field, channels = step->in.channels, line = step->in.columns * channels;
    const float *input = (const float *)eb_value_at(context, field[EB_IN]) + channel;
    const int64_t turns = eb_turns(field[EB_KERNEL_H] * field[EB_KERNEL_W]);
    for (int64_t column = 0; column < step->out.columns; column++, to += EB_BLOCK) {
        int64_t top, bottom, left, right;
        if ((column + 1) % turns == 0 && eb_stopped(step)) return;
        if (field[EB_KIND] == EB_ADAPTIVE) {
            top = row * step->in.rows / step->out.rows;
            bottom = ((row + 1) * step->in.rows + step->out.rows - 1) / step->out.rows;
            left = column * step->in.columns / step->out.columns;
            right = ((column + 1) * step->in.columns + step->out.columns - 1) / step->out.columns;
        } else {
            eb_inside(row * field[EB_STRIDE_H] - field[EB_PAD_TOP], field[EB_KERNEL_H], step->in.rows, &top, &bottom);
            eb_inside(column * field[EB_STRIDE_W] - field[EB_PAD_LEFT], field[EB_KERNEL_W], step->in.columns, &left, &right);
        }
        int64_t divisor = field[EB_KIND] == EB_MAX_POOL ? 0 : (bottom - top) * (right - left);
        if (field[EB_KIND] == EB_AVG_POOL && field[EB_COUNT_PADDING]) divisor = field[EB_KERNEL_H] * field[EB_KERNEL_W];
        context->plan->kernels->pool(input + top * line + left * channels, line, bottom - top, channels, right - left,
                                     (float)divisor, to);
    }
}
