/* Where everything lies: aligned pieces, and the values of an image in one arena. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { LARGE = 1 << 21 };

void *eb_aligned(size_t bytes) {
    const size_t page = bytes >= LARGE ? LARGE : 64; /* large pieces on large pages, where the system has them */
    bytes = (bytes + page - 1) / page * page + 64;
    char *whole = calloc(1, bytes + page + sizeof whole);
    if (!whole) return NULL;
    char *aligned = (char *)(((uintptr_t)whole + sizeof whole + page - 1) / page * page);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (page == LARGE) madvise(aligned, bytes / page * page, MADV_HUGEPAGE);
#endif
    memcpy(aligned - sizeof whole, &whole, sizeof whole);
    return aligned;
}

void eb_aligned_free(void *pointer) {
    if (!pointer) return;
    void *whole;
    memcpy(&whole, (char *)pointer - sizeof whole, sizeof whole);
    free(whole);
}

/* A residual that is read for the last time lends its place to the sum: both hold the same pixel at the same time. */
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

/* Give each value a place in the arena that no value alive at the same time has: the lowest that fits. */
void eb_place_values(eb_plan *plan) {
    share_places(plan);
    for (int64_t i = 1; i < plan->value_count; i++) {
        eb_value *value = plan->values + i;
        for (int64_t j = 1; value->shares == i && j < i; j++) { /* on a clash move behind the other, and look again */
            const eb_value *other = plan->values + j;
            int alive = other->shares == j && value->born <= other->dies && other->born <= value->dies;
            if (alive && value->offset < other->offset + other->bytes && other->offset < value->offset + value->bytes) {
                value->offset = other->offset + other->bytes;
                j = 0;
            }
        }
        if (value->shares != i) value->offset = plan->values[value->shares].offset;
        if (value->offset + value->bytes > plan->arena_bytes) plan->arena_bytes = value->offset + value->bytes;
    }
}
