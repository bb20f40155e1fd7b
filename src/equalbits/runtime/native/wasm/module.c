/* The engine's face to a web page: one plan, made from one block of bytes that runtime/export/web wrote.
 *
 * The block is little-endian: seven numbers of 64 bits (values, steps, tensors, answer, numbers of an image, numbers of
 * an answer, bytes of the table of bytes), the table of values, the table of steps, the bytes of each tensor, all as
 * numbers of 64 bits; then the tensors and the table of bytes, each at a multiple of 16. */
#include <stdlib.h>

#include "../core.h"

#define EXPORT(name) __attribute__((export_name(#name)))

enum { VALUES, STEPS, TENSORS, ANSWER, IMAGE_NUMBERS, ANSWER_NUMBERS, TABLE_BYTES, HEAD, ALIGNMENT = 16 };

static eb_plan *plan;
static const float *byte_table;
static uint8_t *image;
static float *answer;
static char error[EB_ERROR_BYTES];

/* There is one thread. */
eb_pool *eb_pool_new(int threads) { return (void)threads, NULL; }
int eb_pool_threads(const eb_pool *pool) { return (void)pool, 0; }
void eb_pool_run(eb_pool *pool, void (*work)(void *, int), void *argument) { (void)pool, work(argument, 0); }
void eb_pool_meet(eb_pool *pool) { (void)pool; }
void eb_pool_free(eb_pool *pool) { (void)pool; }
int eb_process(void) { return 1; }

static int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Allocate a block of bytes; 0 on failure. */
EXPORT(reserve) void *reserve(int32_t bytes) { return malloc((size_t)bytes); }

/* Make the plan. Return 0, or a line of reason. */
EXPORT(load) const char *load(const char *block) {
    const int64_t *head = (const int64_t *)block, *values = head + HEAD, *steps = values + head[VALUES] * EB_VALUE_FIELDS;
    const int64_t *sizes = steps + head[STEPS] * EB_FIELDS;
    const char *at = block + aligned((const char *)(sizes + head[TENSORS]) - block);
    eb_tensor *tensors = calloc((size_t)head[TENSORS] + 1, sizeof *tensors);
    image = malloc((size_t)head[IMAGE_NUMBERS] * 4);
    answer = malloc((size_t)head[ANSWER_NUMBERS] * 4);
    if (!tensors || !image || !answer) return "there is no memory";
    for (int64_t i = 0; i < head[TENSORS]; at += aligned(sizes[i++])) tensors[i] = (eb_tensor){at, sizes[i]};
    byte_table = head[TABLE_BYTES] ? (const float *)at : NULL;
    const eb_recipe recipe = {values, steps, tensors, head[VALUES], head[STEPS], head[TENSORS], head[ANSWER], INT64_MAX};
    int over = 0;
    plan = eb_plan_new(&recipe, NULL, error, &over);
    return plan ? NULL : error;
}

/* Buffers where the page writes an image, as bytes or floats, and reads the logits. */
EXPORT(image) void *image_place(void) { return image; }
EXPORT(answer) float *answer_place(void) { return answer; }

EXPORT(run_bytes) int run_bytes(void) { return eb_plan_run_bytes(plan, image, byte_table, answer, 1, 1); }
EXPORT(run_floats) int run_floats(void) { return eb_plan_run(plan, (const float *)image, answer, 1, 1); }
