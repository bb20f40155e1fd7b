/* Running a plan: images are distributed to threads if there are enough, else the rows of each step. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"

static _Thread_local int polls; /* the calling thread polls; others read its result */

enum { POLL_MILLISECONDS = 50, FEWEST = 4, FEW_PIXELS = 32 };

static int64_t milliseconds(void) {
    struct timespec now;
#ifdef CLOCK_MONOTONIC_COARSE
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int eb_poll(eb_stop *stop) {
    if (!polls || !stop->poll) return 0;
    const int64_t now = milliseconds();
    if (now < stop->next) return 0;
    stop->next = now + POLL_MILLISECONDS;
    const int asked = stop->poll() != 0;
    if (asked) __atomic_store_n(&stop->asked, 1, __ATOMIC_RELAXED);
    return asked;
}

void eb_plan_set_poll(eb_plan *plan, int (*poll)(void)) { plan->stop.poll = poll; }

static void start_polling(eb_plan *plan) {
    plan->stop.asked = 0;
    plan->stop.next = milliseconds() + POLL_MILLISECONDS;
    polls = 1;
}

static int end_polling(const eb_plan *plan) {
    polls = 0;
    return plan->stop.asked;
}

typedef struct {
    eb_plan *plan;
    const float *images;
    const uint8_t *bytes;
    const float *byte_table;
    float *answers;
    int64_t batch;
    int parts;
    float *state;
    int64_t position;
} job;

static eb_context context_of(const job *work, int64_t image, int arena) {
    const eb_value *shape = work->plan->values;
    int64_t start = image * shape->channels * shape->rows * shape->columns;
    char *memory = work->plan->arenas[arena];
    eb_context context = {work->plan, work->images ? work->images + start : NULL,
                          work->bytes ? work->bytes + start : NULL, work->byte_table, memory,
                          memory + work->plan->arena_bytes, work->state, work->position,
                          memory + work->plan->arena_bytes + work->plan->scratch_bytes};
    return context;
}

static void give_answer(const job *work, const eb_context *context, int64_t image) {
    const eb_value *answer = work->plan->values + work->plan->answer;
    int64_t numbers = answer->channels * answer->rows * answer->columns;
    memcpy(work->answers + image * numbers, context->arena + answer->offset, (size_t)numbers * 4);
}

/* Every parts-th image from the part's own on, one at a time. */
static void run_images(void *argument, int part) {
    const job *work = argument;
    for (int64_t image = part; image < work->batch; image += work->parts) {
        eb_context context = context_of(work, image, part);
        for (int64_t i = 0; i < work->plan->step_count; i++) {
            const eb_step *step = work->plan->steps + i;
            if (eb_stopped(step)) return;
            eb_step_prepare(&context, step, 0, eb_prepare_units(step));
            eb_step_run(&context, step, 0, eb_step_units(step));
        }
        give_answer(work, &context, image);
    }
}

/* What a thread does of a step: rows of all blocks, so that it reads most of what it has written, and some blocks of the
 * rows at its ends; or, of small maps, blocks. */
static void run_share(const eb_context *context, const eb_step *step, int part, int parts) {
    const int64_t units = eb_step_units(step), pixels = step->out.rows * step->out.columns;
    const int64_t rows = pixels < FEW_PIXELS * parts ? units : eb_step_rows(step), blocks = units / rows;
    if (units < 2 * parts) parts = 1;
    if (part >= parts) return;
    const int64_t from = units * part / parts, to = units * (part + 1) / parts;
    for (int64_t block = 0, first = 0; block < blocks; block++, first += rows) {
        const int64_t start = (from - block + blocks - 1) / blocks, end = (to - block + blocks - 1) / blocks;
        if (start < end) eb_step_run(context, step, first + start, first + end);
    }
}

static void prepare_share(const eb_context *context, const eb_step *step, int part, int parts) {
    const int64_t units = eb_prepare_units(step);
    if (units < FEWEST * parts) parts = 1;
    if (part < parts) eb_step_prepare(context, step, units * part / parts, units * (part + 1) / parts);
}

/* One image after the other, each step distributed to the threads. After a stop they still meet. */
static void run_shared(void *argument, int part) {
    const job *work = argument;
    eb_pool *pool = work->plan->pool;
    for (int64_t image = 0; image < work->batch; image++) {
        eb_context context = context_of(work, image, 0);
        context.own += part * work->plan->thread_bytes;
        for (int64_t i = 0; i < work->plan->step_count; i++) {
            const eb_step *step = work->plan->steps + i;
            if (eb_prepare_units(step)) {
                if (!eb_stopped(step)) prepare_share(&context, step, part, work->parts);
                eb_pool_meet(pool);
            }
            if (!eb_stopped(step)) run_share(&context, step, part, work->parts);
            eb_pool_meet(pool);
        }
        if (part == 0) give_answer(work, &context, image);
        if (image + 1 < work->batch) eb_pool_meet(pool);
    }
}

/* Memory for `count` concurrent images, each for as many threads. */
static int make_arenas(eb_plan *plan, int count, int threads) {
    if (threads > plan->threads_per_arena) {
        while (plan->arena_count) eb_aligned_free(plan->arenas[--plan->arena_count]);
        plan->threads_per_arena = threads;
    }
    if (plan->arena_count >= count) return 1;
    void **arenas = realloc(plan->arenas, (size_t)count * sizeof *arenas);
    if (!arenas) return 0;
    plan->arenas = arenas;
    while (plan->arena_count < count) {
        int64_t bytes = plan->arena_bytes + plan->scratch_bytes + plan->threads_per_arena * plan->thread_bytes;
        void *arena = eb_aligned(bytes + 256);
        if (!arena) return 0;
        plan->arenas[plan->arena_count++] = arena;
    }
    return 1;
}

/* Whether the state is there where one is needed, and the rows of this run have their positions. */
static int may_run(const job *work) {
    const eb_plan *plan = work->plan;
    if (!plan->positions) return 1;
    return work->state && (uintptr_t)work->state % 64 == 0 && work->batch == 1 && work->position >= 0 && work->position < plan->positions;
}

static int run(job *work, int threads) {
    eb_plan *plan = work->plan;
    if (!may_run(work)) return 2;
    if (threads > 1) {
        if (!plan->pool || eb_pool_threads(plan->pool) != threads) {
            eb_pool_free(plan->pool);
            plan->pool = eb_pool_new(threads);
        }
        if (!plan->pool) threads = 1;
    }
    work->parts = threads;
    int by_image = work->batch >= threads;
    if (!make_arenas(plan, by_image ? threads : 1, by_image ? 1 : threads)) return -1;
    start_polling(plan);
    if (threads == 1) run_images(work, 0);
    else if (by_image) eb_pool_run(plan->pool, run_images, work);
    else eb_pool_run(plan->pool, run_shared, work);
    return end_polling(plan);
}

int eb_plan_run(eb_plan *plan, const float *images, float *answers, int64_t batch, int threads) {
    job work = {.plan = plan, .images = images, .answers = answers, .batch = batch, .parts = 1};
    return run(&work, threads);
}

int eb_plan_run_at(eb_plan *plan, const float *image, float *answers, float *state, int64_t position, int threads) {
    job work = {.plan = plan, .images = image, .answers = answers, .batch = 1, .state = state, .position = position};
    return run(&work, threads);
}

int eb_plan_run_bytes(eb_plan *plan, const uint8_t *images, const float *byte_table, float *answers, int64_t batch,
                      int threads) {
    job work = {.plan = plan, .bytes = images, .byte_table = byte_table, .answers = answers, .batch = batch, .parts = 1};
    return run(&work, threads);
}

/* Seconds since `start`, to the nanosecond: as one double all seconds since 1970 would go in steps of 238 ns. */
static double seconds_since(const struct timespec *start) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

int eb_plan_time(eb_plan *plan, const float *image, float *state, int64_t position, double *taken) {
    job work = {.plan = plan, .images = image, .batch = 1, .parts = 1, .state = state, .position = position};
    if (!may_run(&work)) return 2;
    if (!make_arenas(plan, 1, 1)) return -1;
    eb_context context = context_of(&work, 0, 0);
    start_polling(plan);
    for (int64_t i = 0; i < plan->step_count && !eb_stopped(plan->steps + i); i++) {
        struct timespec start;
        timespec_get(&start, TIME_UTC);
        eb_step_prepare(&context, plan->steps + i, 0, eb_prepare_units(plan->steps + i));
        eb_step_run(&context, plan->steps + i, 0, eb_step_units(plan->steps + i));
        taken[i] = seconds_since(&start);
    }
    return end_polling(plan);
}
