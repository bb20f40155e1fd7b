"""The first convolution by Winograd's algorithm equals numpy up to rounding for any rows and pooling."""

import numpy as np
import pytest

from equalbits.runtime import NetworkBuilder, PackedModel, native
from equalbits.runtime.engine import NativeEngine, run_numpy

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

SETS = native.BUILT.instruction_sets()
RANDOM = np.random.default_rng(0)
Pair = tuple[int, int]


def reals(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("size", "filters", "kernel", "window"),
    [
        ((64, 61), 64, 7, {"stride": 2, "padding": 3}),
        ((29, 57), 35, 7, {"stride": 2, "padding": (1, 0, 2, 0)}),
        ((5, 32), 64, 3, {"padding": 1}),
        ((6, 30), 32, 4, {}),
        ((9, 31), 70, (7, 4), {"stride": (2, 1)}),
        ((9, 33), 40, (2, 4), {"stride": (3, 1), "dilation": (2, 1)}),
        ((12, 70), 32, (3, 8), {"stride": (1, 2)}),
        ((40, 40), 33, 5, {"stride": 2, "padding": 2}),
        ((8, 8), 8, 3, {}),
    ],
)
@pytest.mark.parametrize("pool", [None, (2, 2), (3, 1), (3, 2)])
def test_the_first_convolution_is_within_a_hundred_thousandth(
    size: Pair, filters: int, kernel: int | Pair, window: dict[str, object], pool: Pair | None, name: str
) -> None:
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    build = NetworkBuilder((3, *size))
    x = build.add("conv", build.image, weight=reals(filters, 3, height, width), kernel=kernel, **window)
    if pool:
        build.add("max_pool", x, kernel=pool[0], stride=pool[1], padding=pool[0] // 2)
    network, images = build.finish(), reals(2, 3, *size)
    truth, engine = run_numpy(network, images), NativeEngine(network, name)
    answers = engine(images)
    assert np.abs(answers - truth).max() < 1e-5 * np.abs(truth).max()
    for threads in (2, 3, 7):  # wherever the rows are shared out, they are the same
        np.testing.assert_array_equal(engine(images[:1], threads), answers[:1])


@pytest.mark.parametrize("name", SETS)
def test_pooling_may_enlarge_the_first_convolution(name: str) -> None:
    build = NetworkBuilder((3, 20, 30))
    x = build.add("conv", build.image, weight=reals(32, 3, 3, 3), kernel=3, padding=1)
    build.add("max_pool", x, kernel=(2, 300), stride=1, padding=(0, 0, 299, 299))
    network, images = build.finish(), reals(1, 3, 20, 30)
    truth = run_numpy(network, images)
    assert truth.shape[-1] == 329
    assert np.abs(NativeEngine(network, name)(images) - truth).max() < 1e-5 * np.abs(truth).max()


@pytest.mark.parametrize("threads", [1, 3])
def test_uint8_images_give_the_logits_of_their_normalized_floats(threads: int) -> None:
    build = NetworkBuilder((3, 30, 60))
    x = build.add("conv", build.image, weight=reals(32, 3, 7, 7), kernel=7, stride=2, padding=3)
    build.add("max_pool", x, kernel=3, stride=2, padding=1)
    network = build.finish(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    pixels = RANDOM.integers(0, 256, (2, 3, 30, 60)).astype(np.uint8)
    for images in (pixels, pixels[:1]):
        model = PackedModel(network, engine="native", threads=threads)
        np.testing.assert_array_equal(model(images), model(network.normalize(images)))


@pytest.mark.parametrize("name", [name for name in SETS if name != "portable"])
@pytest.mark.parametrize(
    ("channels", "filters", "size", "kernel"), [(3, 64, (32, 32), 3), (1, 33, (28, 29), 3), (1, 32, (9, 40), 4)]
)
def test_a_first_convolution_of_few_connections_is_exact(
    channels: int, filters: int, size: tuple[int, int], kernel: int, name: str
) -> None:
    build = NetworkBuilder((channels, *size))
    weight = RANDOM.integers(-8, 9, (filters, channels, kernel, kernel)).astype(np.float32) / 8
    build.add("conv", build.image, weight=weight, kernel=kernel, padding=1)
    network, images = build.finish(), RANDOM.integers(-8, 9, (2, channels, *size)).astype(np.float32) / 8
    np.testing.assert_array_equal(NativeEngine(network, name)(images, 2), run_numpy(network, images))
