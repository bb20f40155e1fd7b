/* WebAssembly counting by tiles: the vectors of tiles_layout.h and tiles_run.h, as avx2_tiles.h has them. */
#define PIXELS 16
#define AT_ONCE 2 /* more sums find no registers on x86 */
#include "tiles_layout.h"

/* Split 32 words into their eight quads, 32 bytes each, at a distance of `apart`. */
INLINE void take_apart(const uint32_t *words, uint8_t *to, int64_t apart) {
    const v128_t low = wasm_i8x16_const_splat(15);
    for (int half = 0; half < 2; half++, words += 16, to += 16) {
        v128_t v[4], pair[4], bytes[4];
        for (int i = 0; i < 4; i++) { /* the first bytes of four words, then their second, third and fourth */
            v[i] = wasm_v128_load(words + 4 * i);
            v[i] = wasm_i8x16_shuffle(v[i], v[i], 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        }
        for (int i = 0; i < 2; i++) {
            pair[i] = wasm_i32x4_shuffle(v[2 * i], v[2 * i + 1], 0, 4, 1, 5);
            pair[2 + i] = wasm_i32x4_shuffle(v[2 * i], v[2 * i + 1], 2, 6, 3, 7);
        }
        for (int i = 0; i < 4; i += 2) {
            bytes[i] = wasm_i64x2_shuffle(pair[i], pair[i + 1], 0, 2);
            bytes[i + 1] = wasm_i64x2_shuffle(pair[i], pair[i + 1], 1, 3);
        }
        for (int i = 0; i < 4; i++) {
            wasm_v128_store(to + 2 * i * apart, wasm_v128_and(bytes[i], low));
            wasm_v128_store(to + (2 * i + 1) * apart, wasm_v128_and(wasm_u16x8_shr(bytes[i], 4), low));
        }
    }
}

/* Up to 32 pixels, a window's stride apart. */
INLINE void copy_chunk(const int64_t apart, const uint8_t *from, uint8_t *to, int64_t count) {
    for (int64_t i = 0; apart > 2 && i < count; i++) to[i] = from[i * apart];
    if (apart > 2) return;
    for (int half = 0; half < 2; half++, to += 16, from += 16 * apart) {
        v128_t v = wasm_v128_load(from);
        if (apart == 2) v = wasm_i8x16_shuffle(v, wasm_v128_load(from + 16), 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        wasm_v128_store(to, v);
    }
}

INLINE void add_words(uint16_t *sums, v128_t words, int first) {
    wasm_v128_store(sums, first ? words : wasm_i16x8_add(wasm_v128_load(sums), words));
}

/* The sums of bytes of one vector to sums of 16 bits, of first bytes, then of second ones: see avx2_tiles.h. */
INLINE void add_sums(uint16_t *low, uint16_t *high, v128_t whole, v128_t halves, int first) {
    const v128_t byte = wasm_i16x8_const_splat(255), top = wasm_u16x8_const_splat(0xf000);
    const v128_t less = wasm_i16x8_sub(whole, wasm_v128_and(wasm_i16x8_shl(halves, 4), top));
    const v128_t low2 = wasm_u16x8_shr(less, 8);
    const v128_t high1 = wasm_v128_and(wasm_i16x8_sub(halves, wasm_i16x8_shl(low2, 4)), byte);
    add_words(low, wasm_v128_and(wasm_i16x8_sub(whole, wasm_i16x8_shl(high1, 4)), byte), first);
    add_words(low + 8, low2, first);
    add_words(high, high1, first);
    add_words(high + 8, wasm_u16x8_shr(halves, 8), first);
}

#define EACH_VECTOR EB_UNROLL(5) for (int v = 0; v < vectors; v++)
#define PLACES(entry) wasm_v128_load(input + (entry) * EB_TILE + 16 * v)

/* Up to LOOKUPS entries of two filters for some vectors of pixels. A shift moves words of two bytes, so the low half of
 * each second byte lands in the high half of the first: add_sums puts that right. */
INLINE void count_two(const int vectors, const uint8_t *input, const uint8_t *weight, int64_t count, int first,
                      uint16_t sums[2][EB_TILE]) {
    v128_t whole[AT_ONCE], high[AT_ONCE];
    EACH_VECTOR whole[v] = high[v] = wasm_i8x16_const_splat(0);
    for (; count >= 3; count -= 3, weight += 3, input += 3 * EB_TILE) {
        const v128_t a = wasm_v128_load(tables[weight[0]]), b = wasm_v128_load(tables[weight[1]]);
        const v128_t c = wasm_v128_load(tables[weight[2]]);
        EACH_VECTOR {
            const v128_t two = wasm_i8x16_add(wasm_i8x16_swizzle(a, PLACES(0)), wasm_i8x16_swizzle(b, PLACES(1)));
            const v128_t t = wasm_i8x16_add(two, wasm_i8x16_swizzle(c, PLACES(2)));
            whole[v] = wasm_i8x16_add(whole[v], t);
            high[v] = wasm_i8x16_add(high[v], wasm_u16x8_shr(t, 4));
        }
    }
    for (; count; count--, weight++, input += EB_TILE) {
        const v128_t a = wasm_v128_load(tables[*weight]);
        EACH_VECTOR {
            const v128_t t = wasm_i8x16_swizzle(a, PLACES(0));
            whole[v] = wasm_i8x16_add(whole[v], t);
            high[v] = wasm_i8x16_add(high[v], wasm_u16x8_shr(t, 4));
        }
    }
    EACH_VECTOR add_sums(sums[0] + 16 * v, sums[1] + 16 * v, whole[v], high[v], first);
}

/* Eight filters' sums of 16 bits to eight numbers for each of 16 pixels: first the even ones, then the odd. */
INLINE void turn(const uint16_t sums[8][EB_TILE], int32_t *counts) {
    for (int odd = 0; odd < 2; odd++) {
        v128_t a[8], b[8];
        for (int i = 0; i < 8; i++) a[i] = wasm_v128_load(sums[i] + 8 * odd);
        for (int i = 0; i < 4; i++) {
            b[2 * i] = wasm_i16x8_shuffle(a[2 * i], a[2 * i + 1], 0, 8, 1, 9, 2, 10, 3, 11);
            b[2 * i + 1] = wasm_i16x8_shuffle(a[2 * i], a[2 * i + 1], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; j++) {
                a[i + 2 * j] = wasm_i32x4_shuffle(b[i + j], b[i + j + 2], 0, 4, 1, 5);
                a[i + 2 * j + 1] = wasm_i32x4_shuffle(b[i + j], b[i + j + 2], 2, 6, 3, 7);
            }
        for (int j = 0; j < 4; j++) {
            b[2 * j] = wasm_i64x2_shuffle(a[j], a[j + 4], 0, 2);
            b[2 * j + 1] = wasm_i64x2_shuffle(a[j], a[j + 4], 1, 3);
        }
        for (int pixel = 0; pixel < 8; pixel++) {
            int32_t *to = counts + (2 * pixel + odd) * EB_BLOCK;
            wasm_v128_store(to, wasm_u32x4_extend_low_u16x8(b[pixel]));
            wasm_v128_store(to + 4, wasm_u32x4_extend_high_u16x8(b[pixel]));
        }
    }
}

#include "tiles_run.h"
