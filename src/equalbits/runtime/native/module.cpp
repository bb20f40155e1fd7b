// Python bindings: check the arrays, release the interpreter lock, call the engine.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "equalbits.h"

namespace nb = nanobind;

using Table = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Reals = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Answers = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// True if this thread, which runs a plan, is Python's main thread.
static thread_local bool is_main = false;

struct Plan {
    eb_plan *plan = nullptr;
    size_t image_numbers = 0, answer_numbers = 0, channels = 0, step_count = 0;
    // A plan has one set of buffers, so callers take turns. In a forked child a turn of another thread of its parent
    // never ends: it starts over.
    std::unique_ptr<std::timed_mutex> in_use = std::make_unique<std::timed_mutex>();
    int process = eb_process();

    Plan(Table values, Table steps, const std::vector<Bytes> &arrays, int64_t answer, const std::string &instruction_set,
         int64_t max_bytes) {
        if (values.shape(1) != EB_VALUE_FIELDS || steps.shape(1) != EB_FIELDS || values.shape(0) < 2)
            throw std::invalid_argument("the tables of values and steps have another width than this build");
        std::vector<eb_tensor> tensors;
        for (const Bytes &array : arrays) tensors.push_back({array.data(), (int64_t)array.size()});
        eb_recipe recipe = {values.data(),           steps.data(),           tensors.data(),
                            (int64_t)values.shape(0), (int64_t)steps.shape(0), (int64_t)tensors.size(), answer,
                            max_bytes};
        int over = 0;
        char error[EB_ERROR_BYTES] = "";
        {
            nb::gil_scoped_release release;
            plan = eb_plan_new(&recipe, instruction_set.empty() ? nullptr : instruction_set.c_str(), error, &over);
        }
        if (over) throw std::overflow_error("the plan takes more memory than allowed");
        if (plan) eb_plan_set_poll(plan, has_signal);
        if (!plan) throw std::invalid_argument(error);
        auto numbers = [&](size_t row) {
            const int64_t *value = values.data() + row * EB_VALUE_FIELDS;
            return (size_t)(value[EB_VALUE_CHANNELS] * value[EB_VALUE_ROWS] * value[EB_VALUE_COLUMNS]);
        };
        image_numbers = numbers(0);
        answer_numbers = numbers((size_t)answer);
        channels = (size_t)values.data()[EB_VALUE_CHANNELS];
        step_count = steps.shape(0);
    }
    Plan(const Plan &) = delete;
    ~Plan() {
        mutex_here();
        eb_plan_free(plan);
    }

    // Call it with the interpreter lock held, which only one thread of a child has.
    std::timed_mutex &mutex_here() {
        if (process != eb_process()) {
            process = eb_process();
            (void)in_use.release();
            in_use = std::make_unique<std::timed_mutex>();
            eb_plan_forget_runs(plan);
        }
        return *in_use;
    }

    int64_t batch_of(size_t images, const Answers &answers, int threads) const {
        size_t batch = images / image_numbers;
        if (images != batch * image_numbers || answers.size() != batch * answer_numbers || threads < 1 || threads > 1024)
            throw std::invalid_argument("images and answers do not belong to this plan");
        return (int64_t)batch;
    }

    // Run Python's signal handlers; not 0 if one has raised, as that of Ctrl-C does. Python runs them in the
    // main thread only. Other threads must not take the interpreter lock: at exit Python would end them there.
    static int has_signal() {
        if (!is_main) return 0;
        nb::gil_scoped_acquire hold;
        return PyErr_CheckSignals();
    }

    // GCC's thread sanitizer does not see a lock taken with a monotonic clock.
    static bool lock_soon(std::unique_lock<std::timed_mutex> &turn) {
        constexpr std::chrono::milliseconds soon(50);
#ifdef __SANITIZE_THREAD__
        return turn.try_lock_until(std::chrono::system_clock::now() + soon);
#else
        return turn.try_lock_for(soon);
#endif
    }

    // Wait for this caller's turn and run without the interpreter lock; a signal ends both.
    template <typename Work> void run_alone(Work work) {
        std::timed_mutex &mutex = mutex_here();
        int failed = 0;
        nb::object main = nb::module_::import_("threading").attr("main_thread")();
        is_main = nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
        {
            nb::gil_scoped_release release;
            std::unique_lock<std::timed_mutex> turn(mutex, std::defer_lock);
            while (!failed && !lock_soon(turn)) failed = has_signal() ? 1 : 0;
            if (!failed) failed = work();
        }
        if (failed == 2) throw std::invalid_argument("the plan needs its state, aligned, and positions for all its rows");
        if (failed > 0) throw nb::python_error();
        if (failed) throw std::bad_alloc();
    }

