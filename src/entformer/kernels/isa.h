// Which instruction set the kernels run with: picked once by what this CPU has, or forced for tests and benchmarks.
#pragma once

#define ENTFORMER_EXPORT extern "C" __attribute__((visibility("default")))

// "avx512", "avx2" or "portable".
ENTFORMER_EXPORT const char* entformer_isa();
// Returns 0 when this CPU cannot run `name`, and changes nothing then.
ENTFORMER_EXPORT int entformer_set_isa(const char* name);
