// Threads that wait for work: they spin for some microseconds, as between the steps of a run, then sleep. A forked child
// starts its own.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

extern "C" {
#include "core.h"
}

struct eb_pool {
    std::mutex mutex;
    std::condition_variable wake, done;
    std::vector<std::thread> workers;
    int threads = 1, owner = 0;
    bool stop = false;
    // Lines of memory of their own: each is written by one thread while others spin on another. Who sleeps says so before it
    // looks again, and is woken under the mutex; while all spin, nobody takes it.
    alignas(64) void (*work)(void *, int) = nullptr;
    void *argument = nullptr;
    std::atomic<unsigned> round{0};
    alignas(64) std::atomic<int> busy{0};
    alignas(64) std::atomic<int> asleep{0};
    std::atomic<bool> waits{false};
    alignas(64) std::atomic<int> missing{0};
    alignas(64) std::atomic<unsigned> meeting{0};
};

// Waking a thread takes longer than most steps do.
enum { SPINS = 2000 };

template <typename Condition>
static bool spin_until(Condition condition) {
    for (int i = 0; i < SPINS; i++) {
        if (condition()) return true;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    return false;
}

extern "C" int eb_process(void) { return (int)getpid(); }

static void serve(eb_pool *pool, int part) {
    for (unsigned seen = 0;;) {
        if (!spin_until([&] { return pool->round != seen; })) {
            std::unique_lock<std::mutex> lock(pool->mutex);
            pool->asleep++;
            pool->wake.wait(lock, [&] { return pool->stop || pool->round != seen; });
            pool->asleep--;
            if (pool->stop) return;
        }
        seen = pool->round;
        pool->work(pool->argument, part);
        if (--pool->busy == 0 && pool->waits) {
            std::lock_guard<std::mutex> lock(pool->mutex);
            pool->done.notify_one();
        }
    }
}

extern "C" eb_pool *eb_pool_new(int threads) {
    try {
        eb_pool *pool = new eb_pool;
        pool->owner = eb_process();
        try {
            for (int part = 1; part < threads; part++) pool->workers.emplace_back(serve, pool, part);
            pool->threads = pool->missing = threads;
        } catch (...) {
            eb_pool_free(pool);
            return nullptr;
        }
        return pool;
    } catch (...) {
        return nullptr;
    }
}

// 0 in a forked child, where the threads do not exist: the caller then makes a pool of its own.
extern "C" int eb_pool_threads(const eb_pool *pool) { return pool->owner == eb_process() ? pool->threads : 0; }

extern "C" void eb_pool_run(eb_pool *pool, void (*work)(void *, int), void *argument) {
    pool->work = work;
    pool->argument = argument;
    pool->busy = pool->threads - 1;
    pool->round++;
    if (pool->asleep) {
        std::lock_guard<std::mutex> lock(pool->mutex);
        pool->wake.notify_all();
    }
    work(argument, 0);
    if (spin_until([&] { return pool->busy == 0; })) return;
    std::unique_lock<std::mutex> lock(pool->mutex);
    pool->waits = true;
    pool->done.wait(lock, [&] { return pool->busy == 0; });
    pool->waits = false;
}

extern "C" void eb_pool_meet(eb_pool *pool) {
    const unsigned meeting = pool->meeting;
    if (--pool->missing == 0) {
        pool->missing = pool->threads;
        pool->meeting++;
        return;
    }
    while (!spin_until([&] { return pool->meeting != meeting; })) std::this_thread::yield();
}

extern "C" void eb_pool_free(eb_pool *pool) {
    if (!pool) return;
    if (pool->owner != eb_process()) return;  // a child cannot join its parent's threads
    {
        std::lock_guard<std::mutex> lock(pool->mutex);
        pool->stop = true;
    }
    pool->wake.notify_all();
    for (std::thread &worker : pool->workers) worker.join();
    delete pool;
}
