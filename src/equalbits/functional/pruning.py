"""Which weights stay: counts, masks and the gradient of learned scores.

``sparsity`` is the share of zeros, never the share kept. Of equal importances the one at the lower index counts as
smaller, so it goes first: every mask holds exactly the count that was asked for.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.estimators import carries_tangents, joined
from equalbits.functional.optimal_transport import (
    as_filters,
    check_latents,
    is_number,
    positive_count,
    positive_counts,
)
from equalbits.functional.precision import at_least_float32
from equalbits.functional.ranking import transport, transport_masked


def pruned_count(weights: int, sparsity: float, *, scope: str = "filter") -> int:
    """How many of ``weights`` become 0.

    In one filter the nearest whole number, ``floor(sparsity · D + ½)``: filters are short, so the rounding shows. In
    a layer or a whole net ``floor(sparsity · n)``, as edge-popup counts (Ramanujan et al. 2020).

    >>> pruned_count(27, 0.5), pruned_count(27, 0.5, scope="layer")
    (14, 13)
    """
    check_sparsity(sparsity)
    check_scope(scope)
    return min(weights, math.floor(float(sparsity) * weights + (0.5 if scope == "filter" else 0.0) + 1e-9))


def keep_largest(importance: Tensor, sparsity: float | Tensor, *, scope: str = "layer") -> Tensor:
    """True where a weight stays: all but the least important, counted over the layer or in each filter.

    ``sparsity`` may be a tensor without axes, so that a captured graph follows it as it changes.

    >>> keep_largest(torch.tensor([[0.1, 0.9, 0.8], [0.2, 0.3, 0.7]]), 0.5)
    tensor([[False,  True,  True],
            [False, False,  True]])
    >>> keep_largest(torch.tensor([[0.1, 0.9, 0.8], [0.2, 0.3, 0.7]]), 1 / 3, scope="filter")
    tensor([[False,  True,  True],
            [False,  True,  True]])
    """
    check_scope(scope)
    check_latents(importance)
    rows = as_filters(importance.detach()) if scope == "filter" else importance.detach().reshape(1, -1)
    weights = rows.shape[1]
    if isinstance(sparsity, Tensor):
        return _transport_by_count(rows, _pruned_count(weights, sparsity, scope)).view(importance.shape) > 0
    symbols: Tensor = transport(rows, pruned_count(weights, sparsity, scope=scope))
    return symbols.view(importance.shape) > 0


def keep_largest_of_all(importances: Sequence[Tensor], sparsity: float | Tensor) -> list[Tensor]:
    """Masks for several layers from one ranking of all their weights together.

    Ties go by the order of the layers, then by index.

    >>> keep_largest_of_all([torch.tensor([[0.1, 0.9]]), torch.tensor([[0.2, 0.3]])], 0.5)
    [tensor([[False,  True]]), tensor([[False,  True]])]
    """
    if not importances:
        raise ValueError("there is no layer to rank: give the importances of at least one")
    mask = keep_largest(torch.cat([importance.detach().flatten() for importance in importances]), sparsity)
    parts = torch.split(mask, [importance.numel() for importance in importances])
    return [part.view(importance.shape) for part, importance in zip(parts, importances, strict=True)]


def outer_symbols(latents: Tensor, negatives: int, positives: int) -> Tensor:
    """−1 for the ``negatives`` lowest of each filter, +1 for the ``positives`` highest, 0 in between.

    Half the sum of two rankings, each as exact as :func:`transport_symbols`.

    >>> outer_symbols(torch.tensor([0.3, -0.9, 0.1, 0.8, -0.2]), 1, 2)
    tensor([ 1., -1.,  0.,  1.,  0.])
    """
    check_latents(latents)
    rows = as_filters(latents.detach())
    connections = rows.shape[1]
    if negatives < 0 or positives < 0 or negatives + positives > connections:
        raise ValueError(
            f"{negatives} negatives and {positives} positives do not fit into {connections} connections: "
            f"neither may be below 0, and together they may be {connections} at most"
        )
    symbols: Tensor = transport(rows, negatives) + transport(rows, connections - positives)
    return symbols.div_(2).view(latents.shape)


def halfmask_symbols(latents: Tensor, sparsity: float | Tensor, p_pos: float = 0.5) -> Tensor:
    """Prune the middle ranks of each filter: the lowest are −1, the highest +1, and what lies between is 0.

    Every filter keeps ``n = D − floor(sparsity · D + ½)`` weights, ``floor(p_pos · n + ½)`` of them +1. It equals
    Eq. 4 of the paper on the kept weights, and prunes by the distance from the middle rank, not from 0.

    >>> halfmask_symbols(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]), 1 / 3)
    tensor([[-1., -1.,  0.,  0.,  1.,  1.]])
    """
    connections = as_filters(latents).shape[1]
    if not isinstance(sparsity, Tensor):
        kept = connections - pruned_count(connections, sparsity)
        positives = positive_count(kept, p_pos)
        return outer_symbols(latents, kept - positives, positives)
    remaining = connections - _pruned_count(connections, sparsity, "filter")
    above = positive_counts(remaining, p_pos)
    rows = as_filters(latents.detach())
    symbols = _transport_by_count(rows, remaining - above) + _transport_by_count(rows, connections - above)
    return symbols.div_(2).view(latents.shape)


def released_counts(connections: int, sparsity: float) -> tuple[int, int]:
    """How many −1 and +1 the paper's released code gives a pruned filter.

    It cuts two products to whole numbers, so that at most rates +1 has one more and the zeros are off by one: for 576
    connections at one tenth it gives 259, 57 zeros and 260. Kept to compare with its runs.

    >>> released_counts(576, 0.1), released_counts(576, 0.5)
    ((259, 260), (144, 144))
    """
    check_sparsity(sparsity)
    share = float(sparsity)
    return int((1 - share) / 2 * connections), connections - int((1 + share) / 2 * connections)


def ramped_sparsity(progress: Tensor, sparsity: float, ramp: float) -> Tensor:
    """The sparsity when the share ``progress`` of training is done, rising from one half to its full value.

    ``k + (½ − k)(1 − progress/ramp)³`` until the share ``ramp`` of training, then ``k`` (the global variant of
    biprop ramps over its first ten epochs). A sparsity of one half or less needs no ramp and stays as it is.

    >>> [round(float(ramped_sparsity(torch.tensor(p), 0.9, 0.1)), 3) for p in (0.0, 0.05, 0.1, 0.7)]
    [0.5, 0.85, 0.9, 0.9]
    """
    left = (1 - progress.double() / ramp).clamp(min=0)
    return sparsity + (min(0.5, sparsity) - sparsity) * left**3


def mpt_values(latents: Tensor, mask: Tensor) -> Tensor:
    """``a · sign(w)`` where kept, else 0, with ``a`` the mean ``|w|`` of the layer's kept weights (Diffenderfer 2021).

    >>> mpt_values(torch.tensor([[0.5, -1.5, 9.0]]), torch.tensor([[True, True, False]]))
    tensor([[ 1., -1.,  0.]])
    """
    kept = mask.to(latents.dtype)
    # float16 ends at 65504: neither the sum nor the count of a layer need fit into it
    total = (latents.detach().abs() * kept).sum(dtype=at_least_float32(latents.dtype))
    scale = (total / mask.sum().clamp(min=1)).to(latents.dtype)
    return scale * sign_symbols(latents) * kept


def scored(latents: Tensor, scores: Tensor, values: Tensor, slope: Tensor) -> Tensor:
    """``values`` forward; backward the gradient itself to the latents, and times ``slope`` to the scores.

    With ``slope = w · sign(s)`` it is edge-popup's rule: a score rises when its weight would help, pruned or not.

    >>> scores = torch.tensor([0.4, -0.2], requires_grad=True)
    >>> scored(torch.zeros(2), scores, torch.tensor([1.0, 0.0]), torch.tensor([3.0, 5.0])).sum().backward()
    >>> scores.grad
    tensor([3., 5.])
    """
    if carries_tangents():
        return joined(scores, joined(latents, values), slope)
    return _Scored.apply(latents, scores, values, slope)  # type: ignore[no-any-return, no-untyped-call]


class _Scored(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(latents: Tensor, scores: Tensor, values: Tensor, slope: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return gradient, gradient * ctx.saved_tensors[0], None, None


def check_sparsity(sparsity: float) -> None:
    """Refuse a share of zeros outside [0, 1)."""
    if not is_number(sparsity) or not 0 <= sparsity < 1:
        raise ValueError(f"sparsity={sparsity!r} is not a share of zeros: it must lie in [0, 1); 0.9 keeps one in ten")


def check_scope(scope: str) -> None:
    """Refuse a scope that is not known."""
    if scope not in ("filter", "layer", "global"):
        raise ValueError(f"scope={scope!r} is not known: choose one of 'filter', 'layer', 'global'")


def _pruned_count(weights: int, sparsity: Tensor, scope: str) -> Tensor:
    """The twin of :func:`pruned_count` for a sparsity that is only known when the graph runs."""
    count = sparsity.double() * weights + (0.5 if scope == "filter" else 0.0) + 1e-9
    return count.floor().long().clamp(max=weights)


def _transport_by_count(rows: Tensor, negatives: Tensor) -> Tensor:
    """±1 with ``negatives`` of −1 in each row, a count that is only known when the graph runs."""
    symbols: Tensor = transport_masked(rows, torch.ones_like(rows, dtype=torch.bool), negatives.expand(len(rows)))
    return symbols
