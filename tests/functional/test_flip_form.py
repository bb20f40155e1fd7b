"""The paper's flip form and rank form are equivalent throughout training."""

import pytest
import torch
from torch import Tensor

from equalbits.functional import bihalf, count_flips, positive_count, stable_ranks, transport_symbols


def flip_by_rank(symbols: Tensor, before: Tensor, after: Tensor, p_pos: float = 0.5) -> Tensor:
    """Flip the symbols whose latent crossed the boundary rank between ``before`` and ``after`` (Table 1c)."""
    negatives = before.shape[1] - positive_count(before.shape[1], p_pos)
    crossed = (stable_ranks(before) < negatives) != (stable_ranks(after.detach()) < negatives)
    return torch.where(crossed, -symbols, symbols)


@pytest.mark.parametrize("p_pos", [0.5, 0.3])
@pytest.mark.parametrize("connections", [8, 27, 576])
def test_flip_by_rank_follows_the_ranking_and_flips_as_many_up_as_down(connections: int, p_pos: float) -> None:
    draw = torch.Generator().manual_seed(connections)
    latents = torch.randn(6, connections, generator=draw).mul_((2 / connections) ** 0.5).requires_grad_()
    inputs = torch.randn(64, connections, generator=draw)
    targets = torch.randn(64, 6, generator=draw)
    optimizer = torch.optim.SGD([latents], lr=0.05, momentum=0.9, weight_decay=5e-4)
    flipped = transport_symbols(latents, p_pos)
    total = 0
    for _ in range(200):
        before = latents.detach().clone()
        optimizer.zero_grad()
        outputs = inputs @ bihalf(latents, p_pos).T * (2 / connections) ** 0.5
        (outputs - targets).square().mean().backward()
        optimizer.step()
        after = transport_symbols(latents, p_pos)
        to_positive, to_negative = count_flips(flipped, after)
        assert torch.equal(to_positive, to_negative)
        flipped = flip_by_rank(flipped, before, latents, p_pos)
        assert torch.equal(flipped, after)
        total += int(to_positive.sum())
    assert total > 0, "a run without flips would prove nothing"


def test_weight_decay_alone_flips_nothing() -> None:
    latents = torch.randn(4, 27, generator=torch.Generator().manual_seed(0))
    symbols = transport_symbols(latents)
    assert torch.equal(flip_by_rank(symbols, latents, 0.5 * latents), symbols)
