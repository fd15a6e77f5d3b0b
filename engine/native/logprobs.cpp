// Log-probabilities of tokens and the likeliest alternatives, from logits where they lie.
//
// A row is read three times while it is in the cache: for the maximum of each block of 64 tokens,
// for the sum of e^(logit - largest), and, of the few blocks whose maximum is among the k largest,
// for the likeliest tokens. Nothing is copied, and no result depends on the other rows of a call.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "logit_row.h"
#include "octavo.h"
#include "parallel.h"
#include "vec.h"

namespace octavo {
namespace {

struct Likely {
    float logit;
    int64_t id;
    bool operator<(const Likely& other) const {  // likelier
        return logit > other.logit || (logit == other.logit && id < other.id);
    }
};

// The likeliest tokens, at most `top`. The k-th largest block maximum is a floor that the k
// largest logits reach, since k blocks hold a token as large.
template <class T>
void find_likeliest(const LogitRow<T>& row, const std::vector<float>& maxima, int64_t top,
                    std::vector<Likely>& found) {
    found.clear();
    if (top <= 0) return;
    float floor = -__FLT_MAX__;
    if (top <= (int64_t)maxima.size()) {
        thread_local std::vector<float> order;
        order = maxima;
        std::nth_element(order.begin(), order.begin() + (top - 1), order.end(),
                         std::greater<float>());
        floor = std::max(floor, order[top - 1]);
    }
    for (int64_t b = 0; b < row.num_blocks; ++b) {
        if (maxima[b] < floor) continue;
        const T* block = row.block(b);
        for (int64_t i = 0; i < kBlock; ++i) {
            const float logit = as_float(block[i]);
            if (logit >= floor) found.push_back({logit, b * kBlock + i});
        }
    }
    const int64_t kept = std::min(top, (int64_t)found.size());
    std::partial_sort(found.begin(), found.begin() + kept, found.end());
    found.resize(kept);
}

struct Result {
    double* logprob;
    int64_t* rank;
    int32_t width;
    int64_t* top_ids;
    double* top_logprobs;
};

template <class T>
void score_token(const T* logits, int32_t vocab, const OctavoScore& score, const Result& result) {
    thread_local std::vector<float> maxima;
    thread_local std::vector<Likely> found;
    const LogitRow<T> row(logits, vocab);
    const float peak = row.find_maxima(maxima);
    *result.rank = 0;
    if (!__builtin_isfinite(peak)) return;

    const float own = as_float(logits[score.token]);
    const Vec top = broadcast(peak), mine = broadcast(own), one = broadcast(1.0f);
    DoubleVec mass = {};
    Vec likelier = {};
    for (int64_t b = 0; b < row.num_blocks; ++b) {
        const T* block = row.block(b);
        Vec part = {};
        for (int i = 0; i < kBlock; i += kLanes) {
            Vec x = load(block + i);
            part = part + exp_down(x - top);
            likelier = likelier + select(x > mine, one, Vec{});
        }
        mass = mass + to_double(part);
    }
    const double norm = (double)peak + std::log(sum_doubles(mass));
    *result.logprob = (double)own - norm;
    *result.rank = 1 + (int64_t)sum_doubles(to_double(likelier));

    find_likeliest(row, maxima, score.top, found);
    for (int64_t i = 0; i < result.width; ++i) {
        const bool there = i < (int64_t)found.size();
        result.top_ids[i] = there ? found[i].id : -1;
        result.top_logprobs[i] = there ? (double)found[i].logit - norm : -kInfinity;
    }
}

}  // namespace
}  // namespace octavo

using namespace octavo;

void octavo_logprobs(const void* logits, int32_t dtype, int64_t stride, int32_t vocab,
                     const OctavoScore* scores, int32_t count, double* logprobs, int64_t* ranks,
                     int32_t width, int64_t* top_ids, double* top_logprobs) {
    parallel_for(count, [&](int64_t i, int) {
        const Result result = {logprobs + i, ranks + i, width, top_ids + i * width,
                               top_logprobs + i * width};
        const int64_t at = scores[i].row * stride;
        if (dtype == OCTAVO_F32)
            score_token((const float*)logits + at, vocab, scores[i], result);
        else
            score_token((const bf16*)logits + at, vocab, scores[i], result);
    });
}
