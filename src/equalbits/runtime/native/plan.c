/* From a recipe to a plan: every number is checked here, once, so that the loops need no checks. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { LARGEST = 1 << 28 };

static int fail(char *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, EB_ERROR_BYTES, format, arguments);
    va_end(arguments);
    return 0;
}

static int read_values(eb_plan *plan, const eb_recipe *recipe, char *error) {
    for (int64_t i = 0; i < recipe->value_count; i++) {
        const int64_t *row = recipe->values + i * EB_VALUE_FIELDS;
        eb_value *value = plan->values + i;
        value->kind = row[EB_VALUE_KIND];
        value->channels = row[EB_VALUE_CHANNELS];
        value->rows = row[EB_VALUE_ROWS];
        value->columns = row[EB_VALUE_COLUMNS];
        value->born = value->dies = -1;
        int64_t numbers = 1;
        for (int axis = EB_VALUE_CHANNELS; axis <= EB_VALUE_COLUMNS; axis++) {
            if (row[axis] < 1 || row[axis] > LARGEST) return fail(error, "value %d has an axis out of range", (int)i);
            numbers *= row[axis];
            if (numbers > LARGEST) return fail(error, "value %d holds more than %d numbers", (int)i, LARGEST);
        }
        if (value->kind < EB_IMAGE || value->kind > EB_BITS || (value->kind == EB_IMAGE) != (i == 0))
            return fail(error, "value %d is of kind %d: the first, and it alone, is the image", (int)i, (int)value->kind);
        value->words = (value->channels + 31) / 32;
        value->bytes = value->kind == EB_BITS ? value->rows * value->columns * value->words * 4 : numbers * 4;
        value->bytes = (value->bytes + 4 * EB_BLOCK + 63) / 64 * 64; /* a block may be read past the last channel */
    }
    plan->values[0].born = 0;
    return 1;
}

/* Note that a step reads or writes a value of one kind; NULL when it may not. */
static eb_value *touch(eb_plan *plan, int64_t id, int64_t step, int64_t kind, int writes, char *error) {
    if (id < 0 || id >= plan->value_count) {
        fail(error, "step %d names value %lld, which is not there", (int)step, (long long)id);
        return NULL;
    }
    eb_value *value = plan->values + id;
    if (value->kind != kind) {
        fail(error, "step %d takes value %d for another kind than it is", (int)step, (int)id);
        return NULL;
    }
    if (!writes && value->born < 0) {
        fail(error, "step %d reads value %d before it is made", (int)step, (int)id);
        return NULL;
    }
    if (writes && value->born < 0) value->born = step;
    value->dies = step;
    return value;
}

static const eb_tensor *tensor_of(const eb_recipe *recipe, int64_t id, int64_t bytes, char *error) {
    if (id < 0 || id >= recipe->tensor_count || recipe->tensors[id].bytes != bytes) {
        fail(error, "a tensor is missing or does not have %lld bytes", (long long)bytes);
        return NULL;
    }
    return recipe->tensors + id;
}

/* A copy of one of the chain's vectors, filled up with zeros so that whole blocks can be read anywhere. */
static int read_vector(eb_plan *plan, const eb_recipe *recipe, const eb_step *step, int field, const float **vector,
                       char *error) {
    int64_t id = step->field[field], channels = step->out.channels;
    if (id == -1) return 1;
    const eb_tensor *tensor = tensor_of(recipe, id, channels * 4, error);
    if (!tensor) return 0;
    float *copy = eb_aligned((size_t)(channels + 2 * EB_BLOCK) * 4);
    if (!copy) return fail(error, "there is no memory");
    memcpy(copy, tensor->data, (size_t)channels * 4);
    plan->vectors[plan->vector_count++] = copy;
    *vector = copy;
    return 1;
}

