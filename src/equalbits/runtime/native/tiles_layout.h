/* Counting where there are many pixels: a lane is a pixel, and a table belongs to two filters. How it is laid out.
 *
 * It is the look-up of kernels_avx2.c the other way round: the four bits of a pixel are the place, four bits of two
 * filters choose the table. A table is fetched once for all pixels of a tile. The places of a tile, 160 pixels in a row
 * that goes on over the ends of rows, are gathered once for all filters, (entry, pixel), so that they are read in order
 * and as operands: a look-up takes half the instructions, and nearly no lane is idle.
 *
 * The file that includes this defines PIXELS: bytes of a vector. */
#include "core.h"

enum { VECTORS = EB_TILE / PIXELS, LOOKUPS = 63, MOST_BYTES = 1 << 27 };

/* Written out by the compiler: a loop that fills them would be code of this instruction set that runs before it is asked for. */
#define ONES(x) (((x) & 1) + ((x) >> 1 & 1) + ((x) >> 2 & 1) + ((x) >> 3 & 1))
#define ENTRY(pair, w) (uint8_t)(ONES(((pair) & 15) ^ (w)) + 16 * ONES(((pair) >> 4) ^ (w)))
#define FOUR(of, pair, w) of(pair, w), of(pair, (w) + 1), of(pair, (w) + 2), of(pair, (w) + 3)
#define TABLE(pair) {FOUR(ENTRY, pair, 0), FOUR(ENTRY, pair, 4), FOUR(ENTRY, pair, 8), FOUR(ENTRY, pair, 12)}
#define TABLES_4(pair) TABLE(pair), TABLE((pair) + 1), TABLE((pair) + 2), TABLE((pair) + 3)
#define TABLES_16(pair) TABLES_4(pair), TABLES_4((pair) + 4), TABLES_4((pair) + 8), TABLES_4((pair) + 12)
#define TABLES_64(pair) TABLES_16(pair), TABLES_16((pair) + 16), TABLES_16((pair) + 32), TABLES_16((pair) + 48)
static const uint8_t tables[256][16] __attribute__((aligned(64))) = {TABLES_64(0), TABLES_64(64), TABLES_64(128),
                                                                     TABLES_64(192)};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t quads_of(const eb_step *step) { return (step->group_in + 3) / 4; }
static int64_t entries_of(const eb_step *step) { return step->field[EB_KEPT] < 0 ? step->singles : step->singles / 2; }
static int64_t tile_bytes(const eb_step *step) { return entries_of(step) * EB_TILE + 64; }
static int64_t plane_bytes(const eb_step *step) { return step->padded_rows * step->padded_columns + EB_BLOCK; }

/* Number of rows counted together: all rows; of a pooled convolution one, or two if they fill a vector. */
static int64_t strip_rows(const eb_step *step) {
    if (!step->field[EB_POOL_H]) return step->conv_rows;
    return step->conv_rows % 2 == 0 && 2 * step->conv_columns >= EB_BLOCK ? 2 : 1;
}

/* Plan the layout of the step, if at least half of the lanes hold pixels and sums fit 16 bits. */
static void tiles_layout(eb_step *step) {
    const int64_t *field = step->field, quads = quads_of(step), wide = field[EB_KERNEL_W];
    const int64_t pixels = step->conv_columns * strip_rows(step), entries = entries_of(step);
    const int64_t tiles = (pixels + EB_TILE - 1) / EB_TILE, rings = field[EB_GROUPS] * step->blocks;
    if (pixels < PIXELS / 2 || step->singles * 4 > UINT16_MAX || (double)quads * (double)plane_bytes(step) > MOST_BYTES ||
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

/* Position of an entry of two filters: the entries of one lookup, pair of filters after pair. */
static int64_t tiles_place(const eb_step *step, int64_t entry, int64_t pair) {
    const int64_t entries = entries_of(step), within = entry % entries, start = within / LOOKUPS * LOOKUPS;
    return (entry - within + start) * EB_BLOCK / 2 + pair * least(LOOKUPS, entries - start) + within - start;
}

/* An entry for four channels of every tap. Pruned weights are counted twice, their pruned bits as 1 and as 0. */
static void bits_layout(eb_step *step) {
    const int64_t *field = step->field, quads = quads_of(step), columns = step->padded_columns;
    const int64_t entries = field[EB_KERNEL_H] * field[EB_KERNEL_W] * quads;
    step->singles = field[EB_KEPT] < 0 ? entries : 2 * entries;
    step->block_bytes = 4 * EB_BLOCK + step->singles * EB_BLOCK;
    step->prepared_bytes = (step->padded_rows * quads * columns + 32) * 2;
    step->offsets = calloc((size_t)step->singles, sizeof *step->offsets);
    for (int64_t i = 0; step->offsets && i < step->singles; i++) {
        int64_t tap = i % entries / quads, row = tap / field[EB_KERNEL_W], column = tap % field[EB_KERNEL_W];
        step->offsets[i] = (int32_t)((row * field[EB_DILATION_H] * quads + i % quads) * columns +
                                     column * field[EB_DILATION_W]);
    }
    if (step->offsets) tiles_layout(step);
}

/* A byte for each filter, or with tiles half a byte. What is written was 0. */
static void put(const eb_step *step, uint8_t *to, int64_t entry, int lane, unsigned bits) {
    if (step->tiles) to[tiles_place(step, entry, lane / 2)] |= (uint8_t)(bits << lane % 2 * 4);
    else to[entry * EB_BLOCK + lane] = (uint8_t)bits;
}

/* Number of pruned connections of each filter, then the entries. */
static void bits_pack(const eb_step *step, const uint32_t *sign, const uint32_t *kept, void *packed) {
    const int64_t quads = quads_of(step), taps = step->field[EB_KERNEL_H] * step->field[EB_KERNEL_W];
    const int64_t per_filter = taps * step->words, entries = taps * quads;
    int32_t *pruned = packed;
    uint8_t *to = (uint8_t *)(pruned + EB_BLOCK);
    for (int lane = 0; lane < EB_BLOCK; lane++, sign += per_filter) {
        pruned[lane] = 0;
        for (int64_t i = 0; i < entries; i++) {
            int64_t channel = i % quads * 4, left = step->group_in - channel, word = i / quads * step->words + channel / 32;
            unsigned used = left >= 4 ? 15 : (1u << left) - 1, bits = sign[word] >> channel % 32 & used;
            unsigned gone = kept ? ~(kept[lane * per_filter + word] >> channel % 32) & used : 0;
            put(step, to, i, lane, bits);
            if (kept) put(step, to, entries + i, lane, bits | gone);
            pruned[lane] += __builtin_popcount(gone);
        }
    }
}
