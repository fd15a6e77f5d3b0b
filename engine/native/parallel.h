// Parallel loops over OpenMP's pool, which is torch's own.
//
// torch ships GCC's libgomp under the name libgomp.so.1; a library linked with -fopenmp and loaded
// after torch binds to that copy, so both share one set of threads. The number of threads is passed
// with every region: OpenMP keeps its own setting per calling thread, ours is the engine's.
#pragma once

#include <omp.h>
#include <stdint.h>

#include <atomic>

namespace octavo {

int thread_count();  // as last set through octavo_set_threads

/// f(task, thread) for every task of [0, tasks), handed out one by one: a core that is slowed down
/// by others takes fewer. Which thread runs a task must not change its result.
template <class F>
inline void parallel_for(int64_t tasks, const F& f) {
    int threads = thread_count();
    if (threads > tasks) threads = (int)tasks;
    if (threads <= 1) {
        for (int64_t i = 0; i < tasks; ++i) f(i, 0);
        return;
    }
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(thread_count())
    {
        int thread = omp_get_thread_num();
        for (;;) {
            int64_t i = next.fetch_add(1, std::memory_order_relaxed);
            if (i >= tasks) break;
            f(i, thread);
        }
    }
}

}  // namespace octavo
