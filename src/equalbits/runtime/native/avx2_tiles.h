/* AVX2 counting where there are many pixels: a lane is a pixel, and a table belongs to two filters.
 *
 * It is the look-up of kernels_avx2.c the other way round: the four bits of a pixel are the place, four bits of two
 * filters choose the table. A table is fetched once for all pixels of a tile. The places of a tile, 160 pixels in a row
 * that goes on over the ends of rows, are gathered once for all filters, (entry, pixel), so that they are read in order
 * and as operands: a look-up takes half the instructions, and nearly no lane is idle. */
enum { VECTORS = EB_TILE / EB_BLOCK, MOST_BYTES = 1 << 27 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t entries_of(const eb_step *step) { return step->field[EB_KEPT] < 0 ? step->singles : step->singles / 2; }
static int64_t tile_bytes(const eb_step *step) { return entries_of(step) * EB_TILE + 64; }
static int64_t plane_bytes(const eb_step *step) { return step->padded_rows * step->padded_columns + EB_BLOCK; }

/* Rows that are counted together: all, or of a convolution that is pooled one, or two where those fill a vector. */
static int64_t strip_rows(const eb_step *step) {
    if (!step->field[EB_POOL_H]) return step->conv_rows;
    return step->conv_rows % 2 == 0 && 2 * step->conv_columns >= EB_BLOCK ? 2 : 1;
}

/* Lay the step out for this way, where at least half of the lanes hold pixels and sums fit 16 bits. */
static void tiles_layout(eb_step *step) {
    const int64_t *field = step->field, quads = (step->group_in + 3) / 4, wide = field[EB_KERNEL_W];
    const int64_t pixels = step->conv_columns * strip_rows(step), entries = entries_of(step);
    const int64_t tiles = (pixels + EB_TILE - 1) / EB_TILE, rings = field[EB_GROUPS] * step->blocks;
    if (pixels < EB_BLOCK / 2 || step->singles * 4 > UINT16_MAX || (double)quads * (double)plane_bytes(step) > MOST_BYTES ||
        (double)tiles * (double)tile_bytes(step) > MOST_BYTES || (double)rings * (double)step->ring_bytes > MOST_BYTES)
        return;
    const int64_t at_once = field[EB_POOL_H] ? tiles : 1;
    step->tiles = tiles;
    step->strip = pixels;
    step->tile_bytes = tile_bytes(step);
    step->row_bytes = at_once * (EB_TILE * EB_BLOCK * 4 + tile_bytes(step));
    step->ring_bytes *= rings; /* all filters of a pooled row are counted before the next */
    step->prepared_bytes = quads * plane_bytes(step) + 4 * EB_BLOCK;
    step->block_bytes = 4 * EB_BLOCK + (step->singles * EB_BLOCK / 2 + 63) / 64 * 64;
    for (int64_t i = 0; i < entries; i++)
        step->offsets[i] = (int32_t)(i % quads * plane_bytes(step) + i / quads % wide * field[EB_DILATION_W] +
                                     i / quads / wide * field[EB_DILATION_H] * step->padded_columns);
}

/* Where an entry of two filters stands: a look-up's worth of entries, for one pair of filters after the other. */
static int64_t tiles_place(const eb_step *step, int64_t entry, int64_t pair) {
    const int64_t entries = entries_of(step), within = entry % entries, start = within / LOOKUPS * LOOKUPS;
    return (entry - within + start) * EB_BLOCK / 2 + pair * least(LOOKUPS, entries - start) + within - start;
}

/* 32 words taken apart: their eight quads, 32 bytes each, `apart` from each other. */
INLINE void take_apart(const uint32_t *words, uint8_t *to, int64_t apart) {
    const __m256i low = _mm256_set1_epi8(15), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13,
                                           2, 6, 10, 14, 3, 7, 11, 15);
    __m256i v[4], q[4];
    for (int i = 0; i < 4; i++) { /* the first bytes of eight words, then their second, third and fourth */
        v[i] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(words + 8 * i)), bytes);
        v[i] = _mm256_permutevar8x32_epi32(v[i], order);
    }
    for (int i = 0; i < 4; i += 2) {
        q[i] = _mm256_unpacklo_epi64(v[i], v[i + 1]);
        q[i + 1] = _mm256_unpackhi_epi64(v[i], v[i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        const __m256i eight = i < 2 ? _mm256_permute2x128_si256(q[i], q[i + 2], 0x20)
                                    : _mm256_permute2x128_si256(q[i - 2], q[i], 0x31);
        _mm256_storeu_si256((__m256i *)(to + 2 * i * apart), _mm256_and_si256(eight, low));
        _mm256_storeu_si256((__m256i *)(to + (2 * i + 1) * apart), _mm256_and_si256(_mm256_srli_epi16(eight, 4), low));
    }
}

/* The four bits of every pixel and quad of channels, a byte each, in planes. */
static void tiles_prepare(const eb_step *step, const uint32_t *planes, uint8_t *to) {
    const int64_t columns = step->padded_columns, quads = (step->group_in + 3) / 4;
    uint8_t eight[8][EB_BLOCK];
    for (int64_t row = 0; row < step->padded_rows; row++)
        for (int64_t word = 0; word < step->words; word++, planes += columns)
            for (int64_t x = 0; x < columns; x += EB_BLOCK) {
                uint8_t *at = to + 8 * word * plane_bytes(step) + row * columns + x;
                if (8 * word + 8 <= quads) take_apart(planes + x, at, plane_bytes(step));
                else take_apart(planes + x, eight[0], EB_BLOCK);
                for (int64_t i = 0; 8 * word + 8 > quads && 8 * word + i < quads; i++)
                    memcpy(at + i * plane_bytes(step), eight[i], EB_BLOCK);
            }
}

/* Up to 32 pixels, a window's stride apart. */
INLINE void copy_chunk(const int64_t apart, const uint8_t *from, uint8_t *to, int64_t count) {
    const __m256i *at = (const __m256i *)from, even = _mm256_set1_epi16(255);
    if (apart == 1) _mm256_storeu_si256((__m256i *)to, _mm256_loadu_si256(at));
    else if (apart == 2) {
        const __m256i a = _mm256_and_si256(_mm256_loadu_si256(at), even), b = _mm256_and_si256(_mm256_loadu_si256(at + 1), even);
        _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8));
    } else
        for (int64_t i = 0; i < count; i++) to[i] = from[i * apart];
}

