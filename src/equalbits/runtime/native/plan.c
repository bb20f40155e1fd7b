/* From tables to a plan: every number is validated here, once, so that the loops need no checks. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { LARGEST = 1 << 28 };

int eb_fail(char *error, const char *format, ...) {
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
            if (row[axis] < 1 || row[axis] > LARGEST) return eb_fail(error, "value %d has an axis out of range", (int)i);
            numbers *= row[axis];
            if (numbers > LARGEST) return eb_fail(error, "value %d holds more than %d numbers", (int)i, LARGEST);
        }
        if (value->kind < EB_IMAGE || value->kind > EB_BYTES || (value->kind == EB_IMAGE) != (i == 0))
            return eb_fail(error, "value %d is of kind %d: the first, and it alone, is the image", (int)i, (int)value->kind);
        value->words = (value->channels + 31) / 32;
        value->bytes = value->kind == EB_BITS    ? value->rows * value->columns * value->words * 4
                       : value->kind == EB_BYTES ? numbers : numbers * 4;
        value->bytes = (value->bytes + 4 * EB_BLOCK + 63) / 64 * 64; /* a block may be read past the last channel */
    }
    plan->values[0].born = 0;
    return 1;
}

/* Record that a step reads or writes a value of one kind; NULL if it may not. */
static eb_value *touch(eb_plan *plan, int64_t id, int64_t step, int64_t kind, int writes, char *error) {
    if (id < 0 || id >= plan->value_count) {
        eb_fail(error, "step %d names value %lld, which is not there", (int)step, (long long)id);
        return NULL;
    }
    eb_value *value = plan->values + id;
    if (value->kind != kind) {
        eb_fail(error, "step %d takes value %d for another kind than it is", (int)step, (int)id);
        return NULL;
    }
    if (!writes && value->born < 0) {
        eb_fail(error, "step %d reads value %d before it is made", (int)step, (int)id);
        return NULL;
    }
    if (writes && value->born < 0) value->born = step;
    value->dies = step;
    return value;
}

static const eb_tensor *tensor_of(const eb_recipe *recipe, int64_t id, int64_t bytes, char *error) {
    if (id < 0 || id >= recipe->tensor_count || recipe->tensors[id].bytes != bytes) {
        eb_fail(error, "a tensor is missing or does not have %lld bytes", (long long)bytes);
        return NULL;
    }
    return recipe->tensors + id;
}

/* Copy a vector of the chain, padded with zeros so that whole blocks can be read. */
static int read_vector(eb_plan *plan, const eb_recipe *recipe, int64_t id, int64_t channels, const float **vector,
                       char *error) {
    if (id == -1) return 1;
    const eb_tensor *tensor = tensor_of(recipe, id, channels * 4, error);
    if (!tensor) return 0;
    float *copy = eb_take(&plan->budget, (channels + 2 * EB_BLOCK) * 4);
    if (!copy) return eb_fail(error, "there is no memory");
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
        if (!read_vector(plan, recipe, step->field[fields[i]], step->out.channels, vectors[i], error)) return 0;
    const float *gains[] = {chain->gain1, chain->gain2, chain->gain3, chain->gain4, chain->gain5};
    const float *shifts[] = {chain->shift1, chain->shift2, chain->shift3, chain->shift4, chain->shift5};
    for (int i = 0; i < 5; i++)
        if (!gains[i] != !shifts[i]) return eb_fail(error, "step %d has a gain without a shift", (int)number);
    if (step->field[EB_CLAMP] != -1) {
        const eb_tensor *clamp = tensor_of(recipe, step->field[EB_CLAMP], 8, error);
        if (!clamp) return 0;
        memcpy(&chain->low, clamp->data, 4);
        memcpy(&chain->high, (const char *)clamp->data + 4, 4);
        chain->parts |= EB_HAS_CLAMP;
    }
    const int there[] = {chain->scale != NULL,  chain->bias != NULL,   chain->gain1 != NULL, chain->slope1 != NULL,
                         chain->gain2 != NULL,  chain->gain3 != NULL,  chain->slope2 != NULL, chain->gain4 != NULL};
    for (int i = 0; i < 8; i++) chain->parts |= there[i] << i; /* the order of EB_HAS_... */
    chain->parts |= (chain->gain5 ? EB_HAS_AFFINE5 : 0) | (step->field[EB_SIGN_REAL] ? EB_HAS_SIGN_REAL : 0) |
                    (step->field[EB_RESIDUAL] != -1 ? EB_HAS_RESIDUAL : 0) |
                    (step->field[EB_OUT] != -1 ? EB_HAS_OUT : 0) | (step->field[EB_OUT_BITS] != -1 ? EB_HAS_BITS : 0) |
                    (step->field[EB_OUT_BYTES] != -1 ? EB_HAS_BYTES : 0) | (step->field[EB_ROUND_REAL] ? EB_HAS_ROUND_REAL : 0) |
                    (step->field[EB_RELU1] ? EB_HAS_RELU1 : 0) | (step->field[EB_RELU2] ? EB_HAS_RELU2 : 0);
    if (chain->parts & (EB_HAS_SIGN_REAL | EB_HAS_ROUND_REAL) && !(chain->parts & EB_HAS_OUT))
        return eb_fail(error, "step %d makes a sign that goes nowhere", (int)number);
    return !(chain->parts & (EB_HAS_BYTES | EB_HAS_ROUND_REAL)) || eb_read_quant(plan, recipe, step, number, error);
}