static int read_chain(eb_plan *plan, const eb_recipe *recipe, eb_step *step, int64_t number, char *error) {
    eb_chain *chain = &step->chain;
    const float **vectors[] = {&chain->scale, &chain->bias,   &chain->gain1,  &chain->shift1, &chain->slope1,
                               &chain->gain2, &chain->shift2, &chain->gain3,  &chain->shift3, &chain->slope2,
                               &chain->gain4, &chain->shift4, &chain->gain5, &chain->shift5};
    static const int fields[] = {EB_SCALE, EB_BIAS,   EB_GAIN1,  EB_SHIFT1, EB_SLOPE1, EB_GAIN2, EB_SHIFT2,
                                 EB_GAIN3, EB_SHIFT3, EB_SLOPE2, EB_GAIN4,  EB_SHIFT4, EB_GAIN5, EB_SHIFT5};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!read_vector(plan, recipe, step, fields[i], vectors[i], error)) return 0;
    const float *gains[] = {chain->gain1, chain->gain2, chain->gain3, chain->gain4, chain->gain5};
    const float *shifts[] = {chain->shift1, chain->shift2, chain->shift3, chain->shift4, chain->shift5};
    for (int i = 0; i < 5; i++)
        if (!gains[i] != !shifts[i]) return fail(error, "step %d has a gain without a shift", (int)number);
    if (step->field[EB_CLAMP] != -1) {
        const eb_tensor *clamp = tensor_of(recipe, step->field[EB_CLAMP], 8, error);
        if (!clamp) return 0;
        memcpy(&chain->low, clamp->data, 4);
        memcpy(&chain->high, (const char *)clamp->data + 4, 4);
        chain->has_clamp = 1;
    }
    chain->sign_real = step->field[EB_SIGN_REAL] != 0;
    return 1;
}

/* The values the chain touches: where the step's numbers go, and what is added on the way. */
static int read_places(eb_plan *plan, eb_step *step, int64_t number, char *error) {
    int64_t *field = step->field;
    int64_t id = field[EB_OUT] != -1 ? field[EB_OUT] : field[EB_OUT_BITS];
    if (id < 0 || id >= plan->value_count) return fail(error, "step %d makes nothing", (int)number);
    step->out = plan->values[id];
    for (int i = 0; i < 3; i++) {
        int64_t other = field[i == 0 ? EB_RESIDUAL : i == 1 ? EB_OUT : EB_OUT_BITS];
        if (other == -1) continue;
        if (i > 0 && other >= 0 && other < plan->value_count && plan->values[other].born >= 0)
            return fail(error, "step %d makes value %d again", (int)number, (int)other);
        const eb_value *value = touch(plan, other, number, i == 2 ? EB_BITS : EB_REAL, i > 0, error);
        if (!value) return 0;
        if (value->channels != step->out.channels || value->rows != step->out.rows ||
            value->columns != step->out.columns)
            return fail(error, "step %d joins values of different shapes", (int)number);
    }
    return 1;
}

static int check_windows(const eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    for (int i = EB_KERNEL_H; i <= EB_DILATION_W; i++)
        if (field[i] < 1 || field[i] > 1 << 20) return fail(error, "step %d has a window out of range", (int)number);
    for (int i = EB_PAD_TOP; i <= EB_PAD_RIGHT; i++)
        if (field[i] < 0 || field[i] > 1 << 20) return fail(error, "step %d has padding out of range", (int)number);
    int64_t rows = field[EB_PAD_TOP] + step->in.rows + field[EB_PAD_BOTTOM];
    int64_t columns = field[EB_PAD_LEFT] + step->in.columns + field[EB_PAD_RIGHT];
    int64_t tall = field[EB_DILATION_H] * (field[EB_KERNEL_H] - 1) + 1;
    int64_t wide = field[EB_DILATION_W] * (field[EB_KERNEL_W] - 1) + 1;
    if (tall > rows || wide > columns || (rows - tall) / field[EB_STRIDE_H] + 1 != step->out.rows ||
        (columns - wide) / field[EB_STRIDE_W] + 1 != step->out.columns)
        return fail(error, "step %d makes a value of another shape than its window says", (int)number);
    if (rows * columns > LARGEST) return fail(error, "step %d pads too much", (int)number);
    return 1;
}