    void run(Reals images, Answers answers, int threads) {
        int64_t batch = batch_of(images.size(), answers, threads);
        run_alone([&] { return eb_plan_run(plan, images.data(), answers.data(), batch, threads); });
    }

    void run_bytes(Bytes images, Reals table, Answers answers, int threads) {
        int64_t batch = batch_of(images.size(), answers, threads);
        if (table.size() != channels * 256) throw std::invalid_argument("the byte table needs 256 numbers per channel");
        run_alone([&] { return eb_plan_run_bytes(plan, images.data(), table.data(), answers.data(), batch, threads); });
    }

    // One run of a plan that keeps a state from run to run.
    void run_at(Reals image, Answers answers, Answers state, int64_t position, int threads) {
        if (batch_of(image.size(), answers, threads) != 1 || (int64_t)state.size() < eb_plan_state(plan))
            throw std::invalid_argument("image, answers and state do not belong to this plan");
        run_alone([&] { return eb_plan_run_at(plan, image.data(), answers.data(), state.data(), position, threads); });
    }

    int64_t state_size() const { return eb_plan_state(plan); }

    std::vector<double> time(Reals image) {
        if (image.size() != image_numbers) throw std::invalid_argument("one image is timed at a time");
        std::vector<float> memory((size_t)eb_plan_state(plan) + 16);
        float *state = memory.data() + 16 - (uintptr_t)memory.data() / 4 % 16;
        std::vector<double> taken(step_count);
        run_alone([&] { return eb_plan_time(plan, image.data(), state, 0, taken.data()); });
        return taken;
    }
};

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // a program may exit while a thread runs a plan: not a leak
    nb::class_<Plan>(module, "Plan")
        .def(nb::init<Table, Table, const std::vector<Bytes> &, int64_t, const std::string &, int64_t>(),
             nb::arg("values"), nb::arg("steps"), nb::arg("tensors"), nb::arg("answer"), nb::arg("instruction_set"),
             nb::arg("max_bytes") = INT64_MAX)
        .def("run", &Plan::run)
        .def("run_bytes", &Plan::run_bytes)
        .def("run_at", &Plan::run_at)
        .def("state_size", &Plan::state_size)
        .def("time", &Plan::time);
    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const char *const *name = eb_instruction_sets(); *name; name++) names.push_back(*name);
        return names;
    });
    nb::dict fields;
    int next = 0;
#define EB_ADD_FIELD(name) fields[#name] = next++;
    EB_FIELD_LIST(EB_ADD_FIELD)
    module.attr("FIELDS") = fields;
    nb::dict kinds;
#define EB_ADD_KIND(name) kinds[#name] = (int)EB_##name;
    EB_ADD_KIND(LOAD) EB_ADD_KIND(CONV_BITS) EB_ADD_KIND(CONV_REAL) EB_ADD_KIND(CONV_SIGNED) EB_ADD_KIND(LINEAR_BYTES) EB_ADD_KIND(MAX_POOL) EB_ADD_KIND(AVG_POOL)
    EB_ADD_KIND(CONV_BYTES) EB_ADD_KIND(CONV_INT8) EB_ADD_KIND(ADAPTIVE) EB_ADD_KIND(CHAIN) EB_ADD_KIND(FILL) EB_ADD_KIND(COPY)
    EB_ADD_KIND(SIGMOID) EB_ADD_KIND(TANH) EB_ADD_KIND(SILU) EB_ADD_KIND(GELU) EB_ADD_KIND(GELU_TANH) EB_ADD_KIND(MISH) EB_ADD_KIND(ELU) EB_ADD_KIND(SOFTPLUS)
    EB_ADD_KIND(EXP) EB_ADD_KIND(SQRT) EB_ADD_KIND(RECIPROCAL) EB_ADD_KIND(MUL) EB_ADD_KIND(SOFTMAX) EB_ADD_KIND(NORM) EB_ADD_KIND(RMS_NORM) EB_ADD_KIND(MATMUL) EB_ADD_KIND(EMBED)
    EB_ADD_KIND(POSITION) EB_ADD_KIND(ATTEND)
    module.attr("KINDS") = kinds;
    module.attr("SOURCES") = EB_SOURCES;
}
