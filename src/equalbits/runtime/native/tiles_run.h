/* Counting by tiles: the input made ready, and the loops around the vectors.
 *
 * The file that includes this defines AT_ONCE (vectors of pixels that are counted together, at most 5), take_apart,
 * copy_chunk, count_two and turn, as avx2_tiles.h does. */
/* Four bits of every pixel and quad of channels, one byte each, in planes. The next row overwrites what is behind this one. */
static void tiles_prepare(const eb_step *step, const uint32_t *line, int64_t row, uint8_t *to) {
    const int64_t columns = step->padded_columns, quads = quads_of(step);
    uint8_t eight[8][EB_BLOCK];
    for (int64_t word = 0; word < step->words; word++, line += columns)
        for (int64_t x = 0; x < columns; x += EB_BLOCK) {
            uint8_t *at = to + 8 * word * plane_bytes(step) + row * columns + x;
            if (8 * word + 8 <= quads) take_apart(line + x, at, plane_bytes(step));
            else take_apart(line + x, eight[0], EB_BLOCK);
            for (int64_t i = 0; 8 * word + 8 > quads && 8 * word + i < quads; i++)
                memcpy(at + i * plane_bytes(step), eight[i], EB_BLOCK);
        }
}

/* Table indices of a tile for all entries. Chunks of rows may be written past their end: those bytes are overwritten
 * later, or never read. */
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

/* All filters use cached entries before the next are loaded. */
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

/* Counts of a tile; the last tile of a strip may be partial. */
static void bits_tile(const eb_step *step, const void *gathered, int64_t tile, const void *packed, int32_t *counts) {
    uint16_t sums[EB_BLOCK][EB_TILE] __attribute__((aligned(64)));
    const int64_t pixels = least(step->strip - tile % step->tiles * EB_TILE, EB_TILE);
    const int64_t vectors = (pixels + PIXELS - 1) / PIXELS;
    const uint8_t *weight = (const uint8_t *)packed + 4 * EB_BLOCK;
    for (int64_t v = 0; v < vectors; v += AT_ONCE) {
        const uint8_t *input = (const uint8_t *)gathered + PIXELS * v;
        uint16_t(*to)[EB_TILE] = (uint16_t(*)[EB_TILE])(sums[0] + PIXELS * v);
        switch (least(vectors - v, AT_ONCE)) {
        case 5: count_all(5, step, input, weight, to); break;
        case 4: count_all(4, step, input, weight, to); break;
        case 3: count_all(3, step, input, weight, to); break;
        case 2: count_all(2, step, input, weight, to); break;
        default: count_all(1, step, input, weight, to);
        }
    }
    for (int64_t v = 0; v < vectors; v++)
        for (int filter = 0; filter < EB_BLOCK; filter += 8)
            turn((const uint16_t(*)[EB_TILE])(sums[filter] + PIXELS * v), counts + EB_BLOCK * PIXELS * v + filter);
    const int32_t *pruned = packed;
    for (int64_t i = 0; step->field[EB_KEPT] >= 0 && i < vectors * PIXELS * EB_BLOCK; i++)
        counts[i] = (counts[i] - pruned[i % EB_BLOCK]) / 2;
}
