"""Ctrl-C ends a native run at once, also inside one large step, and the model stays usable."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from equalbits.runtime import NativeEngine, Network, NetworkBuilder, PackedModel, Port, generate, native

pytestmark = pytest.mark.skipif(native.BUILT is None, reason="the native engine is not built")

SIGNS = np.where(np.random.default_rng(0).integers(0, 2, (1, 1, 300, 300)), 1, -1)


def pooling() -> Network:
    """Two minutes of work in a few hundred bytes."""
    build = NetworkBuilder((1, 1200, 1200))
    build.add("avg_pool", build.image, kernel=600, stride=1)
    return build.finish()


def binary_convolution() -> Network:
    build = NetworkBuilder((1, 900, 900))
    build.add_binary("conv", build.add("sign", build.image), SIGNS)
    return build.finish()


def real_convolution() -> Network:
    build = NetworkBuilder((1, 900, 900))
    build.add("conv", build.image, weight=SIGNS.astype(np.int8), kernel=(300, 300))
    return build.finish()


def interrupted_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", [pooling, binary_convolution, real_convolution])
def test_ctrl_c_ends_a_native_run_at_once(make, threads: int) -> None:
    engine, network = NativeEngine(make()), make()
    images = np.zeros((1, *network.input_shape), np.float32)
    began = time.monotonic()
    interrupted_after(0.1)
    with pytest.raises(KeyboardInterrupt):
        engine(images, threads)
    assert time.monotonic() - began < 3


def slow_model(*, tokens: bool) -> PackedModel:
    """A classifier of pictures, or a decoder, that takes two minutes for each answer."""
    build = NetworkBuilder((1, 1, 8) if tokens else (1, 8, 8))
    rows = 1199 if tokens else 1192
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, rows, 1192))
    x = build.add("avg_pool", x, kernel=600, stride=1)
    x = build.add("slice", x, start=(0, 0, 0), stop=(1, 1, 80), step=(1, 1, 1))
    if not tokens:
        build.add("flatten", x)
        return PackedModel(build.finish(mean=(0.5,), std=(0.5,)))
    build.add("reshape", x, shape=(8, 10))
    return PackedModel(build.finish(inputs=(Port("ids", (8,), 10),), outputs=()))


def test_ctrl_c_ends_predict_and_generate_at_once() -> None:
    classifier, decoder, picture = slow_model(tokens=False), slow_model(tokens=True), np.zeros((8, 8), np.uint8)
    for call in (lambda: classifier.predict(picture), lambda: list(generate(decoder, [1], 3))):
        began = time.monotonic()
        interrupted_after(0.1)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - began < 10  # of two minutes; the machine may be busy


def test_ctrl_c_ends_the_command_at_once(tmp_path: Path) -> None:
    slow_model(tokens=False).save(tmp_path / "net.ebits")
    np.save(tmp_path / "a.npy", np.zeros((1, 8, 8), np.uint8))
    words = [sys.executable, "-m", "equalbits", "run", tmp_path / "net.ebits", tmp_path / "a.npy"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        cpu = Path(f"/proc/{process.pid}/stat")
        while sum(map(int, cpu.read_text().split()[13:15])) < 1.5 * os.sysconf("SC_CLK_TCK"):
            time.sleep(0.05)  # it has loaded numpy and the file long ago
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert (process.returncode, out, said) == (130, "", "equalbits run: interrupted\n")


def test_a_model_that_was_interrupted_gives_the_same_answers_afterwards() -> None:
    random = np.random.default_rng(1)
    build = NetworkBuilder((3, 12, 12))
    x = build.add_binary("conv", build.add("sign", build.image), np.where(random.random((40, 3, 3, 3)) < 0.5, 1, -1))
    x = build.add("avg_pool", x, kernel=2, stride=2)
    build.add_binary("conv", build.add("sign", x), np.where(random.random((8, 40, 3, 3)) < 0.5, 1, -1))
    engine, images = NativeEngine(build.finish()), random.normal(size=(20_000, 3, 12, 12)).astype(np.float32)
    expected = engine(images[:100])
    interrupted_after(0.02)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(1000):  # between steps, images and calls
            engine(images, 2)
    np.testing.assert_array_equal(engine(images[:100], 2), expected)


def test_a_run_continues_after_a_handler_that_does_not_raise() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        build = NetworkBuilder((1, 300, 300))
        build.add("avg_pool", build.image, kernel=60, stride=1)
        engine = NativeEngine(build.finish())
        np.testing.assert_array_equal(engine(np.ones((1, 1, 300, 300), np.float32)), np.ones((1, 1, 241, 241)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


def test_ctrl_c_ends_the_wait_for_a_model_that_another_thread_runs() -> None:
    build = NetworkBuilder((1, 300, 300))
    build.add("avg_pool", build.image, kernel=120, stride=1)
    engine, images = NativeEngine(build.finish()), np.zeros((1, 1, 300, 300), np.float32)
    other = threading.Thread(target=engine, args=(images,))
    other.start()
    time.sleep(0.05)
    interrupted_after(0.05)
    with pytest.raises(KeyboardInterrupt):
        engine(images)
    assert other.is_alive()
    other.join()