/* The places of a tile for all entries. Chunks of rows may be written past their end: what stands there is written later,
 * or never read. */
static void gather_tile(const eb_step *step, const void *prepared, int64_t tile, void *gathered) {
    const int64_t apart = step->field[EB_STRIDE_W], columns = step->conv_columns, entries = entries_of(step);
    const int64_t row_apart = step->field[EB_STRIDE_H] * step->padded_columns;
    const int64_t start = tile / step->tiles * step->strip + tile % step->tiles * EB_TILE; /* pooled rows are strips */
    const int64_t pixels = least(step->strip - tile % step->tiles * EB_TILE, EB_TILE);
    int64_t offset[EB_TILE], place[EB_TILE], length[EB_TILE], chunks = 0;
    for (int64_t done = 0; done < pixels; done += length[chunks++]) {
        const int64_t row = (start + done) / columns, x = (start + done) % columns;
        offset[chunks] = row * row_apart + x * apart;
        place[chunks] = done;
        length[chunks] = least(least(columns - x, pixels - done), EB_BLOCK);
    }
    uint8_t *to = gathered;
    for (int64_t entry = 0; entry < entries; entry++, to += EB_TILE) {
        const uint8_t *from = (const uint8_t *)prepared + step->offsets[entry];
        if (apart == 1)
            for (int64_t i = 0; i < chunks; i++) copy_chunk(1, from + offset[i], to + place[i], length[i]);
        else if (apart == 2)
            for (int64_t i = 0; i < chunks; i++) copy_chunk(2, from + offset[i], to + place[i], length[i]);
        else
            for (int64_t i = 0; i < chunks; i++) copy_chunk(apart, from + offset[i], to + place[i], length[i]);
    }
}

