/* Parts of the C library for the WebAssembly module, which imports one function: the clock. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 1 << 16, ALIGNMENT = 16 };

extern char __heap_base;
static uintptr_t heap_end; /* memory after it was never used, and is 0 */

/* Memory is never freed: a page holds one plan. The size is stored before each allocation. */
void *malloc(size_t bytes) {
    if (!heap_end) heap_end = ((uintptr_t)&__heap_base + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const uint64_t end = ((uint64_t)heap_end + ALIGNMENT + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const uint64_t pages = (end + PAGE - 1) / PAGE, now = __builtin_wasm_memory_size(0);
    if (pages > PAGE || (pages > now && __builtin_wasm_memory_grow(0, (size_t)(pages - now)) == SIZE_MAX)) return NULL;
    char *piece = (char *)heap_end + ALIGNMENT;
    memcpy(piece - sizeof bytes, &bytes, sizeof bytes);
    heap_end = (uintptr_t)end;
    return piece;
}

void *calloc(size_t count, size_t bytes) {
    return bytes && count > SIZE_MAX / bytes ? NULL : malloc(count * bytes);
}

void *realloc(void *old, size_t bytes) {
    size_t before = 0;
    char *piece = malloc(bytes);
    if (piece && old) {
        memcpy(&before, (char *)old - sizeof before, sizeof before);
        memcpy(piece, old, before < bytes ? before : bytes);
    }
    return piece;
}

void free(void *pointer) { (void)pointer; }

/* Each is one instruction. */
void *memcpy(void *to, const void *from, size_t bytes) { return __builtin_memcpy(to, from, bytes); }
void *memmove(void *to, const void *from, size_t bytes) { return __builtin_memmove(to, from, bytes); }
void *memset(void *to, int byte, size_t bytes) { return __builtin_memset(to, byte, bytes); }

int strcmp(const char *a, const char *b) {
    for (; *a && *a == *b; a++) b++;
    return (unsigned char)*a - (unsigned char)*b;
}

int memcmp(const void *a, const void *b, size_t bytes) {
    const unsigned char *left = a, *right = b;
    for (; bytes && *left == *right; left++, bytes--) right++;
    return bytes ? *left - *right : 0;
}

/* %d and %lld, as used by the lines of reason. */
int vsnprintf(char *to, size_t room, const char *format, va_list arguments) {
    size_t at = 0;
    for (; *format; format++) {
        if (*format != '%') {
            if (at + 1 < room) to[at++] = *format;
            continue;
        }
        const int wide = format[1] == 'l';
        format += wide ? 3 : 1;
        const int64_t number = wide ? va_arg(arguments, long long) : va_arg(arguments, int);
        char digits[20];
        int count = 0;
        uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
        do digits[count++] = (char)('0' + rest % 10);
        while (rest /= 10);
        if (number < 0 && at + 1 < room) to[at++] = '-';
        while (count && at + 1 < room) to[at++] = digits[--count];
    }
    to[at] = 0;
    return (int)at;
}

__attribute__((import_module("page"), import_name("milliseconds"))) extern double page_milliseconds(void);

int timespec_get(struct timespec *now, int base) {
    const double milliseconds = page_milliseconds();
    now->tv_sec = (int64_t)(milliseconds / 1000);
    now->tv_nsec = (long)((milliseconds - (double)now->tv_sec * 1000) * 1e6);
    return base;
}
