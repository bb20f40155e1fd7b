/* The image rounded to bytes, channels together. */
#include <string.h>

#include "core.h"

enum { LINE = 256 };

int eb_check_load(const eb_step *step, int64_t number, char *error) {
    if (step->field[EB_OUT] != -1 || step->chain.parts == EB_HAS_BYTES) return 1;
    return eb_fail(error, "step %d loads an image and makes more than bytes of it", (int)number);
}

/* Adding 1.5 · 2²³ rounds to the nearest whole number, ties to even, into the lowest bits. */
static void round_line(const eb_chain *chain, const float *from, int64_t count, uint8_t *to) {
    for (int64_t i = 0; i < count; i++) {
        const float scaled = from[i] * chain->unit, above = scaled >= chain->least ? scaled : chain->least;
        const float rounded = (above <= chain->most ? above : chain->most) + 12582912.0f;
        uint32_t whole;
        memcpy(&whole, &rounded, 4);
        to[i] = (uint8_t)(whole - (uint32_t)(int32_t)chain->least);
    }
}

void eb_load_bytes(const eb_context *context, const eb_step *step) {
    const eb_value *image = &step->in;
    const int64_t channels = image->channels, pixels = image->rows * image->columns;
    uint8_t *to = eb_value_at(context, step->field[EB_OUT_BYTES]);
    for (int64_t channel = 0; channel < channels; channel++) {
        uint8_t line[LINE], table[256];
        if (context->bytes) round_line(&step->chain, context->byte_table + channel * 256, 256, table);
        for (int64_t at = 0; at < pixels; at += LINE) {
            const int64_t count = pixels - at < LINE ? pixels - at : LINE, start = channel * pixels + at;
            if (context->bytes) for (int64_t i = 0; i < count; i++) line[i] = table[context->bytes[start + i]];
            else round_line(&step->chain, context->image + start, count, line);
            for (int64_t i = 0; i < count; i++) to[(at + i) * channels + channel] = line[i];
        }
    }
}