/* Values of the chain: outputs of the step, and the residual. */
static int read_places(eb_plan *plan, eb_step *step, int64_t number, char *error) {
    int64_t *field = step->field;
    static const int places[] = {EB_RESIDUAL, EB_OUT, EB_OUT_BITS, EB_OUT_BYTES}, kinds[] = {EB_REAL, EB_REAL, EB_BITS, EB_BYTES};
    int64_t id = field[EB_OUT] != -1 ? field[EB_OUT] : field[EB_OUT_BITS] != -1 ? field[EB_OUT_BITS] : field[EB_OUT_BYTES];
    if (id < 0 || id >= plan->value_count) return eb_fail(error, "step %d makes nothing", (int)number);
    step->out = plan->values[id];
    for (int i = 0; i < 4; i++) {
        int64_t other = field[places[i]];
        if (other == -1) continue;
        if (i > 0 && other >= 0 && other < plan->value_count && plan->values[other].born >= 0)
            return eb_fail(error, "step %d makes value %d again", (int)number, (int)other);
        const eb_value *value = touch(plan, other, number, kinds[i], i > 0, error);
        if (!value) return 0;
        if (value->channels != step->out.channels || value->rows != step->out.rows ||
            value->columns != step->out.columns)
            return eb_fail(error, "step %d joins values of different shapes", (int)number);
    }
    return 1;
}

