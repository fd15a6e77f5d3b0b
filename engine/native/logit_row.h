// A row of logits where it lies, in blocks of 64 tokens, for what runs over a whole vocabulary.
//
// Sums of many float32 run over the tokens of a block in float32, beyond in float64, in vocabulary
// order, so they do not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <vector>

#include "vec.h"

namespace octavo {

constexpr int kBlock = 64;
constexpr float kInfinity = __builtin_inff();

typedef double DoubleVec __attribute__((vector_size(kLanes * 8)));

inline DoubleVec to_double(Vec v) { return __builtin_convertvector(v, DoubleVec); }

inline double sum_doubles(DoubleVec v) {
    double all = 0.0;
    for (int lane = 0; lane < kLanes; ++lane) all += v[lane];
    return all;
}

inline float as_float(float x) { return x; }
inline float as_float(bf16 x) { return widen(x); }

/// T is float or bf16. Nothing is copied but the rest of a last block that is not whole, filled up
/// with -inf.
template <class T>
class LogitRow {
  public:
    LogitRow(const T* logits, int64_t vocab)
        : num_blocks((vocab + kBlock - 1) / kBlock), logits_(logits), whole_(vocab / kBlock) {
        const int64_t left = vocab - whole_ * kBlock;
        for (int64_t i = 0; i < kBlock && left > 0; ++i) {
            if constexpr (sizeof(T) == 2)
                tail_[i] = i < left ? logits[whole_ * kBlock + i] : narrow(-kInfinity);
            else
                tail_[i] = i < left ? logits[whole_ * kBlock + i] : -kInfinity;
        }
    }

    const int64_t num_blocks;

    const T* block(int64_t b) const { return b < whole_ ? logits_ + b * kBlock : tail_; }

    /// Sets the largest logit of each block. Returns that of the row, NaN where it holds one.
    float find_maxima(std::vector<float>& maxima) const {
        maxima.resize(num_blocks);
        Vec poison = {};
        for (int64_t b = 0; b < num_blocks; ++b) {
            Vec most = broadcast(-kInfinity);
            for (int i = 0; i < kBlock; i += kLanes) {
                Vec x = load(block(b) + i);
                most = max(x, most);
                poison = select(x == x, poison, x);
            }
            maxima[b] = largest(most);
        }
        const float bad = sum(poison);
        return bad != bad ? bad : *std::max_element(maxima.begin(), maxima.end());
    }

    /// The first token whose logit is `peak`, the largest.
    int64_t first_peak(const std::vector<float>& maxima, float peak) const {
        const int64_t b = std::find(maxima.begin(), maxima.end(), peak) - maxima.begin();
        int64_t i = 0;
        while (as_float(block(b)[i]) != peak) ++i;
        return b * kBlock + i;
    }

  private:
    const T* logits_;
    const int64_t whole_;
    T tail_[kBlock];
};

}  // namespace octavo
