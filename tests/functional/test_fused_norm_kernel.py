"""The Triton kernels of the fused norm equal the reference up to rounding, interpreted and on a GPU."""

import warnings
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional import prelu_norm_add_sign, sign_symbols, surrogate
from equalbits.functional.fused_norm import as_rows
from equalbits.functional.fused_prelu import PRELU, reference_backward, reference_forward
from equalbits.functional.packed_bits import pack_by_shifts

#: Shapes (batch, channel, height, width) of a binary ResNet-18 at batch 128, and odd ones that fill no tile.
REAL_SHAPES = ((128, 64, 32, 32), (128, 128, 16, 16), (128, 256, 8, 8), (128, 512, 4, 4), (3, 70, 5, 7), (77, 10))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def draw(shape: tuple[int, ...], slopes: int | None, residual: bool, dtype: torch.dtype, device: str) -> list:
    """Draw c, slope, weight, bias, residual, and gradients of y and of its signs."""
    noise = torch.Generator().manual_seed(sum(shape))
    c, added, g_y, g_s = (torch.randn(shape, generator=noise) for _ in range(4))
    c = (c * torch.linspace(0.5, 3.0, shape[1]).view(-1, *[1] * (len(shape) - 2)) + 0.5).to(dtype)
    slope = None if slopes is None else torch.linspace(-0.2, 0.6, slopes)
    weight, bias = torch.linspace(0.7, 1.3, shape[1]), torch.linspace(-0.5, 0.5, shape[1])
    values = [c, slope, weight, bias, added.to(dtype) if residual else None, g_y.to(dtype), g_s.to(dtype)]
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    values = [None if x is None else x.to(device) for x in values]
    return [x.contiguous(memory_format=layout) if x is not None and x.dim() == 4 else x for x in values]


