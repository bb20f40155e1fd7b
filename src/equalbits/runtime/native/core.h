/* What the parts of the native engine share: a checked step, and the table of kernels each instruction set fills. */
#ifndef EQUALBITS_CORE_H
#define EQUALBITS_CORE_H

#include "equalbits.h"

enum {
    EB_BLOCK = 32, /* filters that are computed together: the bits of one word */
    EB_TILE = 8    /* the most pixels that are computed together */
};

typedef struct {
    int64_t kind, channels, rows, columns;
    int64_t words;         /* of bits: words for all channels */
    int64_t bytes, offset; /* its place in the arena */
    int64_t born, dies;    /* the steps that write it first and read it last */
} eb_value;

/* The vectors of a chain, each a multiple of EB_BLOCK long, or NULL. */
typedef struct {
    const float *scale, *bias, *gain1, *shift1, *slope1, *gain2, *shift2, *gain3, *shift3, *slope2, *gain4, *shift4,
        *gain5, *shift5;
    float low, high;
    int has_clamp, sign_real;
} eb_chain;

/* Where a tile's numbers go: pixel (row, column), then `pixels` to the right; channel `channel`, then `lanes` on. */
typedef struct {
    int64_t row, column, channel;
    int pixels, lanes;
    const float *residual; /* whole values of one image; NULL where there is none */
    float *out;
    uint32_t *bits;
    int64_t channels, columns, words; /* of the values above */
} eb_place;

typedef struct eb_kernels eb_kernels;

typedef struct {
    int64_t field[EB_FIELDS];
    eb_value in, out; /* shapes of what it reads and makes */
    eb_chain chain;
    /* convolutions */
    int64_t group_in, group_out, blocks; /* channels, filters and blocks of filters of a group */
    int64_t words;                       /* words of a group's channels */
    int64_t padded_rows, padded_columns;
    int64_t block_bytes, scratch_bytes, prepared_bytes; /* of a block's weights; of the input, all and per group */
    void *weights;     /* packed: group, block, then as the kernel likes */
    int32_t *offsets;  /* where each packed entry of the weights looks, from the window's first entry */
    int64_t pairs, singles;
    int64_t run_length, runs;               /* real weights: entries in a row, and how many such rows */
    int32_t *constants;                     /* binary weights: what the count is taken from, by class of border */
    int32_t *row_class, *column_class;
    int64_t column_classes;
} eb_step;

/* What an instruction set provides. Counts are of the connections where weight and input differ. */
struct eb_kernels {
    const char *name;
    int (*supported)(void);
    /* Binary: the offsets and the bytes of a block; packing one block; the input made ready in place; a tile. */
    void (*bits_layout)(eb_step *step);
    void (*bits_pack)(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed);
    void (*bits_prepare)(const eb_step *step, const uint32_t *planes, void *prepared);
    void (*bits_tile)(const eb_step *step, const void *prepared, const void *packed, const eb_place *place,
                      int32_t *counts);
    int bits_pixels; /* the best width of a tile */
    /* Real: sums of a tile, EB_BLOCK a pixel. */
    void (*real_tile)(const eb_step *step, const float *input, const float *packed, const eb_place *place, float *sums);
    void (*depthwise_tile)(const eb_step *step, const float *input, const float *packed, const eb_place *place,
                           float *sums);
    int real_pixels;
    /* The chain; counts are first taken from the constants of each pixel. */
    void (*chain_counts)(const eb_chain *chain, const eb_place *place, const int32_t *counts,
                         const int32_t *const *constants);
    void (*chain_reals)(const eb_chain *chain, const eb_place *place, const float *sums);
};

extern const eb_kernels eb_kernels_portable;
#ifdef EB_HAVE_AVX2
extern const eb_kernels eb_kernels_avx2;
#endif
#ifdef EB_HAVE_AVX512
extern const eb_kernels eb_kernels_avx512;
#endif
#ifdef EB_HAVE_NEON
extern const eb_kernels eb_kernels_neon;
#endif

/* Whether every channel has one filter of its own: then channels, not filters, are computed side by side. */
static inline int eb_is_depthwise(const eb_step *step) {
    return step->field[EB_KIND] == EB_CONV_REAL && step->group_in == 1 && step->group_out == 1;
}

const eb_kernels *eb_kernels_named(const char *name); /* NULL: the best one */

struct eb_plan {
    const eb_kernels *kernels;
    eb_value *values;
    eb_step *steps;
    int64_t value_count, step_count, answer;
    int64_t arena_bytes, scratch_bytes;
    float **vectors; /* the chains' vectors, to be freed */
    int64_t vector_count;
    void **arenas; /* one per thread that runs whole images */
    int arena_count;
    struct eb_pool *pool;
};

/* plan.c */
int eb_layout_conv(eb_plan *plan, eb_step *step, const eb_recipe *recipe, char *error);
void *eb_aligned(size_t bytes); /* zeroed, a multiple of 64 */
void eb_aligned_free(void *pointer);

/* steps.c: the part [from, to) of a step's units of work, on one image. */
typedef struct {
    const eb_plan *plan;
    const float *image;
    const uint8_t *bytes;
    const float *byte_table;
    char *arena;
    char *scratch;
} eb_context;

int64_t eb_step_units(const eb_step *step);
void eb_step_prepare(const eb_context *context, const eb_step *step);
void eb_step_run(const eb_context *context, const eb_step *step, int64_t from, int64_t to);

/* pool.cpp: run work(argument, part) for part 0 .. parts - 1, on as many threads. NULL where threads cannot start. */
typedef struct eb_pool eb_pool;
eb_pool *eb_pool_new(int threads);
int eb_pool_threads(const eb_pool *pool);
void eb_pool_run(eb_pool *pool, void (*work)(void *argument, int part), void *argument);
void eb_pool_free(eb_pool *pool);

#endif
