// Attention over pages in place: decoding and prefill, and the write of new keys and values.
//
// A sequence with one query is split over chunks of 128 tokens of context, and over KV heads where
// chunks are few; one with several over KV heads and tiles of queries. Chunks and tiles of keys
// begin at fixed positions of the context, and partial results are combined in order: what a row
// computes does not depend on its neighbours in the batch, on how its prompt was cut into steps or
// on the number of threads. All query heads of a group share each load of a key and a value.
// Arithmetic is float32 whatever the pages hold. No slot outside a sequence's context is ever read.
#include "attention.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace octavo {
namespace {

constexpr int kTasksPerThread = 4;  // of decoding, where there is enough to do

// One piece of work that one thread does: a tile of queries of a prompt, or some chunks of decoding
// contexts.
struct Task {
    enum Kind : int32_t { kQueries, kChunks } kind;
    int32_t sequence;  // of the queries
    int32_t kv_head;
    int32_t kv_heads;  // from kv_head on; queries: one
    int32_t first;     // queries: row of the sequence; chunks: place in the list
    int32_t count;     // rows or chunks
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

// All chunks, those that are shared behind one another, so that they come from a core's own cache.
// Returns the number of partial results.
int find_chunks(const AttentionCall& call, std::vector<Chunk>& chunks, std::vector<Split>& splits) {
    int partials = 0;
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
            chunks.push_back({number << 40 | table[first / call.pages.page_size], i, first,
                              end - first, count > 1 ? partials++ : -1});
        }
    }
    std::stable_sort(chunks.begin(), chunks.end(),
                     [](const Chunk& a, const Chunk& b) { return a.place < b.place; });
    return partials;
}

// A task has several chunks and all heads, where there are enough for all threads: pages are read
// as a whole then, and what comes next is known. Else each head of a chunk is a task.
void add_decode_tasks(const AttentionCall& call, int num_chunks, std::vector<Task>& tasks) {
    const int wanted = kTasksPerThread * thread_count(), heads = call.pages.kv_heads;
    const int run = std::max(1, num_chunks / wanted), step = num_chunks < wanted ? 1 : heads;
    for (int first = 0; first < num_chunks; first += run)
        for (int head = 0; head < heads; head += step)
            tasks.push_back(
                {Task::kChunks, -1, head, step, first, std::min(run, num_chunks - first)});
}

// The last tiles first: they see most, and what is left at the end should be small.
void add_prefill_tasks(const AttentionCall& call, int sequence, int rows,
                       std::vector<Task>& tasks) {
    int tile = kTileRows / call.group > 1 ? kTileRows / call.group : 1;
    for (int first = (rows - 1) / tile * tile; first >= 0; first -= tile) {
        int count = rows - first < tile ? rows - first : tile;
        for (int head = 0; head < call.pages.kv_heads; ++head)
            tasks.push_back({Task::kQueries, sequence, head, 1, first, count});
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
void attend_chunks(const AttentionCall& call, const Task& task, const Chunk* chunks,
                   float* partials) {
    const int last = task.first + task.count - 1;
    for (int i = task.first; i <= last; ++i) {
        Lookahead ahead;
        if (i < last && chunks[i + 1].place != chunks[i].place)
            ahead = Lookahead(call, chunks[i + 1], sizeof(T));
        attend_chunk<T>(call, chunks[i], task.kv_head, task.kv_heads, partials, ahead);
    }
}

template <class T>
void attend(const AttentionCall& call) {
    thread_local std::vector<Task> tasks;
    thread_local std::vector<Chunk> chunks;
    thread_local std::vector<Split> splits;
    tasks.clear();
    chunks.clear();
    splits.clear();
    for (int i = 0; i < call.batch.sequences; ++i) {
        int rows = call.batch.query_starts[i + 1] - call.batch.query_starts[i];
        if (rows > 1) add_prefill_tasks(call, i, rows, tasks);
    }
    int64_t partials = find_chunks(call, chunks, splits);
    add_decode_tasks(call, (int)chunks.size(), tasks);
    float* results = scratch(Scratch::kPartials, partials * call.heads * call.partial_width());
    const Task* list = tasks.data();
    const Chunk* all_chunks = chunks.data();
    parallel_for((int64_t)tasks.size(), [&, list, all_chunks](int64_t i, int) {
        const Task& task = list[i];
        if (task.kind == Task::kQueries)
            attend_queries<T>(call, task.sequence, task.kv_head, task.first, task.count);
        else
            attend_chunks<T>(call, task, all_chunks, results);
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
