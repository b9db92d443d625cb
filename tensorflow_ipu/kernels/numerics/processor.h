// Whether to use instructions of x86 processors. Their portable forms are tested with IPU_PORTABLE.
#pragma once

#if defined(__x86_64__) && !defined(IPU_PORTABLE)
#define IPU_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define IPU_X86 0
#endif
