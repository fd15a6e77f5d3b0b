// Parallel loops over a small pool of our own.
//
// A loop ends when its tasks are done, not when every thread has come by: on a machine that others
// use too (a server's front end, on the same two cores) a thread that is not running when a loop
// starts holds nobody up, the others take its tasks. OpenMP's loops wait for all of their threads;
// with one of them off its core each loop costs a time slice, and a step has some 150 loops. A
// thread that finds no work spins for a moment and then sleeps: an idle server uses no CPU.
#pragma once

#include <stdint.h>

namespace octavo {

int thread_count();  // as last set through octavo_set_threads, else 1

/// Run task(context, i, thread) for every i of [0, tasks). Called from one thread at a time; a call
/// from within a task, or while another thread is in one, runs its tasks itself, one by one.
void run_tasks(int64_t tasks, void (*task)(const void* context, int64_t i, int thread),
               const void* context);

/// f(task, thread) for every task of [0, tasks), handed out one by one: a core that is slowed down
/// by others takes fewer. Which thread runs a task must not change its result.
template <class F>
inline void parallel_for(int64_t tasks, const F& f) {
    if (tasks <= 1) {
        if (tasks == 1) f((int64_t)0, 0);
        return;
    }
    run_tasks(
        tasks,
        [](const void* context, int64_t i, int thread) { (*(const F*)context)(i, thread); }, &f);
}

}  // namespace octavo
