"""The ranking as torch operators: registration, compile and vmap."""

import math

import pytest
import torch
from torch import Tensor

from equalbits.functional import bihalf, sign, transport_by_sorting, transport_symbols
from equalbits.functional.ranking import rank_by_sorting, rank_masked_rows, rank_rows
from equalbits.nn.methods.irnet import irnet

NETS = torch.randn(3, 5, 28, generator=torch.Generator().manual_seed(0)).mul(4).round()  # (net, filter, connection)
MASKS = torch.rand(3, 5, 28, generator=torch.Generator().manual_seed(1)) < 0.6


@pytest.mark.parametrize("rows", [NETS[0], NETS[0].T, NETS[0, :, ::2], NETS[0].bfloat16()])
def test_the_operators_pass_opcheck(rows: Tensor) -> None:
    mask = rows > -3
    torch.library.opcheck(rank_rows, (rows, rows.shape[1] // 2))
    torch.library.opcheck(rank_masked_rows, (rows, mask, mask.sum(dim=1) // 2))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_over_nets_gives_the_symbols_of_each_net(axis: int) -> None:
    expected = torch.stack([transport_symbols(net, 0.3) for net in NETS])
    stacked = NETS.movedim(0, axis)
    assert torch.equal(torch.vmap(lambda net: transport_symbols(net, 0.3), in_dims=axis)(stacked), expected)
    twice = torch.vmap(torch.vmap(lambda net: transport_symbols(net, 0.3)))(NETS[None])
    assert torch.equal(twice, expected[None])


def test_vmap_accepts_one_mask_per_net_and_one_mask_for_all() -> None:
    def masked(net: Tensor, mask: Tensor) -> Tensor:
        return transport_symbols(net, 0.3, mask=mask)

    own = torch.stack([masked(net, mask) for net, mask in zip(NETS, MASKS, strict=True)])
    assert torch.equal(torch.vmap(masked)(NETS, MASKS), own)
    shared = torch.stack([masked(net, MASKS[0]) for net in NETS])
    assert torch.equal(torch.vmap(masked, in_dims=(0, None))(NETS, MASKS[0]), shared)
    tried = torch.stack([masked(NETS[0], mask) for mask in MASKS])
    assert torch.equal(torch.vmap(masked, in_dims=(None, 0))(NETS[0], MASKS), tried)


@pytest.mark.parametrize("method", [bihalf, sign, lambda net: irnet(net, torch.tensor(2.0))])
def test_vmap_over_nets_gives_the_gradients_of_each_net(method: type[bihalf]) -> None:
    inputs = torch.randn(7, 28, generator=torch.Generator().manual_seed(2))

    def loss(net: Tensor) -> Tensor:
        return (inputs @ method(net).T).square().mean()

    latents = torch.randn(3, 5, 28, generator=torch.Generator().manual_seed(3))
    stacked = torch.vmap(torch.func.grad(loss))(latents)
    for net, gradient in zip(latents, stacked, strict=True):
        alone = net.clone().requires_grad_()
        loss(alone).backward()
        assert alone.grad is not None
        torch.testing.assert_close(gradient, alone.grad)


def test_a_compiled_function_is_one_graph_with_the_same_values_and_gradient() -> None:
    compiled = torch.compile(lambda w: bihalf(w, 0.3) * 0.5, fullgraph=True, backend="aot_eager")
    latents = NETS[0].clone().requires_grad_()
    out = compiled(latents)
    assert torch.equal(out, transport_by_sorting(latents, 0.3) * 0.5)
    incoming = torch.randn(5, 28)
    out.backward(incoming)
    assert latents.grad is not None and torch.equal(latents.grad, incoming * 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_ranking_does_not_prevent_the_latents_memory_from_being_freed(dtype: torch.dtype) -> None:
    rows = torch.randn(4, 9).to(dtype)
    transport_symbols(rows)
    transport_symbols(rows, mask=rows > 0)
    rows.untyped_storage().resize_(0)


def test_a_row_with_nan_or_infinity_becomes_nan_where_the_device_cannot_raise() -> None:
    rows = torch.tensor([[0.1, math.nan, 0.3], [math.inf, 0.2, 0.1], [0.3, 0.2, 0.1]])
    assert rank_by_sorting(rows, 1)[:2].isnan().all()
    assert rank_by_sorting(rows, 1)[2].tolist() == [1, 1, -1]
