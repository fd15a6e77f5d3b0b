// RMSNorm of rows, for models that keep their own layers (the general path).
#include "octavo.h"
#include "parallel.h"
#include "vec.h"

namespace octavo {
namespace {

// float32 inside. With `rounded` the normalised row takes the output's precision before it meets
// the weight, as in Llama; without, only the result does, as in Gemma.
template <class T>
void norm_row(const T* x, const float* weight, int32_t width, float eps, bool rounded, T* y) {
    Vec squares = {};
    float rest = 0.0f;
    int d = 0;
    for (; d + kLanes <= width; d += kLanes) squares = fma(load(x + d), load(x + d), squares);
    auto number = [](T value) {
        if constexpr (sizeof(T) == 2)
            return widen(value);
        else
            return value;
    };
    for (int i = d; i < width; ++i) rest += number(x[i]) * number(x[i]);
    float scale = 1.0f / __builtin_sqrtf((sum(squares) + rest) / (float)width + eps);
    auto round = [&](float value) {
        return sizeof(T) == 2 && rounded ? widen(narrow(value)) : value;
    };
    int whole = sizeof(T) == 2 && rounded ? 0 : d;
    for (d = 0; d < whole; d += kLanes)
        store(y + d, load(x + d) * scale * load(weight + d));
    for (; d < width; ++d) {
        float value = round(number(x[d]) * scale) * weight[d];
        if constexpr (sizeof(T) == 2)
            y[d] = narrow(value);
        else
            y[d] = value;
    }
}

template <class T>
void norm_rows(const T* x, int64_t rows, int64_t stride, const float* weight, int32_t width,
               float eps, bool rounded, T* y) {
    constexpr int64_t kElements = 1 << 14;  // what one task should find to do
    int64_t block = kElements / width + 1;
    parallel_for((rows + block - 1) / block, [&](int64_t task, int) {
        int64_t end = (task + 1) * block < rows ? (task + 1) * block : rows;
        for (int64_t r = task * block; r < end; ++r)
            norm_row(x + r * stride, weight, width, eps, rounded, y + r * width);
    });
}

}  // namespace
}  // namespace octavo

using namespace octavo;

void octavo_rms_norm(const void* x, int32_t dtype, int64_t rows, int64_t stride,
                     const float* weight, int32_t width, float eps, int32_t rounded, void* y) {
    if (dtype == OCTAVO_F32)
        norm_rows((const float*)x, rows, stride, weight, width, eps, rounded != 0, (float*)y);
    else
        norm_rows((const bf16*)x, rows, stride, weight, width, eps, rounded != 0, (bf16*)y);
}