static int check_pool(const eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    if (step->in.channels != step->out.channels) return fail(error, "step %d changes the channels", (int)number);
    if (field[EB_KIND] == EB_ADAPTIVE) return 1;
    int64_t tall = field[EB_KERNEL_H], wide = field[EB_KERNEL_W];
    if (field[EB_PAD_TOP] >= tall || field[EB_PAD_BOTTOM] >= tall || field[EB_PAD_LEFT] >= wide ||
        field[EB_PAD_RIGHT] >= wide || field[EB_DILATION_H] != 1 || field[EB_DILATION_W] != 1)
        return fail(error, "step %d pools with a window that may lie outside", (int)number);
    return check_windows(step, number, error);
}

/* Copies stay inside both values whatever their sizes and strides are. */
static int check_copy(eb_plan *plan, eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    const eb_value *from = touch(plan, field[EB_IN], number, EB_REAL, 0, error);
    const eb_value *to = from ? touch(plan, field[EB_OUT], number, EB_REAL, 1, error) : NULL;
    if (!to) return 0;
    int64_t last_from = field[EB_FROM_OFFSET], last_to = field[EB_TO_OFFSET], numbers = 1;
    if (last_from < 0 || last_from > LARGEST || last_to < 0 || last_to > LARGEST)
        return fail(error, "step %d copies from or to outside", (int)number);
    for (int i = 0; i < 6; i++) {
        int64_t size = field[EB_SIZE0 + i], stride_from = field[EB_FROM0 + i], stride_to = field[EB_TO0 + i];
        if (size < 1 || size > LARGEST || stride_from < 0 || stride_from > LARGEST || stride_to < 0 ||
            stride_to > LARGEST || (numbers *= size) > LARGEST)
            return fail(error, "step %d copies more than there is", (int)number);
        last_from += (size - 1) * stride_from;
        last_to += (size - 1) * stride_to;
    }
    if (last_from >= from->channels * from->rows * from->columns || last_to >= to->channels * to->rows * to->columns)
        return fail(error, "step %d copies from or to outside", (int)number);
    step->in = *from;
    step->out = *to;
    return field[EB_IN] != field[EB_OUT] ? 1 : fail(error, "step %d copies a value onto itself", (int)number);
}

static int read_step(eb_plan *plan, const eb_recipe *recipe, int64_t number, char *error) {
    eb_step *step = plan->steps + number;
    int64_t *field = step->field;
    memcpy(field, recipe->steps + number * EB_FIELDS, sizeof step->field);
    switch (field[EB_KIND]) {
    case EB_COPY: return check_copy(plan, step, number, error);
    case EB_FILL: {
        const eb_value *to = touch(plan, field[EB_OUT], number, EB_REAL, 1, error);
        const eb_tensor *tensor = to ? tensor_of(recipe, field[EB_WEIGHT], 4, error) : NULL;
        if (!tensor) return 0;
        step->out = *to;
        memcpy(&step->chain.low, tensor->data, 4);
        return 1;
    }
    default: break;
    }
    if (field[EB_KIND] < 0 || field[EB_KIND] >= EB_STEP_KINDS) return fail(error, "step %d is unknown", (int)number);
    int64_t kind = field[EB_KIND] == EB_CONV_BITS ? EB_BITS : EB_REAL;
    int64_t id = field[EB_IN];
    if (field[EB_KIND] == EB_LOAD || (field[EB_KIND] == EB_CONV_REAL && id == 0)) kind = EB_IMAGE;
    const eb_value *in = touch(plan, id, number, kind, 0, error);
    if (!in || !read_places(plan, step, number, error)) return 0;
    step->in = *in;
    if (!read_chain(plan, recipe, step, number, error)) return 0;
    switch (field[EB_KIND]) {
    case EB_LOAD:
    case EB_CHAIN:
        if (in->channels != step->out.channels || in->rows != step->out.rows || in->columns != step->out.columns)
            return fail(error, "step %d changes the shape", (int)number);
        if (field[EB_KIND] == EB_LOAD) step->scratch_bytes = in->channels * in->rows * in->columns * 4;
        return 1;
    case EB_CONV_BITS:
    case EB_CONV_REAL:
        return check_windows(step, number, error) && eb_layout_conv(plan, step, recipe, error);
    default: return check_pool(step, number, error);
    }
}

