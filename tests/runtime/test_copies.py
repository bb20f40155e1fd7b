"""Data movement for any order of axes and any size."""

from itertools import permutations

import numpy as np
import pytest

from equalbits.runtime import NetworkBuilder, native
from equalbits.runtime.engine import NativeEngine, run_numpy

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("axes", list(permutations(range(3))))
@pytest.mark.parametrize(
    "shape", [(33, 17, 5), (40, 3, 37), (64, 16, 16), (1, 40, 3), (3, 1, 35), (16, 15, 1), (1, 1, 1)]
)
def test_axes_take_any_order(shape: tuple[int, int, int], axes: tuple[int, ...]) -> None:
    build = NetworkBuilder(shape)
    build.add("flatten", build.add("permute", build.image, axes=axes))
    network, images = build.finish(), RANDOM.standard_normal((2, *shape)).astype(np.float32)
    np.testing.assert_array_equal(
        run_numpy(network, images), images.transpose(0, *(1 + axis for axis in axes)).reshape(2, -1)
    )
    np.testing.assert_array_equal(NativeEngine(network)(images), run_numpy(network, images))


@pytest.mark.parametrize("step", [(1, 1, 1), (2, 3, 1), (1, 1, 5), (33, 1, 2)])
def test_a_slice_is_exact_inside_a_larger_padded_value(step: tuple[int, int, int]) -> None:
    build = NetworkBuilder((33, 18, 20))
    x = build.add("slice", build.image, start=(0, 1, 2), stop=(33, 18, 19), step=step)
    build.add("pad", build.add("permute", x, axes=(2, 0, 1)), before=(1, 0, 2), after=(0, 3, 1), value=-0.5)
    network, images = build.finish(), RANDOM.standard_normal((1, 33, 18, 20)).astype(np.float32)
    np.testing.assert_array_equal(NativeEngine(network)(images), run_numpy(network, images))
