/* Interface of the native engine: a plan is made once from plain arrays, then run on images.
 *
 * A plan is a table of values, a table of steps and a list of tensors. Each step is a row of EB_FIELDS numbers, named
 * below; runtime/lower.py fills them. Everything is validated when the plan is made, so running it needs no checks. */
#ifndef EQUALBITS_H
#define EQUALBITS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EB_ERROR_BYTES = 200 };

/* What a value is: the images as given (channel, row, column); reals (row, column, channel); bits in words of 32
 * channels (word, row, column), where bits behind the last channel are 0; bytes (row, column, channel), whole numbers from
 * the least on that the step which writes them rounds to. */
enum { EB_IMAGE, EB_REAL, EB_BITS, EB_BYTES };

/* The columns of the table of values. */
enum { EB_VALUE_KIND, EB_VALUE_CHANNELS, EB_VALUE_ROWS, EB_VALUE_COLUMNS, EB_VALUE_FIELDS };

/* Kinds of steps. */
enum {
    EB_LOAD,      /* the image to reals */
    EB_CONV_BITS, /* bits by binary weights */
    EB_CONV_REAL, /* reals by real weights */
    EB_CONV_SIGNED, /* reals by binary weights */
    EB_LINEAR_BYTES, /* rows of reals, each rounded to 8 bits, by binary weights */
    EB_CONV_BYTES, /* bytes by binary weights */
    EB_CONV_INT8, /* bytes by int8 weights */
    EB_MAX_POOL,
    EB_AVG_POOL,
    EB_ADAPTIVE,  /* adaptive average pooling */
    EB_CHAIN,     /* the chain alone */
    EB_FILL,      /* fill with one number */
    EB_COPY,      /* strided copy */
    EB_SIGMOID, EB_TANH, EB_SILU, EB_GELU, EB_GELU_TANH, EB_MISH, EB_ELU, EB_SOFTPLUS, EB_EXP, EB_SQRT, EB_RECIPROCAL,
    EB_MUL,       /* product of IN and IN2, elementwise, with strides: FROM of IN, TO of IN2; OUT is contiguous */
    EB_SOFTMAX, EB_NORM, EB_RMS_NORM, /* rows along the last axis of the sizes, by strides; row i of every CAUSAL rows up
                                         to its entry i, the rest 0 */
    EB_MATMUL,    /* SIZE0 products of (SIZE1, SIZE2) by (SIZE2, SIZE3), all contiguous */
    EB_EMBED,     /* SIZE0 rows of SIZE1 numbers of the table SCALE with SIZE2 rows; NaN for invalid numbers */
    EB_POSITION,  /* SIZE0 parts of the rows SIZE1 of the table SCALE, SIZE2 numbers each, that belong to the positions of
                     the run: of SIZE3 in each part. Reads IN for its size alone */
    EB_ATTEND,    /* causal attention of SIZE0 heads: queries IN (SIZE1, SIZE2), keys IN2 (SIZE2, SIZE1) and values
                     RESIDUAL as queries, both kept in the state; SIZE3 positions at most. See attend.c */
    EB_STEP_KINDS
};

/* The columns of the table of steps. -1 stands for "none" where a value or a tensor is named.
 *
 * The chain is what happens to each number a step makes, in this order, each part if it is there:
 *   · scale, + bias, · gain1 + shift1, prelu slope1 or relu1, · gain2 + shift2, + residual, · gain3 + shift3, prelu slope2
 *   or relu2,
 *   · gain4 + shift4, clamp, the largest of each window (POOL_…, convolutions only; none if POOL_H is 0),
 *   stored in OUT (its sign, if SIGN_REAL; rounded, if ROUND_REAL), rounded as a byte in OUT_BYTES, · gain5 + shift5, its
 *   sign as a bit in OUT_BITS.
 * QUANT holds how numbers are rounded: what they are multiplied by, the least and the largest whole number.
 *
 * With SIZE0, CONV_REAL, CONV_SIGNED and LINEAR_BYTES read and make lists as that many rows, each a pixel of one image. */
