"""The Triton kernels of the fused RPReLU equal the reference up to rounding, interpreted and on a GPU."""

import warnings
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional import RPReLUParameters, norm_add_rprelu_sign, sign_symbols, surrogate
from equalbits.functional.fused_norm import as_rows
from equalbits.functional.fused_rprelu import RPRELU, reference_backward, reference_forward
from equalbits.functional.packed_bits import pack_by_shifts

#: Shapes (batch, channel, height, width) of ResNet-18 and ResNet-20 at batch 128, and odd ones that fill no tile.
REAL_SHAPES = (
    (128, 64, 32, 32), (128, 128, 16, 16), (128, 256, 8, 8), (128, 512, 4, 4), (128, 16, 32, 32), (3, 70, 5, 7),
    (77, 10),
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = ("c", "residual", "weight", "bias", "before", "slope", "after", "shift")
RANGES = ((0.7, 1.3), (-0.5, 0.5), (0.4, -0.3), (-0.2, 0.6), (-0.1, 0.2), (0.3, -0.6))


def draw(shape: tuple[int, ...], residual: bool, dtype: torch.dtype, device: str) -> tuple[list, Tensor, Tensor]:
    """Draw the tensors of NAMES, and gradients of y and of the signs."""
    noise = torch.Generator().manual_seed(sum(shape))
    c, added, g_y, g_s = (torch.randn(shape, generator=noise) for _ in range(4))
    c = c * torch.linspace(0.5, 3.0, shape[1]).view(-1, *[1] * (len(shape) - 2)) + 0.5
    vectors = [torch.linspace(*ends, shape[1]) for ends in RANGES]
    maps = [x.to(dtype) for x in (c, added, g_y, g_s)]
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    c, added, g_y, g_s, *vectors = (
        x.to(device).contiguous(memory_format=layout if x.dim() == 4 else torch.contiguous_format)
        for x in (*maps, *vectors)
    )
    return [c, added if residual else None, *vectors], g_y, g_s


def same(
    shape: tuple[int, ...], dtype: torch.dtype, options: tuple[bool, bool, bool], device: str, *, shifts: bool = True
) -> None:
    from equalbits.functional.kernels import norm_add_rprelu_sign as gpu

    residual, use_y, use_s = options
    (*tensors, shift), g_y, g_s = draw(shape, residual, dtype, device)
    shift = shift if use_s else None
    if not shifts:
        tensors[4] = tensors[6] = None
    close = {"rtol": 3 * torch.finfo(dtype).eps, "atol": 3 * torch.finfo(dtype).eps}
    if dtype == torch.float32:
        close = {"rtol": 1e-4, "atol": 2e-5}
    plain, answer = reference_forward(*tensors, shift, 1e-5), gpu.forward(*tensors, shift, 1e-5)
    same_form(answer, plain)
    y, s, positive, stats = answer
    torch.testing.assert_close(y, plain[0], **close)
    torch.testing.assert_close(stats, plain[3], rtol=1e-4, atol=1e-5)
    if use_s:  # exactly those of the returned y
        shifted = as_rows(y).float() + shift
        assert torch.equal(as_rows(s), sign_symbols(shifted).to(dtype))
        assert torch.equal(positive, pack_by_shifts(shifted >= 0))
    given = (g_y if use_y else None, g_s if use_s else None, *tensors, shift, plain[3])
    plain, answer = reference_backward(*given), gpu.backward(*given)
    same_form(answer, plain)
    over, over_s = (tensor.clone(memory_format=torch.preserve_format) for tensor in (tensors[0], g_s))
    again = gpu.backward(given[0], over_s if use_s else None, over, *given[3:], overwrite=("c", "g_s"))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(again, answer, strict=True))
    assert torch.equal(over, answer[1]) and (not use_s or torch.equal(over_s, answer[0]))
    torch.testing.assert_close(answer[0], plain[0], **close)
    torch.testing.assert_close(answer[1], plain[1], **close)
    loose = 1e-4 if dtype == torch.float32 else 3e-3
    torch.testing.assert_close(answer[2], plain[2], rtol=loose, atol=loose * tensors[0].numel() ** 0.5)


def same_form(answers: tuple[Tensor, ...], plain: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(answers, plain, strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)


def every_option(device: str) -> None:
    for residual, (use_y, use_s) in product((False, True), ((1, 0), (0, 1), (1, 1))):
        for shifts in (False, True):
            same((7, 10), torch.float32, (residual, bool(use_y), bool(use_s)), device, shifts=shifts)


def sizes_that_fill_tiles_and_sizes_that_do_not(device: str) -> None:
    for shape in ((128, 16), (2, 1), (300, 3), (2, 64, 9, 5), (3, 70, 4, 4), (33, 130)):
        same(shape, torch.float32, (True, True, True), device)


def strips_of_several_tiles(device: str) -> None:
    from equalbits.functional.kernels import norm_add_rprelu_sign as gpu

    usual = gpu.SUM_PASS, gpu.BACKWARD_PASS
    gpu.SUM_PASS = gpu.BACKWARD_PASS = (1024, 3)
    for shape in ((2, 64, 8, 8), (2, 64, 10, 10), (2, 30, 17, 9), (5, 130, 5, 5)):
        same(shape, torch.float32, (True, True, True), device)
    gpu.SUM_PASS, gpu.BACKWARD_PASS = usual


def vectors_of_any_stride(device: str) -> None:
    from equalbits.functional.kernels import norm_add_rprelu_sign as gpu

    (c, residual, *vectors), g_y, g_s = draw((7, 10), True, torch.float32, device)
    apart = [torch.stack([x, x + 1], dim=1)[:, 0] for x in vectors]
    runs = [(gpu.forward(c, residual, *given, 1e-5), given) for given in (vectors, apart)]
    (expected, _), (found, _) = runs
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    first, second = (gpu.backward(g_y, g_s, c, residual, *given, expected[3]) for _, given in runs)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(second, first, strict=True))


