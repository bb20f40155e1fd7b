/* Shared by all parts of the native engine: a checked step, and the kernel table of an instruction set. */
#ifndef EQUALBITS_CORE_H
#define EQUALBITS_CORE_H

#include <float.h>

#include "equalbits.h"
#include "linear.h"

#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "floats are computed as wider numbers here, so answers would not be those of other machines"
#endif

/* Unroll the following loop of at most `times` iterations, so that its sums stay in registers. */
#ifdef __clang__
#define EB_UNROLL(times) _Pragma("clang loop unroll(full)")
#else
#define EB_PRAGMA(text) _Pragma(#text)
#define EB_UNROLL(times) EB_PRAGMA(GCC unroll times)
#endif

enum {
    EB_BLOCK = 32, /* filters computed together: the bits of one word */
    EB_POINTS = 7, /* of Winograd's algorithm */
    EB_QUADS = 16, /* fours of columns come in multiples of it: whole vectors of any instruction set */
    EB_TILE = 160, /* pixels counted together by kernels with tiles */
    EB_POOL = 8,   /* maximum rows of a pooling window fused into a convolution */
    EB_BYTES_HEAD = 64, /* of an input rounded to 8 bits: bytes of its head, and of its tables for each 16 numbers */
    EB_BYTES_STEP = 128,
    EB_GROUP = 32 /* inputs whose weights lie together, where several rows are rounded */
};

typedef struct eb_value_ {
    int64_t kind, channels, rows, columns;
    int64_t low, levels;   /* of bytes: the whole number that byte 0 is, and the largest byte */
    int64_t words;         /* of bits: words for all channels */
    int64_t bytes, offset; /* offset in the arena */
    int64_t shares;        /* the value whose memory it reuses, or itself */
    int64_t born, dies;    /* first step that writes it and last one that reads it */
} eb_value;

/* Vectors of a chain, each padded to a multiple of EB_BLOCK, or NULL; `parts` has a bit for each that exists. */
enum {
    EB_HAS_SCALE = 1, EB_HAS_BIAS = 2, EB_HAS_AFFINE1 = 4, EB_HAS_SLOPE1 = 8, EB_HAS_AFFINE2 = 16, EB_HAS_AFFINE3 = 32,
    EB_HAS_SLOPE2 = 64, EB_HAS_AFFINE4 = 128, EB_HAS_CLAMP = 256, EB_HAS_AFFINE5 = 512, EB_HAS_SIGN_REAL = 1024,
    EB_HAS_RESIDUAL = 2048, EB_HAS_OUT = 4096, EB_HAS_BITS = 8192, EB_HAS_RELU1 = 16384, EB_HAS_RELU2 = 32768,
    EB_HAS_BYTES = 65536, EB_HAS_ROUND_REAL = 131072
};

typedef struct {
    const float *scale, *bias, *gain1, *shift1, *slope1, *gain2, *shift2, *gain3, *shift3, *slope2, *gain4, *shift4,
        *gain5, *shift5;
    float low, high;
    float unit, least, most; /* of bytes: what a number is multiplied by, and the range of the whole numbers */
    int parts;
} eb_chain;

/* A row of numbers for `lanes` channels from `channel` on, and its destination: `pixels` of them, EB_BLOCK apart. */
typedef struct {
    int64_t channel, pixels;
    int lanes;
    const float *residual;
    float *out;
    uint32_t *bits;
    uint8_t *bytes;
    int64_t apart;              /* from one pixel to the next, in residual, out and bytes */
    const int32_t *constants;   /* of counts: constant minus twice the count, by border class ... */
    const int32_t *class_of;    /* ... and the class of each pixel */
    int64_t class_apart;
} eb_row;

/* Request to stop a run: see run.c. */
typedef struct {
    int asked;
    int (*poll)(void);
    int64_t next; /* time of the next call, in milliseconds */
} eb_stop;

typedef struct { int64_t left; int over; } eb_budget; /* remaining bytes of a plan, and whether they were exceeded */