#define EACH_VECTOR EB_UNROLL(5) for (int v = 0; v < vectors; v++)
#define PLACES(entry, vector) (((const __m256i_u *)(input + (entry) * EB_TILE))[vector])

/* Three entries into the sums of one vector of pixels. A shift moves words of two bytes, so the low half of each second
 * byte lands in the high half of the first: that is put right at the end. The order leaves the compiler no registers to
 * shuffle. */
#define ADD_THREE(whole, high, v)                                                                                     \
    __asm__("vpshufb %[pa], %[a], %[t]\n\t"                                                                           \
            "vpshufb %[pb], %[b], %[u]\n\t"                                                                           \
            "vpaddb %[u], %[t], %[t]\n\t"                                                                             \
            "vpshufb %[pc], %[c], %[u]\n\t"                                                                           \
            "vpaddb %[u], %[t], %[t]\n\t"                                                                             \
            "vpaddb %[t], %[w], %[w]\n\t"                                                                             \
            "vpsrlw $4, %[t], %[t]\n\t"                                                                               \
            "vpaddb %[t], %[h], %[h]"                                                                                 \
            : [w] "+x"(whole), [h] "+x"(high), [t] "=&x"(t), [u] "=&x"(u)                                             \
            : [a] "x"(a), [b] "x"(b), [c] "x"(c), [pa] "m"(PLACES(0, v)), [pb] "m"(PLACES(1, v)),                       \
              [pc] "m"(PLACES(2, v)))

INLINE __m256i table_of(uint8_t pair) {
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)tables[pair]));
}

INLINE void add_words(uint16_t *sums, __m256i words, int first) {
    __m256i *at = (__m256i *)sums;
    _mm256_store_si256(at, first ? words : _mm256_add_epi16(_mm256_load_si256(at), words));
}

/* The sums of bytes of one vector to sums of 16 bits, of first bytes, then of second ones. The high halves of second bytes
 * are whole. Less 16 times those, their low halves come out; less 16 times these, the high halves of first bytes, and so
 * on. All are below 256. */
INLINE void add_sums(uint16_t *low, uint16_t *high, __m256i whole, __m256i halves, int first) {
    const __m256i byte = _mm256_set1_epi16(255), top = _mm256_set1_epi16((short)0xf000);
    const __m256i less = _mm256_sub_epi16(whole, _mm256_and_si256(_mm256_slli_epi16(halves, 4), top));
    const __m256i low2 = _mm256_srli_epi16(less, 8);
    const __m256i high1 = _mm256_and_si256(_mm256_sub_epi16(halves, _mm256_slli_epi16(low2, 4)), byte);
    add_words(low, _mm256_and_si256(_mm256_sub_epi16(whole, _mm256_slli_epi16(high1, 4)), byte), first);
    add_words(low + 16, low2, first);
    add_words(high, high1, first);
    add_words(high + 16, _mm256_srli_epi16(halves, 8), first);
}

/* Up to LOOKUPS entries of two filters for a tile of pixels. */
INLINE void count_two(const int vectors, const uint8_t *input, const uint8_t *weight, int64_t count, int first,
                      uint16_t sums[2][EB_TILE]) {
    __m256i whole[VECTORS], high[VECTORS];
    EACH_VECTOR whole[v] = high[v] = _mm256_setzero_si256();
    for (; count >= 3; count -= 3, weight += 3, input += 3 * EB_TILE) {
        const __m256i a = table_of(weight[0]), b = table_of(weight[1]), c = table_of(weight[2]);
        EACH_VECTOR {
            __m256i t, u;
            ADD_THREE(whole[v], high[v], v);
        }
    }
    for (; count; count--, weight++, input += EB_TILE) {
        const __m256i a = table_of(*weight);
        EACH_VECTOR {
            __m256i t = _mm256_shuffle_epi8(a, PLACES(0, v));
            whole[v] = _mm256_add_epi8(whole[v], t);
            high[v] = _mm256_add_epi8(high[v], _mm256_srli_epi16(t, 4));
        }
    }
    EACH_VECTOR add_sums(sums[0] + EB_BLOCK * v, sums[1] + EB_BLOCK * v, whole[v], high[v], first);
}

