/* Convolutions of bytes: whole numbers of 8 bits or fewer, by binary or int8 weights. Read by core.h alone.
 *
 * A byte u is the whole number u + low. Padding is 0, so it is the byte -low, and a filter's sum is Σ w u + low Σ w, an
 * exact integer. The second part is the same everywhere: it is what the sums start from. */

enum { EB_MOST_TILE = 14 }; /* pixels that a kernel adds up together */

/* A row of pixels for a block of filters, or two rows where both fit into a tile. */
typedef struct {
    const uint8_t *input[2];   /* of a group, at the first pixel's window */
    int64_t pixels;            /* of each row */
    int rows;
    const void *packed;        /* weights of the block */
    const int32_t *start;      /* EB_BLOCK sums to start from */
    float *sums;               /* EB_BLOCK for each pixel, row after row */
} eb_byte_row;

/* What an instruction set provides. */
typedef struct eb_byte_kernels {
    const char *name; /* of the instruction set that they belong to */
    int (*supported)(void);
    /* Each entry of the weights is four bytes for each filter, for the four bytes of input at its offset. */
    void (*dot)(const eb_step *step, const eb_byte_row *row);
    void (*dot_int8)(const eb_step *step, const eb_byte_row *row); /* the same for weights that are not ±1 */
    /* Numbers of 4 bits and binary weights, NULL where that is not quicker: every four channels become a table of 16 bytes,
     * an entry of the weights is 16 channels of a tap. A byte holds Σ u over the 1 bits of its place and Σ (levels - u) over
     * the others, which is Σ ± u and a constant of the filter. The place of four of these, for a filter, and its byte. */
    void (*look_up)(const eb_step *step, const eb_byte_row *row);
    void (*make_tables)(const uint8_t *from, int64_t channels, int levels, uint8_t *to);
    int64_t (*place)(int64_t four, int64_t filter);
    int four_shift; /* of the number of a table among four, in the byte */
} eb_byte_kernels;

#ifdef EB_HAVE_AVX2
extern const eb_byte_kernels eb_byte_kernels_avx2;
#endif
#ifdef EB_HAVE_AVX512
extern const eb_byte_kernels eb_byte_kernels_avx512;
#endif
void eb_dot_portable(const eb_step *step, const eb_byte_row *row);
const eb_byte_kernels *eb_byte_kernels_of(const eb_kernels *kernels);

/* byte_convs.c */
int eb_read_quant(eb_plan *plan, const eb_recipe *recipe, eb_step *step, int64_t number, char *error);
int eb_layout_bytes_conv(eb_plan *plan, eb_step *step, const eb_recipe *recipe, char *error);
int eb_check_load(const eb_step *step, int64_t number, char *error);
int64_t eb_load_lines(const eb_step *step);
void eb_load_bytes(const eb_context *context, const eb_step *step, int64_t from, int64_t end);
void eb_bytes_conv_prepare(const eb_context *context, const eb_step *step, int64_t from, int64_t to);
void eb_bytes_conv_row(const eb_context *context, const eb_step *step, int64_t row, int64_t block, eb_row target);
void eb_bytes_conv_rows(const eb_context *context, const eb_step *step, int64_t block, int64_t from, int64_t to);

/* conv_layout.c, steps.c */
int eb_check_planes(const eb_step *step, const eb_recipe *recipe, char *error);
eb_row eb_block_row(const eb_step *step, int64_t block, int64_t pixels);
void eb_point_at_values(const eb_context *context, const eb_step *step, int64_t row, eb_row *target);
void eb_call_in_weights(const eb_step *step, int64_t block, int64_t row);
