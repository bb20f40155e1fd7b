"""The max pool of overlapping windows equals torch's."""

import pytest
import torch
from torch.nn import functional as nnf

from equalbits.functional import overlapping_max_pool
from equalbits.functional.overlapping_max_pool import _gradient_op, _pool_op
from equalbits.models import pooling

FORMS = [((70, 3, 9, 7), (3, 2, 1)), ((2, 5, 8, 8), (3, 2, 1)), ((3, 4, 10, 11), (5, 3, 2)), ((1, 2, 6, 6), (3, 1, 0))]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "form"), FORMS)
def test_values_and_gradients_are_those_of_torch(shape, form, layout: torch.memory_format) -> None:
    inputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = inputs.round(decimals=1).contiguous(memory_format=layout).requires_grad_()  # some maxima tie
    expected, found = nnf.max_pool2d(inputs, *form), overlapping_max_pool(inputs, *form)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
    kept = found.grad_fn.saved_tensors
    assert [tensor.dtype for tensor in kept] == [torch.uint8] and kept[0].shape == found.shape
    seeds = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(outputs, inputs, seeds)[0] for outputs in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_the_operators_pass_opcheck() -> None:
    inputs = torch.randn(2, 3, 8, 8, requires_grad=True)
    torch.library.opcheck(_pool_op, (inputs, 3, 2, 1))
    outputs, places = _pool_op(inputs.detach(), 3, 2, 1)
    torch.library.opcheck(_gradient_op, (outputs, places, [2, 3, 8, 8], 3, 2, 1))


def test_large_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="size=17: a place in a window must fit into a byte"):
        overlapping_max_pool(torch.ones(1, 1, 20, 20), 17, 2, 0)


def test_the_pool_of_a_stem_uses_it_in_compiled_steps_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, inputs = pooling.StemPool(), torch.randn(2, 3, 8, 8, requires_grad=True)
    expected = pool(inputs)
    (gradient,) = torch.autograd.grad(expected.square().sum(), inputs)
    calls: list[int] = []
    function = pooling.overlapping_max_pool
    monkeypatch.setattr(pooling, "overlapping_max_pool", lambda *given: calls.append(1) or function(*given))
    for asked in (False, True):
        monkeypatch.setattr(pooling, "POOLS_IN_BYTES", asked)
        torch._dynamo.reset()
        found = torch.compile(pool, backend="aot_eager")(inputs)
        assert bool(calls) == asked
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), inputs)[0], gradient)