/* What lies close is used by all filters before the next entries come. */
INLINE void count_all(const int vectors, const eb_step *step, const uint8_t *input, const uint8_t *weight,
                      uint16_t sums[EB_BLOCK][EB_TILE]) {
    const int64_t entries = entries_of(step);
    for (int64_t half = 0; half < step->singles; half += entries)
        for (int64_t start = 0; start < entries; start += LOOKUPS) {
            const int64_t count = least(LOOKUPS, entries - start);
            for (int filter = 0; filter < EB_BLOCK; filter += 2, weight += count)
                count_two(vectors, input + start * EB_TILE, weight, count, half + start == 0, sums + filter);
        }
}

/* Eight filters' sums of 16 bits to eight numbers for each of 32 pixels. */
INLINE void turn(const uint16_t sums[8][EB_TILE], int32_t *counts) {
    for (int half = 0; half < 2; half++) { /* the even pixels, then the odd ones */
        __m256i a[8], b[8];
        for (int i = 0; i < 8; i++) a[i] = _mm256_load_si256((const __m256i *)sums[i] + half);
        for (int i = 0; i < 4; i++) {
            b[2 * i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; j++) {
                a[i + 2 * j] = _mm256_unpacklo_epi32(b[i + j], b[i + j + 2]);
                a[i + 2 * j + 1] = _mm256_unpackhi_epi32(b[i + j], b[i + j + 2]);
            }
        for (int j = 0; j < 4; j++) {
            b[2 * j] = _mm256_unpacklo_epi64(a[j], a[j + 4]);
            b[2 * j + 1] = _mm256_unpackhi_epi64(a[j], a[j + 4]);
        }
        for (int pixel = 0; pixel < 8; pixel++) {
            int32_t *to = counts + (2 * pixel + half) * EB_BLOCK;
            _mm256_storeu_si256((__m256i *)to, _mm256_cvtepu16_epi32(_mm256_castsi256_si128(b[pixel])));
            _mm256_storeu_si256((__m256i *)(to + 16 * EB_BLOCK),
                                _mm256_cvtepu16_epi32(_mm256_extracti128_si256(b[pixel], 1)));
        }
    }
}

/* Counts of a tile, for the last one of a strip as far as it goes. */
static void bits_tile(const eb_step *step, const void *gathered, int64_t tile, const void *packed, int32_t *counts) {
    uint16_t sums[EB_BLOCK][EB_TILE] __attribute__((aligned(64)));
    const int64_t vectors = least((step->strip - tile % step->tiles * EB_TILE + EB_BLOCK - 1) / EB_BLOCK, VECTORS);
    const uint8_t *input = gathered, *weight = (const uint8_t *)packed + 4 * EB_BLOCK;
    switch (vectors) {
    case 5: count_all(5, step, input, weight, sums); break;
    case 4: count_all(4, step, input, weight, sums); break;
    case 3: count_all(3, step, input, weight, sums); break;
    case 2: count_all(2, step, input, weight, sums); break;
    default: count_all(1, step, input, weight, sums);
    }
    for (int64_t v = 0; v < vectors; v++)
        for (int filter = 0; filter < EB_BLOCK; filter += 8)
            turn((const uint16_t(*)[EB_TILE])(sums[filter] + EB_BLOCK * v), counts + EB_BLOCK * EB_BLOCK * v + filter);
    const int32_t *pruned = packed;
    for (int64_t i = 0; step->field[EB_KEPT] >= 0 && i < vectors * EB_BLOCK * EB_BLOCK; i++)
        counts[i] = (counts[i] - pruned[i % EB_BLOCK]) / 2;
}
