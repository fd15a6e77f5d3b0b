// What one call of attention is about, and the two kernels it is made of: included by attention.cpp
// alone. attend_chunk: one query per head over a chunk of the context. attend_queries: a tile of
// queries over all of it.
#pragma once

#include <stdlib.h>

#include "octavo.h"
#include "vec.h"

namespace octavo {

constexpr int kChunk = 128;    // tokens of context that a decode task reads
constexpr int kTileRows = 96;  // query rows (tokens x heads of a group) of a prefill task
constexpr int kTileKeys = 64;  // keys that a prefill task looks at together

struct AttentionCall {
    const OctavoPages& pages;
    const OctavoBatch& batch;
    const void* query;
    void* output;
    int dtype;  // of query and output
    int64_t query_stride;
    int64_t output_stride;
    int heads;
    int group;  // query heads that share a KV head
    int dim;
    float scale;
    int window;

    /// A partial result of a head: largest score, sum of weights, weighted sum of values.
    int64_t partial_width() const { return dim + 2; }

    /// The scaled query of one head as float32.
    void get(int64_t row, int head, float* to) const {
        int64_t at = row * query_stride + (int64_t)head * dim;
        for (int d = 0; d < dim; d += kLanes) {
            Vec x = dtype == OCTAVO_F32 ? load((const float*)query + at + d)
                                        : load((const bf16*)query + at + d);
            store(to + d, x * scale);
        }
    }

    void put(int64_t row, int head, const float* from, float factor) const {
        int64_t at = row * output_stride + (int64_t)head * dim;
        for (int d = 0; d < dim; d += kLanes) {
            Vec x = load(from + d) * factor;
            if (dtype == OCTAVO_F32)
                store((float*)output + at + d, x);
            else
                store((bf16*)output + at + d, x);
        }
    }

    /// Index of (slot, kv head) in the pages, for `count` positions of a sequence.
    void find_rows(int sequence, int kv_head, int first, int count, int64_t* rows) const {
        const int64_t* table = batch.page_tables + sequence * batch.table_stride;
        int page = first / pages.page_size, offset = first % pages.page_size;
        for (int i = 0; i < count; ++page, offset = 0) {
            int64_t slot = table[page] * pages.page_size + offset;
            for (; offset < pages.page_size && i < count; ++offset, ++i, ++slot)
                rows[i] = slot * pages.kv_heads + kv_head;
        }
    }
};

/// Part of a decoding sequence's context.
struct Chunk {
    int64_t place;  // its number in the context, then its first page: equal where it is shared
    int32_t sequence;
    int32_t first;    // position
    int32_t count;    // positions
    int32_t partial;  // where the partial result goes, -1: it is the whole context
};

enum class Scratch { kPartials, kCombine, kWork, kCount };

/// Uninitialised floats of the calling thread, 64-byte aligned, kept and grown: fresh memory would
/// cost a page fault every 4 KiB in every layer.
inline float* scratch(Scratch use, int64_t floats) {
    struct Buffer {
        float* data = nullptr;
        int64_t size = 0;
        ~Buffer() { free(data); }
    };
    thread_local Buffer buffers[(int)Scratch::kCount];
    Buffer& buffer = buffers[(int)use];
    if (buffer.size < floats) {
        free(buffer.data);
        buffer.size = (floats + 1023) / 1024 * 1024;
        buffer.data = (float*)aligned_alloc(64, buffer.size * sizeof(float));
        if (!buffer.data) abort();
    }
    return buffer.data;
}

}  // namespace octavo

#include "attend_chunk.h"
#include "attend_queries.h"