typedef struct eb_step_ {
    int64_t field[EB_FIELDS];
    eb_stop *stop;
    eb_budget *budget; /* both of the plan */
    int shared;        /* 1 if another step owns its weights */
    eb_value in, other, out; /* shapes of input and output */
    eb_chain chain;
    /* convolutions */
    int64_t group_in, group_out, blocks;      /* channels, filters and blocks of filters of a group */
    int64_t words;                            /* words of the channels of a group */
    int64_t padded_rows, padded_columns;
    int64_t conv_rows, conv_columns;          /* of the output before pooling */
    int after;                                /* parts of the chain after pooling */
    int64_t row_apart, apart;                 /* real input: from one row of windows to the next, and from one window */
    int64_t block_bytes;                      /* of a block's weights */
    int64_t scratch_bytes, prepared_bytes;    /* of the prepared input: all, and of one group */
    int64_t row_bytes, ring_bytes;            /* of a row of numbers, and of the rows held for pooling: per thread */
    void *weights;                            /* packed: group, block, then in the layout of the kernel */
    int32_t *offsets;                         /* input offset of each packed entry, from the first of the window */
    int64_t pairs, singles;                   /* entries of binary weights */
    int64_t tiles, strip, tile_bytes;         /* counted by tiles: of a strip, and its pixels: of pooled rows, or of all */
    int64_t sums, quads;                      /* of real ones; with Winograd, fours of columns */
    int64_t tables;                           /* channels of a table if real inputs are looked up: see tables.c; else 0 */
    int64_t table_rows;                       /* pixels whose tables a thread makes, if windows are one pixel; else 0 */
    int signs;                                /* words per entry if the weights are bits: 1, or 2 if pruned; else 0 */
    int32_t *constants;                       /* binary weights: by class of border */
    int32_t *row_class, *column_class;
    int64_t column_classes;
    int64_t state_end; /* how far its part of the state goes: see attend.c */
} eb_step;

/* Normalization of a row: scale and bias per number, or NULL. */
typedef struct {
    const float *scale, *bias;
    float eps;
    int64_t count;
    int centered;
} eb_norm;

/* A window along one axis: kernel, stride, and padding before it. */
typedef struct {
    int64_t kernel, stride, before;
} eb_window;

/* Kernels of an instruction set. Counts are numbers of connections where weight and input differ. */
typedef struct {
    const char *name;
    int (*supported)(void);
    int64_t winograd_from; /* connections of a filter from which Winograd's algorithm is faster; 0: always */
    /* Binary: offsets and sizes; packing of one block; preparation of a padded row of the input, (word, column);
     * EB_BLOCK counts for each pixel of a row, or of a tile for steps with tiles. */
    void (*bits_layout)(eb_step *step);
    void (*bits_pack)(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed);
    void (*bits_prepare)(const eb_step *step, const uint32_t *line, int64_t row, void *prepared);
    void (*bits_row)(const eb_step *step, const void *prepared, int64_t row, const void *packed, int32_t *counts);
    void (*gather_tile)(const eb_step *step, const void *prepared, int64_t tile, void *gathered);
    void (*bits_tile)(const eb_step *step, const void *gathered, int64_t tile, const void *packed, int32_t *counts);
    /* Real: EB_BLOCK sums for each pixel, over entries at `offsets` from its own; pixels are `apart` from each other. */
    void (*real_row)(const int32_t *offsets, int64_t count, const float *input, int64_t apart, const float *packed,
                     int64_t pixels, float *sums);
    /* Same for binary weights: words of EB_BLOCK filters, 1 for -1; if pruned, followed by words with 1 for kept. */
    void (*signed_row)(const int32_t *offsets, int64_t count, const float *input, const uint32_t *packed, int words,
                       float *sums);
    /* Same for inputs rounded to 8 bits: preparation; then EB_BLOCK sums Σ t, see byte_tables.h. */
    void (*bytes_prepare)(const float *from, int64_t count, int64_t steps, eb_bytes *head);
    void (*bytes_row)(const uint8_t *tables, const uint8_t *packed, int64_t steps, uint32_t *totals);
    /* The same for several rows, see byte_tiles.h: a row rounded; bits as bytes 0 and 1; sums of groups, added. */
    void (*round_row)(const float *from, int64_t count, int64_t deep, int8_t *to, eb_bytes *head);
    void (*bits_to_bytes)(const uint8_t *packed, int64_t groups, uint8_t *ones);
    void (*bytes_tile)(const int8_t *rows, int64_t apart, int64_t count, int64_t groups, const uint8_t *ones, int32_t *sums);
    /* Same with a table of all signed sums for every few channels of the input, or 0 if it is not faster. Several blocks
     * are allowed for one pixel. */
    int64_t table_channels;
    void (*tables_make)(const float *from, int64_t count, float *to);
    void (*tables_row)(const eb_step *step, const float *tables, const uint32_t *packed, int64_t blocks, int64_t pixels, float *sums);
    void (*depthwise_row)(const eb_step *step, const float *input, const float *packed, int64_t pixels, float *sums);
    void (*split)(const float *from, int64_t count, float *even, float *odd);
    void (*winograd_in)(int64_t taps, const float *columns, int64_t quads, float *to, int64_t apart);
    void (*winograd_down)(int64_t taps, const float *const *lines, int64_t numbers, float *to, int64_t apart);
    void (*winograd_up)(const float *products, int64_t numbers, float *first, float *second);
    void (*winograd_out)(const float *products, int64_t apart, int64_t quads, float *sums);
    /* Pooling of a window, EB_BLOCK numbers: maximum (divisor 0), or sum divided by it; maximum along a line, and over
     * rows at any addresses. */
    void (*pool)(const float *from, int64_t row_apart, int64_t rows, int64_t apart, int64_t columns, float divisor,
                 float *to);
    void (*pool_line)(const float *line, int64_t pixels, const eb_window *window, int64_t count, float *to);
    void (*pool_rows)(const float *const *rows, int64_t count, int64_t numbers, float *to);
    /* See functions.h. */
    void (*function)(int64_t kind, const float *from, int64_t count, float alpha, float *to);
    void (*softmax_row)(const float *from, int64_t count, float *to);
    void (*norm_row)(const float *from, const eb_norm *norm, float *to);
    void (*mul_row)(const float *a, int64_t a_apart, const float *b, int64_t b_apart, int64_t count, float *to);
    void (*round_image)(const eb_chain *chain, const float *from, int64_t count, int shift, uint32_t *words);
    void (*chain_counts)(const eb_chain *chain, const eb_row *row, const int32_t *counts);
    void (*chain_reals)(const eb_chain *chain, const eb_row *row, const float *sums);
} eb_kernels;

