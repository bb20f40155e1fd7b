"""Pruning: counts, masks and the gradient of learned scores.

``sparsity`` is the share of zeros. Of equal importances the one at the lower index counts as smaller and is pruned
first, so every mask has exactly the requested count.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

from equalbits.functional.estimators import straight_through, surrogate
from equalbits.functional.execution_mode import in_forward_mode
from equalbits.functional.optimal_transport import (
    as_filters,
    check_latents,
    is_number,
    positive_count,
    round_down,
)
from equalbits.functional.ranking import rank_masked_rows, rank_rows

#: Share of zeros; a 0-dim tensor where a captured graph follows it.
Sparsity = float | Tensor


def pruned_count(weights: int, sparsity: Sparsity, *, scope: str = "filter") -> Any:
    """Return how many of ``weights`` become 0; a tensor if ``sparsity`` is one.

    In a filter that is the nearest integer, ``floor(sparsity · D + ½)``: filters are short, so rounding matters. In a
    layer or a net it is ``floor(sparsity · n)``, as in edge-popup (Ramanujan et al. 2020).
    """
    check_scope(scope)
    if not isinstance(sparsity, Tensor):
        check_sparsity(sparsity)
    share = sparsity.double() if isinstance(sparsity, Tensor) else float(sparsity)
    return round_down(share * weights + (0.5 if scope == "filter" else 0.0))


def keep_largest(importance: Tensor, sparsity: Sparsity, *, scope: str = "layer") -> Tensor:
    """Return a mask, True for all but the least important weights of the layer or of each filter.

    >>> keep_largest(torch.tensor([[0.1, 0.9, 0.8], [0.2, 0.3, 0.7]]), 0.5)
    tensor([[False,  True,  True],
            [False, False,  True]])
    >>> keep_largest(torch.tensor([[0.1, 0.9, 0.8], [0.2, 0.3, 0.7]]), 1 / 3, scope="filter")
    tensor([[False,  True,  True],
            [False,  True,  True]])
    """
    check_latents(importance)
    rows = as_filters(importance.detach()) if scope == "filter" else importance.detach().reshape(1, -1)
    return _rank(rows, pruned_count(rows.shape[1], sparsity, scope=scope)).view(importance.shape) > 0


def keep_largest_globally(importances: Sequence[Tensor], sparsity: Sparsity) -> list[Tensor]:
    """Return one mask per layer from a single ranking of all their weights.

    Ties are broken by the order of the layers, then by index.

    >>> keep_largest_globally([torch.tensor([[0.1, 0.9]]), torch.tensor([[0.2, 0.3]])], 0.5)
    [tensor([[False,  True]]), tensor([[False,  True]])]
    """
    if not importances:
        raise ValueError("there is no layer to rank: give the importances of at least one")
    mask = keep_largest(torch.cat([importance.detach().flatten() for importance in importances]), sparsity)
    parts = torch.split(mask, [importance.numel() for importance in importances])
    return [part.view(importance.shape) for part, importance in zip(parts, importances, strict=True)]


def prune_middle_ranks(latents: Tensor, sparsity: Sparsity, p_pos: float = 0.5) -> Tensor:
    """Return −1 for the lowest ranks of each filter, +1 for the highest, 0 for the middle ones.

    Every filter keeps ``n = D − floor(sparsity · D + ½)`` weights, ``floor(p_pos · n + ½)`` of them +1. On the kept
    weights this equals Eq. 4 of the paper. It prunes by distance from the middle rank, not by distance from 0.

    >>> prune_middle_ranks(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]), 1 / 3)
    tensor([[-1., -1.,  0.,  0.,  1.,  1.]])
    """
    check_latents(latents)
    rows = as_filters(latents.detach())
    connections = rows.shape[1]
    kept = connections - pruned_count(connections, sparsity)
    positives = positive_count(kept, p_pos)
    symbols = _rank(rows, kept - positives) + _rank(rows, connections - positives)
    return symbols.div_(2).view(latents.shape)


def ramped_sparsity(progress: Tensor, sparsity: float, ramp: float) -> Tensor:
    """Return the sparsity at a share ``progress`` of training, rising from one half to its full value.

    It is ``k + (½ − k)(1 − progress/ramp)³`` up to the share ``ramp`` of training, then ``k`` (the global variant of
    biprop ramps over its first ten epochs). A sparsity of one half or less is constant.

    >>> [round(float(ramped_sparsity(torch.tensor(p), 0.9, 0.1)), 3) for p in (0.0, 0.05, 0.1, 0.7)]
    [0.5, 0.85, 0.9, 0.9]
    """
    left = (1 - progress.double() / ramp).clamp(min=0)
    return sparsity + (min(0.5, sparsity) - sparsity) * left**3


def edge_popup(latents: Tensor, scores: Tensor, values: Tensor, slope: Tensor) -> Tensor:
    """Return ``values``; pass the gradient unchanged to the latents, and times ``slope`` to the scores.

    With ``slope = w · sign(s)`` this is edge-popup's rule: a score rises when its weight would help, pruned or not.

    >>> scores = torch.tensor([0.4, -0.2], requires_grad=True)
    >>> edge_popup(torch.zeros(2), scores, torch.tensor([1.0, 0.0]), torch.tensor([3.0, 5.0])).sum().backward()
    >>> scores.grad
    tensor([3., 5.])
    """
    if in_forward_mode():
        return surrogate(scores, straight_through(latents, values), slope)
    return _EdgePopup.apply(latents, scores, values, slope)  # type: ignore[no-any-return, no-untyped-call]


class _EdgePopup(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(latents: Tensor, scores: Tensor, values: Tensor, slope: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: BackwardCFunction, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return gradient, gradient * ctx.saved_tensors[0], None, None


def check_sparsity(sparsity: float) -> None:
    """Raise unless ``sparsity`` is a share of zeros in [0, 1)."""
    if not is_number(sparsity) or not 0 <= sparsity < 1:
        raise ValueError(f"sparsity={sparsity!r} is not a share of zeros: it must lie in [0, 1); 0.9 keeps one in ten")


def check_scope(scope: str) -> None:
    """Raise unless ``scope`` is one of the three."""
    if scope not in ("filter", "layer", "global"):
        raise ValueError(f"scope={scope!r} is not known: choose one of 'filter', 'layer', 'global'")


def _rank(rows: Tensor, negatives: int | Tensor) -> Tensor:
    """Return ±1 with ``negatives`` of −1 in each row; a tensor is a count that is known only when the graph runs."""
    if isinstance(negatives, Tensor):
        kept = torch.ones_like(rows, dtype=torch.bool)
        return rank_masked_rows(rows, kept, negatives.expand(len(rows)))  # type: ignore[no-any-return]
    return rank_rows(rows, negatives)  # type: ignore[no-any-return]
