// Prefill: a tile of queries (tokens x the heads of a group) against the whole context they see.
//
// Lanes run along the query rows: the queries are transposed once, scores come out as [key][row],
// so that the softmax needs no sum across lanes, and keys and values are read as they lie. Both
// products are register-blocked: six lines against two (four, where there are 32 registers)
// vectors.
#pragma once

namespace octavo {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kBlockVectors = 4;
#else
constexpr int kBlockVectors = 2;
#endif
constexpr int kBlockLines = 6;

/// A task's buffers. `padded` rows: whole vectors.
struct QueryTile {
    int rows, padded, dim;
    float* query;       // [dim][padded], transposed and scaled
    float* scores;      // [kTileKeys][padded]
    float* output;      // [rows][dim]
    float* keys;        // [kTileKeys][dim]
    float* values;      // [kTileKeys][dim]
    float* peak;        // [padded] largest score so far
    float* total;       // [padded] sum of weights so far
    float* factor;      // [padded] what this tile's larger peak makes of the earlier sums
    int32_t* position;  // [padded]

    QueryTile(int rows_, int dim_) : rows(rows_), dim(dim_) {
        padded = (rows + kLanes - 1) / kLanes * kLanes;
        float* at = scratch(Scratch::kWork, (int64_t)padded * (2 * dim + kTileKeys + 4) +
                                                2 * kTileKeys * (int64_t)dim);
        auto take = [&](int64_t floats) { return at += floats, at - floats; };
        query = take((int64_t)dim * padded);
        scores = take((int64_t)kTileKeys * padded);
        output = take((int64_t)padded * dim);
        keys = take((int64_t)kTileKeys * dim);
        values = take((int64_t)kTileKeys * dim);
        peak = take(padded);
        total = take(padded);
        factor = take(padded);
        position = (int32_t*)take(padded);
    }
};

/// scores[key][row] for M keys and N vectors of rows.
template <int M, int N>
inline void score_block(const QueryTile& tile, int key, int row) {
    Vec acc[M][N] = {};
    const float* k = tile.keys + key * tile.dim;
    const float* q = tile.query + row;
    for (int d = 0; d < tile.dim; ++d, q += tile.padded) {
        Vec lanes[N];
        for (int n = 0; n < N; ++n) lanes[n] = load(q + n * kLanes);
        for (int m = 0; m < M; ++m) {
            Vec x = broadcast(k[m * tile.dim + d]);
            for (int n = 0; n < N; ++n) acc[m][n] = fma(x, lanes[n], acc[m][n]);
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n)
            store(tile.scores + (key + m) * tile.padded + row + n * kLanes, acc[m][n]);
}

template <int N>
inline void score_rows(const QueryTile& tile, int keys, int row) {
    int key = 0;
    for (; key + kBlockLines <= keys; key += kBlockLines)
        score_block<kBlockLines, N>(tile, key, row);
    for (; key + 2 <= keys; key += 2) score_block<2, N>(tile, key, row);
    for (; key < keys; ++key) score_block<1, N>(tile, key, row);
}

/// output[row] = factor[row] * output[row] + weights of the row x values, M rows, N vectors.
template <int M, int N>
inline void weigh_lines(const QueryTile& tile, int keys, int row, int d) {
    Vec acc[M][N];
    float* out = tile.output + row * tile.dim + d;
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n)
            acc[m][n] = load(out + m * tile.dim + n * kLanes) * tile.factor[row + m];
    const float* w = tile.scores + row;
    const float* v = tile.values + d;
    for (int key = 0; key < keys; ++key, w += tile.padded, v += tile.dim) {
        Vec lanes[N];
        for (int n = 0; n < N; ++n) lanes[n] = load(v + n * kLanes);
        for (int m = 0; m < M; ++m) {
            Vec x = broadcast(w[m]);
            for (int n = 0; n < N; ++n) acc[m][n] = fma(x, lanes[n], acc[m][n]);
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) store(out + m * tile.dim + n * kLanes, acc[m][n]);
}

template <int N>
inline void weigh_rows(const QueryTile& tile, int keys, int d) {
    int row = 0;
    for (; row + kBlockLines <= tile.rows; row += kBlockLines)
        weigh_lines<kBlockLines, N>(tile, keys, row, d);
    for (; row + 2 <= tile.rows; row += 2) weigh_lines<2, N>(tile, keys, row, d);
    for (; row < tile.rows; ++row) weigh_lines<1, N>(tile, keys, row, d);
}

/// Copy keys or values of a tile as float32.
template <class P>
inline void gather(const P* pages, const float* scales, const int64_t* rows, int count, int dim,
                   float* to) {
    for (int i = 0; i < count; ++i) {
        const P* from = pages + rows[i] * dim;
        float scale = sizeof(P) == 1 ? scales[rows[i]] : 1.0f;
        for (int d = 0; d < dim; d += kLanes) {
            Vec x = load(from + d);
            store(to + i * dim + d, sizeof(P) == 1 ? x * scale : x);
        }
    }
}

/// Scores to weights, for one vector of rows; `masked` where some row does not see every key.
template <bool masked>
inline void soften_rows(const QueryTile& tile, int row, int first, int keys, int window) {
    const Vec nothing = broadcast(-__builtin_inff());
    IntVec last, before;
    memcpy(&last, tile.position + row, sizeof last);
    before = last - (window > 0 ? window : 1 << 30);
    float* scores = tile.scores + row;
    Vec old = load(tile.peak + row), peak = old;
    for (int k = 0; k < keys; ++k) {
        Vec s = load(scores + k * tile.padded);
        if (masked) {
            IntVec at = broadcast_int(first + k);
            s = select((at <= last) & (at > before), s, nothing);
            store(scores + k * tile.padded, s);
        }
        peak = max(s, peak);
    }
    // A row that has seen nothing yet: minus infinity minus itself would not be a number.
    Vec base = select(peak == nothing, Vec{}, peak);
    Vec factor = exp_down(old - base);
    Vec total = load(tile.total + row) * factor;
    for (int k = 0; k < keys; ++k) {
        Vec weight = exp_down(load(scores + k * tile.padded) - base);
        store(scores + k * tile.padded, weight);
        total = total + weight;
    }
    store(tile.peak + row, peak);
    store(tile.factor + row, factor);
    store(tile.total + row, total);
}

inline void load_queries(const AttentionCall& call, const QueryTile& tile, int64_t row, int kv_head,
                         int position) {
    float* line = tile.output;  // free until the first tile of keys
    for (int r = 0; r < tile.padded; ++r) {
        int from = r < tile.rows ? r : tile.rows - 1;  // padding repeats the last row
        call.get(row + from / call.group, kv_head * call.group + from % call.group, line);
        for (int d = 0; d < tile.dim; ++d) tile.query[d * tile.padded + r] = line[d];
        tile.position[r] = position + from / call.group;
        tile.peak[r] = -__builtin_inff();
        tile.total[r] = 0.0f;
    }
    for (int64_t i = 0; i < (int64_t)tile.padded * tile.dim; ++i) tile.output[i] = 0.0f;
}

/// `count` tokens of a sequence from its row `first` on, the heads of one KV head.
template <class P>
void attend_queries(const AttentionCall& call, int sequence, int kv_head, int first, int count) {
    const OctavoBatch& batch = call.batch;
    int dim = call.dim;
    int64_t row = batch.query_starts[sequence] + first;
    int new_rows = batch.query_starts[sequence + 1] - batch.query_starts[sequence];
    int position = batch.context_lens[sequence] - new_rows + first;
    QueryTile tile(count * call.group, dim);
    load_queries(call, tile, row, kv_head, position);

    int end = position + count;
    int seen_from = call.window > 0 && position >= call.window ? position - call.window + 1 : 0;
    for (int key = seen_from / kTileKeys * kTileKeys; key < end; key += kTileKeys) {
        int keys = end - key < kTileKeys ? end - key : kTileKeys;
        int64_t rows[kTileKeys];
        call.find_rows(sequence, kv_head, key, keys, rows);
        gather((const P*)call.pages.keys, call.pages.key_scales, rows, keys, dim, tile.keys);
        gather((const P*)call.pages.values, call.pages.value_scales, rows, keys, dim, tile.values);
        int r = 0;
        for (; r + kBlockVectors * kLanes <= tile.padded; r += kBlockVectors * kLanes)
            score_rows<kBlockVectors>(tile, keys, r);
        for (; r < tile.padded; r += kLanes) score_rows<1>(tile, keys, r);
        bool masked = key + keys - 1 > position ||
                      (call.window > 0 && key <= end - 1 - call.window);
        for (r = 0; r < tile.padded; r += kLanes) {
            if (masked)
                soften_rows<true>(tile, r, key, keys, call.window);
            else
                soften_rows<false>(tile, r, key, keys, call.window);
        }
        int d = 0;
        for (; d + kBlockVectors * kLanes <= dim; d += kBlockVectors * kLanes)
            weigh_rows<kBlockVectors>(tile, keys, d);
        for (; d < dim; d += kLanes) weigh_rows<1>(tile, keys, d);
    }
    for (int r = 0; r < tile.rows; ++r)
        call.put(row + r / call.group, kv_head * call.group + r % call.group,
                 tile.output + r * dim, 1.0f / tile.total[r]);
}

}  // namespace octavo
