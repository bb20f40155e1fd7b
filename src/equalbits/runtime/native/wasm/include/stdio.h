#pragma once
#include <stdarg.h>
#include <stddef.h>
int vsnprintf(char *to, size_t room, const char *format, va_list arguments);
