"""Each numpy operation equals torch; with ±1 on both sides, to the last bit."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as nnf

from equalbits.runtime import bits
from equalbits.runtime.engine import PackedModel
from equalbits.runtime.network_builder import NetworkBuilder
from equalbits.runtime.ops import OPS

RANDOM = np.random.default_rng(0)


def run(kind: str, *values: np.ndarray, **parts: Any) -> np.ndarray:
    """Output of one operation through a network, which also checks its shape rule."""
    build = NetworkBuilder(values[0].shape[1:])
    inputs = [build.image]
    for value in values[1:]:  # a second value: the image, with the difference put in by an affine of gain 0
        assert len(value) == 1
        flat = build.add("flatten", build.image)
        both = np.stack([np.zeros(value.size), value.ravel()]).astype(np.float32)
        flat = build.add("affine", flat, gain_shift=both, name="other")
        inputs.append(build.add("reshape", flat, shape=value.shape[1:]))
    build.add(kind, *inputs, name="it", **parts)
    network = build.finish()
    answer = PackedModel(network, engine="numpy")(values[0])
    assert answer.shape[1:] == network.shapes[-1] and answer.dtype == np.float32
    return answer


def reals(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def symbols(*shape: int, zeros: bool = False) -> np.ndarray:
    return RANDOM.choice([-1, 0, 1] if zeros else [-1, 1], shape)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_binary_convolution_is_exact_for_every_window(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, part, kernel = draw(1, 3), draw(1, 5), (draw(1, 4), draw(1, 4))
    stride, dilation, padding = (draw(1, 3), draw(1, 3)), (draw(1, 2), draw(1, 2)), (draw(0, 3), draw(0, 3))
    size = [max(1, dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i]) + draw(0, 5) for i in (0, 1)]
    weight = symbols(groups * draw(1, 4), part, *kernel, zeros=data.draw(st.booleans()))
    image = symbols(2, groups * part, *size).astype(np.float32)
    plane, kept = bits.pack_symbols(weight)
    found = run(
        "conv",
        image,
        weight=plane,
        kept=kept,
        kernel=kernel,
        stride=stride,
        padding=(padding[0], padding[0], padding[1], padding[1]),
        dilation=dilation,
        groups=groups,
    )
    truth = nnf.conv2d(
        torch.from_numpy(image).long(), torch.from_numpy(weight).long(), None, stride, padding, dilation, groups
    )
    np.testing.assert_array_equal(found, truth.float().numpy())


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("stored", [np.float32, np.float16, np.int8])
def test_a_real_convolution_is_torchs(groups: int, stored: type) -> None:
    weight = (8 * reals(12, 6 // groups, 3, 3)).astype(stored)
    image, bias, scale = reals(2, 6, 9, 8), reals(12), np.abs(reals(12))
    parts = {"kernel": 3, "stride": (2, 1), "padding": (1, 1, 0, 0), "groups": groups}
    found = run("conv", image, weight=weight, bias=bias, scale=scale, **parts)
    full = torch.from_numpy(weight.astype(np.float32) * scale[:, None, None, None])
    truth = nnf.conv2d(torch.from_numpy(image), full, torch.from_numpy(bias), (2, 1), (1, 0), 1, groups)
    np.testing.assert_allclose(found, truth.numpy(), rtol=1e-4, atol=1e-4)


def test_padding_may_differ_on_every_side() -> None:
    image, weight = reals(1, 2, 5, 5), reals(3, 2, 2, 2)
    found = run("conv", image, weight=weight, kernel=2, padding=(0, 1, 2, 3))
    truth = nnf.conv2d(nnf.pad(torch.from_numpy(image), (2, 3, 0, 1)), torch.from_numpy(weight))
    np.testing.assert_allclose(found, truth.numpy(), rtol=1e-5, atol=1e-5)


def test_a_binary_linear_layer_is_scaled_after_the_exact_sum() -> None:
    weight, features = symbols(5, 300), symbols(3, 300).astype(np.float32)
    bias, scale = reals(5), np.float32([np.sqrt(2 / 300)])
    tensors = {"weight": bits.pack_symbols(weight)[0], "scale": scale, "bias": bias}
    found = OPS["linear"].run([features], {}, tensors)
    np.testing.assert_array_equal(found, (features.astype(int) @ weight.T).astype(np.float32) * scale + bias)


def test_sign_of_zero_is_plus_one() -> None:
    found = run("sign", np.float32([[[[-0.0, 0.0, -1e-45, 1e-45]]]]))
    assert found.ravel().tolist() == [1, 1, -1, 1]


@pytest.mark.parametrize(
    ("kind", "parts", "truth"),
    [
        ("affine", {"gain_shift": reals(2, 6)}, None),
        ("prelu", {"slope": np.float32([0.25])}, lambda x: nnf.prelu(x, torch.tensor([0.25]))),
        ("prelu", {"slope": np.float32([0.1, -0.2, 3, 0, 1, 2])}, None),
        ("relu", {}, nnf.relu),
        ("clamp", {"min": -1, "max": 1}, nnf.hardtanh),
        ("clamp", {"max": 0.5}, lambda x: x.clamp(max=0.5)),
        ("max_pool", {"kernel": 3, "stride": 2, "padding": 1}, lambda x: nnf.max_pool2d(x, 3, 2, 1)),
        ("max_pool", {"kernel": (2, 3), "stride": (1, 2)}, lambda x: nnf.max_pool2d(x, (2, 3), (1, 2))),
        ("avg_pool", {"kernel": 3, "stride": 1, "padding": 1}, lambda x: nnf.avg_pool2d(x, 3, 1, 1)),
        (
            "avg_pool",
            {"kernel": 3, "stride": 2, "padding": 1, "count_padding": False},
            lambda x: nnf.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        ),
        ("adaptive_avg_pool", {}, lambda x: nnf.adaptive_avg_pool2d(x, 1)),
        ("adaptive_avg_pool", {"size": (3, 5)}, lambda x: nnf.adaptive_avg_pool2d(x, (3, 5))),
        ("flatten", {}, lambda x: x.flatten(1)),
        ("reshape", {"shape": (3, 2, 63)}, lambda x: x.reshape(-1, 3, 2, 63)),
        ("permute", {"axes": (2, 0, 1)}, lambda x: x.permute(0, 3, 1, 2)),
        ("channel_shuffle", {"groups": 3}, lambda x: nnf.channel_shuffle(x, 3)),
        ("slice", {"start": (1, 0, 1), "stop": (5, 7, 9), "step": (1, 2, 3)}, lambda x: x[:, 1:5, ::2, 1::3]),
        ("pad", {"before": (1, 0, 2), "after": (2, 1, 0)}, lambda x: nnf.pad(x, (2, 0, 0, 1, 1, 2))),
        ("pad", {"before": (0, 0, 1), "after": (0, 0, 0), "value": -2}, lambda x: nnf.pad(x, (1, 0), value=-2)),
    ],
)
def test_the_other_operations_are_torchs(kind: str, parts: dict[str, Any], truth: Any) -> None:
    image = reals(2, 6, 7, 9)
    if kind == "affine":
        gain, shift = (torch.from_numpy(row) for row in parts["gain_shift"])
        truth = lambda x: nnf.batch_norm(x, torch.zeros(6), torch.ones(6), gain, shift, eps=1e-30)  # noqa: E731
    if truth is None:
        truth = lambda x: nnf.prelu(x, torch.from_numpy(parts["slope"]))  # noqa: E731
    np.testing.assert_allclose(run(kind, image, **parts), truth(torch.from_numpy(image)).numpy(), rtol=1e-5, atol=1e-6)


def test_values_are_added_and_joined() -> None:
    image, other = reals(1, 2, 3, 3), reals(1, 2, 3, 3)
    np.testing.assert_array_equal(run("add", image, other), image + other)
    np.testing.assert_array_equal(run("concat", image, other), np.concatenate([image, other], axis=1))
