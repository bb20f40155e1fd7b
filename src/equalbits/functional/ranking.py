"""The ranking behind optimal transport: one definition, three implementations, dispatched here.

Each row of (filter, connection) gets −1 for its ``negatives`` lowest ranks and +1 for the rest; of equal entries the
one at the lower index ranks lower. All implementations agree to the bit:

* :func:`rank_by_sorting`, the definition: a stable sort. Used on devices without another implementation.
* :func:`rank_by_selection`, on the CPU without a mask: numpy's selection, 10 to 20 times faster than a sort.
* ``kernels/rank_rows.py`` and, for rows too long for one program, ``kernels/rank_long_rows.py``: Triton, on a GPU.

``kernels/rank_model.py`` ranks all layers of a model in a few launches; ``equalbits.nn.rank_ahead`` uses it.

:func:`rank_rows` and :func:`rank_masked_rows` are torch operators, so compile, export and ``vmap`` see one opaque call
without gradient; plain execution calls the implementations directly (:func:`rank`). The CPU raises on NaN and infinity.
A GPU cannot raise without synchronizing, so there a row with NaN or infinity becomes NaN and shows in the loss.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.functional.execution_mode import is_plain, kernels_for

_CACHE_BYTES = 1 << 18
_gpu_for = partial(kernels_for, "rank_rows")


def rank(rows: Tensor, negatives: int) -> Tensor:
    """Return :func:`rank_rows` of rows without gradient, in plain execution without torch's dispatcher."""
    if not is_plain(rows):
        ranked: Tensor = rank_rows(rows, negatives)
        return ranked
    return _rank(rows, negatives)


def rank_scaled(latents: Tensor, negatives: int, scale: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return the symbols of latents times a scale, in ``dtype``, where plain execution takes one launch for it."""
    gpu = _gpu_for(latents) if is_plain(latents) else None
    return gpu.rank_scaled(latents, negatives, scale, dtype) if gpu else None


def _rank(rows: Tensor, negatives: int) -> Tensor:
    gpu = _gpu_for(rows)
    if gpu:
        return gpu.rank(rows, negatives)  # type: ignore[no-any-return]
    return rank_by_selection(rows, negatives) if rows.device.type == "cpu" else rank_by_sorting(rows, negatives)


@torch.library.custom_op("equalbits::rank_rows", mutates_args=())
def rank_rows(rows: Tensor, negatives: int) -> Tensor:
    """Return −1 for the ``negatives`` lowest ranks of each row of (filter, connection), +1 for the rest."""
    return _rank(rows, negatives)


@torch.library.custom_op("equalbits::rank_masked_rows", mutates_args=())
def rank_masked_rows(rows: Tensor, mask: Tensor, negatives: Tensor) -> Tensor:
    """Rank the kept entries of each row, with one count of −1 per row; masked entries become 0."""
    if rows.device.type == "cpu":
        check_finite(rows)
    gpu = _gpu_for(rows)
    return gpu.rank(rows, negatives[:, None], mask) if gpu else rank_by_sorting(rows, negatives[:, None], mask)


def rank_by_sorting(rows: Tensor, negatives: Tensor | int, mask: Tensor | None = None) -> Tensor:
    """Rank by a stable sort: the definition of both operators, and the slow twin of every other implementation."""
    pruned = torch.zeros_like(rows, dtype=torch.bool) if mask is None else ~mask
    ranks = stable_ranks(rows.masked_fill(pruned, math.inf))  # pruned entries rank last
    symbols = torch.where(ranks < negatives, -1.0, 1.0).to(rows.dtype).masked_fill(pruned, 0.0)
    return symbols.masked_fill(~rows.isfinite().all(dim=1, keepdim=True), math.nan).contiguous()


def stable_ranks(rows: Tensor) -> Tensor:
    """Return the 0-based ascending rank of each entry in its row; of equal entries the lower index ranks lower.

    >>> stable_ranks(torch.tensor([[0.3, -0.2, 0.3]]))
    tensor([[1, 0, 2]])
    """
    order = rows.sort(dim=1, stable=True).indices
    positions = torch.arange(rows.shape[1], device=rows.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, positions)


def rank_by_selection(rows: Tensor, negatives: int) -> Tensor:
    """Select the smallest weight that becomes +1 in each row, and compare, on the CPU.

    Rows are processed in chunks that fit the cache, in one thread: more threads gain little on free cores and lose
    much on busy ones.
    """
    count, connections = rows.shape
    if negatives in (0, connections) or count == 0:
        check_finite(rows)
        return rows.new_full(rows.shape, -1.0 if negatives else 1.0)
    # Not .numpy(): torch would never release the latents' memory again, which sharded parameters require.
    keys = np.from_dlpack((rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).detach())
    symbols = np.empty(keys.shape, keys.dtype)
    chunk = max(1, _CACHE_BYTES // (connections * keys.itemsize))
    for first in range(0, count, chunk):
        _select(keys[first : first + chunk], negatives, symbols[first : first + chunk])
    return torch.from_numpy(symbols).to(rows.dtype)


def _select(keys: NDArray[Any], negatives: int, symbols: NDArray[Any]) -> None:
    """Write the symbols of a chunk of rows."""
    selected = np.partition(keys, negatives, axis=1)
    lower, smallest = selected[:, :negatives], selected[:, negatives, None]
    if not (math.isfinite(lower.min()) and math.isfinite(selected[:, negatives:].max())):  # NaN is selected as largest
        check_finite(torch.from_numpy(selected))
    np.greater_equal(keys, smallest, out=symbols)
    tied_rows = np.flatnonzero(lower.max(axis=1) == smallest[:, 0])  # rows with ties at the threshold
    if len(tied_rows):
        tied = keys[tied_rows] == smallest[tied_rows]
        surplus = symbols[tied_rows].sum(axis=1, keepdims=True, dtype=np.int64) - (keys.shape[1] - negatives)
        symbols[tied_rows] -= tied & (tied.cumsum(axis=1) <= surplus)
    symbols *= 2
    symbols -= 1


def check_finite(latents: Tensor) -> None:
    """Raise if a weight is NaN or infinite."""
    if latents.numel() == 0:
        return
    low, high = torch.stack(latents.detach().aminmax()).tolist()  # NaN propagates to both
    if not (math.isfinite(low) and math.isfinite(high)):
        value = low if math.isnan(low) or math.isinf(low) else high
        raise ValueError(
            f"latents hold {value}: only finite weights have symbols; lower the learning rate or clip the gradients; "
            f"for binary inputs behind ReLUs see equalbits.adapt_for_binary_inputs_"
        )


@rank_rows.register_fake
@rank_masked_rows.register_fake
def _(rows: Tensor, *_: object) -> Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


@rank_rows.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, negatives: int) -> tuple[Tensor, int]:
    stacked = _batch_first(rows, in_dims[0], info.batch_size)  # (net, filter, connection)
    return rank_rows(stacked.flatten(0, 1), negatives).view(stacked.shape), 0


@rank_masked_rows.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, mask: Tensor, negatives: Tensor) -> tuple[Tensor, int]:
    stacked, kept, counts = (
        _batch_first(tensor, axis, info.batch_size)
        for tensor, axis in zip((rows, mask, negatives), in_dims, strict=True)
    )
    folded: Tensor = rank_masked_rows(stacked.flatten(0, 1), kept.flatten(0, 1), counts.flatten(0, 1))
    return folded.view(stacked.shape), 0


def _batch_first(tensor: Tensor, axis: int | None, batch: int) -> Tensor:
    return tensor.expand(batch, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
