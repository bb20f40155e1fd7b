/* Preparation of a step's input, before its units of work are distributed. */
#include <string.h>

#include "core.h"

/* The image as reals: `pixel_apart` and `channel_apart` are strides, in lines of `line`. */
static void load_image(const eb_context *context, const eb_value *image, float *to, int64_t line, int64_t pixel_apart,
                       int64_t channel_apart) {
    for (int64_t channel = 0; channel < image->channels; channel++) {
        const float *table = context->byte_table ? context->byte_table + channel * 256 : NULL;
        for (int64_t row = 0; row < image->rows; row++) {
            float *at = to + row * line + channel * channel_apart;
            const int64_t start = (channel * image->rows + row) * image->columns;
            const uint8_t *bytes = context->bytes ? context->bytes + start : NULL;
            const float *reals = context->image ? context->image + start : NULL;
            if (bytes)
                for (int64_t x = 0; x < image->columns; x++) at[x * pixel_apart] = table[bytes[x]];
            else if (pixel_apart == 1) memcpy(at, reals, (size_t)image->columns * 4);
            else
                for (int64_t x = 0; x < image->columns; x++) at[x * pixel_apart] = reals[x];
        }
    }
}

/* The channels [from, from + count) of a row of bits as words of their own, shifted into place. */
static void group_words(const uint32_t *row, const eb_value *bits, int64_t from, int64_t count, uint32_t *to,
                        int64_t to_columns) {
    const int64_t columns = bits->columns, apart = bits->rows * columns;
    for (int64_t word = 0; word * 32 < count; word++) {
        int64_t bit = from + word * 32, left = count - word * 32;
        const uint32_t *low = row + bit / 32 * apart;
        int shift = (int)(bit % 32);
        int spills = shift && bit / 32 + 1 < bits->words;
        uint32_t mask = left >= 32 ? UINT32_MAX : (UINT32_C(1) << left) - 1;
        if (!shift && left >= 32) {
            memcpy(to + word * to_columns, low, (size_t)columns * 4);
            continue;
        }
        for (int64_t x = 0; x < columns; x++) {
            uint32_t value = low[x] >> shift;
            if (spills) value |= low[x + apart] << (32 - shift);
            to[word * to_columns + x] = value & mask;
        }
    }
}

/* Rows of all groups, each with a border of 0 bits, (word, column); then in the layout of the kernel. */
static void prepare_bits(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const uint32_t *bits = (const uint32_t *)(context->arena + context->plan->values[step->field[EB_IN]].offset);
    uint32_t *line = (uint32_t *)context->own;
    memset(line, 0, (size_t)(step->words * step->padded_columns) * 4);
    for (int64_t i = from; i < to; i++) {
        const int64_t group = i / step->padded_rows, row = i % step->padded_rows, y = row - step->field[EB_PAD_TOP];
        if (y >= 0 && y < step->in.rows)
            group_words(bits + y * step->in.columns, &step->in, group * step->group_in, step->group_in,
                        line + step->field[EB_PAD_LEFT], step->padded_columns);
        else memset(line, 0, (size_t)(step->words * step->padded_columns) * 4);
        context->plan->kernels->bits_prepare(step, line, row, context->scratch + group * step->prepared_bytes);
    }
}

/* A plane of reals: the inside of each line from `from` (unless it is NULL), zeros around it. */
static void pad_plane(const eb_step *step, int64_t channels, const float *from, float *to) {
    const int64_t line = step->padded_columns * channels, left = step->field[EB_PAD_LEFT] * channels;
    const int64_t inside = step->in.columns * channels, top = step->field[EB_PAD_TOP];
    memset(to, 0, (size_t)(top * line) * 4);
    for (int64_t row = top; row < top + step->in.rows; row++) {
        float *at = to + row * line;
        memset(at, 0, (size_t)left * 4);
        if (from) memcpy(at + left, from + (row - top) * inside, (size_t)inside * 4);
        memset(at + left + inside, 0, (size_t)(line - left - inside) * 4);
    }
    memset(to + (top + step->in.rows) * line, 0, (size_t)(step->field[EB_PAD_BOTTOM] * line) * 4);
}

static void prepare_reals(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    if (step->tables && !step->table_rows) eb_tables_prepare(context, step, from, to);
    if (step->tables || !step->scratch_bytes) return;
    float *padded = (float *)context->scratch;
    const int64_t line = step->padded_columns, plane = step->padded_rows * line;
    if (step->in.kind == EB_REAL) {
        pad_plane(step, step->in.channels,
                  (const float *)(context->arena + context->plan->values[step->field[EB_IN]].offset), padded);
        return;
    }
    for (int64_t channel = 0; channel < step->in.channels; channel++) pad_plane(step, 1, NULL, padded + channel * plane);
    load_image(context, &step->in, padded + step->field[EB_PAD_TOP] * line + step->field[EB_PAD_LEFT], line, 1, plane);
}

int64_t eb_prepare_units(const eb_step *step) {
    const int64_t kind = step->field[EB_KIND];
    if (kind == EB_CONV_BITS && !step->tiles) return step->field[EB_GROUPS] * step->padded_rows;
    if (kind == EB_CONV_BYTES && step->scratch_bytes) return step->padded_rows;
    if (kind == EB_LOAD && step->field[EB_OUT] == -1) return eb_load_lines(step);
    if (kind == EB_LINEAR_BYTES) return step->in.columns;
    if (step->tables && !step->table_rows) return step->field[EB_GROUPS] * step->padded_rows;
    return step->scratch_bytes > 0;
}

void eb_step_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    if (step->field[EB_KIND] == EB_CONV_BITS)
        prepare_bits(context, step, from, step->tiles ? step->field[EB_GROUPS] * step->padded_rows : to);
    if (step->field[EB_KIND] == EB_CONV_REAL) prepare_reals(context, step, from, to);
    if (step->field[EB_KIND] == EB_CONV_BYTES) eb_bytes_conv_prepare(context, step, from, to);
    if (step->field[EB_KIND] == EB_LINEAR_BYTES) eb_bytes_prepare(context, step, from, to);
    if (step->field[EB_KIND] == EB_LOAD && step->field[EB_OUT] == -1) eb_load_bytes(context, step, from, to);
    else if (step->field[EB_KIND] == EB_LOAD)
        load_image(context, &step->in, (float *)context->scratch, step->in.columns * step->in.channels,
                   step->in.channels, 1);
}
