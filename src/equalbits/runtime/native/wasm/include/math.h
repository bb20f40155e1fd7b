#pragma once
#define fabsf __builtin_fabsf
#define sqrtf __builtin_sqrtf
#define NAN __builtin_nanf("")
