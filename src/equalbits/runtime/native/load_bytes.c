/* The image rounded to bytes, channels together. */
#include <string.h>

#include "core.h"

enum { LINE = 1024 };

int eb_check_load(const eb_step *step, int64_t number, char *error) {
    if (step->field[EB_OUT] != -1 || step->chain.parts == EB_HAS_BYTES) return 1;
    return eb_fail(error, "step %d loads an image and makes more than bytes of it", (int)number);
}

/* Channels [first, first + some) of a line of the image, rounded into the bytes of a word for each pixel. */
static void round_line(const eb_context *context, const eb_step *step, int64_t first, int some, int64_t at, int64_t count,
                       uint32_t *words) {
    const eb_kernels *kernels = context->plan->kernels;
    const int64_t pixels = step->in.rows * step->in.columns;
    memset(words, 0, (size_t)count * 4);
    for (int i = 0; i < some; i++) {
        const int64_t start = (first + i) * pixels + at;
        if (context->image) {
            kernels->round_image(&step->chain, context->image + start, count, 8 * i, words);
            continue;
        }
        uint32_t table[256] = {0};
        kernels->round_image(&step->chain, context->byte_table + (first + i) * 256, 256, 8 * i, table);
        for (int64_t x = 0; x < count; x++) words[x] |= table[context->bytes[start + x]];
    }
}

int64_t eb_load_lines(const eb_step *step) { return (step->in.rows * step->in.columns + LINE - 1) / LINE; }

void eb_load_bytes(const eb_context *context, const eb_step *step, int64_t from, int64_t end) {
    const int64_t channels = step->in.channels, pixels = step->in.rows * step->in.columns;
    uint8_t *to = (uint8_t *)eb_value_at(context, step->field[EB_OUT_BYTES]) + from * LINE * channels;
    for (int64_t at = from * LINE; at < pixels && at < end * LINE; at += LINE, to += LINE * channels)
        for (int64_t first = 0; first < channels; first += 4) {
            const int64_t count = pixels - at < LINE ? pixels - at : LINE;
            const int some = channels - first < 4 ? (int)(channels - first) : 4;
            uint32_t words[LINE];
            round_line(context, step, first, some, at, count, words);
            int64_t x = 0;
            if (channels == 3) /* the fourth byte is written again with the next pixel */
                for (; x + 1 < count; x++) memcpy(to + x * 3, words + x, 4);
            for (; x < count; x++)
                for (int i = 0; i < some; i++) to[x * channels + first + i] = (uint8_t)(words[x] >> 8 * i);
        }
}
