#pragma once
#include <stdint.h>
enum { TIME_UTC = 1 };
struct timespec {
    int64_t tv_sec;
    long tv_nsec;
};
int timespec_get(struct timespec *now, int base);
