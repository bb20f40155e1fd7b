// Threads that sleep until there is work: nothing spins, and a forked child starts its own.
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
    void (*work)(void *, int) = nullptr;
    void *argument = nullptr;
    unsigned round = 0;
    int busy = 0, threads = 1, owner = 0;
    bool stop = false;
};

extern "C" int eb_process(void) { return (int)getpid(); }

static void serve(eb_pool *pool, int part) {
    for (unsigned seen = 0;;) {
        std::unique_lock<std::mutex> lock(pool->mutex);
        pool->wake.wait(lock, [&] { return pool->stop || pool->round != seen; });
        if (pool->stop) return;
        seen = pool->round;
        lock.unlock();
        pool->work(pool->argument, part);
        lock.lock();
        if (--pool->busy == 0) pool->done.notify_one();
    }
}

extern "C" eb_pool *eb_pool_new(int threads) {
    try {
        eb_pool *pool = new eb_pool;
        pool->owner = eb_process();
        try {
            for (int part = 1; part < threads; part++) pool->workers.emplace_back(serve, pool, part);
            pool->threads = threads;
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
    {
        std::lock_guard<std::mutex> lock(pool->mutex);
        pool->work = work;
        pool->argument = argument;
        pool->busy = pool->threads - 1;
        pool->round++;
    }
    pool->wake.notify_all();
    work(argument, 0);
    std::unique_lock<std::mutex> lock(pool->mutex);
    pool->done.wait(lock, [&] { return pool->busy == 0; });
}

extern "C" void eb_pool_free(eb_pool *pool) {
    if (!pool) return;
    if (pool->owner != eb_process()) return;  // a child cannot join its parent's threads; it lets them be
    {
        std::lock_guard<std::mutex> lock(pool->mutex);
        pool->stop = true;
    }
    pool->wake.notify_all();
    for (std::thread &worker : pool->workers) worker.join();
    delete pool;
}
