/* What transformers need: linear layers of binary weights whose input is rounded to 8 bits, one row in bytes.c, several in
 * rows_of_bytes.c; and attention with a state, in attend.c. */
#ifndef EQUALBITS_LINEAR_H
#define EQUALBITS_LINEAR_H

#include "equalbits.h"

/* The head of a row rounded to 8 bits: what a whole number stands for, and Σ |q| where one row is read, else Σ q. */
typedef struct {
    float step;
    uint32_t total;
} eb_bytes;

struct eb_step_; /* of core.h */
struct eb_context_;
struct eb_value_;

/* bytes.c */
int eb_layout_bytes(struct eb_step_ *step, const eb_recipe *recipe, char *error);
void eb_bytes_prepare(const struct eb_context_ *context, const struct eb_step_ *step, int64_t from, int64_t to);
void eb_bytes_sums(const struct eb_context_ *context, const struct eb_step_ *step, int64_t block, float *sums);

/* rows_of_bytes.c */
int eb_layout_byte_rows(struct eb_step_ *step, const uint8_t *sign, const uint8_t *kept, char *error);
void eb_byte_rows_prepare(const struct eb_context_ *context, const struct eb_step_ *step, int64_t from, int64_t to);
void eb_byte_rows_sums(const struct eb_context_ *context, const struct eb_step_ *step, int64_t block, float *sums);

/* attend.c */
int eb_check_attend(struct eb_step_ *step, const struct eb_value_ *values, int64_t number, char *error);
int eb_check_position(struct eb_step_ *step, int64_t number, char *error);
int eb_keep_state(eb_plan *plan, const struct eb_step_ *step, int64_t number, char *error);
void eb_attend_run(const struct eb_context_ *context, const struct eb_step_ *step, int64_t from, int64_t to);
void eb_position_run(const struct eb_context_ *context, const struct eb_step_ *step);

#endif
