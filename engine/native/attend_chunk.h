// Decoding: the query heads of one group against up to kChunk tokens of the context.
//
// Scores are dot products with lanes along the head, four tokens and up to three heads at once, so
// that a key is loaded once for three heads; the values' sum keeps lanes along the head too.
#pragma once

namespace octavo {

constexpr int kAhead = 8;  // tokens that are fetched ahead of use

template <class P>
inline void fetch(const P* head, int dim) {
    for (int byte = 0; byte < dim * (int)sizeof(P); byte += 64)
        __builtin_prefetch((const char*)head + byte);
}

/// The pages of the chunk that comes next, fetched into the second cache bit by bit while another
/// is computed. A default-constructed one fetches nothing.
class Lookahead {
  public:
    Lookahead() = default;
    Lookahead(const AttentionCall& call, const Chunk& chunk, int64_t element_bytes)
        : table_(call.batch.page_tables + chunk.sequence * call.batch.table_stride),
          first_(chunk.first / call.pages.page_size),
          last_((chunk.first + chunk.count - 1) / call.pages.page_size),
          page_bytes_(element_bytes * call.pages.page_size * call.pages.kv_heads * call.dim),
          data_((const char*)call.pages.keys),
          values_((const char*)call.pages.values) {
        enter(first_);
    }

    /// As many bytes as have been read meanwhile, in whole lines.
    void fetch(int bytes) {
        for (; bytes > 0 && at_; bytes -= kLine) {
            __builtin_prefetch(at_, 0, 2);
            at_ += kLine;
            if (at_ >= end_) next_page();
        }
    }

  private:
    static constexpr int kLine = 64;

    const int64_t* table_ = nullptr;
    int64_t first_ = 0, last_ = 0, page_ = 0, page_bytes_ = 0;
    const char *data_ = nullptr, *values_ = nullptr;  // values are null once they are being read
    const char *at_ = nullptr, *end_ = nullptr;       // null when all is fetched

    void enter(int64_t page) {
        page_ = page;
        at_ = data_ + table_[page] * page_bytes_;
        end_ = at_ + page_bytes_;
    }

    void next_page() {
        if (page_ < last_) {
            enter(page_ + 1);
        } else if (values_) {
            data_ = values_;
            values_ = nullptr;
            enter(first_);
        } else {
            at_ = nullptr;
        }
    }
};

/// The sums of four vectors, always added in the same order.
inline void sum_four(Vec a, Vec b, Vec c, Vec d, float* sums) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    auto halves = [](Vec v) {
        return _mm256_add_ps(_mm512_castps512_ps256((__m512)v),
                             _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1)));
    };
    __m256 ha = halves(a), hb = halves(b), hc = halves(c), hd = halves(d);
#else
    __m256 ha = (__m256)a, hb = (__m256)b, hc = (__m256)c, hd = (__m256)d;
#endif
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(ha, hb), _mm256_hadd_ps(hc, hd));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
    sums[0] = sum(a);
    sums[1] = sum(b);
    sums[2] = sum(c);
    sums[3] = sum(d);
#endif
}

/// Scores of G queries with T tokens, T a multiple of four: scores[g * kChunk + t].
template <class P, int G, int T>
inline void score_tokens(const P* keys, const int64_t* rows, const float* query, int dim,
                         float* scores) {
    Vec sums[T][G] = {};
    for (int d = 0; d < dim; d += kLanes) {
        Vec q[G];
        for (int g = 0; g < G; ++g) q[g] = load(query + g * dim + d);
        for (int t = 0; t < T; ++t) {
            Vec k = load(keys + rows[t] * dim + d);
            for (int g = 0; g < G; ++g) sums[t][g] = fma(k, q[g], sums[t][g]);
        }
    }
    for (int g = 0; g < G; ++g)
        for (int t = 0; t < T; t += 4)
            sum_four(sums[t][g], sums[t + 1][g], sums[t + 2][g], sums[t + 3][g],
                     scores + g * kChunk + t);
}

/// The values of `count` tokens, weighted, D vectors of the head from `d` on.
template <class P, int G, int D>
inline void weigh_block(const P* values, const int64_t* rows, const float* weights, int count,
                        int dim, int d, float* sums, Lookahead& ahead) {
    Vec acc[G][D] = {};
    for (int t = 0; t < count; ++t) {
        ahead.fetch(D * kLanes * (int)sizeof(P));
        const P* value = values + rows[t] * dim + d;
        fetch(values + rows[t + kAhead] * dim + d, D * kLanes);
        Vec w[G];
        for (int g = 0; g < G; ++g) w[g] = broadcast(weights[g * kChunk + t]);
        for (int i = 0; i < D; ++i) {
            Vec v = load(value + i * kLanes);
            for (int g = 0; g < G; ++g) acc[g][i] = fma(v, w[g], acc[g][i]);
        }
    }
    for (int g = 0; g < G; ++g)
        for (int i = 0; i < D; ++i) store(sums + g * dim + d + i * kLanes, acc[g][i]);
}

template <class P, int G>
inline void weigh_values(const P* values, const int64_t* rows, const float* weights, int count,
                         int dim, float* sums, Lookahead& ahead) {
    constexpr int kVectors = G == 1 ? 8 : 4;
    int d = 0;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes)
        weigh_block<P, G, kVectors>(values, rows, weights, count, dim, d, sums, ahead);
    for (; d + 2 * kLanes <= dim; d += 2 * kLanes)
        weigh_block<P, G, 2>(values, rows, weights, count, dim, d, sums, ahead);
    for (; d < dim; d += kLanes)
        weigh_block<P, G, 1>(values, rows, weights, count, dim, d, sums, ahead);
}

