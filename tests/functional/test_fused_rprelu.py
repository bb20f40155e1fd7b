"""The fused operation equals batch norm, addition, RPReLU and RSign, forward and backward."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional import RPReLUParameters, norm_add_rprelu_sign, polynomial, sign_symbols
from equalbits.functional.fused_norm import as_rows
from equalbits.functional.fused_rprelu import RPRELU, reference_forward
from equalbits.functional.packed_bits import pack_by_shifts

SHAPE = (4, 10, 3, 2)
NAMES = ("c", "residual", "weight", "bias", "before", "slope", "after", "shift")


def draw(shape: tuple[int, ...], residual: bool = True, dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
    """Draw the tensors of NAMES: some sums exactly 0 at the corner of the PReLU, slopes of both signs."""
    noise = torch.Generator().manual_seed(sum(shape))
    channels, wide = shape[1], torch.promote_types(dtype, torch.float32)
    c, added = (torch.randn(shape, generator=noise, dtype=torch.float64) for _ in range(2))
    ranges = ((-1.0, 1.5), (0.4, -0.2), (-0.4, 0.5), (-0.3, 0.7), (0.2, -0.1), (-0.5, 0.3))
    vectors = [torch.linspace(*ends, channels, dtype=wide) for ends in ranges]
    values = [c.mul(2).add(0.5).to(dtype), added.to(dtype) if residual else None, *vectors]
    return [None if value is None else value.requires_grad_() for value in values]


def without_shifts(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """Leave out the shifts of the RPReLU: a PReLU after a norm."""
    return [None if name in ("before", "after") else x for name, x in zip(NAMES, tensors, strict=True)]


def fused(tensors: list[Tensor | None], signs: bool = True, eps: float = 1e-3) -> tuple:
    c, residual, weight, bias, *activation, shift = tensors
    activation = RPReLUParameters(*activation)
    return norm_add_rprelu_sign(c, (weight, bias), activation, residual, shift if signs else None, eps=eps)


def by_torch(tensors: list[Tensor | None], eps: float = 1e-3) -> tuple[Tensor, Tensor]:
    c, residual, weight, bias, *vectors = tensors
    zero = torch.zeros(c.shape[1], dtype=c.dtype)
    before, after, shift = (
        (zero if vectors[i] is None else vectors[i]).view(-1, *(1,) * (c.dim() - 2)) for i in (0, 2, 3)
    )
    summed = nnf.batch_norm(c, None, None, weight, bias, training=True, eps=eps)
    summed = summed if residual is None else summed + residual
    y = nnf.prelu(summed + before, vectors[1]) + after
    return y, polynomial(y + shift, sign_symbols(y + shift))


def gradients(outputs: tuple, uses: tuple[bool, bool], tensors: list[Tensor | None]) -> dict[str, Tensor]:
    """Return the gradients of a fixed weighted sum of the used outputs, by name."""
    seeds = torch.linspace(-1, 2, outputs[0].numel(), dtype=outputs[0].dtype).view_as(outputs[0])
    used = [(y * seed).sum() for y, seed, use in zip(outputs[:2], (seeds, seeds.sin()), uses, strict=True) if use]
    names = [name for name, tensor in zip(NAMES, tensors, strict=True) if tensor is not None]
    if not uses[1]:
        names.remove("shift")
    found = torch.autograd.grad(sum(used), [tensors[NAMES.index(name)] for name in names])
    return dict(zip(names, found, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(2, 6), st.integers(1, 19))
    | st.tuples(*[st.integers(1, 5)] * 2, *[st.integers(2, 5)] * 2),
    residual=st.booleans(),
    shifts=st.booleans(),
    uses=st.sampled_from([(True, False), (False, True), (True, True)]),
)
def test_values_and_gradients_equal_those_of_separate_operations(
    shape: tuple[int, ...], residual: bool, shifts: bool, uses: tuple[bool, bool]
) -> None:
    tensors = draw(shape, residual) if shifts else without_shifts(draw(shape, residual))
    expected, found = by_torch(tensors), fused(tensors, signs=uses[1])
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None and found[2] is None) if not uses[1] else torch.equal(found[1], expected[1])
    mine, theirs = gradients(found, uses, tensors), gradients(expected, uses, tensors)
    torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


def test_the_gradient_at_the_corner_of_the_prelu_is_torchs() -> None:
    c = torch.tensor([[0.5], [-0.5], [0.5], [-0.5]], dtype=torch.float64)  # a variance of 0.25, so that eps makes it 1
    residual = torch.tensor([[-0.5], [0.5], [0.0], [0.0]], dtype=torch.float64)  # the sum is 0 in two rows
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    tensors = [c, residual, one, zero, zero.clone(), 0.25 * one, zero.clone(), zero.clone()]
    tensors = [each.requires_grad_() for each in tensors]
    found, expected = fused(tensors, eps=0.75), by_torch(tensors, eps=0.75)
    assert torch.equal(found[0], expected[0]) and (found[0] == 0).sum() == 2
    mine, theirs = (gradients(each, (True, True), tensors) for each in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_gradients_equal_finite_differences() -> None:
    c, residual, weight, bias, *activation, _ = draw((5, 3, 2, 1))

    def y(c, residual, weight, bias, *activation):
        return norm_add_rprelu_sign(c, (weight, bias), RPReLUParameters(*activation), residual)[0]

    assert torch.autograd.gradcheck(y, (c, residual, weight, bias, *activation))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_have_the_input_dtype_and_are_channels_last(dtype: torch.dtype) -> None:
    tensors = draw(SHAPE, dtype=dtype)
    for layout in (torch.contiguous_format, torch.channels_last):
        c = tensors[0].detach().contiguous(memory_format=layout).requires_grad_()
        y, s, positive, mean, variance = fused([c, *tensors[1:]])
        of_c, of_residual = torch.autograd.grad(y.sum() + s.sum(), (c, tensors[1]))
        for result in (y, s, of_c, of_residual):
            assert result.dtype == dtype and result.is_contiguous(memory_format=torch.channels_last)
        assert mean.dtype == variance.dtype == torch.float32
        assert not mean.requires_grad and not variance.requires_grad
    rows = as_rows(tensors[0].detach()).double()
    torch.testing.assert_close(mean.double(), rows.mean(dim=0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance.double(), rows.var(dim=0, correction=0), rtol=1e-5, atol=1e-5)
    wide = fused([x.double() for x in tensors])[0]
    torch.testing.assert_close(y.double(), wide, rtol=torch.finfo(dtype).eps, atol=1e-6)
    shifted = as_rows(y).float() + tensors[-1]  # signs of the rounded output
    assert torch.equal(as_rows(s), sign_symbols(shifted).to(dtype))
    assert torch.equal(positive, pack_by_shifts(shifted >= 0))


def test_backward_keeps_the_two_inputs_and_values_per_channel() -> None:
    kept: list[Tensor] = []
    tensors = draw(SHAPE)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        fused(tensors)
    large = [x for x in kept if x.numel() > 3 * SHAPE[1]]
    assert len(large) == 2 and {x.data_ptr() for x in large} == {tensors[0].data_ptr(), tensors[1].data_ptr()}


@pytest.mark.parametrize("signs", [False, True])
def test_gradients_are_unchanged_by_compile(signs: bool) -> None:
    def step(*tensors: Tensor) -> Tensor:
        y, s, _, mean, _ = fused(tensors, signs)
        again, bits, _, _, _ = fused([y * 2 if s is None else s, y, *tensors[2:]], signs)
        return (again.sin() if bits is None else bits * y + again).sum() + mean.sum()

    tensors = draw(SHAPE)
    used = tensors if signs else tensors[:-1]
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    expected, answer = step(*tensors), compiled(*tensors)
    torch.testing.assert_close(answer, expected)
    for mine, theirs in zip(torch.autograd.grad(answer, used), torch.autograd.grad(expected, used), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("residual", "signs"), list(product((False, True), (False, True))))
def test_the_operators_pass_opcheck(residual: bool, signs: bool) -> None:
    *tensors, shift = draw(SHAPE, residual)
    shift = shift if signs else None
    torch.library.opcheck(RPRELU.forward_op, (*tensors, shift, 1e-5))
    inputs = [None if x is None else x.detach() for x in (*tensors, shift)]
    y, s, _, stats = reference_forward(*inputs, 1e-5)
    torch.library.opcheck(RPRELU.backward_op, (y, s if signs else None, *inputs, stats))
    if signs:
        torch.library.opcheck(RPRELU.backward_op, (None, s, *inputs, stats))
        torch.library.opcheck(RPRELU.forward_op, (*without_shifts([*tensors, shift]), 1e-5))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"c": torch.ones(1, 3)}, "two values for each channel"),
        ({"slope": torch.ones(1)}, r"\(1,\), .* do not fit c, \(4, 3\)"),
        ({"weight": torch.ones(1)}, r"shapes \[\(1,\), \(3,\), "),
        ({"shift": torch.ones(2)}, r"\(2,\), "),
        ({"residual": torch.ones(4, 1)}, r"\(4, 1\)\], which do not fit"),
    ],
)
def test_wrong_shapes_raise(broken: dict[str, Tensor], words: str) -> None:
    fitting = dict.fromkeys(NAMES, torch.ones(3)) | {"c": torch.ones(4, 3), "residual": torch.ones(4, 3)}
    with pytest.raises(ValueError, match=words):
        fused(list((fitting | broken).values()))
