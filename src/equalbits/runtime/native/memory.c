/* Memory: aligned allocations, and the values of an image in one arena. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { LARGE = 1 << 21 };

void *eb_aligned(int64_t wanted) {
    if (wanted < 0 || (uint64_t)wanted > SIZE_MAX / 2) return NULL; /* exceeds size_t on a 32-bit machine */
    const size_t page = wanted >= LARGE ? LARGE : 64; /* huge pages for large allocations, if available */
    const size_t bytes = ((size_t)wanted + page - 1) / page * page + 64;
    char *whole = calloc(1, bytes + page + sizeof whole);
    if (!whole) return NULL;
    char *aligned = (char *)(((uintptr_t)whole + sizeof whole + page - 1) / page * page);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (page == LARGE) madvise(aligned, bytes / page * page, MADV_HUGEPAGE);
#endif
    memcpy(aligned - sizeof whole, &whole, sizeof whole);
    return aligned;
}

int eb_spend(eb_budget *budget, int64_t bytes) {
    if (bytes > budget->left) budget->over = 1;
    else budget->left -= bytes;
    return !budget->over;
}

void *eb_take(eb_budget *budget, int64_t bytes) { return eb_spend(budget, bytes) ? eb_aligned(bytes) : NULL; }

void eb_aligned_free(void *pointer) {
    if (!pointer) return;
    void *whole;
    memcpy(&whole, (char *)pointer - sizeof whole, sizeof whole);
    free(whole);
}

/* A residual that is read for the last time shares its memory with the sum, pixel by pixel. */
static void share_places(eb_plan *plan) {
    for (int64_t i = 0; i < plan->value_count; i++) plan->values[i].shares = i;
    for (int64_t i = 0; i < plan->step_count; i++) {
        const int64_t *field = plan->steps[i].field;
        int64_t from = field[EB_KIND] == EB_CHAIN && field[EB_RESIDUAL] == -1 ? field[EB_IN] : field[EB_RESIDUAL];
        if (field[EB_KIND] == EB_COPY || field[EB_KIND] == EB_FILL || from < 1 || field[EB_OUT] == -1) continue;
        eb_value *root = plan->values + plan->values[from].shares, *out = plan->values + field[EB_OUT];
        if (plan->values[from].dies != i || (field[EB_KIND] != EB_CHAIN && field[EB_IN] == from)) continue;
        out->shares = root - plan->values;
        root->dies = out->dies;
    }
}

/* Lowest offset that no value alive at the same time occupies. Placed values are sorted by offset: a conflict moves the
 * new value behind the other, and earlier ones need no further check. */
static void place_value(const eb_plan *plan, eb_value *value, const int64_t *placed, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const eb_value *other = plan->values + placed[i];
        const int64_t end = other->offset + other->bytes;
        if (other->offset >= value->offset + value->bytes) return;
        if (end > value->offset && value->born <= other->dies && other->born <= value->dies) value->offset = end;
    }
}

/* Assign each value an offset in the arena. Return 0 if out of memory. */
int eb_place_values(eb_plan *plan) {
    int64_t *placed = malloc((size_t)plan->value_count * sizeof *placed), count = 0;
    if (!placed) return 0;
    share_places(plan);
    for (int64_t i = 1; i < plan->value_count; i++) {
        eb_value *value = plan->values + i;
        if (value->shares == i) {
            place_value(plan, value, placed, count);
            int64_t at = count++;
            for (; at && plan->values[placed[at - 1]].offset > value->offset; at--) placed[at] = placed[at - 1];
            placed[at] = i;
        } else value->offset = plan->values[value->shares].offset;
        if (value->offset + value->bytes > plan->arena_bytes) plan->arena_bytes = value->offset + value->bytes;
    }
    free(placed);
    return 1;
}
