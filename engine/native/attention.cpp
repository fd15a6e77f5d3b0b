// Attention over pages in place: decoding and prefill, and the write of new keys and values.
//
// A sequence with one query is split over KV heads and chunks of 128 tokens of context, one with
// several over KV heads and tiles of queries. Chunks and tiles of keys begin at fixed positions of
// the context, and partial results are combined in order: what a row computes does not depend on
// its neighbours in the batch, on how its prompt was cut into steps or on the number of threads.
// All query heads of a group share each load of a key and a value. Arithmetic is float32 whatever
// the pages hold. No slot outside a sequence's context is ever read.
#include "attention.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace octavo {
namespace {

enum class Kind : int32_t { kChunk, kQueries };

// One piece of work that one thread does: a chunk of a decoding context, or a tile of queries.
struct Task {
    Kind kind;
    int32_t sequence;
    int32_t kv_head;
    int32_t first;    // chunk: first position of the context; queries: first row of the sequence
    int32_t count;    // positions or rows
    int32_t partial;  // chunk: where the partial result goes, -1: it is the whole context
};

// A decoding sequence whose chunks are to be combined.
struct Split {
    int32_t sequence;
    int32_t partial;  // of its first chunk
    int32_t chunks;
};

int first_visible(const AttentionCall& call, int position) {
    return call.window > 0 && position >= call.window ? position - call.window + 1 : 0;
}

// Sequences that share a chunk's pages read it one after the other, head by head: it comes from a
// core's own cache then.
void add_decode_tasks(const AttentionCall& call, std::vector<Task>& tasks,
                      std::vector<Split>& splits, int& partials) {
    struct Chunk {
        int64_t place;  // its number, then its first page
        Task task;
    };
    thread_local std::vector<Chunk> chunks;
    chunks.clear();
    for (int i = 0; i < call.batch.sequences; ++i) {
        if (call.batch.query_starts[i + 1] - call.batch.query_starts[i] != 1) continue;
        const int64_t* table = call.batch.page_tables + i * call.batch.table_stride;
        int context = call.batch.context_lens[i];
        int start = first_visible(call, context - 1), last = (context - 1) / kChunk;
        int count = last - start / kChunk + 1;
        if (count > 1) splits.push_back({i, partials, count});
        for (int64_t number = start / kChunk; number <= last; ++number) {
            int first = std::max((int)number * kChunk, start);
            int end = std::min((int)(number + 1) * kChunk, context);
            int partial = count > 1 ? partials++ : -1;
            chunks.push_back({number << 40 | table[first / call.pages.page_size],
                              {Kind::kChunk, i, 0, first, end - first, partial}});
        }
    }
    std::stable_sort(chunks.begin(), chunks.end(),
                     [](const Chunk& a, const Chunk& b) { return a.place < b.place; });
    for (size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
        while (end < chunks.size() && chunks[end].place == chunks[begin].place) ++end;
        for (int head = 0; head < call.pages.kv_heads; ++head)
            for (size_t i = begin; i < end; ++i) {
                tasks.push_back(chunks[i].task);
                tasks.back().kv_head = head;
            }
    }
}

// The last tiles first: they see most, and what is left at the end should be small.
void add_prefill_tasks(const AttentionCall& call, int sequence, int rows,
                       std::vector<Task>& tasks) {
    int tile = kTileRows / call.group > 1 ? kTileRows / call.group : 1;
    for (int first = (rows - 1) / tile * tile; first >= 0; first -= tile) {
        int count = rows - first < tile ? rows - first : tile;
        for (int head = 0; head < call.pages.kv_heads; ++head)
            tasks.push_back({Kind::kQueries, sequence, head, first, count, -1});
    }
}

// Sum of the chunks' weighted values over the sum of their weights, chunk by chunk.
void combine(const AttentionCall& call, const Split& split, int head, const float* partials) {
    int64_t width = call.partial_width();
    const float* first = partials + (split.partial * (int64_t)call.heads + head) * width;
    int64_t step = call.heads * width;
    float peak = first[0];
    for (int c = 1; c < split.chunks; ++c) peak = first[c * step] > peak ? first[c * step] : peak;
    float* sums = scratch(Scratch::kCombine, call.dim);
    for (int d = 0; d < call.dim; d += kLanes) store(sums + d, Vec{});
    float total = 0.0f;
    for (int c = 0; c < split.chunks; ++c) {
        const float* chunk = first + c * step;
        Vec factor = exp_down(broadcast(chunk[0] - peak));
        total += factor[0] * chunk[1];
        for (int d = 0; d < call.dim; d += kLanes)
            store(sums + d, fma(factor, load(chunk + 2 + d), load(sums + d)));
    }
    call.put(call.batch.query_starts[split.sequence], head, sums, 1.0f / total);
}

template <class T>
void attend(const AttentionCall& call) {
    thread_local std::vector<Task> tasks;
    thread_local std::vector<Split> splits;
    tasks.clear();
    splits.clear();
    int partials = 0;
    for (int i = 0; i < call.batch.sequences; ++i) {
        int rows = call.batch.query_starts[i + 1] - call.batch.query_starts[i];
        if (rows > 1) add_prefill_tasks(call, i, rows, tasks);
    }
    add_decode_tasks(call, tasks, splits, partials);
    int64_t floats = partials * (int64_t)call.heads * call.partial_width();
    float* results = scratch(Scratch::kPartials, floats);
    const Task* list = tasks.data();
    parallel_for((int64_t)tasks.size(), [&, list](int64_t i, int) {
        const Task& task = list[i];
        if (task.kind == Kind::kQueries) {
            attend_queries<T>(call, task.sequence, task.kv_head, task.first, task.count);
        } else {
            float* partial = nullptr;
            if (task.partial >= 0)
                partial = results + (task.partial * (int64_t)call.heads +
                                     task.kv_head * call.group) * call.partial_width();
            attend_chunk<T>(call, task.sequence, task.kv_head, task.first, task.count, partial);
        }
    });
    const Split* split_list = splits.data();
    parallel_for((int64_t)splits.size(), [&, split_list](int64_t i, int) {
        for (int head = 0; head < call.heads; ++head) combine(call, split_list[i], head, results);
    });
}

template <class Source, class Target>
void copy_row(const Source* from, Target* to, int dim) {
    for (int d = 0; d < dim; d += kLanes) store(to + d, load(from + d));
}

// int8 with one scale: the largest magnitude becomes 127. A row that is not finite gets a scale
// that is not, so that what is read back is not taken for a number.
template <class Source>
float quantise_row(const Source* from, int8_t* to, int dim) {
    Vec most = {};
    Vec poison = {};
    for (int d = 0; d < dim; d += kLanes) {
        Vec x = load(from + d);
        most = max(abs(x), most);
        poison = fma(x, broadcast(0.0f), poison);
    }
    float peak = largest(most);
    float scale = peak / 127.0f + sum(poison);
    Vec inverse = broadcast(peak > 0.0f && scale == scale ? 127.0f / peak : 0.0f);
    const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    for (int d = 0; d < dim; d += kLanes) {
        IntVec whole = bits<IntVec>(fma(load(from + d), inverse, magic)) - bits<IntVec>(magic);
        ByteVec bytes = __builtin_convertvector(whole, ByteVec);
        memcpy(to + d, &bytes, sizeof bytes);
    }
    return scale;
}

template <class Source>
void write_head(const OctavoPages& pages, const Source* from, void* to, float* scales,
                int64_t index) {
    int64_t at = index * pages.head_dim;
    if (pages.dtype == OCTAVO_F32)
        copy_row(from, (float*)to + at, pages.head_dim);
    else if (pages.dtype == OCTAVO_BF16)
        copy_row(from, (bf16*)to + at, pages.head_dim);
    else
        scales[index] = quantise_row(from, (int8_t*)to + at, pages.head_dim);
}

template <class Source>
void write_rows(const OctavoPages& pages, const OctavoBatch& batch, const Source* keys,
                const Source* values, int64_t stride) {
    constexpr int kBlock = 16;  // rows that one task writes
    parallel_for((batch.tokens + kBlock - 1) / kBlock, [&](int64_t task, int) {
        int64_t end = (task + 1) * kBlock < batch.tokens ? (task + 1) * kBlock : batch.tokens;
        for (int64_t row = task * kBlock; row < end; ++row) {
            if (batch.slots[row] < 0) continue;
            for (int head = 0; head < pages.kv_heads; ++head) {
                int64_t index = batch.slots[row] * pages.kv_heads + head;
                int64_t from = row * stride + (int64_t)head * pages.head_dim;
                write_head(pages, keys + from, pages.keys, pages.key_scales, index);
                write_head(pages, values + from, pages.values, pages.value_scales, index);
            }
        }
    });
}

}  // namespace
}  // namespace octavo

using namespace octavo;

void octavo_write_pages(const OctavoPages* pages, const OctavoBatch* batch, const void* keys,
                        const void* values, int32_t dtype, int64_t stride) {
    if (dtype == OCTAVO_F32)
        write_rows(*pages, *batch, (const float*)keys, (const float*)values, stride);
    else
        write_rows(*pages, *batch, (const bf16*)keys, (const bf16*)values, stride);
}

void octavo_attention(const OctavoPages* pages, const OctavoBatch* batch, const void* query,
                      void* output, int32_t dtype, int64_t query_stride, int64_t output_stride,
                      int32_t query_heads, float scale, int32_t window) {
    AttentionCall call{*pages,        *batch,      query,           output,
                       dtype,         query_stride, output_stride,  query_heads,
                       query_heads / pages->kv_heads, pages->head_dim, scale, window};
    if (pages->dtype == OCTAVO_F32)
        attend<float>(call);
    else if (pages->dtype == OCTAVO_BF16)
        attend<bf16>(call);
    else
        attend<int8_t>(call);
}
