#pragma once
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
int strcmp(const char *a, const char *b);
int memcmp(const void *a, const void *b, size_t bytes);
