"""The fused operation equals PReLU, batch norm, addition and sign, forward and backward."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import equalbits
from equalbits.functional import clipped, prelu_norm_add_sign, sign_symbols
from equalbits.functional.fused_norm import as_rows, update_running_stats
from equalbits.functional.fused_prelu import PRELU, reference_forward
from equalbits.functional.packed_bits import pack_by_shifts

SHAPES = ((7, 3), (4, 10, 3, 2), (3, 16, 2, 2))


def draw(shape: tuple[int, ...], slopes: int | None, residual: bool, dtype: torch.dtype = torch.float64) -> list:
    """Draw c, slope, weight, bias and residual; some of c exactly 0, slopes of both signs."""
    noise = torch.Generator().manual_seed(sum(shape) + (slopes or 0))
    c = torch.randn(shape, generator=noise, dtype=torch.float64).mul(2).add(0.5).to(dtype)
    c[0] = 0.0
    channels = shape[1]
    values = [
        c,
        None if slopes is None else torch.linspace(-0.3, 0.7, slopes),
        torch.linspace(-1.0, 1.5, channels),
        torch.linspace(0.4, -0.2, channels),
        torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype) if residual else None,
    ]
    wide = torch.promote_types(dtype, torch.float32)
    values[1:4] = [None if value is None else value.to(wide) for value in values[1:4]]
    return [None if value is None else value.requires_grad_() for value in values]


def by_torch(c: Tensor, slope: Tensor | None, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float):
    z = c if slope is None else nnf.prelu(c, slope)
    y = nnf.batch_norm(z, None, None, weight, bias, training=True, eps=eps)
    y = y if residual is None else y + residual
    return y, clipped(y, sign_symbols(y))


def gradients(outputs: tuple[Tensor, Tensor], uses: tuple[bool, bool], inputs: list) -> list:
    """Return the gradients of a fixed weighted sum of the used outputs with respect to each input."""
    seeds = torch.linspace(-1, 2, outputs[0].numel(), dtype=outputs[0].dtype).view_as(outputs[0])
    used = [(y * seed).sum() for y, seed, use in zip(outputs, (seeds, seeds.sin()), uses, strict=True) if use]
    return list(torch.autograd.grad(sum(used), [x for x in inputs if x is not None]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("uses", [(True, False), (False, True), (True, True)], ids=("y", "s", "y-and-s"))
def test_values_and_gradients_equal_those_of_torch_modules(shape: tuple[int, ...], uses: tuple[bool, bool]) -> None:
    for slopes, residual in product((None, 1, shape[1]), (False, True)):
        inputs = draw(shape, slopes, residual)
        expected = by_torch(*inputs, eps=1e-3)
        y, s, _, _, _ = prelu_norm_add_sign(*inputs, eps=1e-3, signs=uses[1])
        torch.testing.assert_close(y, expected[0])
        assert (s is None) if not uses[1] else torch.equal(s, expected[1])
        for mine, theirs in zip(gradients((y, s), uses, inputs), gradients(expected, uses, inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_an_input_kept_in_8_bits_changes_gradients_little_and_outputs_not() -> None:
    inputs = draw((64, 16, 8, 8), 16, True, torch.float32)
    kept: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
    exact = prelu_norm_add_sign(*inputs, signs=True)
    with hooks:
        rounded = prelu_norm_add_sign(*inputs, signs=True, in_8_bits=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(rounded, exact, strict=True))
    assert sum(x.numel() for x in kept if x.dtype == torch.int8) == inputs[0].numel()
    assert not any(x.is_floating_point() and x.numel() == inputs[0].numel() for x in kept)
    found, expected = (gradients(outputs[:2], (True, True), inputs) for outputs in (rounded, exact))
    for mine, theirs in zip(found, expected, strict=True):  # those of parameters are sums that almost cancel here
        assert (mine - theirs).norm() < (5e-3 if theirs.dim() > 1 else 5e-2) * theirs.norm()


def test_gradients_equal_finite_differences() -> None:
    c, *others = draw((5, 3, 2, 1), 3, True)
    away = c.detach().add(0.1).requires_grad_()  # the PReLU has a corner at 0
    assert torch.autograd.gradcheck(lambda *inputs: prelu_norm_add_sign(*inputs, signs=False)[0], (away, *others))


def test_running_statistics_follow_from_the_returned_mean_and_variance() -> None:
    c = draw((4, 10, 3, 2), None, False, torch.float32)[0].detach()
    norm = nn.BatchNorm2d(10)
    expected = norm(c)
    y, _, _, mean, variance = prelu_norm_add_sign(c, None, norm.weight, norm.bias, eps=norm.eps)
    torch.testing.assert_close(y, expected)
    count = c.numel() / 10
    torch.testing.assert_close(torch.zeros(10).lerp(mean, 0.1), norm.running_mean)
    torch.testing.assert_close(torch.ones(10).lerp(variance * (count / (count - 1)), 0.1), norm.running_var)
    assert not mean.requires_grad and not variance.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_have_the_input_dtype_and_are_channels_last(dtype: torch.dtype) -> None:
    inputs = draw((4, 10, 3, 2), 10, True, dtype)
    for layout in (torch.contiguous_format, torch.channels_last):
        c = inputs[0].detach().contiguous(memory_format=layout).requires_grad_()
        y, s, positive, mean, _ = prelu_norm_add_sign(c, *inputs[1:], signs=True)
        gradient = torch.autograd.grad(y.sum() + s.sum(), c)[0]
        for result in (y, s, gradient):
            assert result.dtype == dtype and result.is_contiguous(memory_format=torch.channels_last)
        assert mean.dtype == torch.float32
    wide = prelu_norm_add_sign(*[None if x is None else x.double() for x in inputs], signs=True)[0]
    torch.testing.assert_close(y.double(), wide, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert torch.equal(s, sign_symbols(y)) and torch.equal(positive, pack_by_shifts(as_rows(y) >= 0))


def test_signs_and_clipping_use_the_rounded_output() -> None:
    c = torch.tensor([[-1.0], [1.0]], dtype=torch.bfloat16).repeat(8, 1).requires_grad_()
    bias = torch.tensor([-0.001])  # y would be 0.999, which bfloat16 rounds to 1
    y, s, _, _, _ = prelu_norm_add_sign(c, None, torch.ones(1), bias, eps=0.0, signs=True)
    assert y.abs().min() == 1
    assert torch.autograd.grad(s, c, torch.ones_like(s))[0].count_nonzero() == 0


def test_backward_keeps_the_input_and_one_bit_per_output() -> None:
    kept: list[Tensor] = []
    inputs = draw((4, 10, 3, 2), 10, True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        prelu_norm_add_sign(*inputs, signs=True)
    large = [(x.dtype, tuple(x.shape)) for x in kept if 0 not in x.shape and x.shape[-1] != 10]  # not per channel
    assert large == [(torch.float64, (4, 10, 3, 2)), (torch.uint8, (24, 2))]


def test_without_signs_the_residual_gets_the_gradient_without_a_copy() -> None:
    inputs = draw((4, 10, 3, 2), 10, True)
    y = prelu_norm_add_sign(*inputs, signs=False)[0]
    gradient = torch.randn(y.shape, dtype=y.dtype)
    assert torch.autograd.grad(y, inputs[4], gradient)[0].data_ptr() == gradient.data_ptr()


@pytest.mark.parametrize("signs", [False, True])
def test_gradients_are_unchanged_by_compile(signs: bool) -> None:
    def step(*inputs: Tensor) -> Tensor:
        y, s, _, mean, _ = prelu_norm_add_sign(*inputs, signs=signs)
        again, bits, _, _, _ = prelu_norm_add_sign(
            y * 2 if s is None else s, inputs[1], inputs[2], inputs[3], y, signs=signs
        )
        return (again.sin() if bits is None else bits * y + again).sum() + mean.sum()

    inputs = draw((4, 10, 3, 2), 10, True)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    expected, answer = step(*inputs), compiled(*inputs)
    torch.testing.assert_close(answer, expected)
    for mine, theirs in zip(torch.autograd.grad(answer, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("slopes", [None, 1, 10])
@pytest.mark.parametrize("signs", [False, True])
def test_the_operators_pass_opcheck(slopes: int | None, signs: bool) -> None:
    inputs = draw((4, 10, 3, 2), slopes, signs)
    for in_8_bits in (False, True):
        torch.library.opcheck(PRELU.forward_op, (*inputs, 1e-5, signs, in_8_bits))
    c, slope, weight, bias, residual = (None if x is None else x.detach() for x in inputs)
    y, s, _, near, kept, stats = reference_forward(c, slope, weight, bias, residual, 1e-5, signs, True)
    for each in (c, kept):
        torch.library.opcheck(PRELU.backward_op, (y, s if signs else None, each, slope, weight, near, stats))
    if signs:
        torch.library.opcheck(PRELU.backward_op, (None, s, c, slope, weight, near, stats))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"c": torch.ones(1, 3)}, "two values for each channel"),
        ({"slope": torch.ones(2)}, r"shapes \[\(2,\), .* do not fit c, \(4, 3\)"),
        ({"weight": torch.ones(1)}, r"shapes \[\(3,\), \(1,\), "),
        ({"residual": torch.ones(4, 1)}, r"\(4, 1\)\], which do not fit"),
    ],
)
def test_wrong_shapes_raise(broken: dict[str, Tensor], words: str) -> None:
    fitting = {"c": torch.ones(4, 3), "slope": torch.ones(3), "weight": torch.ones(3), "bias": torch.ones(3)}
    with pytest.raises(ValueError, match=words):
        prelu_norm_add_sign(**(fitting | broken))


def test_without_triton_a_gpu_uses_the_reference() -> None:
    program = """
import sys, torch, equalbits.functional
from types import SimpleNamespace
from equalbits.functional.fused_prelu import PRELU
assert "triton" not in sys.modules
sys.modules["triton"] = None
assert PRELU.kernels(SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)) is None
"""
    source = str(Path(equalbits.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_update_running_stats_equals_torch_batch_norm() -> None:
    norm, c = nn.BatchNorm2d(3, momentum=0.3), torch.randn(4, 3, 5, 5)
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    norm(c)
    _, _, _, batch_mean, batch_variance = prelu_norm_add_sign(c, None, norm.weight, norm.bias)
    count = torch.tensor(0)
    update_running_stats([mean, variance], [count], [batch_mean, batch_variance], [1.0, 100 / 99], 0.3)
    torch.testing.assert_close((mean, variance, count), (norm.running_mean, norm.running_var, norm.num_batches_tracked))
