/* What is written once for every instruction set. The file that includes this defines a vector of LANES floats:
 *   vec, v_load, v_store, v_set, v_add, v_mul, v_fma (a · b + c), v_div, v_min, v_max,
 *   v_largest (as v_max, and NaN where either is),
 *   v_prelu (v where it is at least 0, else v · slope),
 *   v_sign (+1 where v is at least 0, else -1), v_bits (a bit for each lane that is at least 0; or HAS_BLOCK_BITS and
 *   block_bits, those of a block), v_from_counts (constant - 2 count, as float), v_flip (v with its sign turned in the
 *   lanes whose bits are 1, of the LANES bits from bit `first` on), v_keep (0 in the lanes whose bits are 0), v_even and
 *   v_odd (every second lane of two vectors). HAS_BLOCK_BYTES: it defines store_bytes itself.
 * The chain fuses no product with a sum, so that every engine rounds alike. */
#include "core.h"

enum { VECS = EB_BLOCK / LANES };

#define INLINE static inline __attribute__((always_inline))
#define EACH EB_UNROLL(8) for (int i = 0; i < VECS; i++)

/* Whole vectors, then the remainder in a loop: a call of memcpy would spill registers. */
INLINE void store_block(float *to, const vec *v, int lanes) {
    float rest[LANES];
    EACH {
        if (lanes >= (i + 1) * LANES) v_store(to + i * LANES, v[i]);
        else if (lanes > i * LANES) {
            v_store(rest, v[i]);
            for (int lane = 0; lane < lanes - i * LANES; lane++) {
                to[i * LANES + lane] = rest[lane];
                __asm__ volatile("");
            }
        }
    }
}

/* Store: numbers after the lanes belong to another pixel, which another thread may be writing. */
INLINE void load_block(const float *from, vec *v, int lanes) {
    EACH {
        if (lanes >= (i + 1) * LANES) v[i] = v_load(from + i * LANES);
        else {
            float rest[LANES] = {0};
            for (int lane = 0; lane < lanes - i * LANES; lane++) {
                rest[lane] = from[i * LANES + lane];
                __asm__ volatile("");
            }
            v[i] = v_load(rest);
        }
    }
}

#ifndef HAS_BLOCK_BITS
INLINE uint32_t block_bits(const vec *v) {
    uint32_t word = 0;
    EACH word |= v_bits(v[i]) << i * LANES;
    return word;
}
#endif

/* Adding 1.5 · 2²³ rounds to the nearest whole number, ties to even, into the lowest bits. What is no number becomes the
 * least. */
#define ROUNDED(v) v_add(v_min(v_max(v_mul(v, v_set(chain->unit)), v_set(chain->least)), v_set(chain->most)), v_set(12582912.0f))

#ifndef HAS_BLOCK_BYTES
INLINE void store_bytes(uint8_t *to, const vec *v, int32_t least, int lanes) {
    uint32_t whole[EB_BLOCK];
    EACH v_store((float *)(whole + i * LANES), v[i]);
    for (int lane = 0; lane < lanes; lane++) to[lane] = (uint8_t)(whole[lane] - (uint32_t)least);
}
#endif

/* The same for numbers of the image, into one byte of each word; the other bytes stay. Compilers make vectors of it. */
static void round_image(const eb_chain *chain, const float *from, int64_t count, int shift, uint32_t *words) {
    const float unit = chain->unit, least = chain->least, most = chain->most;
    const uint32_t lowest = (uint32_t)(int32_t)least;
    for (int64_t i = 0; i < count; i++) {
        const float scaled = from[i] * unit, above = scaled >= least ? scaled : least;
        const float rounded = (above <= most ? above : most) + 12582912.0f;
        uint32_t whole;
        __builtin_memcpy(&whole, &rounded, 4);
        words[i] |= ((whole - lowest) & 255) << shift;
    }
}

/* A vector of the chain, read once for all pixels. */
#define VECTOR(name, part)                                                                                            \
    vec name[VECS];                                                                                                   \
    EACH name[i] = parts & (part) ? v_load(chain->name + row->channel + i * LANES) : v_set(0)
