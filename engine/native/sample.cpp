// Draws tokens from rows of logits: temperature, then min-p, top-k and top-p, then the vocabulary is
// halved by the mass of what is kept until one token is left (why: engine/sampling/halving.py).
//
// Nothing is sorted but a few candidates: a filter's last token is found by halving the range of
// logits in which it lies, each time with one pass over the tokens still in question. The filters
// rest on one order, likeliest first and the smaller id first among equals. A weight is
// e^((logit - largest) / T) in float32; sums of weights run over 64 tokens in float32, beyond in
// float64, in vocabulary order, so a draw does not depend on what is drawn beside it.
#include <algorithm>
#include <vector>

#include "logit_row.h"
#include "octavo.h"
#include "parallel.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kFew = 128;  // tokens in question that are sorted rather than halved further

// A bit for each lane.
inline uint32_t lanes_of(IntVec mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= (mask[lane] & 1u) << lane;
    return bits;
#endif
}

inline IntVec count_up(int32_t first) {
    IntVec v;
    for (int lane = 0; lane < kLanes; ++lane) v[lane] = first + lane;
    return v;
}

struct Token {
    float logit;
    int32_t id;
    float weight;
    bool operator<(const Token& other) const {  // likelier
        return logit > other.logit || (logit == other.logit && id < other.id);
    }
};

struct Sums {
    double mass;
    int64_t count;
};

// Tokens of a row in vocabulary order, padded with logits of -inf to whole blocks. A whole row has
// no ids of its own: they are the places. The vectors only grow, `size` of them is in use.
struct Tokens {
    std::vector<float> logits, weights;
    std::vector<int32_t> ids;
    int64_t size = 0;
    int64_t count = 0;  // without the padding

    int32_t id(int64_t i) const { return ids.empty() ? (int32_t)i : ids[i]; }
    void make_room(int64_t tokens) {
        if ((int64_t)logits.size() >= tokens) return;
        logits.resize(tokens);
        weights.resize(tokens);
    }

    /// Takes those of `from` with low <= logit < high.
    void take(const Tokens& from, float low, float high);
    void weigh(float peak, float temperature);
    void drop_below(float weight);
    float least() const;  // the smallest finite logit
    Sums above(float value) const;
    void keep(const Token& last);
    int32_t draw(const double* numbers, int halvings) const;
};

void Tokens::take(const Tokens& from, float low, float high) {
    make_room(from.size);
    if (ids.size() < logits.size()) ids.resize(logits.size());
    count = 0;
    Vec floor = broadcast(low), ceiling = broadcast(high);
    for (int64_t i = 0; i < from.size; i += kLanes) {
        Vec x = load(from.logits.data() + i);
        IntVec in = (x >= floor) & (x < ceiling);
        for (uint32_t lanes = lanes_of(in); lanes != 0; lanes &= lanes - 1) {
            int64_t at = i + __builtin_ctz(lanes);
            logits[count] = from.logits[at];
            weights[count] = from.weights[at];
            ids[count++] = from.id(at);
        }
    }
    size = (count + kBlock - 1) / kBlock * kBlock;
    std::fill(logits.begin() + count, logits.begin() + size, -kInfinity);
    std::fill(weights.begin() + count, weights.begin() + size, 0.0f);
}

void Tokens::weigh(float peak, float temperature) {
    Vec top = broadcast(peak), divisor = broadcast(temperature);
    for (int64_t i = 0; i < size; i += kLanes)
        store(weights.data() + i, exp_down((load(logits.data() + i) - top) / divisor));
}

void Tokens::drop_below(float weight) {
    Vec floor = broadcast(weight);
    for (int64_t i = 0; i < size; i += kLanes) {
        Vec w = load(weights.data() + i);
        store(weights.data() + i, select(w >= floor, w, Vec{}));
    }
}

float Tokens::least() const {
    Vec lowest = broadcast(__FLT_MAX__), nothing = broadcast(-kInfinity);
    for (int64_t i = 0; i < size; i += kLanes) {
        Vec x = load(logits.data() + i);
        lowest = select((x < lowest) & (x > nothing), x, lowest);
    }
    return -largest(-lowest);
}

// Weight and number of the tokens whose logits reach `value`.
Sums Tokens::above(float value) const {
    Vec floor = broadcast(value), ones = {};
    DoubleVec mass = {};
    for (int64_t b = 0; b < size; b += kBlock) {
        Vec part = {};
        for (int64_t i = b; i < b + kBlock; i += kLanes) {
            IntVec in = load(logits.data() + i) >= floor;
            part = part + select(in, load(weights.data() + i), Vec{});
            ones = ones + select(in, broadcast(1.0f), Vec{});
        }
        mass = mass + to_double(part);
    }
    return {sum_doubles(mass), (int64_t)sum_doubles(to_double(ones))};
}

