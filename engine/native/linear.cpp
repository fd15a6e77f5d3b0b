#include "octavo.h"
#include "parallel.h"
#include "vec.h"
int64_t octavo_packed_bytes(int32_t, int32_t, int32_t) { return 0; }
void octavo_pack(const float*, int32_t, int32_t, int32_t, void*, float*) {}
void octavo_unpack(const OctavoLinear*, float*) {}
void octavo_linear(const OctavoLinear*, const float*, int64_t, int32_t, float*, int64_t) {}
