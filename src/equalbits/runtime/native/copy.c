/* Strided copies: slices, concatenation, reshapes and permutations. */
#include <string.h>

#include "core.h"

/* Floats in a cache line; lines that stay cached at any alignment; numbers that are worth several threads. */
enum { AXES = 6, CLOSE = 16, FEW = 4, MANY = 8192 };

/* Return the axis of size above 1 with the smallest stride; the last one if there is none. */
static int closest(const int64_t *size, const int64_t *stride) {
    int found = AXES - 1;
    for (int axis = AXES - 1; axis >= 0; axis--)
        if (size[axis] > 1 && (size[found] == 1 || stride[axis] < stride[found])) found = axis;
    return found;
}

/* Copy two axes. If contiguous reads are not contiguous writes, squares of numbers go through a buffer: every cache
 * line is read and written once for all its numbers, even if many lines share a cache set. */
static void copy_two(const int64_t *size, const int64_t *from_apart, const int64_t *to_apart, int read, int write,
                     const float *from, float *to) {
    float square[CLOSE][CLOSE];
    if (size[read] <= FEW) {
        for (int64_t j = 0; j < size[write]; j++)
            for (int64_t i = 0; i < size[read]; i++)
                to[j * to_apart[write] + i * to_apart[read]] = from[j * from_apart[write] + i * from_apart[read]];
        return;
    }
    for (int64_t i = 0; i < size[read]; i += CLOSE)
        for (int64_t j = 0; j < size[write]; j += CLOSE) {
            const int64_t wide = size[read] - i < CLOSE ? size[read] - i : CLOSE;
            const int64_t tall = size[write] - j < CLOSE ? size[write] - j : CLOSE;
            const float *source = from + j * from_apart[write] + i * from_apart[read];
            float *target = to + j * to_apart[write] + i * to_apart[read];
            for (int64_t y = 0; y < tall; y++)
                for (int64_t x = 0; x < wide; x++) square[y][x] = source[y * from_apart[write] + x * from_apart[read]];
            for (int64_t x = 0; x < wide; x++)
                for (int64_t y = 0; y < tall; y++) target[x * to_apart[read] + y * to_apart[write]] = square[y][x];
        }
}

static void copy_line(int64_t size, int64_t from_apart, int64_t to_apart, const float *from, float *to) {
    if (from_apart == 1 && to_apart == 1) memcpy(to, from, (size_t)size * sizeof *to);
    else
        for (int64_t i = 0; i < size; i++) to[i * to_apart] = from[i * from_apart];
}

/* Copy the axes from `axis` on, up to the last two. */
static void copy_axes(const int64_t *field, int axis, int read, int write, const float *from, float *to) {
    const int64_t *size = field + EB_SIZE0, *from_apart = field + EB_FROM0, *to_apart = field + EB_TO0;
    while (axis == read || axis == write) axis++;
    if (axis < AXES)
        for (int64_t i = 0; i < size[axis]; i++)
            copy_axes(field, axis + 1, read, write, from + i * from_apart[axis], to + i * to_apart[axis]);
    else if (read == write) copy_line(size[read], from_apart[read], to_apart[read], from, to);
    else copy_two(size, from_apart, to_apart, read, write, from, to);
}

/* The first axis that is copied one by one; AXES if there is none. */
static int outermost(const int64_t *field) {
    const int read = closest(field + EB_SIZE0, field + EB_FROM0), write = closest(field + EB_SIZE0, field + EB_TO0);
    int axis = 0;
    while (axis < AXES && (axis == read || axis == write || field[EB_SIZE0 + axis] == 1)) axis++;
    return axis;
}

/* Indices along that axis. */
int64_t eb_copy_units(const eb_step *step) {
    const int axis = outermost(step->field);
    int64_t numbers = 1;
    for (int i = 0; i < AXES; i++) numbers *= step->field[EB_SIZE0 + i];
    return axis < AXES && numbers >= MANY ? step->field[EB_SIZE0 + axis] : 1;
}

void eb_copy(const eb_context *context, const eb_step *step, int64_t from, int64_t to) {
    const float *source = (const float *)eb_value_at(context, step->field[EB_IN]) + step->field[EB_FROM_OFFSET];
    float *target = (float *)eb_value_at(context, step->field[EB_OUT]) + step->field[EB_TO_OFFSET];
    const int axis = outermost(step->field);
    int64_t field[EB_FIELDS];
    memcpy(field, step->field, sizeof field);
    if (eb_copy_units(step) > 1) {
        source += from * field[EB_FROM0 + axis];
        target += from * field[EB_TO0 + axis];
        field[EB_SIZE0 + axis] = to - from;
    }
    copy_axes(field, 0, closest(step->field + EB_SIZE0, field + EB_FROM0), closest(step->field + EB_SIZE0, field + EB_TO0),
              source, target);
}

void eb_fill(const eb_context *context, const eb_step *step) {
    float *to = eb_value_at(context, step->field[EB_OUT]);
    int64_t numbers = step->out.channels * step->out.rows * step->out.columns;
    for (int64_t i = 0; i < numbers; i++) to[i] = step->chain.low;
}
