/* Convolutions with the same weights and the same parameters of their layout share the packed weights. */
#include <string.h>

#include "core.h"

/* Return whether two steps pack the same weights in the same layout: then the later uses those of the earlier. */
static int same_layout(const eb_plan *plan, const eb_recipe *recipe, int64_t number, int64_t earlier) {
    static const int same[] = {EB_KIND,       EB_KEPT,          EB_KERNEL_H,      EB_KERNEL_W, EB_STRIDE_H,  EB_STRIDE_W,
                               EB_DILATION_H, EB_DILATION_W,    EB_GROUPS,        EB_PAD_TOP,  EB_PAD_BOTTOM, EB_PAD_LEFT,
                               EB_PAD_RIGHT,  EB_POOL_H,        EB_POOL_W,        EB_POOL_TOP, EB_POOL_LEFT, EB_POOL_BOTTOM,
                               EB_POOL_RIGHT, EB_POOL_STRIDE_H, EB_POOL_STRIDE_W, EB_SIZE0};
    const int64_t *a = recipe->steps + number * EB_FIELDS, *b = recipe->steps + earlier * EB_FIELDS;
    if (a[EB_WEIGHT] != b[EB_WEIGHT] || !plan->steps[earlier].weights) return 0;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (a[same[i]] != b[same[i]]) return 0;
    const int64_t places[] = {EB_IN, EB_OUT, EB_OUT_BITS, EB_OUT_BYTES};
    for (int i = 0; i < 4; i++) {
        if ((a[places[i]] == -1) != (b[places[i]] == -1)) return 0;
        if (a[places[i]] != -1 && memcmp(plan->values + a[places[i]], plan->values + b[places[i]], 6 * sizeof(int64_t))) return 0;
    }
    return plan->steps[number].chain.parts == plan->steps[earlier].chain.parts;
}

int eb_layout_shared(eb_plan *plan, const eb_recipe *recipe, int64_t number, char *error) {
    eb_step *step = plan->steps + number;
    for (int64_t i = 0; i < number; i++) {
        if (!same_layout(plan, recipe, number, i)) continue;
        const eb_step own = *step;
        *step = plan->steps[i];
        memcpy(step->field, own.field, sizeof own.field);
        step->field[EB_KIND] = plan->steps[i].field[EB_KIND];
        step->chain = own.chain;
        step->ring_bytes = own.ring_bytes;
        step->shared = 1;
        return 1;
    }
    return eb_layout_conv(plan, step, recipe, error);
}