#define AFFINE(number, part)                                                                                          \
    if (parts & (part)) EACH v[i] = v_add(v_mul(v[i], gain##number[i]), shift##number[i])

INLINE void run_chain(const int parts, const eb_chain *chain, const eb_row *given, const float *sums, const int32_t *counts) {
    const eb_row copy = *given, *row = &copy; /* so that it stays in a register */
    VECTOR(scale, EB_HAS_SCALE); VECTOR(bias, EB_HAS_BIAS);
    VECTOR(gain1, EB_HAS_AFFINE1); VECTOR(shift1, EB_HAS_AFFINE1); VECTOR(slope1, EB_HAS_SLOPE1);
    VECTOR(gain2, EB_HAS_AFFINE2); VECTOR(shift2, EB_HAS_AFFINE2);
    VECTOR(gain3, EB_HAS_AFFINE3); VECTOR(shift3, EB_HAS_AFFINE3); VECTOR(slope2, EB_HAS_SLOPE2);
    VECTOR(gain4, EB_HAS_AFFINE4); VECTOR(shift4, EB_HAS_AFFINE4);
    VECTOR(gain5, EB_HAS_AFFINE5); VECTOR(shift5, EB_HAS_AFFINE5);
    const uint32_t used = row->lanes == 32 ? UINT32_MAX : (UINT32_C(1) << row->lanes) - 1;
    const int lanes = row->lanes;
    for (int64_t pixel = 0; pixel < row->pixels; pixel++) {
        const int64_t at = pixel * row->apart;
        vec v[VECS];
        if (counts) {
            const int32_t *constants = row->constants + row->class_of[pixel] * row->class_apart;
            EACH v[i] = v_from_counts(constants + i * LANES, counts + pixel * EB_BLOCK + i * LANES);
        } else {
            EACH v[i] = v_load(sums + pixel * EB_BLOCK + i * LANES);
        }
        if (parts & EB_HAS_SCALE) EACH v[i] = v_mul(v[i], scale[i]);
        if (parts & EB_HAS_BIAS) EACH v[i] = v_add(v[i], bias[i]);
        AFFINE(1, EB_HAS_AFFINE1);
        if (parts & EB_HAS_SLOPE1) EACH v[i] = v_prelu(v[i], slope1[i]);
        if (parts & EB_HAS_RELU1) EACH v[i] = v_max(v_set(0), v[i]); /* a slope of 0 would give NaN for -infinity */
        AFFINE(2, EB_HAS_AFFINE2);
        if (parts & EB_HAS_RESIDUAL) {
            vec residual[VECS];
            load_block(row->residual + at, residual, lanes);
            EACH v[i] = v_add(v[i], residual[i]);
        }
        AFFINE(3, EB_HAS_AFFINE3);
        if (parts & EB_HAS_SLOPE2) EACH v[i] = v_prelu(v[i], slope2[i]);
        if (parts & EB_HAS_RELU2) EACH v[i] = v_max(v_set(0), v[i]);
        AFFINE(4, EB_HAS_AFFINE4);
        if (parts & EB_HAS_CLAMP) EACH v[i] = v_min(v_set(chain->high), v_max(v_set(chain->low), v[i]));
        if (parts & EB_HAS_SIGN_REAL) {
            vec sign[VECS];
            EACH sign[i] = v_sign(v[i]);
            store_block(row->out + at, sign, lanes);
        } else if (parts & EB_HAS_ROUND_REAL) {
            vec whole[VECS];
            EACH whole[i] = v_add(ROUNDED(v[i]), v_set(-12582912.0f));
            store_block(row->out + at, whole, lanes);
        } else if (parts & EB_HAS_OUT) {
            store_block(row->out + at, v, lanes);
        }
        if (parts & EB_HAS_BYTES) {
            vec whole[VECS];
            EACH whole[i] = ROUNDED(v[i]);
            store_bytes(row->bytes + at, whole, (int32_t)chain->least, lanes);
        }
        AFFINE(5, EB_HAS_AFFINE5);
        if (parts & EB_HAS_BITS) row->bits[pixel] = block_bits(v) & used;
    }
}

/* Chains of common networks are compiled separately (unless ONE_CHAIN); any other branches at every part. */
#define COMMON(parts) case parts: run_chain(parts, chain, row, sums, counts); break;
INLINE void choose_chain(const eb_chain *chain, const eb_row *row, const float *sums, const int32_t *counts) {
    enum { ACTIVE = EB_HAS_SLOPE1 | EB_HAS_AFFINE2, ADDED = EB_HAS_RESIDUAL | EB_HAS_OUT,
           ROUNDED_RELU = EB_HAS_AFFINE1 | EB_HAS_CLAMP | EB_HAS_BYTES,
           RPRELU = EB_HAS_AFFINE3 | EB_HAS_SLOPE2 | EB_HAS_AFFINE4 | EB_HAS_OUT, RSIGN = EB_HAS_AFFINE5 | EB_HAS_BITS };
    switch (chain->parts) {
#ifndef ONE_CHAIN
        COMMON(ACTIVE | ADDED)
        COMMON(ACTIVE | ADDED | EB_HAS_BITS)
        COMMON(ACTIVE | EB_HAS_OUT)
        COMMON(ACTIVE | EB_HAS_OUT | EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | ACTIVE | ADDED | EB_HAS_BITS)
        COMMON(EB_HAS_AFFINE1 | ADDED | EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | EB_HAS_AFFINE1 | ADDED | EB_HAS_BITS)
        COMMON(EB_HAS_OUT | EB_HAS_BITS)
        COMMON(EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | EB_HAS_AFFINE1 | EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | EB_HAS_AFFINE1 | EB_HAS_CLAMP | EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | EB_HAS_AFFINE1 | EB_HAS_CLAMP | ADDED | EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | EB_HAS_AFFINE1 | EB_HAS_RESIDUAL | RPRELU | RSIGN)
        COMMON(EB_HAS_SCALE | EB_HAS_AFFINE1 | EB_HAS_CLAMP | EB_HAS_OUT)
        COMMON(EB_HAS_OUT | EB_HAS_SIGN_REAL)
        COMMON(EB_HAS_OUT)
        COMMON(ROUNDED_RELU)
        COMMON(ROUNDED_RELU | EB_HAS_SCALE)
        COMMON(ROUNDED_RELU | EB_HAS_RESIDUAL)
        COMMON(ROUNDED_RELU | ADDED)
        COMMON(ROUNDED_RELU | ADDED | EB_HAS_SCALE)
        COMMON(ROUNDED_RELU | EB_HAS_OUT | EB_HAS_SCALE)
        COMMON(EB_HAS_SCALE | ACTIVE | EB_HAS_OUT | EB_HAS_BITS)
        COMMON(EB_HAS_SCALE | ADDED | EB_HAS_BITS)
#endif
    default: run_chain(chain->parts, chain, row, sums, counts);
    }
}

static void chain_counts(const eb_chain *chain, const eb_row *row, const int32_t *counts) {
    choose_chain(chain, row, NULL, counts);
}

static void chain_reals(const eb_chain *chain, const eb_row *row, const float *sums) {
    choose_chain(chain, row, sums, NULL);
}

/* Add one real times the weights of a block. */
INLINE void add_signed(const int words, const float *input, const uint32_t *entry, vec *v) {
    const vec x = v_set(*input);
    if (words == 1) EACH v[i] = v_add(v[i], v_flip(x, entry[0], i * LANES));
    else /* 0 times infinity is NaN for a pruned weight too; products with 0 or ±1 are exact: one rounding */
        EACH v[i] = v_fma(x, v_keep(v_flip(v_set(1), entry[0], i * LANES), entry[1], i * LANES), v[i]);
}

/* Real inputs with binary weights. Several parallel sums, so that additions do not wait for each other; in chunks, so
 * that a long sum rounds little. */
INLINE void add_row(const int words, const int32_t *offsets, int64_t count, const float *input, const uint32_t *packed,
                    float *sums) {
    enum { SIDES = VECS >= 8 ? 1 : 8 / VECS, RUN = 512 };
    vec total[VECS];
    EACH total[i] = v_set(0);
    for (int64_t k = 0; k < count;) {
        const int64_t end = k + RUN < count ? k + RUN : count;
        vec v[SIDES][VECS];
        for (int side = 0; side < SIDES; side++) EACH v[side][i] = v_set(0);
        for (; k + SIDES <= end; k += SIDES)
            EB_UNROLL(4) for (int side = 0; side < SIDES; side++)
                add_signed(words, input + offsets[k + side], packed + words * (k + side), v[side]);
        for (; k < end; k++) add_signed(words, input + offsets[k], packed + words * k, v[0]);
        for (int side = 1; side < SIDES; side++) EACH v[0][i] = v_add(v[0][i], v[side][i]);
        EACH total[i] = v_add(total[i], v[0][i]);
    }
    EACH v_store(sums + i * LANES, total[i]);
}

static void signed_row(const int32_t *offsets, int64_t count, const float *input, const uint32_t *packed, int words,
                       float *sums) {
    if (words == 1) add_row(1, offsets, count, input, packed, sums);
    else add_row(2, offsets, count, input, packed, sums);
}

/* Depthwise: a lane is a channel, with its own weights for each tap. */
static void depthwise_row(const eb_step *step, const float *input, const float *packed, int64_t pixels, float *sums) {
    for (int64_t pixel = 0; pixel < pixels; pixel++, input += step->apart, sums += EB_BLOCK) {
        vec v[VECS];
        EACH v[i] = v_set(0);
        for (int64_t tap = 0; tap < step->sums; tap++) {
            const float *from = input + step->offsets[tap], *weight = packed + tap * step->in.channels;
            EACH v[i] = v_add(v[i], v_mul(v_load(from + i * LANES), v_load(weight + i * LANES)));
        }
        EACH v_store(sums + i * LANES, v[i]);
    }
}

/* Maximum (divisor 0), or sum divided by it. Sums go row by row: the order is part of the definition. */
static void pool(const float *from, int64_t row_apart, int64_t rows, int64_t apart, int64_t columns, float divisor,
                 float *to) {
    vec v[VECS];
    EACH v[i] = divisor == 0 ? v_load(from + i * LANES) : v_set(0);
    for (int64_t row = 0; row < rows; row++, from += row_apart)
        for (int64_t column = 0; column < columns; column++) {
            const float *at = from + column * apart;
            if (divisor == 0) EACH v[i] = v_largest(v_load(at + i * LANES), v[i]);
            else EACH v[i] = v_add(v[i], v_load(at + i * LANES));
        }
    if (divisor != 0) EACH v[i] = v_div(v[i], v_set(divisor));
    EACH v_store(to + i * LANES, v[i]);
}

/* Maximum of each window along a line, EB_BLOCK numbers per pixel; windows are clipped to the line. */
static void pool_line(const float *line, int64_t pixels, const eb_window *window, int64_t count, float *to) {
    for (int64_t place = 0; place < count; place++, to += EB_BLOCK) {
        const int64_t start = place * window->stride - window->before, end = start + window->kernel;
        const int64_t left = start < 0 ? 0 : start, right = end > pixels ? pixels : end;
        const float *at = line + left * EB_BLOCK;
        vec v[VECS];
        EACH v[i] = v_load(at + i * LANES);
        for (int64_t x = left + 1; x < right; x++) {
            at += EB_BLOCK;
            EACH v[i] = v_largest(v_load(at + i * LANES), v[i]);
        }
        EACH v_store(to + i * LANES, v[i]);
    }
}

/* Elementwise maximum of several rows, a multiple of EB_BLOCK numbers. */
static void pool_rows(const float *const *rows, int64_t count, int64_t numbers, float *to) {
    for (int64_t at = 0; at < numbers; at += EB_BLOCK) {
        vec v[VECS];
        EACH v[i] = v_load(rows[0] + at + i * LANES);
        for (int64_t row = 1; row < count; row++) EACH v[i] = v_largest(v_load(rows[row] + at + i * LANES), v[i]);
        EACH v_store(to + at + i * LANES, v[i]);
    }
}

/* Every second number to `even`, the others to `odd`: `count` each, a multiple of LANES. */
static void split(const float *from, int64_t count, float *even, float *odd) {
    for (int64_t i = 0; i < count; i += LANES) {
        const vec a = v_load(from + 2 * i), b = v_load(from + 2 * i + LANES);
        v_store(even + i, v_even(a, b));
        v_store(odd + i, v_odd(a, b));
    }
}

#include "winograd_vectors.h"
#include "functions.h"

/* The table's entries that every instruction set has, each a function of the same name in its file. */
#define EVERY_KERNEL                                                                                                   \
    .supported = supported, .bits_layout = bits_layout, .bits_pack = bits_pack, .bits_prepare = bits_prepare,          \
    .bits_row = bits_row, .real_row = real_row, .signed_row = signed_row, .bytes_prepare = bytes_prepare,              \
    .bytes_row = bytes_row, .round_row = round_row, .bits_to_bytes = bits_to_bytes, .bytes_tile = bytes_tile, .depthwise_row = depthwise_row, .split = split, .winograd_in = winograd_in,                \
    .winograd_down = winograd_down, .winograd_up = winograd_up, .winograd_out = winograd_out, .pool = pool,            \
    .pool_line = pool_line, .pool_rows = pool_rows, .function = function, .softmax_row = softmax_row,                  \
    .norm_row = norm_row, .mul_row = mul_row, .round_image = round_image,                                              \
    .chain_counts = chain_counts, .chain_reals = chain_reals
