"""Tiled binary convolutions are exact at every tile border, pooled and in threads."""

import numpy as np
import pytest
from tile_networks import SHAPES, network_of

from equalbits.runtime import NetworkBuilder, native
from equalbits.runtime.engine import NativeEngine, run_numpy

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

SETS = native.BUILT.instruction_sets()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1][0]}x{shape[1][1]}")
@pytest.mark.parametrize("pruned", [False, True])
def test_every_shape_is_exact_by_one_thread_and_by_several(shape: tuple, pruned: bool, name: str) -> None:
    network, images = network_of(shape, pruned=pruned)
    truth = run_numpy(network, images)
    engine = NativeEngine(network, name)
    for threads in (1, 2, 5):
        np.testing.assert_array_equal(engine(images[:1], threads), truth[:1])
    np.testing.assert_array_equal(engine(images, 2), truth)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("shape", SHAPES[:7], ids=lambda shape: f"{shape[0]}x{shape[1][0]}x{shape[1][1]}")
@pytest.mark.parametrize(
    "pool", [{"kernel": 2, "stride": 2}, {"kernel": 3, "stride": 2, "padding": 1}, {"kernel": 1, "stride": 1}]
)
def test_a_pooled_convolution_is_exact(shape: tuple, pool: dict[str, int], name: str) -> None:
    network, images = network_of(shape, pool=pool)
    truth = run_numpy(network, images)
    for threads in (1, 3):
        np.testing.assert_array_equal(NativeEngine(network, name)(images[:1], threads), truth[:1])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("slope", "gain"), [(0.25, 0.5), (0.25, -0.5), (-0.25, 0.5), (0.0, 0.5), (0.25, 0.0)])
def test_pooling_is_exact_whether_or_not_the_affine_keeps_the_order(slope: float, gain: float, name: str) -> None:
    random = np.random.default_rng(0)
    build = NetworkBuilder((64, 12, 56))
    x = build.add_binary("conv", build.add("sign", build.image), random.choice([-1, 1], (40, 64, 3, 3)), padding=1)
    slopes, gains = np.full(40, 0.25, np.float32), np.linspace(0.5, 2, 40, dtype=np.float32)
    slopes[7], gains[7] = slope, gain  # one channel is enough
    x = build.add("prelu", x, slope=slopes)
    x = build.add("affine", x, gain_shift=np.stack([gains, random.standard_normal(40).astype(np.float32)]))
    build.add("max_pool", x, kernel=3, stride=2, padding=1)
    network, images = build.finish(), random.standard_normal((2, 64, 12, 56)).astype(np.float32)
    np.testing.assert_array_equal(NativeEngine(network, name)(images), run_numpy(network, images))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("signs", [False, True])
def test_a_wide_linear_layer_of_one_row_adds_up(signs: bool, pruned: bool, name: str) -> None:
    random = np.random.default_rng(0)
    build = NetworkBuilder((1000, 1, 1))
    x = build.add("flatten", build.image)
    symbols = random.choice([-1, 0, 1] if pruned else [-1, 1], (333, 1000))
    build.add_binary("linear", build.add("sign", x) if signs else x, symbols, name="fc")
    network = build.finish()
    rows = random.integers(-64, 65, (3, 1000, 1, 1)).astype(np.float32) / 64  # sums that are exact in any order
    engine = NativeEngine(network, name)
    for batch in (rows[:1], rows):
        np.testing.assert_array_equal(engine(batch, 2), run_numpy(network, batch))