#define EB_FIELD_LIST(X)                                                                                              \
    X(KIND) X(IN) X(IN2) X(OUT) X(OUT_BITS) X(OUT_BYTES) X(WEIGHT) X(KEPT)                                            \
    X(KERNEL_H) X(KERNEL_W) X(STRIDE_H) X(STRIDE_W) X(DILATION_H) X(DILATION_W)                                       \
    X(PAD_TOP) X(PAD_BOTTOM) X(PAD_LEFT) X(PAD_RIGHT) X(GROUPS) X(COUNT_PADDING)                                      \
    X(SCALE) X(BIAS) X(GAIN1) X(SHIFT1) X(SLOPE1) X(GAIN2) X(SHIFT2) X(RESIDUAL) X(GAIN3) X(SHIFT3) X(SLOPE2)         \
    X(GAIN4) X(SHIFT4) X(CLAMP) X(SIGN_REAL) X(QUANT) X(ROUND_REAL) X(GAIN5) X(SHIFT5) X(RELU1) X(RELU2)              \
    X(POOL_H) X(POOL_W) X(POOL_STRIDE_H) X(POOL_STRIDE_W) X(POOL_TOP) X(POOL_BOTTOM) X(POOL_LEFT) X(POOL_RIGHT)       \
    X(FROM_OFFSET) X(TO_OFFSET) X(CAUSAL)                                                                             \
    X(SIZE0) X(SIZE1) X(SIZE2) X(SIZE3) X(SIZE4) X(SIZE5)                                                             \
    X(FROM0) X(FROM1) X(FROM2) X(FROM3) X(FROM4) X(FROM5)                                                             \
    X(TO0) X(TO1) X(TO2) X(TO3) X(TO4) X(TO5)
#define EB_FIELD_NAME(name) EB_##name,
enum { EB_FIELD_LIST(EB_FIELD_NAME) EB_FIELDS };

typedef struct {
    const void *data;
    int64_t bytes;
} eb_tensor;

typedef struct {
    const int64_t *values; /* value_count rows of EB_VALUE_FIELDS; the first is the image */
    const int64_t *steps;  /* step_count rows of EB_FIELDS */
    const eb_tensor *tensors;
    int64_t value_count, step_count, tensor_count;
    int64_t answer; /* the output value, in its memory order */
    int64_t max_bytes; /* limit of the plan: weights, constants, and the memory of a run on one thread */
} eb_recipe;

typedef struct eb_plan eb_plan;

/* Instruction sets supported by this machine, best first; ends with NULL. */
const char *const *eb_instruction_sets(void);

/* Return a plan, or NULL with a line of reason; `over` is set if max_bytes was exceeded. The tensors are copied. */
eb_plan *eb_plan_new(const eb_recipe *recipe, const char *instruction_set, char error[EB_ERROR_BYTES], int *over);
void eb_plan_free(eb_plan *plan);

/* For a forked child: its parent may have been in the middle of a run, and its threads do not exist here. Buffers of
 * runs are abandoned and allocated again. */
int eb_process(void); /* process ID, which differs in a child */
void eb_plan_forget_runs(eb_plan *plan);

/* Callback of the thread that runs a batch, about every 50 ms, between steps and inside large ones: a result other than
 * 0 stops the run on all threads. NULL: none. */
void eb_plan_set_poll(eb_plan *plan, int (*poll)(void));

/* Run a batch. Images are float, or bytes with a table of the value of each byte per channel (256 per channel). A plan
 * runs one batch at a time. Return 0, -1 if out of memory, or 1 if stopped. */
int eb_plan_run(eb_plan *plan, const float *images, float *answers, int64_t batch, int threads);
int eb_plan_run_bytes(eb_plan *plan, const uint8_t *images, const float *byte_table, float *answers, int64_t batch,
                      int threads);

/* For plans that keep a state from run to run: how many floats it has, 0 for others, and how many positions there are.
 * The caller owns the state, zeros at first and at a multiple of 64 bytes, and says at which position the first row of this run stands. Such plans run
 * in no other way; 2: the positions are over. */
int64_t eb_plan_state(const eb_plan *plan);
int64_t eb_plan_positions(const eb_plan *plan);
int eb_plan_run_at(eb_plan *plan, const float *image, float *answers, float *state, int64_t position, int threads);

/* Run one image on one thread, and measure the seconds of each step. */
int eb_plan_time(eb_plan *plan, const float *image, float *state, int64_t position, double *taken);

#ifdef __cplusplus
}
#endif
#endif
