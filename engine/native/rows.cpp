// Rows of activations in the form that packed weights are multiplied with: once a row and layer,
// before its tasks start.
#include <math.h>

#include <algorithm>

#include "linear.h"

namespace octavo {
namespace {

/// The nearest integers, ties to even, as lrintf does; |v| < 2^22.
inline IntVec rounded(Vec v) {
    const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23
    return bits<IntVec>(v + magic) - bits<IntVec>(magic);
}

template <class T>
inline void put(T* p, IntVec v) {
    typedef T Narrow __attribute__((vector_size(kLanes * sizeof(T))));
    Narrow n = __builtin_convertvector(v, Narrow);
    memcpy(p, &n, sizeof n);
}

/// A row of int16 numbers, or of their high and low bytes: n = 256 high + low, 0 <= low < 256.
struct Numbers {
    int16_t* ints;
    int64_t term;

    int8_t* high() const { return (int8_t*)ints; }
    int8_t* low() const { return high() + term; }

    void set(int64_t k, IntVec v) const {
        if (!kAmx) return put(ints + k, v);
        put(high() + k, v >> 8);
        put(low() + k, v);
    }
    void set(int64_t k, int v) const {
        if (!kAmx) ints[k] = (int16_t)v;
        else high()[k] = (int8_t)(v >> 8), low()[k] = (int8_t)v;
    }
};

void quantise_row(const float* x, int in, int16_t* ints, float* scales) {
    const Numbers numbers{ints, term_stride(in)};
    for (int start = 0; start < in; start += kBlock) {
        int n = std::min(kBlock, in - start);
        Vec top{}, poison{};
        int k = 0;
        for (; k + kLanes <= n; k += kLanes) {
            Vec v = load(x + start + k);
            top = max(abs(v), top);
            poison = fma(v, broadcast(0.0f), poison);
        }
        if (k < n) {
            Vec v = load_some(x + start + k, n - k);
            top = max(abs(v), top);
            poison = fma(v, broadcast(0.0f), poison);
        }
        const float peak = largest(top);
        // Where a number is not finite the scale is NaN, and so is all that the row gives.
        const float scale = peak / 32767.0f + sum(poison);
        const float inverse = peak > 0 && scale == scale ? 32767.0f / peak : 0.0f;
        *scales++ = scale;
        for (k = 0; k + kLanes <= n; k += kLanes)
            numbers.set(start + k, rounded(load(x + start + k) * inverse));
        for (; k < n; ++k)
            numbers.set(start + k, inverse > 0 ? (int)lrintf(x[start + k] * inverse) : 0);
    }
    for (int64_t k = in; k < term_stride(in); ++k) numbers.set(k, 0);
}

/// x = high + low, up to 2^-17 of x: high is x rounded, low what that left, rounded.
void split_row(const float* x, int in, bf16* high, bf16* low) {
    for (int64_t k = in; k < term_stride(in); ++k) high[k] = low[k] = 0;
    int k = 0;
    for (; k + kLanes <= in; k += kLanes) {
        const Vec v = load(x + k);
        store(high + k, v);
        store(low + k, v - load(high + k));
    }
    for (; k < in; ++k) {
        high[k] = narrow(x[k]);
        low[k] = narrow(x[k] - widen(high[k]));
    }
}

}  // namespace

void prepare_row(int dtype, const float* x, int in, int16_t* ints, float* scales) {
    if (dtype == OCTAVO_I8) quantise_row(x, in, ints, scales);
    else split_row(x, in, (bf16*)ints, (bf16*)ints + term_stride(in));
}

}  // namespace octavo
