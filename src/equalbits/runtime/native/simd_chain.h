/* The chain, written once for every instruction set. The file that includes this defines a vector of LANES floats:
 *   vec, v_load, v_store, v_add, v_mul, v_min, v_max, v_prelu (v where it is at least 0, else v · slope),
 *   v_sign (+1 where v is at least 0, else -1), v_bits (a bit for each lane that is at least 0),
 *   v_from_counts (constant - 2 count, as float).
 * No step is fused with the next, so that every engine rounds alike. */
#include "core.h"

enum { VECS = EB_BLOCK / LANES };

#define EACH for (int i = 0; i < VECS; i++)
#define TIMES(vector) EACH v[i] = v_mul(v[i], v_load((vector) + channel + i * LANES))
#define PLUS(vector) EACH v[i] = v_add(v[i], v_load((vector) + channel + i * LANES))
#define PRELU(vector) EACH v[i] = v_prelu(v[i], v_load((vector) + channel + i * LANES))

static void store_block(float *to, const vec *v, int lanes) {
    EACH {
        int left = lanes - i * LANES;
        if (left >= LANES) v_store(to + i * LANES, v[i]);
        else if (left > 0) {
            float rest[LANES];
            v_store(rest, v[i]);
            for (int j = 0; j < left; j++) to[i * LANES + j] = rest[j];
        }
    }
}

static inline __attribute__((always_inline)) void run_chain(const eb_chain *chain, const eb_place *place,
                                                            const float *sums, const int32_t *counts,
                                                            const int32_t *const *constants) {
    const int64_t channel = place->channel;
    const uint32_t used = place->lanes == 32 ? UINT32_MAX : (UINT32_C(1) << place->lanes) - 1;
    for (int pixel = 0; pixel < place->pixels; pixel++) {
        const int64_t at = (place->row * place->columns + place->column + pixel) * place->channels + channel;
        vec v[VECS];
        if (counts) EACH v[i] = v_from_counts(constants[pixel] + i * LANES, counts + pixel * EB_BLOCK + i * LANES);
        else EACH v[i] = v_load(sums + pixel * EB_BLOCK + i * LANES);
        if (chain->scale) TIMES(chain->scale);
        if (chain->bias) PLUS(chain->bias);
        if (chain->gain1) { TIMES(chain->gain1); PLUS(chain->shift1); }
        if (chain->slope1) PRELU(chain->slope1);
        if (chain->gain2) { TIMES(chain->gain2); PLUS(chain->shift2); }
        if (place->residual) EACH v[i] = v_add(v[i], v_load(place->residual + at + i * LANES));
        if (chain->gain3) { TIMES(chain->gain3); PLUS(chain->shift3); }
        if (chain->slope2) PRELU(chain->slope2);
        if (chain->gain4) { TIMES(chain->gain4); PLUS(chain->shift4); }
        if (chain->has_clamp) EACH v[i] = v_min(v_set(chain->high), v_max(v_set(chain->low), v[i]));
        if (place->out) {
            vec kept[VECS];
            EACH kept[i] = chain->sign_real ? v_sign(v[i]) : v[i];
            store_block(place->out + at, kept, place->lanes);
        }
        if (chain->gain5) { TIMES(chain->gain5); PLUS(chain->shift5); }
        if (place->bits) {
            uint32_t word = 0;
            EACH word |= v_bits(v[i]) << i * LANES;
            place->bits[(place->row * place->words + channel / 32) * place->columns + place->column + pixel] = word & used;
        }
    }
}

static void chain_counts(const eb_chain *chain, const eb_place *place, const int32_t *counts,
                         const int32_t *const *constants) {
    run_chain(chain, place, NULL, counts, constants);
}

static void chain_reals(const eb_chain *chain, const eb_place *place, const float *sums) {
    run_chain(chain, place, sums, NULL, NULL);
}

/* Depthwise: a lane is a channel, with weights of its own for each tap. */
static void depthwise_tile(const eb_step *step, const float *input, const float *packed, const eb_place *place,
                           float *sums) {
    const int64_t channels = step->in.channels, apart = step->field[EB_STRIDE_W] * channels;
    for (int pixel = 0; pixel < place->pixels; pixel++) {
        vec v[VECS];
        EACH v[i] = v_set(0);
        for (int64_t run = 0; run < step->runs; run++) {
            const float *from = input + pixel * apart + step->offsets[run] + place->channel;
            EACH v[i] = v_add(v[i], v_mul(v_load(from + i * LANES), v_load(packed + run * channels + place->channel + i * LANES)));
        }
        EACH v_store(sums + pixel * EB_BLOCK + i * LANES, v[i]);
    }
}
