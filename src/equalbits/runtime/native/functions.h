/* Functions of single numbers, and rows that are normalized: written once, compiled for each instruction set. A function is
 * a chain of single IEEE operations, so every instruction set and numpy (runtime/ops/functions.py) give the same bits. */
#include <math.h>

INLINE float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
INLINE uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* e^x = 2^n · e^r with |r| ≤ ln 2 / 2. Adding 1.5 · 2^23 rounds to an integer in the lowest bits. Two powers of two,
 * since 2^n alone may be out of range. */
INLINE float exp_of(float x) {
    x = x > 89.0f ? 89.0f : x; /* NaN stays */
    x = x < -104.0f ? -104.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float tail =
        (((0.001394112128764391f * r + 0.008363179862499237f) * r + 0.04166637361049652f) * r + 0.16666576266288757f) * r +
        0.5f;
    const float power = (tail * (r * r) + r) + 1.0f;
    const int32_t whole = (int32_t)(to_bits(shifted) - UINT32_C(0x4b400000)), half = whole >> 1;
    return (power * from_bits(((uint32_t)half + 127) << 23)) * from_bits(((uint32_t)whole - (uint32_t)half + 127) << 23);
}

INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

INLINE float tanh_of(float x) {
    const float s = x * x, size = fabsf(x);
    const float tail = (((-0.006062236148864031f * s + 0.02097501792013645f) * s + -0.05384669825434685f) * s +
                        0.13332746922969818f) * s + -0.333333283662796f;
    const float near = x + x * (s * tail), far = 1.0f - 2.0f / (exp_of(size + size) + 1.0f);
    const float turned = x < 0.0f ? -far : far;
    return size < 0.625f ? near : turned;
}

/* x times the normal distribution function: e^(-z²) · t · p(t) is erfc(z) for t = 1 / (1 + 0.45 z). */
INLINE float gelu_of(float x) {
    const float z = fabsf(x) * 0.70710678f, t = 1.0f / (1.0f + 0.45f * z);
    const float p = ((((((0.06684846431016922f * t + -0.24016372859477997f) * t + 0.20860733091831207f) * t +
                        0.040546003729104996f) * t + 0.1884991079568863f) * t + 0.2281247079372406f) * t +
                     0.25362902879714966f) * t + 0.2539093792438507f;
    const float tail = ((exp_of(-(z * z)) * t) * p) * 0.5f;
    const float share = x < 0.0f ? tail : 1.0f - tail;
    return x * share;
}

INLINE float gelu_tanh_of(float x) { return x * sigmoid_of(1.5957691216f * (x + 0.044715f * ((x * x) * x))); }

INLINE float mish_of(float x) {
    const float power = exp_of(x > 20.0f ? 20.0f : x), n = power * (power + 2.0f);
    return x * (n / (n + 2.0f));
}

INLINE float softplus_of(float x) {
    const float power = exp_of(-fabsf(x)), s = power / (2.0f + power), q = s * s;
    const float tail = (((0.2323121577501297f * q + 0.21705690026283264f) * q + 0.28592339158058167f) * q +
                        0.39999711513519287f) * q + 0.6666666865348816f;
    return (x > 0.0f ? x : 0.0f) + s * (2.0f + q * tail);
}

#define EVERY(expression)                                                                                             \
    for (int64_t i = 0; i < count; i++) {                                                                             \
        const float x = from[i];                                                                                      \
        to[i] = expression;                                                                                           \
    }                                                                                                                 \
    break
static void function(int64_t kind, const float *restrict from, int64_t count, float alpha, float *restrict to) {
    switch (kind) {
    case EB_SIGMOID: EVERY(sigmoid_of(x));
    case EB_TANH: EVERY(tanh_of(x));
    case EB_SILU: EVERY(x * sigmoid_of(x));
    case EB_GELU: EVERY(gelu_of(x));
    case EB_GELU_TANH: EVERY(gelu_tanh_of(x));
    case EB_MISH: EVERY(mish_of(x));
    case EB_ELU: EVERY(x > 0.0f ? x : alpha * (exp_of(x) - 1.0f));
    case EB_SOFTPLUS: EVERY(softplus_of(x));
    case EB_EXP: EVERY(exp_of(x));
    case EB_SQRT: EVERY(sqrtf(x));
    default: EVERY(1.0f / x); /* EB_RECIPROCAL */
    }
}

/* Sums and maxima run in SIDES parallel lanes, for vectors of any size. */
enum { SIDES = 16 };

INLINE float sum_of(const float *sides, float total) {
    for (int j = 0; j < SIDES; j++) total += sides[j];
    return total;
}

static void softmax_row(const float *from, int64_t count, float *to) {
    float sides[SIDES], largest = from[0], rest = 0;
    int64_t i = 0;
    for (int j = 0; j < SIDES; j++) sides[j] = largest;
    for (; i + SIDES <= count; i += SIDES)
        for (int j = 0; j < SIDES; j++) sides[j] = from[i + j] > sides[j] ? from[i + j] : sides[j];
    for (int j = 0; j < SIDES; j++) largest = sides[j] > largest ? sides[j] : largest;
    for (; i < count; i++) largest = from[i] > largest ? from[i] : largest;
    for (i = 0; i < count; i++) to[i] = exp_of(from[i] - largest);
    for (int j = 0; j < SIDES; j++) sides[j] = 0;
    for (i = 0; i + SIDES <= count; i += SIDES)
        for (int j = 0; j < SIDES; j++) sides[j] += to[i + j];
    for (; i < count; i++) rest += to[i];
    const float total = sum_of(sides, rest);
    for (i = 0; i < count; i++) to[i] = to[i] / total;
}

/* Subtract the mean (unless `centered` is 0), divide by the root of the mean square, multiply by scale, add bias. */
static void norm_row(const float *from, const eb_norm *norm, float *to) {
    const int64_t count = norm->count;
    float sides[SIDES] = {0}, rest = 0, mean = 0;
    int64_t i = 0;
    if (norm->centered) {
        for (; i + SIDES <= count; i += SIDES)
            for (int j = 0; j < SIDES; j++) sides[j] += from[i + j];
        for (; i < count; i++) rest += from[i];
        mean = sum_of(sides, rest) / (float)count;
    }
    for (int j = 0; j < SIDES; j++) sides[j] = 0;
    for (i = 0, rest = 0; i + SIDES <= count; i += SIDES)
        for (int j = 0; j < SIDES; j++) sides[j] += (from[i + j] - mean) * (from[i + j] - mean);
    for (; i < count; i++) rest += (from[i] - mean) * (from[i] - mean);
    const float factor = 1.0f / sqrtf(sum_of(sides, rest) / (float)count + norm->eps);
    for (i = 0; i < count; i++) to[i] = (from[i] - mean) * factor;
    if (norm->scale) for (i = 0; i < count; i++) to[i] = to[i] * norm->scale[i];
    if (norm->bias) for (i = 0; i < count; i++) to[i] = to[i] + norm->bias[i];
}

static void mul_row(const float *restrict a, int64_t a_apart, const float *restrict b, int64_t b_apart, int64_t count,
                    float *restrict to) {
    if (a_apart == 1 && b_apart == 1) for (int64_t i = 0; i < count; i++) to[i] = a[i] * b[i];
    else if (a_apart == 1 && b_apart == 0) for (int64_t i = 0; i < count; i++) to[i] = a[i] * b[0];
    else for (int64_t i = 0; i < count; i++) to[i] = a[i * a_apart] * b[i * b_apart];
}
