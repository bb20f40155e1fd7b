"""Real inputs with binary weights: equal sums by table lookup, multiplication or addition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.runtime import Network, NetworkBuilder, native
from equalbits.runtime.engine import NativeEngine, run_numpy

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

SETS = native.BUILT.instruction_sets()
SHAPES = [
    (64, (9, 32), 64, 3, {"padding": 1}),  # two words of channels, tiles of eight pixels
    (512, (4, 4), 40, 3, {"padding": 1}),
    (70, (5, 7), 33, 3, {"padding": (2, 0, 1, 3)}),  # the last word is not full, nor is the last table
    (30, (6, 3), 96, 3, {}),  # rows of one pixel
    (36, (3, 100), 48, 3, {"padding": (1, 1, 2, 1)}),  # rows of several pieces
    (3, (8, 6), 5, 3, {"padding": 1, "stride": 2}),
    (64, (8, 13), 70, 3, {"groups": 2, "padding": 1, "dilation": 2}),
    (40, (8, 9), 40, 3, {"groups": 2, "padding": 1}),  # words that groups share
    (33, (2, 2), 64, (1, 2), {"stride": (1, 2)}),
    (100, (5, 9), 130, 1, {}),  # all rows are one
    (257, (1, 1), 10, 1, {}),
]


def network_of(shape: tuple, *, pruned: bool = False, pool: int = 0) -> tuple[Network, np.ndarray]:
    """A convolution whose sums are exact in any order, of reals."""
    random = np.random.default_rng(0)
    channels, size, filters, kernel, window = shape
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    build = NetworkBuilder((channels, *size))
    symbols = random.choice([-1, 0, 1] if pruned else [-1, 1], (filters, channels // window.get("groups", 1), *kernel))
    x = build.add_binary("conv", build.add("clamp", build.image, min=-0.75), symbols, **window)
    x = build.add("max_pool", x, kernel=pool, stride=pool) if pool else x
    build.add("affine", x, gain_shift=np.stack([np.full(filters, 0.5), np.arange(filters)]).astype(np.float32))
    return build.finish(), random.integers(-64, 65, (3, channels, *size)).astype(np.float32) / 64


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1][0]}x{shape[1][1]}")
@pytest.mark.parametrize("pruned", [False, True])
def test_every_shape_adds_up_by_one_thread_and_by_several(shape: tuple, pruned: bool, name: str) -> None:
    network, images = network_of(shape, pruned=pruned)
    truth, engine = run_numpy(network, images), NativeEngine(network, name)
    for threads in (1, 2, 5):
        np.testing.assert_array_equal(engine(images[:1], threads), truth[:1])
    np.testing.assert_array_equal(engine(images, 2), truth)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=["64x9x32", "512x4x4"])
def test_pooling_after_table_lookup_is_exact(shape: tuple, name: str) -> None:
    network, images = network_of(shape, pool=2)
    for threads in (1, 3):
        np.testing.assert_array_equal(NativeEngine(network, name)(images[:1], threads), run_numpy(network, images[:1]))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_small_convolution_is_exact(data: st.DataObject) -> None:
    draw = data.draw
    kernel = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    size = draw(st.integers(kernel[0], 9)), draw(st.integers(kernel[1], 18))
    window = {"stride": draw(st.integers(1, 3)), "padding": draw(st.integers(0, 2))}
    network, images = network_of((draw(st.integers(1, 100)), size, draw(st.integers(1, 100)), kernel, window))
    truth = run_numpy(network, images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("connections", "pruned"), [(4096, False), (4096, True), (60_000, True)])
def test_rounding_stays_as_small_as_in_other_orders(connections: int, pruned: bool, name: str) -> None:
    random = np.random.default_rng(0)
    build = NetworkBuilder((connections, 1, 1))
    symbols = random.choice([-1, 0, 1] if pruned else [-1, 1], (64, connections))
    build.add_binary("linear", build.add("flatten", build.image), symbols)
    network, images = build.finish(), random.standard_normal((4, connections, 1, 1)).astype(np.float32)
    truth = images.reshape(4, -1).astype(np.float64) @ symbols.T
    assert np.abs(NativeEngine(network, name)(images) - truth).max() < 1e-6 * np.abs(truth).max()