extern const eb_kernels eb_kernels_portable, eb_kernels_wasm;
#ifdef EB_HAVE_AVX2
extern const eb_kernels eb_kernels_avx2;
#endif
#ifndef __x86_64__
#undef EB_HAVE_AVX512
#endif
#ifdef EB_HAVE_AVX512
extern const eb_kernels eb_kernels_avx512;
#endif
#ifdef __aarch64__ /* every such machine has it */
#define EB_HAVE_NEON
extern const eb_kernels eb_kernels_neon;
#endif

const eb_kernels *eb_kernels_named(const char *name); /* NULL: the best one */

typedef struct eb_pool eb_pool;

struct eb_plan {
    const eb_kernels *kernels;
    const struct eb_byte_kernels *byte_kernels; /* see byte_convs.h */
    eb_stop stop;
    eb_budget budget;
    eb_value *values;
    eb_step *steps;
    int64_t value_count, step_count, answer;
    int64_t state_numbers, positions; /* 0 where nothing is kept from run to run; see attend.c */
    int64_t arena_bytes, scratch_bytes, thread_bytes;
    float **vectors; /* the chains' vectors, to be freed */
    int64_t vector_count;
    void **arenas; /* one for each image that runs concurrently */
    int arena_count, threads_per_arena;
    eb_pool *pool;
};

/* Context of a step on one image. */
typedef struct eb_context_ {
    const eb_plan *plan;
    const float *image;
    const uint8_t *bytes;
    const float *byte_table;
    char *arena, *scratch; /* values; the input of the step */
    float *state;          /* what is kept from run to run, and the position of the first row */
    int64_t position;
    char *own;             /* buffers of the thread: a row of numbers, then rows kept for pooling */
} eb_context;

#include "stop.h"

static inline int eb_is_conv(const eb_step *step) {
    return step->field[EB_KIND] == EB_CONV_BITS || step->field[EB_KIND] == EB_CONV_REAL || step->field[EB_KIND] == EB_CONV_BYTES;
}

/* Return whether every channel has one filter (depthwise): then vectors hold channels instead of filters. */
static inline int eb_is_depthwise(const eb_step *step) {
    return step->field[EB_KIND] == EB_CONV_REAL && step->group_in == 1 && step->group_out == 1;
}

