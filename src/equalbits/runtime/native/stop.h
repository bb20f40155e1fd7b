/* Asking whether a run is to stop. Read by core.h alone, behind what a step is. */
/* Return whether the run must stop: later results are discarded. Small steps do not check. */
int eb_poll(eb_stop *stop);
static inline int eb_stopped(const eb_step *step) {
    return __atomic_load_n(&step->stop->asked, __ATOMIC_RELAXED) || eb_poll(step->stop);
}
static inline int64_t eb_turns(int64_t work) { return 1 + (1 << 16) / (work + 1); }

/* Rows, or tiles, of a step between two checks of the stop flag. */
static inline int64_t eb_turns_of(const eb_step *step, int64_t pixels) {
    const int64_t entries = step->field[EB_KERNEL_H] * step->field[EB_KERNEL_W] * (step->words ? step->words : step->group_in);
    return eb_turns((entries + 1) * pixels / 8);
}
