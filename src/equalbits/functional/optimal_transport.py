"""Least-cost symbols for real weights (Eq. 4 of the paper), for any share of +1, with or without a mask.

Moving the weights of a filter onto the symbols −1 and +1, so that exactly ``n_pos`` become +1, costs least when the
``n_pos`` largest do: optimal transport in one dimension is a ranking. Three rules make it exact:

* ``n_pos = floor(p_pos · D + ½)``: rounds half up, so the extra weight of an odd filter is +1;
* ties: of equal weights the one at the lower index counts as smaller;
* ranks are taken in the latents' own precision, so rounding makes no new ties.

The ranking itself is in ``ranking.py``.
"""

import math
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from equalbits.functional.ranking import rank, rank_by_sorting, rank_masked_rows, rank_scaled

#: A number of weights, or a tensor of such numbers.
Count = TypeVar("Count", int, Tensor)


def positive_count(connections: Count, p_pos: float) -> Count:
    """Return how many of ``connections`` weights become +1: ``floor(p_pos · connections + ½)``.

    A tensor of counts, known only when the graph runs, gives a tensor.

    >>> positive_count(27, 0.5), positive_count(10, 0.33), positive_count(10, 0.25)
    (14, 3, 3)
    """
    check_p_pos(p_pos)
    weights = connections.double() if isinstance(connections, Tensor) else connections
    return round_down(float(p_pos) * weights + 0.5)  # type: ignore[no-any-return]  # float: a numpy float32 rounds


def round_down(count: float | Tensor) -> Any:
    """Return the floor of a count, an integer or a tensor of integers.

    1e-9 absorbs float error: 0.29 · 50 + ½ is 14.999999999999998 in binary, and should be 15.
    """
    return (count + 1e-9).floor().long() if isinstance(count, Tensor) else math.floor(count + 1e-9)


def transport_symbols(latents: Tensor, p_pos: float = 0.5, *, mask: Tensor | None = None) -> Tensor:
    """Assign +1 to exactly the share ``p_pos`` of each filter and −1 to the rest, at the least transport cost (Eq. 4).

    The first axis of ``latents`` is the filter; a vector is one filter. Entries where ``mask`` is False become 0 and
    are not counted: the share is exact among the kept ones (``D`` becomes ``|M|``). The result has the shape and dtype
    of ``latents`` and no gradient; an estimator adds that.

    >>> transport_symbols(torch.tensor([-0.4, -0.1, 0.05, 0.3, 0.7]))
    tensor([-1., -1.,  1.,  1.,  1.])
    >>> transport_symbols(torch.zeros(2, 6), p_pos=1 / 3)
    tensor([[-1., -1., -1., -1.,  1.,  1.],
            [-1., -1., -1., -1.,  1.,  1.]])
    """
    check_latents(latents)
    rows = as_filters(latents.detach())  # (filter, connection)
    if mask is None:
        symbols = rank(rows, rows.shape[1] - positive_count(rows.shape[1], p_pos))
    else:
        if mask.dtype != torch.bool or mask.shape != latents.shape:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}: it must be bool and have the shape of the "
                f"latents, {tuple(latents.shape)}; True keeps a weight"
            )
        symbols = rank_masked_rows(rows, as_filters(mask), _negative_counts(as_filters(mask), p_pos))
    return symbols.view(latents.shape)


def scaled_transport_symbols(latents: Tensor, p_pos: float, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return :func:`transport_symbols` times a scale, in ``dtype`` and the memory format of the latents.

    >>> scaled_transport_symbols(torch.tensor([[0.1, 0.2]]), 0.5, torch.tensor(0.5), torch.float32)
    tensor([[-0.5000,  0.5000]])
    """
    check_latents(latents)
    if latents.dim() == 1:  # one filter
        return scaled_transport_symbols(latents[None], p_pos, scale, dtype)[0]
    connections = math.prod(latents.shape[1:])
    scaled = rank_scaled(latents, connections - positive_count(connections, p_pos), scale, dtype)
    return (transport_symbols(latents, p_pos) * scale).to(dtype) if scaled is None else scaled


def transport_by_sorting(latents: Tensor, p_pos: float = 0.5, *, mask: Tensor | None = None) -> Tensor:
    """Compute :func:`transport_symbols` by a stable sort and a scatter, as the definition reads: its slow twin."""
    rows = as_filters(latents.detach())
    kept = torch.ones_like(rows, dtype=torch.bool) if mask is None else as_filters(mask)
    return rank_by_sorting(rows, _negative_counts(kept, p_pos)[:, None], kept).view(latents.shape)


def _negative_counts(mask: Tensor, p_pos: float) -> Tensor:
    """Return the count of −1 in each row of a mask."""
    kept = mask.sum(dim=1)
    return kept - positive_count(kept, p_pos)


def as_filters(tensor: Tensor) -> Tensor:
    """View a tensor whose first axis is the filter as (filter, connection); a vector is one filter."""
    return tensor[None] if tensor.dim() == 1 else tensor.flatten(1)


def exchange_channels(weight: Tensor, groups: int) -> Tensor:
    """Rearrange a transposed convolution's (in, out/groups, …) to (out, in/groups, …), or back."""
    return weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)


def check_p_pos(p_pos: float) -> None:
    """Raise unless ``p_pos`` is a number in [0, 1]."""
    if not is_number(p_pos) or not 0 <= p_pos <= 1:
        raise ValueError(f"p_pos={p_pos!r} is not a share: it must be a number in [0, 1]; one half gives bi-half")


def is_number(value: object) -> bool:
    """Return True for a real number of Python or numpy, but not for bool."""
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))  # a fast test first


def check_latents(latents: Tensor) -> None:
    """Raise unless the latents are floating, with at least one axis and one connection per filter.

    Their values are checked where they are ranked.
    """
    if latents.dim() == 0 or not latents.is_floating_point():
        raise ValueError(
            f"latents have shape {tuple(latents.shape)} and dtype {latents.dtype}: they must be floating, with the "
            f"filter as first axis; call .float() or add an axis"
        )
    if 0 in latents.shape[1:] or latents.shape == (0,):
        raise ValueError(
            f"latents have shape {tuple(latents.shape)}: a filter needs at least one connection; leave the layer out"
        )
