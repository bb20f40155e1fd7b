"""Extreme values (infinities, NaN, zeros, denormals, the largest): every engine equals torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.runtime import Network, NetworkBuilder, native
from equalbits.runtime.engine import NativeEngine, run_numpy

SETS = [] if native.BUILT is None else native.BUILT.instruction_sets()

LARGEST, LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)
FINITE = [0.0, -0.0, 1.0, -1.0, 0.5, LEAST, -LEAST, 1e-38, 1e20, -1e20, LARGEST, -LARGEST]
ANY = [*FINITE, float("inf"), float("-inf"), float("nan")]
KINDS = ["affine", "prelu", "relu", "relu", "clamp", "sign", "add", "max_pool", "binary"]


class Drawn:
    """A network whose every operation rounds by itself, and torch's result."""

    def __init__(self, data: st.DataObject, numbers: list[float]) -> None:
        self.data = data
        shape = (data.draw(st.sampled_from([1, 3, 33, 64])), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)))
        self.build, self.random = NetworkBuilder(shape), np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        images = self.random.choice(np.array(numbers, np.float32), (2, *shape))
        self.images, self.made = images, [(self.build.image, torch.from_numpy(images))]

    def some(self, numbers: list[float], *shape: int) -> np.ndarray:
        return self.random.choice(np.array(numbers, np.float32), shape)

    def grow(self) -> None:
        kind, name = self.data.draw(st.sampled_from(KINDS)), f"op{len(self.made)}"
        value, x = self.made[-1]
        parts: dict[str, Any] = {}
        others: list[int] = []
        if kind == "affine":
            gain, shift = parts["gain_shift"] = self.some(FINITE, 2, x.shape[1])
            y = x * _per_channel(gain) + _per_channel(shift)
        elif kind == "prelu":
            slope = parts["slope"] = self.some([0.0, -0.0, 0.25, -1.0, 1e20, LARGEST], x.shape[1])
            y = nnf.prelu(x, torch.from_numpy(slope))
        elif kind == "clamp":
            low, high = self.data.draw(st.sampled_from([(None, 0.0), (0.0, None), (-1.0, 1.0), (-LARGEST, LARGEST)]))
            parts, y = {"min": low, "max": high}, torch.clamp(x, low, high)
        elif kind == "add":
            other, z = self.data.draw(st.sampled_from([pair for pair in self.made if pair[1].shape == x.shape]))
            others, y = [other], x + z
        elif kind == "max_pool":
            size = [self.data.draw(st.integers(1, min(3, side))) for side in x.shape[2:]]
            around = [self.data.draw(st.integers(0, size[side // 2] - 1)) for side in range(4)]
            parts = {"kernel": size, "stride": self.data.draw(st.integers(1, 2)), "padding": around}
            y = nnf.max_pool2d(nnf.pad(x, [*around[2:], *around[:2]], value=-np.inf), size, parts["stride"])
        elif kind == "binary":
            self._binary(value, x, name)
            return
        else:
            y = nnf.relu(x) if kind == "relu" else torch.where(x >= 0, 1.0, -1.0)
        self.made.append((self.build.add(kind, value, *others, name=name, **parts), y))

    def _binary(self, value: int, x: Tensor, name: str) -> None:
        """Signs by bits, scaled: sums that every engine has exactly."""
        symbols = self.random.choice(self.data.draw(st.sampled_from([[-1, 1], [-1, 0, 1]])), (33, x.shape[1], 1, 1))
        scale = self.some(FINITE, 33)
        value = self.build.add("sign", value)
        sums = nnf.conv2d(torch.where(x >= 0, 1.0, -1.0), torch.from_numpy(symbols.astype(np.float32)))
        value = self.build.add_binary("conv", value, symbols, name=name, scale=scale)
        self.made += [(value - 1, torch.where(x >= 0, 1.0, -1.0)), (value, sums * _per_channel(scale))]


def _per_channel(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers)[:, None, None]


def agrees(network: Network, images: np.ndarray, truth: np.ndarray) -> None:
    """Every engine gives ``truth``; NaN equals NaN, and both zeros are equal."""
    np.testing.assert_array_equal(run_numpy(network, images), truth, err_msg="numpy")
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth, err_msg=name)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_engine_equals_torch_beyond_the_range_of_float32(data: st.DataObject) -> None:
    drawn = Drawn(data, data.draw(st.sampled_from([FINITE, ANY])))
    for _ in range(data.draw(st.integers(1, 8))):
        drawn.grow()
    agrees(drawn.build.finish(), drawn.images, drawn.made[-1][1].numpy())


@pytest.mark.parametrize("behind", ["affine", "add", "relu"])
def test_a_relu_makes_0_of_a_sum_below_all_floats(behind: str) -> None:
    build = NetworkBuilder((2, 1, 3))
    low = np.array([[LARGEST, LARGEST], [0, 1]], np.float32)
    x = build.add("relu", build.add("affine", build.image, name="low", gain_shift=low))
    if behind == "affine":
        build.add("affine", x, name="norm", gain_shift=np.ones((2, 2), np.float32))
    else:
        build.add(behind, x, *([build.image] if behind == "add" else []))
    images = np.full((1, 2, 1, 3), -LARGEST, np.float32)
    agrees(build.finish(), images, np.full_like(images, {"affine": 1, "add": -LARGEST, "relu": 0}[behind]))


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("alone", [True, False])
def test_the_largest_of_a_window_with_nan_is_nan_wherever_it_stands(place: int, alone: bool) -> None:
    build = NetworkBuilder((40, 3, 3))
    x = (
        build.image
        if alone
        else build.add("conv", build.image, kernel=1, weight=np.eye(40, dtype=np.float32)[..., None, None])
    )
    build.add("max_pool", x, kernel=3)
    images = np.ones((1, 40, 3, 3), np.float32)
    images[0, :, place // 3, place % 3] = np.nan
    agrees(build.finish(), images, np.full((1, 40, 1, 1), np.nan, np.float32))


@pytest.mark.parametrize("filters", [5, 64])
@pytest.mark.parametrize("size", [1, 9])
def test_a_pruned_weight_times_infinity_is_nan_as_in_torch(filters: int, size: int) -> None:
    symbols = np.ones((filters, 3, 1, 1), np.int8)
    symbols[::2, 1] = 0
    build = NetworkBuilder((3, size, size))
    x = build.add("affine", build.image, name="large", gain_shift=np.full((2, 3), LARGEST, np.float32))
    build.add_binary("conv", x, symbols, name="pruned")
    images = np.ones((1, 3, size, size), np.float32)
    truth = np.where(np.arange(filters) % 2, np.inf, np.nan)[None, :, None, None] * images[:, :1]
    agrees(build.finish(), images, truth.astype(np.float32))