// Takes the weight from every token that comes after `last`.
void Tokens::keep(const Token& last) {
    Vec smallest = broadcast(last.logit);
    for (int64_t i = 0; i < size; i += kLanes) {
        Vec x = load(logits.data() + i);
        IntVec numbers = count_up((int32_t)i);
        if (!ids.empty()) memcpy(&numbers, ids.data() + i, sizeof numbers);
        IntVec kept = (x > smallest) | ((x == smallest) & (numbers <= last.id));
        store(weights.data() + i, select(kept, load(weights.data() + i), Vec{}));
    }
}

// One number a halving. A token without weight is never drawn.
int32_t Tokens::draw(const double* numbers, int halvings) const {
    thread_local std::vector<double> sums;  // of all blocks before each
    sums.assign(1, 0.0);
    for (int64_t b = 0; b < size; b += kBlock) {
        Vec part = {};
        for (int64_t i = b; i < b + kBlock; i += kLanes) part = part + load(weights.data() + i);
        sums.push_back(sums.back() + sum_doubles(to_double(part)));
    }
    auto mass_below = [&](int64_t token) {
        int64_t i = std::min(token, count);
        if (!ids.empty())
            i = std::lower_bound(ids.begin(), ids.begin() + count, token) - ids.begin();
        double inside = 0.0;
        for (int64_t j = i / kBlock * kBlock; j < i; ++j) inside += weights[j];
        return sums[i / kBlock] + inside;
    };
    int64_t low = 0, half = (int64_t)1 << halvings;
    double below_low = 0.0, below_high = sums.back();
    for (int level = 0; level < halvings; ++level) {
        half /= 2;
        // Rounding of a block's two sums must not make a half of less than nothing.
        double middle = std::min(std::max(mass_below(low + half), below_low), below_high);
        bool reached = numbers[level] * (below_high - below_low) >= middle - below_low;
        if (reached && below_high > middle)
            low += half, below_low = middle;
        else
            below_high = middle;
    }
    return (int32_t)low;
}

// The first token, in order, at which `enough(mass, count)` of it and all before is true; the last
// one that reaches `lowest` where it never is.
template <class Enough>
Token find_last(const Tokens& all, float lowest, float peak, const Enough& enough) {
    thread_local Tokens fewer[2];
    const Tokens* now = &all;
    float low = lowest, high = kInfinity;
    Sums before = {0.0, 0};  // of what lies above the tokens in question and was left behind
    Sums at_low = now->above(low), at_high = {0.0, 0};
    for (int turn = 0; at_low.count - at_high.count > kFew;) {
        float top = high == kInfinity ? peak : high;
        float middle = (float)(0.5 * ((double)low + (double)top));
        if (high == kInfinity && !(middle < top)) middle = top;
        if (!(middle > low) || !(middle < high)) break;  // equals: in order of their ids
        Sums at = now->above(middle);
        at.mass += before.mass, at.count += before.count;
        if (enough(at.mass, at.count))
            low = middle, at_low = at;
        else
            high = middle, at_high = at;
        if (4 * (at_low.count - at_high.count) < now->size) {
            fewer[turn].take(*now, low, high);
            now = &fewer[turn];
            before = at_high;
            turn = 1 - turn;
        }
    }
    thread_local Tokens rest;
    rest.take(*now, low, high);
    thread_local std::vector<Token> order;
    order.clear();
    for (int64_t i = 0; i < rest.size && rest.logits[i] > -kInfinity; ++i)
        order.push_back({rest.logits[i], rest.ids[i], rest.weights[i]});
    if (order.empty()) return {low, INT32_MAX, 0.0f};
    std::sort(order.begin(), order.end());
    for (const Token& token : order) {
        at_high.mass += token.weight;
        ++at_high.count;
        if (enough(at_high.mass, at_high.count)) return token;
    }
    return order.back();
}

// Top-p of what has weight. Tokens of less than (1 - p) / vocabulary of the mass each make up less
// than 1 - p together, so none of them is needed; half of that leaves room for rounding.
void keep_share(Tokens& tokens, double share, float peak) {
    double all = tokens.above(-__FLT_MAX__).mass, wanted = share * all;
    float least = (float)(0.5 * (1.0 - share) * all / (double)tokens.size);
    Vec floor = broadcast(std::max(least, __FLT_MIN__));
    Vec lowest = broadcast(peak);
    for (int64_t i = 0; i < tokens.size; i += kLanes) {
        Vec x = load(tokens.logits.data() + i);
        lowest = select((load(tokens.weights.data() + i) >= floor) & (x < lowest), x, lowest);
    }
    tokens.keep(find_last(tokens, -largest(-lowest), peak,
                          [wanted](double mass, int64_t) { return mass >= wanted; }));
}