def halves(device: str) -> None:
    # Triton's interpreter rounds to bfloat16 incorrectly next to a power of two.
    for dtype in (torch.float16, torch.bfloat16)[: 2 if device == "cuda" else 1]:
        for options in ((True, True, True), (False, True, False), (True, False, True)):
            same((2, 24, 9, 5), dtype, options, device)


LAWS: dict[str, Callable[[str], None]] = {
    law.__name__: law
    for law in (
        every_option,
        sizes_that_fill_tiles_and_sizes_that_do_not,
        strips_of_several_tiles,
        vectors_of_any_stride,
        halves,
    )
}


@pytest.mark.parametrize("law", LAWS)
def test_the_interpreted_kernels_equal_the_reference(law: str, errors_interpreted: dict[str, str]) -> None:
    assert errors_interpreted[law] == ""


def test_unsupported_dtypes_use_the_reference() -> None:
    pytest.importorskip("triton")
    on_gpu = lambda dtype: SimpleNamespace(device=torch.device("cuda"), dtype=dtype)  # noqa: E731
    assert RPRELU.kernels(on_gpu(torch.float64)) is None and RPRELU.kernels(torch.ones(1)) is None
    assert all(RPRELU.kernels(on_gpu(dtype)) is not None for dtype in DTYPES)


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_compiled_kernels_equal_the_reference(law: str) -> None:
    LAWS[law]("cuda")


def fused(tensors: list[Tensor], signs: bool = True) -> tuple:
    c, residual, weight, bias, *activation, shift = tensors
    return norm_add_rprelu_sign(c, (weight, bias), RPReLUParameters(*activation), residual, shift if signs else None)


def errors(shape: tuple[int, ...], dtype: torch.dtype, uses: tuple[bool, bool]) -> dict[str, float]:
    """Return the error of y and of every gradient against float64, relative to its norm."""
    tensors, g_y, g_s = draw(shape, True, dtype, "cuda")
    tensors = [x.detach().requires_grad_() for x in tensors]
    y, s, *_ = fused(tensors, uses[1])
    c, residual, weight, bias, *vectors = wide = [x.detach().double().requires_grad_() for x in tensors]
    before, after, shift = (vectors[i].view(-1, *[1] * (len(shape) - 2)) for i in (0, 2, 3))
    summed = nnf.batch_norm(c, None, None, weight, bias, training=True, eps=1e-5) + residual
    expected = nnf.prelu(summed + before, vectors[1]) + after
    shifted = expected + shift
    passed = surrogate(shifted, sign_symbols(shifted), (2 - 2 * shifted.detach().abs()).clamp(min=0))
    used = len(NAMES) if uses[1] else len(NAMES) - 1
    got = torch.autograd.grad([(y, s)[i] for i in range(2) if uses[i]], tensors[:used], pick((g_y, g_s), uses))
    right = torch.autograd.grad(
        [(expected, passed)[i] for i in range(2) if uses[i]], wide[:used], pick((g_y.double(), g_s.double()), uses)
    )
    pairs = {"y": (y, expected), **dict(zip(NAMES[:used], zip(got, right, strict=True), strict=True))}
    return {name: float((x.double() - ref).detach().norm() / ref.detach().norm()) for name, (x, ref) in pairs.items()}


def pick(tensors: tuple[Tensor, Tensor], uses: tuple[bool, bool]) -> list[Tensor]:
    return [tensor for tensor, use in zip(tensors, uses, strict=True) if use]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", REAL_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_a_large_layer_are_exact_up_to_rounding(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    allowed = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for uses in ((True, True), (True, False), (False, True)):
        wrong = {name: error for name, error in errors(shape, dtype, uses).items() if not error < allowed}
        assert not wrong, wrong


@pytest.mark.gpu
def test_two_runs_agree_to_the_bit() -> None:
    tensors, g_y, g_s = draw((128, 64, 32, 32), True, torch.bfloat16, "cuda")
    first, second = (torch.ops.equalbits.norm_add_rprelu_sign(*tensors, 1e-5) for _ in range(2))
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))
    backward = torch.ops.equalbits.norm_add_rprelu_sign_backward
    first, second = (backward(g_y, g_s, *tensors, first[3]) for _ in range(2))
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))


def two_layers(*tensors: Tensor) -> Tensor:
    y, s, *_ = fused(list(tensors))
    again, bits, *_ = fused([s * 0.5 + y, y, *tensors[2:]])
    return (again.float() * 0.1 + bits.float() * y.float()).sum()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_gradients_on_a_gpu_are_unchanged_by_compile() -> None:
    tensors = [x.requires_grad_() for x in draw((16, 64, 8, 8), True, torch.float32, "cuda")[0]]
    compiled = torch.compile(two_layers, fullgraph=True)
    mine, theirs = (torch.autograd.grad(step(*tensors), tensors) for step in (compiled, two_layers))
    for left, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_replayed_graph_reads_the_current_input() -> None:
    tensors = [x.requires_grad_() for x in draw((16, 64, 8, 8), True, torch.bfloat16, "cuda")[0]]
    torch.autograd.grad(two_layers(*tensors), tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(two_layers(*tensors), tensors)
    with torch.no_grad():
        tensors[0].copy_(torch.randn_like(tensors[0]))
    graph.replay()
    for mine, theirs in zip(captured, torch.autograd.grad(two_layers(*tensors), tensors), strict=True):
        assert torch.equal(mine, theirs)


if __name__ == "__main__":  # in a new process: Triton selects its interpreter at import
    from interpreter import print_errors

    warnings.simplefilter("error")
    print_errors(LAWS)
