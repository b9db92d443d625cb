// Selects instructions of x86 processors, if there are any. IPU_PORTABLE selects portable code, for tests.
#pragma once

#if defined(__x86_64__) && !defined(IPU_PORTABLE)
#define IPU_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define IPU_X86 0
#endif