// A row of logits as float32, and the largest of each block.
struct Row {
    Tokens all;
    std::vector<float> maxima;
    float peak = 0.0f;  // not finite where the row cannot be drawn from

    template <class T>
    void load_logits(const T* from, int vocab);
    float kth_floor(int64_t k) const;
};

template <class T>
void Row::load_logits(const T* from, int vocab) {
    int64_t blocks = (vocab + kBlock - 1) / kBlock;
    all.make_room(blocks * kBlock);
    all.size = blocks * kBlock;
    all.count = vocab;
    maxima.resize(blocks);
    Vec poison = {};
    for (int64_t b = 0; b < blocks; ++b) {
        float* to = all.logits.data() + b * kBlock;
        const T* block = from + b * kBlock;
        T tail[kBlock];
        int64_t left = vocab - b * kBlock;
        if (left < kBlock) {
            for (int64_t i = 0; i < kBlock; ++i)
                if constexpr (sizeof(T) == 2)
                    tail[i] = i < left ? block[i] : narrow(-kInfinity);
                else
                    tail[i] = i < left ? block[i] : -kInfinity;
            block = tail;
        }
        Vec most = broadcast(-kInfinity);
        for (int i = 0; i < kBlock; i += kLanes) {
            Vec x = load(block + i);
            store(to + i, x);
            most = max(x, most);
            poison = fma(x - x, x - x, poison);  // NaN for a NaN and for infinities
        }
        maxima[b] = largest(most);
    }
    peak = *std::max_element(maxima.begin(), maxima.end());
    if (sum(poison) != 0.0f) {  // minus infinity alone is no harm
        for (int64_t i = 0; i < all.size; ++i)
            if (all.logits[i] != all.logits[i]) peak = all.logits[i];
    }
}

// A floor that the k largest logits reach: k blocks hold a token as large as the k-th largest
// maximum. Minus the largest float where there are fewer blocks.
float Row::kth_floor(int64_t k) const {
    if (k > (int64_t)maxima.size()) return -__FLT_MAX__;
    thread_local std::vector<float> order;
    order = maxima;
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
    return std::max(order[k - 1], -__FLT_MAX__);
}

template <class T>
int64_t likeliest(const T* logits, int vocab) {
    thread_local std::vector<float> maxima;
    const LogitRow<T> row(logits, vocab);
    const float peak = row.find_maxima(maxima);
    return __builtin_isfinite(peak) ? row.first_peak(maxima, peak) : -1;
}

int64_t draw_token(const OctavoDraw& draw, const double* numbers, int halvings, const void* logits,
                   int dtype, int64_t stride, int vocab) {
    thread_local Row row;
    thread_local Tokens fewer;
    const float* wide = (const float*)logits + draw.row * stride;
    const bf16* half = (const bf16*)logits + draw.row * stride;
    if (draw.temperature <= 0.0f)
        return dtype == OCTAVO_F32 ? likeliest(wide, vocab) : likeliest(half, vocab);
    if (dtype == OCTAVO_F32)
        row.load_logits(wide, vocab);
    else
        row.load_logits(half, vocab);
    if (!__builtin_isfinite(row.peak)) return -1;
    bool top_k = draw.top_k > 0 && draw.top_k < vocab;
    float lowest = top_k ? row.kth_floor(draw.top_k) : -__FLT_MAX__;
    if (draw.min_p > 0.0f) {
        double gap = draw.temperature * (__builtin_log(draw.min_p) - 1e-3);
        lowest = std::max(lowest, (float)std::max((double)row.peak + gap, -(double)__FLT_MAX__));
    }
    Tokens* tokens = &row.all;
    if (lowest > -__FLT_MAX__) {
        fewer.take(row.all, lowest, kInfinity);
        tokens = &fewer;
    }
    tokens->weigh(row.peak, draw.temperature);
    if (draw.min_p > 0.0f)
        tokens->drop_below(draw.min_p);
    if (top_k)
        tokens->keep(find_last(*tokens, tokens->least(), row.peak,
                               [&](double, int64_t count) { return count >= draw.top_k; }));
    if (draw.top_p < 1.0) keep_share(*tokens, draw.top_p, row.peak);
    return tokens->draw(numbers, halvings);
}

}  // namespace
}  // namespace octavo

using namespace octavo;

void octavo_draw(const void* logits, int32_t dtype, int64_t stride, int32_t vocab,
                 const OctavoDraw* draws, const double* numbers, int32_t halvings, int32_t count,
                 int64_t* tokens) {
    parallel_for(count, [&](int64_t i, int) {
        tokens[i] = draw_token(draws[i], numbers + i * halvings, halvings, logits, dtype, stride,
                               vocab);
    });
}
