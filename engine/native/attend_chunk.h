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
                        int dim, int d, float* sums) {
    Vec acc[G][D] = {};
    for (int t = 0; t < count; ++t) {
        const P* value = values + rows[t] * dim + d;
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
                         int dim, float* sums) {
    constexpr int kVectors = G == 1 ? 8 : 4;
    int d = 0;
    for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes)
        weigh_block<P, G, kVectors>(values, rows, weights, count, dim, d, sums);
    for (; d + 2 * kLanes <= dim; d += 2 * kLanes)
        weigh_block<P, G, 2>(values, rows, weights, count, dim, d, sums);
    for (; d < dim; d += kLanes)
        weigh_block<P, G, 1>(values, rows, weights, count, dim, d, sums);
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

/// G heads of a group from `head` on; `scales` are those of the keys, then of the values.
template <class P, int G>
void attend_heads(const AttentionCall& call, int64_t row, int head, const int64_t* rows, int count,
                  const float* scales, float* partial) {
    const P* keys = (const P*)call.pages.keys;
    const P* values = (const P*)call.pages.values;
    int dim = call.dim;
    float* query = scratch(Scratch::kWork, 2 * G * dim);
    float* sums = query + G * dim;
    alignas(64) float scores[G * kChunk];
    for (int g = 0; g < G; ++g) call.get(row, head + g, query + g * dim);
    constexpr int kTokens = G == 1 ? 8 : 4;
    for (int t = 0; t < count; t += kTokens) {
        for (int i = t; i < t + kTokens; ++i) {
            fetch(keys + rows[i + kAhead] * dim, dim);
            fetch(values + rows[i] * dim, dim);  // used when all scores are known
        }
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
    weigh_values<P, G>(values, rows, scores, count, dim, sums);
    for (int g = 0; g < G; ++g) {
        if (partial)
            memcpy(partial + g * call.partial_width() + 2, sums + g * dim, dim * sizeof(float));
        else
            call.put(row, head + g, sums + g * dim, query[g]);
    }
}

/// One decoding sequence, one KV head, `count` positions from `first`. Writes the output where
/// `partial` is null, else the group's partial results [group, partial_width].
template <class P>
void attend_chunk(const AttentionCall& call, int sequence, int kv_head, int first, int count,
                  float* partial) {
    // Blocks of tokens and prefetches run past the end: they meet the last token again.
    int64_t rows[kChunk + kAhead + 8];
    call.find_rows(sequence, kv_head, first, count, rows);
    for (int i = count; i < count + kAhead + 8; ++i) rows[i] = rows[count - 1];
    float scales[2 * kChunk];
    if (sizeof(P) == 1) {
        for (int t = 0; t < count; ++t) scales[t] = call.pages.key_scales[rows[t]];
        for (int t = 0; t < count; ++t) scales[kChunk + t] = call.pages.value_scales[rows[t]];
    }
    int64_t row = call.batch.query_starts[sequence];
    for (int g = 0; g < call.group;) {
        int head = kv_head * call.group + g;
        int left = call.group - g;
        float* at = partial ? partial + g * call.partial_width() : nullptr;
        if (left >= 5 || left == 3) {
            attend_heads<P, 3>(call, row, head, rows, count, scales, at);
            g += 3;
        } else if (left >= 2) {
            attend_heads<P, 2>(call, row, head, rows, count, scales, at);
            g += 2;
        } else {
            attend_heads<P, 1>(call, row, head, rows, count, scales, at);
            g += 1;
        }
    }
}

}  // namespace octavo
