// The pool behind parallel.h.
//
// One word says which loop runs and how many of its tasks are left to take. Whoever takes one swaps
// the word for one less; that this succeeds proves that the loop is still the one whose fields were
// read before. Threads are started when first needed and live as long as the process.
#include "parallel.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "octavo.h"

namespace octavo {
namespace {

// Pauses before a thread without work sleeps: some 50 microseconds, longer than what lies between
// two loops of a step, shorter than what lies between two steps.
constexpr int kSpins = 2000;

using Task = void (*)(const void*, int64_t, int);

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

class Pool {
  public:
    void set_threads(int threads) { threads_.store(threads > 0 ? threads : 1); }
    int threads() const { return threads_.load(std::memory_order_relaxed); }

    void run(int64_t tasks, Task task, const void* context) {
        if (threads() == 1 || busy_.exchange(true, std::memory_order_acquire)) {
            for (int64_t i = 0; i < tasks; ++i) task(context, i, 0);
            return;
        }
        start_threads();
        for (int64_t first = 0; first < tasks; first += kMost)
            run_part(first, tasks - first < kMost ? tasks - first : kMost, task, context);
        busy_.store(false, std::memory_order_release);
    }

  private:
    static constexpr int64_t kMost = 1 << 30;

    std::atomic<int> threads_{1};
    std::atomic<bool> busy_{false};
    int started_ = 1;  // with the caller; touched by whoever is busy

    // The loop: number << 32 | tasks left to take. The other fields belong to that number.
    alignas(64) std::atomic<uint64_t> word_{0};
    std::atomic<Task> task_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<int64_t> first_{0};
    std::atomic<int64_t> count_{0};
    alignas(64) std::atomic<int64_t> unfinished_{0};

    alignas(64) std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable wake_;

    void run_part(int64_t first, int64_t count, Task task, const void* context) {
        task_.store(task, std::memory_order_relaxed);
        context_.store(context, std::memory_order_relaxed);
        first_.store(first, std::memory_order_relaxed);
        count_.store(count, std::memory_order_relaxed);
        unfinished_.store(count, std::memory_order_relaxed);
        const uint64_t number = (word_.load(std::memory_order_relaxed) >> 32) + 1;
        word_.store(number << 32 | (uint64_t)count);  // sequentially consistent, as sleepers_ is
        if (sleepers_.load() > 0) {
            { std::lock_guard<std::mutex> lock(mutex_); }
            wake_.notify_all();
        }
        while (take(0)) {
        }
        // Others may still be at their last task; off its core, one is helped by our leaving ours.
        for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
            if (spins < kSpins) pause();
            else sched_yield();
        }
    }

    /// Take one task and run it; false where there is none.
    bool take(int thread) {
        uint64_t word = word_.load(std::memory_order_acquire);
        for (;;) {
            const int64_t left = (int64_t)(word & 0xffffffffu);
            if (left == 0) return false;
            const Task task = task_.load(std::memory_order_relaxed);
            const void* context = context_.load(std::memory_order_relaxed);
            const int64_t first = first_.load(std::memory_order_relaxed);
            const int64_t count = count_.load(std::memory_order_relaxed);
            if (word_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire)) {
                task(context, first + count - left, thread);
                unfinished_.fetch_sub(1, std::memory_order_release);
                return true;
            }
        }
    }

    bool has_work(int thread) const {
        return (word_.load() & 0xffffffffu) != 0 && thread < threads_.load();
    }

    void start_threads() {
        for (const int wanted = threads(); started_ < wanted; ++started_) {
            try {
                std::thread([this, id = started_] { work(id); }).detach();
            } catch (...) {  // no more threads: those that there are do it
                return;
            }
        }
    }

    void work(int thread) {
        for (;;) {
            for (int spins = 0; spins < kSpins; ++spins) {
                if (has_work(thread)) {
                    while (take(thread)) {
                    }
                    spins = 0;
                }
                pause();
            }
            std::unique_lock<std::mutex> lock(mutex_);
            sleepers_.fetch_add(1);
            wake_.wait(lock, [&] { return has_work(thread); });
            sleepers_.fetch_sub(1);
        }
    }
};

/// Never destroyed: its threads end with the process.
Pool& pool() {
    static Pool* const only = new Pool;
    return *only;
}

}  // namespace

int thread_count() { return pool().threads(); }

void run_tasks(int64_t tasks, Task task, const void* context) { pool().run(tasks, task, context); }

}  // namespace octavo

void octavo_set_threads(int32_t threads) { octavo::pool().set_threads(threads); }

int32_t octavo_threads(void) { return octavo::thread_count(); }

int32_t octavo_count_threads(void) {
    const int threads = octavo::thread_count();
    std::atomic<int> seen{0};
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    // Each task waits for the others, so that no thread takes two.
    octavo::parallel_for(threads, [&](int64_t, int) {
        seen.fetch_add(1);
        while (seen.load() < threads && std::chrono::steady_clock::now() < late) sched_yield();
    });
    return seen.load();
}