/* Of the tables of a word of weights: channels, numbers, and numbers of a group's last word, an even number of tables. */
static inline int64_t eb_word_channels(const eb_step *step) { return 32 / step->tables * step->tables; }
static inline int64_t eb_word_numbers(const eb_step *step) { return 32 / step->tables << step->tables; }
static inline int64_t eb_last_tables(const eb_step *step) {
    return ((step->group_in - 1) % eb_word_channels(step) / (2 * step->tables) + 1) * 2 << step->tables;
}

static inline void eb_move_along(eb_row *target, int64_t pixels) {
    if (target->residual) target->residual += pixels * target->apart;
    if (target->out) target->out += pixels * target->apart;
    if (target->bits) target->bits += pixels;
    if (target->bytes) target->bytes += pixels * target->apart;
}

static inline void *eb_value_at(const eb_context *context, int64_t id) {
    return id < 0 ? NULL : context->arena + context->plan->values[id].offset;
}

/* plan.c, conv_layout.c, winograd.c: each returns 0 and a line of reason on error. */
int eb_fail(char *error, const char *format, ...);
int eb_check_conv(eb_step *step, int64_t number, char *error);
int eb_view_rows(eb_step *step, int64_t number, char *error), eb_check_pool(eb_step *step, int64_t number, char *error);
int eb_check_copy(const eb_step *step, int64_t number, char *error);
int eb_layout_conv(eb_plan *plan, eb_step *step, const eb_recipe *recipe, char *error);
int eb_layout_shared(eb_plan *plan, const eb_recipe *recipe, int64_t number, char *error);
int eb_is_winograd(const eb_kernels *kernels, const eb_step *step);
int eb_layout_winograd(eb_step *step, const float *given);

#include "byte_convs.h"
/* tables.c */
int eb_has_tables(const eb_kernels *kernels, const eb_step *step);
int eb_layout_tables(const eb_kernels *kernels, eb_step *step, const uint8_t *sign, char *error);
void eb_tables_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to);
int64_t eb_table_units(const eb_step *step);
void eb_tables_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to);

/* rows.c */
static inline int eb_is_rows(const eb_step *step) { return step->field[EB_KIND] >= EB_SIGMOID; }
int eb_check_rows(eb_step *step, int64_t number, char *error);
int64_t eb_rows_units(const eb_step *step);
void eb_rows_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to);

/* pooling.c */
void eb_inside(int64_t at, int64_t kernel, int64_t size, int64_t *from, int64_t *to);
void eb_pool_row(const eb_context *context, const eb_step *step, int64_t row, int64_t channel, float *to);

/* copy.c */
int64_t eb_copy_units(const eb_step *step);
void eb_copy(const eb_context *context, const eb_step *step, int64_t from, int64_t to);
void eb_fill(const eb_context *context, const eb_step *step);

/* memory.c */
void *eb_aligned(int64_t bytes); /* zeroed, at a multiple of 64; NULL where there is no memory */
int eb_spend(eb_budget *budget, int64_t bytes);        /* 0 if the budget does not allow it */
void *eb_take(eb_budget *budget, int64_t bytes);       /* same, within the budget */
void eb_aligned_free(void *pointer);
int eb_place_values(eb_plan *plan);

/* prepare.c, winograd.c, steps.c: units of preparation [from, to), if any; when all are done, units of work, row after row. */
int64_t eb_prepare_units(const eb_step *step), eb_step_units(const eb_step *step), eb_step_rows(const eb_step *step);
void eb_step_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to);
void eb_winograd_rows(const eb_context *context, const eb_step *step, int64_t row, int64_t *lines);
void eb_winograd_row(const eb_context *context, const eb_step *step, int64_t row, int64_t block, eb_row target);
void eb_step_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to);

/* threads.cpp: run work(argument, part) for part 0 .. parts - 1, on as many threads, which meet where all of them call it. NULL
 * if threads cannot start. */
eb_pool *eb_pool_new(int threads);
int eb_pool_threads(const eb_pool *pool);
void eb_pool_run(eb_pool *pool, void (*work)(void *argument, int part), void *argument);
void eb_pool_meet(eb_pool *pool), eb_pool_free(eb_pool *pool);

#endif