/* A step of rows.c. WEIGHT is its one number; scale and bias are as long as a row. */
static int read_rows(eb_plan *plan, const eb_recipe *recipe, eb_step *step, int64_t number, char *error) {
    const int64_t *field = step->field;
    const int is_norm = field[EB_KIND] == EB_NORM || field[EB_KIND] == EB_RMS_NORM;
    const int64_t second = field[EB_KIND] == EB_MUL || field[EB_KIND] == EB_MATMUL || field[EB_KIND] == EB_ATTEND ? field[EB_IN2] : field[EB_IN];
    const eb_value *from = touch(plan, field[EB_IN], number, EB_REAL, 0, error);
    const eb_value *other = from ? touch(plan, second, number, EB_REAL, 0, error) : NULL;
    if (!other) return 0;
    if (field[EB_RESIDUAL] != -1 && field[EB_KIND] != EB_ATTEND) /* memory.c shares places with what it names */
        return eb_fail(error, "step %d names a residual that it does not add", (int)number);
    if (field[EB_OUT] >= 0 && field[EB_OUT] < plan->value_count && plan->values[field[EB_OUT]].born >= 0)
        return eb_fail(error, "step %d makes value %d again", (int)number, (int)field[EB_OUT]);
    const eb_value *to = touch(plan, field[EB_OUT], number, EB_REAL, 1, error);
    if (!to) return 0;
    step->in = *from;
    step->other = *other;
    step->out = *to;
    if (is_norm || field[EB_KIND] == EB_ELU) {
        const eb_tensor *tensor = tensor_of(recipe, field[EB_WEIGHT], 4, error);
        if (!tensor) return 0;
        memcpy(&step->chain.low, tensor->data, 4);
    }
    if (field[EB_KIND] == EB_ATTEND) {
        const eb_value *values = touch(plan, field[EB_RESIDUAL], number, EB_REAL, 0, error);
        return values && eb_check_attend(step, values, number, error) && eb_keep_state(plan, step, number, error);
    }
    if (!eb_check_rows(step, number, error)) return 0;
    if (field[EB_KIND] == EB_POSITION && !eb_keep_state(plan, step, number, error)) return 0;
    if (field[EB_KIND] == EB_EMBED || field[EB_KIND] == EB_POSITION) {
        const int64_t numbers = field[EB_KIND] == EB_EMBED ? field[EB_SIZE1] * field[EB_SIZE2]
                                                           : field[EB_SIZE0] * field[EB_SIZE2] * field[EB_SIZE3];
        return read_vector(plan, recipe, field[EB_SCALE], numbers, &step->chain.scale, error) &&
               (step->chain.scale || eb_fail(error, "step %d has no table", (int)number));
    }
    return !is_norm || (read_vector(plan, recipe, field[EB_SCALE], field[EB_SIZE5], &step->chain.scale, error) &&
                        read_vector(plan, recipe, field[EB_BIAS], field[EB_SIZE5], &step->chain.bias, error));
}

