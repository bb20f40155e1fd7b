"""A model in threads, in forked children, and at exit: each caller gets its own result without deadlock."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import PackedModel, native, read_network

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

GOLDEN = Path(__file__).parents[1] / "golden"


def test_callers_in_several_threads_each_get_their_own_answer() -> None:
    model = PackedModel(read_network(GOLDEN / "residual.ebits"), threads=2)
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    truth = model(images)
    answers: dict[int, np.ndarray] = {}
    callers = [threading.Thread(target=lambda i=i: answers.update({i: model(images[i])})) for i in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for i, answer in answers.items():
        np.testing.assert_array_equal(answer, truth[i])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    program = (
        "import os, sys, numpy as np\n"
        "from equalbits.runtime import load_packed\n"
        "model = load_packed(sys.argv[1], threads=2)\n"
        "images = np.ones((4, 3, 8, 8), np.float32)\n"
        "truth = model(images)\n"
        "child = os.fork()\n"
        "good = (model(images) == truth).all()\n"
        "os._exit(0 if good else 1) if child == 0 else sys.exit(os.waitpid(child, 0)[1] or not good)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, GOLDEN / "residual.ebits"], timeout=60)
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_forked_in_the_middle_of_a_run_answers_too(threads: int) -> None:
    """Another thread of the parent holds the model at that time, and no thread of the child can release it."""
    program = (
        "import os, signal, sys, threading, time, numpy as np\n"
        "from equalbits.runtime import load_packed\n"
        "model = load_packed(sys.argv[1], threads=int(sys.argv[2]))\n"
        "images = np.ones((4, 3, 8, 8), np.float32)\n"
        "truth, many = model(images), np.ones((100_000, 3, 8, 8), np.float32)\n"
        "busy = threading.Thread(target=model, args=(many,))\n"
        "busy.start()\n"
        "time.sleep(0.05)\n"
        "assert busy.is_alive()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(30)\n"
        "    os._exit(0 if (model(images) == truth).all() else 1)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, GOLDEN / "residual.ebits", str(threads)], timeout=120)
    assert done.returncode == 0


def test_a_program_may_exit_while_a_thread_runs_a_model() -> None:
    program = (
        "import sys, threading, time, numpy as np\n"
        "from equalbits.runtime import load_packed\n"
        "model, images = load_packed(sys.argv[1], threads=2), np.ones((100_000, 3, 8, 8), np.float32)\n"
        "threading.Thread(target=lambda: [model(images) for _ in range(100)], daemon=True).start()\n"
        "time.sleep(0.1)\n"
    )
    words = [sys.executable, "-c", program, GOLDEN / "residual.ebits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
