"""A small file costs at most the memory and the time that the caller allows."""

import threading
import time
import tracemalloc

import numpy as np
import pytest

from equalbits.runtime import (
    LimitError,
    Limits,
    Network,
    NetworkBuilder,
    PackedModel,
    load_packed,
    native,
)
from equalbits.runtime.engine import run_numpy
from equalbits.runtime.format import write_network
from equalbits.runtime.lower import lower

needs_native = pytest.mark.skipif(native.BUILT is None, reason="the native engine is not built")
ENGINES = ["numpy"] if native.BUILT is None else ["numpy", "native"]
MIB = 1 << 20


def tied(count: int, weight: np.ndarray, *, binary: bool, paddings: bool = False) -> Network:
    """Many convolutions that share one weight, with the same or with different settings."""
    build = NetworkBuilder(weight.shape[1:])
    x = build.image
    for number in range(count):
        x = build.add("sign", x) if binary else x
        if binary:
            x = build.add_binary("conv", x, weight, name="tied")
        else:
            more = {"padding": (number, 0, 0, 0)} if paddings else {}
            source = build.image if paddings else x
            x = build.add("conv", source, weight=weight, name="tied", kernel=weight.shape[2:], **more)
    return build.finish()


@needs_native
@pytest.mark.parametrize("binary", [True, False])
def test_operations_that_share_a_weight_share_its_layout(binary: bool) -> None:
    random = np.random.default_rng(0)
    signs = np.where(random.integers(0, 2, (256, 256, 1, 1)), 1, -1)
    network = tied(300, signs if binary else signs.astype(np.int8), binary=binary)
    tracemalloc.start()
    model = PackedModel(network, engine="native", limits=Limits(memory=4 * MIB))  # 300 copies would take 75 MiB
    assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    tracemalloc.stop()
    few = tied(3, signs if binary else signs.astype(np.int8), binary=binary)
    image = random.integers(-1, 2, (1, 256, 1, 1)).astype(np.float32)
    if binary:
        np.testing.assert_array_equal(PackedModel(few, engine="native")(image), run_numpy(few, image))
        np.testing.assert_array_equal(model(image), run_numpy(network, image))


@needs_native
def test_a_shared_weight_that_needs_a_layout_per_operation_is_refused_early() -> None:
    network = tied(100, np.ones((32, 32, 5, 5), np.int8), binary=False, paddings=True)
    PackedModel(network)  # 25 KB, of which each operation makes 100 KB
    with pytest.raises(LimitError, match=r"takes a plan of more than \d+ bytes, over \d+: raise Limits\(memory=…\)"):
        PackedModel(network, limits=Limits(memory=4 * MIB))


def padded(times: int, side: int) -> Network:
    """Large values that are all alive until the last operation reads a slice of each: a few hundred bytes."""
    build = NetworkBuilder((1, 1, 1))
    large = [build.add("pad", build.image, before=(0, i, 0), after=(0, side - i, side)) for i in range(times)]
    firsts = [build.add("slice", each, start=(0, 0, 0), stop=(1, 1, 1), step=(1, 1, 1)) for each in large]
    x = build.add("concat", *firsts)
    build.add("flatten", x)
    return build.finish()


@pytest.mark.parametrize("engine", ENGINES)
def test_values_that_take_more_memory_than_allowed_are_refused_before_anything_is_allocated(engine, tmp_path) -> None:
    write_network(padded(8, 6000), tmp_path / "net.ebits")
    assert (tmp_path / "net.ebits").stat().st_size < 2000
    began = time.monotonic()
    with pytest.raises(LimitError, match=r"net.ebits: the network takes values of 115\d+ bytes at a time, over"):
        load_packed(tmp_path / "net.ebits", engine=engine)
    assert time.monotonic() - began < 1
    small = padded(8, 60)
    with pytest.raises(LimitError):
        PackedModel(small, engine=engine, limits=Limits(memory=50_000))
    assert PackedModel(small, engine=engine, limits=Limits(memory=MIB))(np.ones((1, 1, 1, 1), np.float32)).size == 8


def test_in_numpy_a_slice_does_not_keep_the_whole_value_alive_nor_does_a_value_that_nothing_reads() -> None:
    build = NetworkBuilder((1, 1, 1))
    x = build.image
    for _ in range(20):
        large = build.add("pad", x, before=(0, 0, 0), after=(0, 499, 499))
        build.add("relu", large)
        x = build.add("slice", large, start=(0, 0, 0), stop=(1, 1, 1), step=(1, 1, 1))
    network = build.finish()
    tracemalloc.start()
    run_numpy(network, np.ones((1, 1, 1, 1), np.float32))
    assert tracemalloc.get_traced_memory()[1] < 5 * MIB  # a value takes 1 MB
    tracemalloc.stop()


@needs_native
def test_a_huge_padded_kernel_is_planned_in_time_that_grows_with_its_size() -> None:
    build = NetworkBuilder((1, 1, 50_000))
    x = build.add("sign", build.image)
    symbols = np.where(np.random.default_rng(0).integers(0, 2, (1, 1, 1, 50_000)), 1, -1)
    build.add_binary("conv", x, symbols, padding=(0, 0, 49_999, 49_999))
    network = build.finish()
    began = time.monotonic()
    PackedModel(network, engine="native")  # every column has a border of its own
    assert time.monotonic() - began < 3
    with pytest.raises(LimitError):
        PackedModel(network, engine="native", limits=Limits(memory=MIB))


def test_the_work_per_image_can_be_limited_by_the_caller() -> None:
    build = NetworkBuilder((1, 100, 100))
    build.add("avg_pool", build.image, kernel=50, stride=1)
    network = build.finish()
    with pytest.raises(LimitError, match=r"takes 65\d+ products per image, over 1000000: raise Limits\(work=…\)"):
        PackedModel(network, limits=Limits(work=10**6))
    PackedModel(network)


@needs_native
def test_other_threads_run_while_a_file_is_planned() -> None:
    build = NetworkBuilder((1, 300, 300))
    build.add_binary("conv", build.add("sign", build.image), np.ones((512, 1, 128, 128), np.int8))
    plan, answer = lower(build.finish(), native.BUILT.FIELDS, native.BUILT.KINDS)
    tables, ticks, ended = plan.tables(), [], threading.Event()

    def tick() -> None:
        while not ended.wait(0.002):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    before = len(ticks)
    native.BUILT.Plan(*tables, answer, "")  # about 0.3 s of one call
    assert len(ticks) - before > 5
    ended.set()
    thread.join()