static int read_step(eb_plan *plan, const eb_recipe *recipe, int64_t number, char *error) {
    eb_step *step = plan->steps + number;
    int64_t *field = step->field;
    step->stop = &plan->stop;
    step->budget = &plan->budget;
    memcpy(field, recipe->steps + number * EB_FIELDS, sizeof step->field);
    switch (field[EB_KIND]) {
    case EB_COPY: {
        const eb_value *from = touch(plan, field[EB_IN], number, EB_REAL, 0, error);
        const eb_value *to = from ? touch(plan, field[EB_OUT], number, EB_REAL, 1, error) : NULL;
        if (!to) return 0;
        step->in = *from;
        step->out = *to;
        return eb_check_copy(step, number, error);
    }
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
    if (field[EB_KIND] < 0 || field[EB_KIND] >= EB_STEP_KINDS) return eb_fail(error, "step %d is unknown", (int)number);
    if (eb_is_rows(step)) return read_rows(plan, recipe, step, number, error);
    int64_t kind = field[EB_KIND] == EB_CONV_BITS ? EB_BITS : EB_REAL;
    if (field[EB_KIND] == EB_CONV_BYTES || field[EB_KIND] == EB_CONV_INT8) kind = EB_BYTES;
    int64_t id = field[EB_IN];
    int reads_image = field[EB_KIND] == EB_CONV_REAL || field[EB_KIND] == EB_CONV_SIGNED;
    if (field[EB_KIND] == EB_LOAD || (reads_image && id == 0)) kind = EB_IMAGE;
    const eb_value *in = touch(plan, id, number, kind, 0, error);
    if (!in || !read_places(plan, step, number, error)) return 0;
    step->in = *in;
    if (!eb_view_rows(step, number, error)) return 0;
    if (!read_chain(plan, recipe, step, number, error)) return 0;
    switch (field[EB_KIND]) {
    case EB_LOAD:
    case EB_CHAIN:
        if (in->channels != step->out.channels || in->rows != step->out.rows || in->columns != step->out.columns)
            return eb_fail(error, "step %d changes the shape", (int)number);
        if (field[EB_KIND] == EB_LOAD && !eb_check_load(step, number, error)) return 0;
        if (field[EB_KIND] == EB_LOAD) step->scratch_bytes = in->channels * in->rows * in->columns * 4;
        return 1;
    case EB_CONV_BITS:
    case EB_CONV_REAL:
    case EB_CONV_SIGNED:
    case EB_CONV_BYTES:
    case EB_CONV_INT8:
        return eb_check_conv(step, number, error) && eb_layout_shared(plan, recipe, number, error);
    case EB_LINEAR_BYTES: return eb_layout_bytes(step, recipe, error);
    default: return eb_check_pool(step, number, error);
    }
}

/* Buffers of a thread: a row of numbers, then the rows of a pooled convolution. */
static void add_up_memory(eb_plan *plan, eb_step *step) {
    int64_t columns = step->conv_columns > step->out.columns ? step->conv_columns : step->out.columns;
    int64_t row_bytes = (columns + 8) * EB_BLOCK * 4; /* a kernel may fill its last tile */
    if (step->quads) step->ring_bytes *= step->blocks; /* all blocks of a row together */
    if (step->row_bytes < row_bytes) step->row_bytes = row_bytes;
    int64_t own = (step->row_bytes + step->ring_bytes + 64 + 63) / 64 * 64, scratch = (step->scratch_bytes + 63) / 64 * 64;
    if (own > plan->thread_bytes) plan->thread_bytes = own;
    if (scratch > plan->scratch_bytes) plan->scratch_bytes = scratch;
}

eb_plan *eb_plan_new(const eb_recipe *recipe, const char *instruction_set, char error[EB_ERROR_BYTES], int *over) {
    eb_plan *plan = calloc(1, sizeof *plan);
    const int64_t most = 1 << 16;
    if (!plan || recipe->value_count < 2 || recipe->value_count > most || recipe->step_count < 1 ||
        recipe->step_count > most || recipe->tensor_count < 0) {
        eb_fail(error, plan ? "the plan has too few or too many values or steps" : "there is no memory");
        free(plan);
        return NULL;
    }
    plan->kernels = eb_kernels_named(instruction_set);
    plan->byte_kernels = plan->kernels ? eb_byte_kernels_of(plan->kernels) : NULL;
    plan->budget.left = recipe->max_bytes;
    plan->values = calloc((size_t)recipe->value_count, sizeof *plan->values);
    plan->steps = calloc((size_t)recipe->step_count, sizeof *plan->steps);
    plan->vectors = calloc((size_t)recipe->step_count * 14, sizeof *plan->vectors);
    int good = plan->values && plan->steps && plan->vectors ? 1 : eb_fail(error, "there is no memory");
    if (good && !plan->kernels) good = eb_fail(error, "this machine has no instruction set of that name");
    if (good) {
        plan->value_count = recipe->value_count;
        plan->step_count = recipe->step_count;
        good = read_values(plan, recipe, error);
    }
    for (int64_t i = 0; good && i < recipe->step_count; i++) {
        good = read_step(plan, recipe, i, error);
        if (good) add_up_memory(plan, plan->steps + i);
    }
    plan->answer = recipe->answer;
    good = good && touch(plan, recipe->answer, recipe->step_count, EB_REAL, 0, error);
    if (good && !eb_place_values(plan)) good = eb_fail(error, "there is no memory");
    good = good && eb_spend(&plan->budget, plan->arena_bytes + plan->scratch_bytes + plan->thread_bytes);
    if (good) return plan;
    *over = plan->budget.over;
    eb_plan_free(plan);
    return NULL;
}

void eb_plan_forget_runs(eb_plan *plan) {
    plan->pool = NULL;
    plan->arenas = NULL;
    plan->arena_count = plan->threads_per_arena = 0;
}

void eb_plan_free(eb_plan *plan) {
    if (!plan) return;
    eb_pool_free(plan->pool);
    for (int i = 0; i < plan->arena_count; i++) eb_aligned_free(plan->arenas[i]);
    free(plan->arenas);
    for (int64_t i = 0; i < plan->vector_count; i++) eb_aligned_free(plan->vectors[i]);
    for (int64_t i = 0; plan->steps && i < plan->step_count; i++) {
        eb_step *step = plan->steps + i;
        if (step->shared) continue;
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