def same(
    shape: tuple[int, ...], slopes: int | None, dtype: torch.dtype, options: tuple[bool, ...], device: str
) -> None:
    from equalbits.functional.kernels import prelu_norm_add_sign as gpu

    residual, use_y, use_s = options
    c, slope, weight, bias, added, g_y, g_s = draw(shape, slopes, residual, dtype, device)
    close = {"rtol": 3 * torch.finfo(dtype).eps, "atol": 3 * torch.finfo(dtype).eps}
    if dtype == torch.float32:
        close = {"rtol": 1e-4, "atol": 2e-5}
    plain = reference_forward(c, slope, weight, bias, added, 1e-5, use_s, False)
    answer = gpu.forward(c, slope, weight, bias, added, 1e-5, use_s, False)
    same_form(answer, plain)
    y, s, positive, near, _, stats = answer
    torch.testing.assert_close(y, plain[0], **close)
    known = 3 if slope is None else 5
    torch.testing.assert_close(stats[:known], plain[-1][:known], rtol=1e-4, atol=1e-5)
    if use_s:  # exactly those of the returned y
        assert torch.equal(s, sign_symbols(y)) and torch.equal(near, pack_by_shifts(as_rows(y).abs() < 1))
        assert torch.equal(positive, pack_by_shifts(as_rows(y) >= 0))
    given = (g_y if use_y else None, g_s if use_s else None, c, slope, weight, near, plain[-1])
    plain, answer = reference_backward(*given), gpu.backward(*given)
    same_form(answer, plain)
    over, over_s = c.clone(memory_format=torch.preserve_format), g_s.clone(memory_format=torch.preserve_format)
    again = gpu.backward(given[0], over_s if use_s else None, over, *given[3:], overwrite=("c", "g_s"))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(again, answer, strict=True))
    assert torch.equal(over, answer[1]) and (not use_s or torch.equal(over_s, answer[0]))
    torch.testing.assert_close(answer[0], plain[0], **close)
    torch.testing.assert_close(answer[1], plain[1], **close)
    loose = 1e-4 if dtype == torch.float32 else 3e-3
    for mine, theirs in zip(answer[2:], plain[2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=loose, atol=loose * c.numel() ** 0.5)


def same_form(answers: tuple[Tensor, ...], plain: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(answers, plain, strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)


def every_option(device: str) -> None:
    for slopes, residual, (use_y, use_s) in product((None, 1, 10), (False, True), ((1, 0), (0, 1), (1, 1))):
        same((7, 10), slopes, torch.float32, (residual, bool(use_y), bool(use_s)), device)


def sizes_that_fill_tiles_and_sizes_that_do_not(device: str) -> None:
    for shape in ((128, 16), (2, 1), (300, 3), (2, 64, 9, 5), (3, 70, 4, 4), (33, 130)):
        same(shape, shape[1], torch.float32, (True, True, True), device)


def strips_of_several_tiles(device: str) -> None:
    from equalbits.functional.kernels import prelu_norm_add_sign as gpu

    usual = gpu.SUM_PASS
    gpu.SUM_PASS = (1024, 3)
    for shape in ((2, 64, 8, 8), (2, 64, 10, 10), (2, 30, 17, 9), (5, 130, 5, 5)):
        same(shape, shape[1], torch.float32, (True, True, True), device)
    gpu.SUM_PASS = usual


def halves(device: str) -> None:
    # Triton's interpreter rounds to bfloat16 incorrectly next to a power of two.
    for dtype in (torch.float16, torch.bfloat16)[: 2 if device == "cuda" else 1]:
        for options in ((True, True, True), (False, True, False), (True, False, True)):
            same((2, 24, 9, 5), 24, dtype, options, device)


def means_far_from_zero(device: str) -> None:
    from equalbits.functional.kernels import prelu_norm_add_sign as gpu

    c = torch.randn(400, 9, generator=torch.Generator().manual_seed(0)) + 1000
    *_, stats = gpu.forward(c.to(device), None, *torch.ones(2, 9, device=device), None, 1e-5, False, False)
    variance, mean = torch.var_mean(c.double(), dim=0, correction=0)
    torch.testing.assert_close(stats[:2].double().cpu(), torch.stack((mean, variance)), rtol=2e-4, atol=0)


def vectors_of_any_stride(device: str) -> None:
    from equalbits.functional.kernels import prelu_norm_add_sign as gpu

    c, *vectors, residual, g_y, g_s = draw((7, 10), 10, True, torch.float32, device)
    apart = [torch.stack([x, x + 1], dim=1)[:, 0] for x in vectors]
    expected, found = (gpu.forward(c, *given, residual, 1e-5, True, False) for given in (vectors, apart))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    *_, near, _, stats = expected
    expected, found = (gpu.backward(g_y, g_s, c, *given[:2], near, stats) for given in (vectors, apart))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def inputs_in_8_bits(device: str) -> None:
    from equalbits.functional.kernels import prelu_norm_add_sign as gpu

    for shape, slopes in (((3, 70, 4, 4), 70), ((33, 12), None), ((40, 16), 1)):
        c, slope, weight, bias, added, g_y, g_s = draw(shape, slopes, True, torch.float32, device)
        as_rows(c)[:3, 0] = torch.tensor([0.0, 1e-20, 50.0], device=device)
        forward = c, slope, weight, bias, added, 1e-5, True, True
        expected, found = reference_forward(*forward), gpu.forward(*forward)
        same_form(found, expected)
        kept, theirs = found[4].int(), expected[4].int()
        assert ((kept - theirs).abs() <= 1).all() and (kept != theirs).float().mean() < 0.01  # of a rounded quotient
        assert torch.equal(kept > 0, c > 0)
        given = g_y, g_s, found[4], slope, weight, found[3], expected[5]
        *mine, of_slope = gpu.backward(*given)
        *reference, expected_slope = reference_backward(*given)
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-3)
        # The kernels take two sums of the slope's gradient from the statistics, which are not rounded.
        assert (of_slope - expected_slope).norm() <= 1e-2 * expected_slope.norm()


LAWS: dict[str, Callable[[str], None]] = {
    law.__name__: law
    for law in (
        vectors_of_any_stride,
        every_option,
        sizes_that_fill_tiles_and_sizes_that_do_not,
        strips_of_several_tiles,
        halves,
        means_far_from_zero,
        inputs_in_8_bits,
    )
}


@pytest.mark.parametrize("law", LAWS)
def test_the_interpreted_kernels_equal_the_reference(law: str, errors_interpreted: dict[str, str]) -> None:
    assert errors_interpreted[law] == ""


def test_unsupported_dtypes_use_the_reference() -> None:
    pytest.importorskip("triton")
    on_gpu = lambda dtype: SimpleNamespace(device=torch.device("cuda"), dtype=dtype)  # noqa: E731
    assert PRELU.kernels(on_gpu(torch.float64)) is None and PRELU.kernels(torch.ones(1)) is None
    assert all(PRELU.kernels(on_gpu(dtype)) is not None for dtype in DTYPES)


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_compiled_kernels_equal_the_reference(law: str) -> None:
    LAWS[law]("cuda")


def errors(shape: tuple[int, ...], dtype: torch.dtype, device: str, uses: tuple[bool, bool]) -> dict[str, float]:
    """Return the error of y and of every gradient against float64, relative to its norm."""
    *inputs, g_y, g_s = draw(shape, shape[1], True, dtype, device)
    inputs = [x.detach().requires_grad_() for x in inputs]
    y, s, _, _, _ = prelu_norm_add_sign(*inputs, signs=uses[1])
    wide = [x.detach().double().requires_grad_() for x in inputs]
    normed = nnf.batch_norm(nnf.prelu(wide[0], wide[1]), None, None, wide[2], wide[3], training=True, eps=1e-5)
    expected = normed + wide[4]
    passed = surrogate(expected, sign_symbols(y).double(), y.detach().abs() < 1)
    mine = [y if i == 0 else s for i in range(2) if uses[i]]
    theirs = [(expected, passed)[i] for i in range(2) if uses[i]]
    seeds = [(g_y, g_s)[i] for i in range(2) if uses[i]]
    pairs = {"y": (y, expected)}
    got = torch.autograd.grad(mine, inputs, seeds)
    right = torch.autograd.grad(theirs, wide, [seed.double() for seed in seeds])
    pairs |= dict(zip(("c", "slope", "weight", "bias", "residual"), zip(got, right, strict=True), strict=True))
    return {name: float((x.double() - ref).detach().norm() / ref.detach().norm()) for name, (x, ref) in pairs.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("shape", REAL_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_a_large_layer_are_exact_up_to_rounding(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    allowed = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for uses in ((True, True), (True, False), (False, True)):
        wrong = {name: error for name, error in errors(shape, dtype, "cuda", uses).items() if not error < allowed}
        assert not wrong, wrong


@pytest.mark.gpu
def test_two_runs_agree_to_the_bit() -> None:
    c, slope, weight, bias, added, g_y, g_s = draw((128, 64, 32, 32), 64, True, torch.bfloat16, "cuda")
    first, second = (
        torch.ops.equalbits.prelu_norm_add_sign(c, slope, weight, bias, added, 1e-5, True, False) for _ in range(2)
    )
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))
    first, second = (
        torch.ops.equalbits.prelu_norm_add_sign_backward(g_y, g_s, c, slope, weight, first[3], first[5])
        for _ in range(2)
    )
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))