/// Turns scores into weights relative to the largest; lanes beyond `count` become 0.
inline void soften(float* scores, int count, float* peak, float* total) {
    int padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int t = count; t < padded; ++t) scores[t] = -__builtin_inff();
    Vec most = broadcast(-__builtin_inff());
    for (int t = 0; t < padded; t += kLanes) most = max(load(scores + t), most);
    Vec largest_score = broadcast(largest(most));
    Vec sums = {};
    for (int t = 0; t < padded; t += kLanes) {
        Vec weight = exp_down(load(scores + t) - largest_score);
        store(scores + t, weight);
        sums = sums + weight;
    }
    *peak = largest_score[0];
    *total = sum(sums);
}

struct Heads {
    int kv, query;  // the first of the query heads
};

/// G query heads of a group; `scales` are those of the keys, then of the values.
template <class P, int G>
void attend_heads(const AttentionCall& call, const Chunk& chunk, Heads heads, const int64_t* rows,
                  const float* scales, float* partial, Lookahead& ahead) {
    const int dim = call.dim, count = chunk.count;
    const P* keys = (const P*)call.pages.keys + heads.kv * dim;
    const P* values = (const P*)call.pages.values + heads.kv * dim;
    const int64_t row = call.batch.query_starts[chunk.sequence];
    float* query = scratch(Scratch::kWork, 2 * G * dim);
    float* sums = query + G * dim;
    alignas(64) float scores[G * kChunk];
    for (int g = 0; g < G; ++g) call.get(row, heads.query + g, query + g * dim);
    constexpr int kTokens = G == 1 ? 8 : 4;
    for (int t = 0; t < count; t += kTokens) {
        for (int i = t; i < t + kTokens; ++i) fetch(keys + rows[i + kAhead] * dim, dim);
        ahead.fetch(kTokens * dim * (int)sizeof(P));
        score_tokens<P, G, kTokens>(keys, rows + t, query, dim, scores + t);
    }
    for (int g = 0; g < G; ++g) {
        float* line = scores + g * kChunk;
        if (sizeof(P) == 1)
            for (int t = 0; t < count; ++t) line[t] *= scales[t];
        float peak, total;
        soften(line, count, &peak, &total);
        if (sizeof(P) == 1)
            for (int t = 0; t < count; ++t) line[t] *= scales[kChunk + t];
        if (partial) {
            partial[g * call.partial_width()] = peak;
            partial[g * call.partial_width() + 1] = total;
        } else {
            query[g] = 1.0f / total;  // the query itself is no longer needed
        }
    }
    weigh_values<P, G>(values, rows, scores, count, dim, sums, ahead);
    for (int g = 0; g < G; ++g) {
        if (partial)
            memcpy(partial + g * call.partial_width() + 2, sums + g * dim, dim * sizeof(float));
        else
            call.put(row, heads.query + g, sums + g * dim, query[g]);
    }
}

/// The query heads of one group; `rows` are those of KV head 0.
template <class P>
void attend_group(const AttentionCall& call, const Chunk& chunk, int kv_head, const int64_t* rows,
                  float* partial, Lookahead& ahead) {
    float scales[2 * kChunk];
    if (sizeof(P) == 1) {
        for (int t = 0; t < chunk.count; ++t) {
            scales[t] = call.pages.key_scales[rows[t] + kv_head];
            scales[kChunk + t] = call.pages.value_scales[rows[t] + kv_head];
        }
    }
    for (int g = 0; g < call.group;) {
        const Heads heads{kv_head, kv_head * call.group + g};
        const int left = call.group - g;
        float* at = partial ? partial + g * call.partial_width() : nullptr;
        if (left >= 5 || left == 3) {
            attend_heads<P, 3>(call, chunk, heads, rows, scales, at, ahead);
            g += 3;
        } else if (left >= 2) {
            attend_heads<P, 2>(call, chunk, heads, rows, scales, at, ahead);
            g += 2;
        } else {
            attend_heads<P, 1>(call, chunk, heads, rows, scales, at, ahead);
            g += 1;
        }
    }
}

/// A chunk's KV heads from `kv_head` on. Writes the output where the chunk is the whole context,
/// else the chunk's partial results, [heads, partial_width] of `partials`.
template <class P>
void attend_chunk(const AttentionCall& call, const Chunk& chunk, int kv_head, int kv_heads,
                  float* partials, Lookahead& ahead) {
    // Blocks of tokens and prefetches run past the end: they meet the last token again.
    int64_t rows[kChunk + kAhead + 8];
    call.find_rows(chunk.sequence, 0, chunk.first, chunk.count, rows);
    for (int i = chunk.count; i < chunk.count + kAhead + 8; ++i) rows[i] = rows[chunk.count - 1];
    for (int head = kv_head; head < kv_head + kv_heads; ++head) {
        const int64_t place = (int64_t)chunk.partial * call.heads + head * call.group;
        float* partial = chunk.partial < 0 ? nullptr : partials + place * call.partial_width();
        attend_group<P>(call, chunk, head, rows, partial, ahead);
    }
}

}  // namespace octavo
