"""A small file costs at most the memory and the time that the caller allows."""

import threading
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from equalbits.runtime import (
    OPS,
    LimitError,
    Limits,
    Network,
    NetworkBuilder,
    PackedModel,
    audit,
    load_packed,
    native,
)
from equalbits.runtime.bits import pack_symbols
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


@needs_native
def test_copies_of_a_file_of_thousands_of_concatenations_are_counted() -> None:
    build = NetworkBuilder((1, 1, 1))
    for _ in range(1100):
        build.add("concat", *[build.image] * 64)  # 64 copies each
    network = build.finish()
    with pytest.raises(ValueError, match="the plan has more than 65536 steps"):
        PackedModel(network, engine="native")
    with pytest.raises(LimitError, match=r"takes a plan of more than \d+ bytes"):
        PackedModel(network, limits=Limits(memory=4 * MIB))


@needs_native
def test_what_python_lays_out_counts_beside_what_the_engine_lays_out_of_it() -> None:
    build = NetworkBuilder((1, 1, 1))
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, 0, (1 << 18) - 1))
    x = build.add("reshape", x, shape=(1, 1, 1, 1 << 18))
    for _ in range(10):  # 2 MiB of gains and shifts each, which are two numbers in the file
        x = build.add("affine", x, gain_shift=np.ones((2, 1), np.float32), name="a")
    network = build.finish()
    with pytest.raises(LimitError):
        PackedModel(network, engine="native", limits=Limits(memory=30 * MIB))
    PackedModel(network, engine="native", limits=Limits(memory=50 * MIB))


def every_operation() -> Iterator[Network]:
    """A network per operation, whose last operation is that one, on a value of 512 KiB."""
    ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
    side, settings = 256, {
        "conv": {"weight": ones(3, 2, 5, 5), "kernel": 5, "padding": 3, "scale": ones(1), "bias": ones(3)},
        "affine": {"gain_shift": ones(2, 2)}, "prelu": {"slope": ones(2)}, "clamp": {"min": 0, "max": 1},
        "max_pool": {"kernel": 3, "padding": 1}, "avg_pool": {"kernel": 3, "padding": 1, "count_padding": False},
        "adaptive_avg_pool": {"size": 30}, "reshape": {"shape": (256, 512)}, "permute": {"axes": (2, 1, 0)},
        "channel_shuffle": {"groups": 2}, "slice": {"start": (0, 0, 0), "stop": (2, 256, 256), "step": (1, 1, 1)},
        "pad": {"before": (0, 1, 1), "after": (0, 1, 1)}, "softmax": {"axis": 2, "causal": True},
        "layer_norm": {"axis": 1, "scale": ones(256), "bias": ones(256)}, "rms_norm": {"axis": 0},
        "embedding": {"table": ones(4, 3).astype(np.float16)}, "quantize": {"gain": 1.0},
    }  # fmt: skip
    for kind in OPS:
        build = NetworkBuilder((2, side, side))
        inputs = [build.image]
        if kind in ("add", "mul", "concat"):
            inputs.append(build.add("relu", build.image))
        elif kind == "matmul":
            inputs.append(build.add("permute", build.image, axes=(0, 2, 1)))
        if kind == "linear":
            symbols = np.ones((16, 2 * side * side), np.int8)
            build.add_binary("linear", build.add("flatten", build.image), symbols, input_bits=8)
        else:
            build.add(kind, *inputs, name="it", **settings.get(kind, {}))
        yield build.finish()
    build = NetworkBuilder((64, 32, 32))
    build.add_binary("conv", build.image, np.random.default_rng(0).integers(-1, 2, (512, 64, 3, 3)), padding=1)
    yield build.finish()


def test_numpy_takes_no_more_memory_beside_values_than_counted() -> None:
    for network in every_operation():
        operation, values = network.operations[-1], {0: np.ones((1, *network.input_shape), np.float32)}
        for place, before in enumerate(network.operations[:-1]):
            values[place + 1] = network.run_operation(before, values)
        tracemalloc.start()
        made = network.run_operation(operation, values)
        beside = tracemalloc.get_traced_memory()[1] - made.nbytes
        tracemalloc.stop()
        inputs, arrays = tuple(network.shapes[i] for i in operation.inputs), network.arrays(operation)
        counted = OPS[operation.kind].numpy_bytes(network.shapes[-1], inputs, operation.settings, arrays)
        assert beside < counted + MIB // 16, operation.kind


def test_a_file_that_only_numpy_can_run_is_refused_for_what_numpy_takes() -> None:
    build = NetworkBuilder((1, 1, 1))
    x = build.add("pad", build.image, before=(0, 0, 0), after=(0, 4095, 8191))
    x = build.add("reshape", x, shape=(2,) * 7 + (1 << 18,))
    x = build.add("permute", x, axes=(6, 4, 2, 0, 1, 3, 5, 7))  # of more axes than the native engine copies
    build.add("gelu", x)
    with pytest.raises(LimitError, match=r"takes values of \d+ bytes at a time"):  # two of 128 MiB would be fine
        PackedModel(build.finish())


def test_a_weight_that_thousands_of_layers_share_is_counted_once_by_the_audit() -> None:
    build = NetworkBuilder((256, 1, 1))
    x = build.add("flatten", build.image)
    symbols = np.where(np.arange(256 * 256).reshape(256, 256) % 3 == 0, 1, -1).astype(np.int8)
    plane, _ = pack_symbols(symbols)
    for _ in range(300):
        x = build.add("linear", build.add("sign", x), weight=plane, name="tied")
    network = build.finish()
    layers = audit(network).layers
    assert len(layers) == 300
    assert all(layer.positive is layers[0].positive for layer in layers)
    np.testing.assert_array_equal(layers[299].positive, (symbols == 1).sum(axis=1))
    np.testing.assert_array_equal(layers[299].negative, (symbols == -1).sum(axis=1))