def two_layers(*inputs: Tensor) -> Tensor:
    y, s, _, _, _ = prelu_norm_add_sign(*inputs, signs=True)
    again, bits, _, _, _ = prelu_norm_add_sign(s * 0.5 + y, *inputs[1:4], y, signs=True)
    return (again.float() * 0.1 + bits.float() * y.float()).sum()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_gradients_on_a_gpu_are_unchanged_by_compile() -> None:
    inputs = [x.requires_grad_() for x in draw((16, 64, 8, 8), 64, True, torch.float32, "cuda")[:5]]
    compiled = torch.compile(two_layers, fullgraph=True)
    mine, theirs = (torch.autograd.grad(step(*inputs), inputs) for step in (compiled, two_layers))
    for left, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_replayed_graph_reads_the_current_input() -> None:
    inputs = [x.requires_grad_() for x in draw((16, 64, 8, 8), 64, True, torch.bfloat16, "cuda")[:5]]
    torch.autograd.grad(two_layers(*inputs), inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(two_layers(*inputs), inputs)
    with torch.no_grad():
        inputs[0].copy_(torch.randn_like(inputs[0]))
    graph.replay()
    for mine, theirs in zip(captured, torch.autograd.grad(two_layers(*inputs), inputs), strict=True):
        assert torch.equal(mine, theirs)


if __name__ == "__main__":  # in a new process: Triton selects its interpreter at import
    from interpreter import print_errors

    warnings.simplefilter("error")
    print_errors(LAWS)
