// What the library says of itself, and the number of threads: the only state between calls.
#include "octavo.h"
#include "parallel.h"

namespace octavo {
namespace {
std::atomic<int> threads_setting{0};
}

int thread_count() {
    int threads = threads_setting.load(std::memory_order_relaxed);
    return threads > 0 ? threads : omp_get_max_threads();
}
}  // namespace octavo

int32_t octavo_abi(void) { return OCTAVO_ABI; }

const char* octavo_isa(void) {
#if defined(__AMX_INT8__)
    return "amx";
#elif defined(__AVX512F__)
    return "avx512";
#elif defined(__AVX2__)
    return "avx2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "unknown";
#endif
}

const char* octavo_sources(void) { return OCTAVO_SOURCES; }

void octavo_set_threads(int32_t threads) {
    octavo::threads_setting.store(threads, std::memory_order_relaxed);
}

int32_t octavo_threads(void) { return octavo::thread_count(); }

int64_t octavo_read(const void* memory, int64_t bytes) {
    constexpr int64_t kStretch = 1 << 20;
    std::atomic<int64_t> total{0};
    octavo::parallel_for((bytes + kStretch - 1) / kStretch, [&](int64_t task, int) {
        const int64_t* at = (const int64_t*)((const char*)memory + task * kStretch);
        const int64_t left = bytes - task * kStretch;
        int64_t sum = 0;
        for (int64_t i = 0; i < (left < kStretch ? left : kStretch) / 8; ++i) sum += at[i];
        total.fetch_add(sum, std::memory_order_relaxed);
    });
    return total.load();
}

int32_t octavo_count_threads(void) {
    int count = 0;
#pragma omp parallel num_threads(octavo::thread_count()) reduction(+ : count)
    count += 1;
    return count;
}
