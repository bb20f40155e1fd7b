/* Choice of the kernels at run time: the best instruction set that this processor supports. */
#include <string.h>

#include "core.h"

static const eb_kernels *const all_kernels[] = {
#ifdef EB_HAVE_AVX512
    &eb_kernels_avx512,
#endif
#ifdef EB_HAVE_AVX2
    &eb_kernels_avx2,
#endif
#ifdef EB_HAVE_NEON
    &eb_kernels_neon,
#endif
#ifdef __wasm_simd128__
    &eb_kernels_wasm,
#else
    &eb_kernels_portable,
#endif
};

enum { KERNELS = sizeof all_kernels / sizeof *all_kernels };

const eb_kernels *eb_kernels_named(const char *name) {
    for (int i = 0; i < KERNELS; i++)
        if ((!name || !strcmp(name, all_kernels[i]->name)) && all_kernels[i]->supported()) return all_kernels[i];
    return NULL;
}

const char *const *eb_instruction_sets(void) {
    static const char *names[KERNELS + 1];
    int count = 0;
    for (int i = 0; i < KERNELS; i++)
        if (all_kernels[i]->supported()) names[count++] = all_kernels[i]->name;
    names[count] = NULL;
    return names;
}