/* Give each value a place in the arena that no value alive at the same time has: the lowest that fits. */
static void place_values(eb_plan *plan) {
    for (int64_t i = 1; i < plan->value_count; i++) {
        eb_value *value = plan->values + i;
        for (int64_t j = 1; j < i; j++) { /* on a clash move behind the other, and look again from the start */
            const eb_value *other = plan->values + j;
            int alive = value->born <= other->dies && other->born <= value->dies;
            if (alive && value->offset < other->offset + other->bytes && other->offset < value->offset + value->bytes) {
                value->offset = other->offset + other->bytes;
                j = 0;
            }
        }
        if (value->offset + value->bytes > plan->arena_bytes) plan->arena_bytes = value->offset + value->bytes;
    }
}

eb_plan *eb_plan_new(const eb_recipe *recipe, const char *instruction_set, char error[EB_ERROR_BYTES]) {
    eb_plan *plan = calloc(1, sizeof *plan);
    const int64_t most = 1 << 16;
    if (!plan || recipe->value_count < 2 || recipe->value_count > most || recipe->step_count < 1 ||
        recipe->step_count > most || recipe->tensor_count < 0) {
        fail(error, plan ? "the plan has too few or too many values or steps" : "there is no memory");
        free(plan);
        return NULL;
    }
    plan->kernels = eb_kernels_named(instruction_set);
    plan->values = calloc((size_t)recipe->value_count, sizeof *plan->values);
    plan->steps = calloc((size_t)recipe->step_count, sizeof *plan->steps);
    plan->vectors = calloc((size_t)recipe->step_count * 14, sizeof *plan->vectors);
    int good = plan->values && plan->steps && plan->vectors ? 1 : fail(error, "there is no memory");
    if (good && !plan->kernels) good = fail(error, "this machine has no instruction set of that name");
    if (good) {
        plan->value_count = recipe->value_count;
        plan->step_count = recipe->step_count;
        good = read_values(plan, recipe, error);
    }
    for (int64_t i = 0; good && i < recipe->step_count; i++) {
        good = read_step(plan, recipe, i, error);
        if (plan->steps[i].scratch_bytes > plan->scratch_bytes) plan->scratch_bytes = plan->steps[i].scratch_bytes;
    }
    plan->answer = recipe->answer;
    if (!good || !touch(plan, recipe->answer, recipe->step_count, EB_REAL, 0, error)) {
        eb_plan_free(plan);
        return NULL;
    }
    place_values(plan);
    return plan;
}

void eb_plan_free(eb_plan *plan) {
    if (!plan) return;
    eb_pool_free(plan->pool);
    for (int i = 0; i < plan->arena_count; i++) eb_aligned_free(plan->arenas[i]);
    free(plan->arenas);
    for (int64_t i = 0; i < plan->vector_count; i++) eb_aligned_free(plan->vectors[i]);
    for (int64_t i = 0; plan->steps && i < plan->step_count; i++) {
        eb_step *step = plan->steps + i;
        eb_aligned_free(step->weights);
        free(step->offsets);
        free(step->constants);
        free(step->row_class);
        free(step->column_class);
    }
    free(plan->vectors);
    free(plan->steps);
    free(plan->values);
    free(plan);
}
