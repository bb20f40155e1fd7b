"""The ranking behind optimal transport, as two torch operators: a CPU selection, a GPU kernel, a sort anywhere else.

Operators of our own let compile, export, ``vmap`` and CUDA graphs see one opaque call without gradient. All of them
answer alike to the bit: the ``negatives`` lowest ranks of each row get −1, the rest +1, and of equal entries the one
at the lower index ranks lower. Rows that cannot be ranked (NaN, infinite) are refused on the CPU. An accelerator
cannot refuse without making the host wait, so there such a row comes back as NaN and shows in the loss.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CACHED_BYTES = 1 << 18


@torch.library.custom_op("equalbits::transport", mutates_args=())
def transport(rows: Tensor, negatives: int) -> Tensor:
    """±1 for each entry of (filter, connection): the ``negatives`` lowest ranks of each row get −1."""
    return _by_selection(rows, negatives) if rows.device.type == "cpu" else by_sorting(rows, negatives)


@torch.library.custom_op("equalbits::transport_masked", mutates_args=())
def transport_masked(rows: Tensor, mask: Tensor, negatives: Tensor) -> Tensor:
    """±1 for each kept entry of (filter, connection), 0 elsewhere; ``negatives`` holds a count for each row."""
    if rows.device.type == "cpu":
        check_finite(rows)
    return by_sorting(rows, negatives[:, None], mask)


@transport.register_kernel("cuda")
def _transport_on_cuda(rows: Tensor, negatives: int) -> Tensor:
    return _cuda_rows(rows, negatives, None)


@transport_masked.register_kernel("cuda")
def _transport_masked_on_cuda(rows: Tensor, mask: Tensor, negatives: Tensor) -> Tensor:
    return _cuda_rows(rows, negatives[:, None], mask)


def _cuda_rows(rows: Tensor, negatives: Tensor | int, mask: Tensor | None) -> Tensor:
    try:
        from equalbits.functional.kernels.rank_rows import transport_rows  # Triton loads when first needed
    except ImportError:
        return by_sorting(rows, negatives, mask)
    return transport_rows(rows, negatives, mask)


@transport.register_fake
def _(rows: Tensor, negatives: int) -> Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


@transport_masked.register_fake
def _(rows: Tensor, mask: Tensor, negatives: Tensor) -> Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


@transport.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, negatives: int) -> tuple[Tensor, int]:
    stacked = _batch_first(rows, in_dims[0], info.batch_size)  # (net, filter, connection)
    return transport(stacked.flatten(0, 1), negatives).view(stacked.shape), 0


@transport_masked.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, mask: Tensor, negatives: Tensor) -> tuple[Tensor, int]:
    stacked, kept, counts = (
        _batch_first(tensor, axis, info.batch_size)
        for tensor, axis in zip((rows, mask, negatives), in_dims, strict=True)
    )
    folded: Tensor = transport_masked(stacked.flatten(0, 1), kept.flatten(0, 1), counts.flatten(0, 1))
    return folded.view(stacked.shape), 0


def _batch_first(tensor: Tensor, axis: int | None, batch: int) -> Tensor:
    return tensor.expand(batch, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def check_finite(latents: Tensor) -> None:
    """Refuse NaN and infinity: they have no rank worth the name."""
    if latents.numel() == 0:
        return
    low, high = torch.stack(latents.detach().aminmax()).tolist()  # NaN spreads to both
    if not (math.isfinite(low) and math.isfinite(high)):
        worst = low if math.isnan(low) or math.isinf(low) else high
        raise ValueError(
            f"latents hold {worst}: only finite weights have symbols; lower the learning rate or clip the gradients"
        )


def stable_ranks(rows: Tensor) -> Tensor:
    """The 0-based ascending rank of each entry in its row; of equal entries the lower index ranks lower.

    >>> stable_ranks(torch.tensor([[0.3, -0.2, 0.3]]))
    tensor([[1, 0, 2]])
    """
    order = rows.sort(dim=1, stable=True).indices
    places = torch.arange(rows.shape[1], device=rows.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def by_sorting(rows: Tensor, negatives: Tensor | int, mask: Tensor | None = None) -> Tensor:
    """What both operators mean, as the definition reads: a stable sort, and ranks against each row's count."""
    pruned = torch.zeros_like(rows, dtype=torch.bool) if mask is None else ~mask
    ranks = stable_ranks(rows.masked_fill(pruned, math.inf))  # pruned entries rank last, out of the way
    symbols = torch.where(ranks < negatives, -1.0, 1.0).to(rows.dtype).masked_fill(pruned, 0.0)
    return symbols.masked_fill(~rows.isfinite().all(dim=1, keepdim=True), math.nan).contiguous()


def _by_selection(rows: Tensor, negatives: int) -> Tensor:
    """Find the smallest weight that becomes +1 in each row, and compare.

    A selection costs a fraction of a sort: numpy's is vectorised, 10 to 20 times quicker than sorting the row. It
    goes by as many rows as the cache holds, in one thread: threads that wait for each other gain little where cores
    are free, and lose much where they are not.
    """
    count, connections = rows.shape
    if negatives in (0, connections) or count == 0:
        check_finite(rows)
        return rows.new_full(rows.shape, -1.0 if negatives else 1.0)
    # Not .numpy(), after which torch never lets go of the latents' memory again, as sharded parameters must.
    keys = np.from_dlpack((rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).detach())
    symbols = np.empty(keys.shape, keys.dtype)
    together = max(1, _CACHED_BYTES // (connections * keys.itemsize))
    for first in range(0, count, together):
        _select(keys[first : first + together], negatives, symbols[first : first + together])
    return torch.from_numpy(symbols).to(rows.dtype)


def _select(keys: NDArray[Any], negatives: int, symbols: NDArray[Any]) -> None:
    selected = np.partition(keys, negatives, axis=1)
    lower, smallest = selected[:, :negatives], selected[:, negatives, None]
    if not (math.isfinite(lower.min()) and math.isfinite(selected[:, negatives:].max())):  # NaN is selected as largest
        check_finite(torch.from_numpy(selected))
    np.greater_equal(keys, smallest, out=symbols)
    crowded = np.flatnonzero(lower.max(axis=1) == smallest[:, 0])  # rows tied across the boundary
    if len(crowded):
        tied = keys[crowded] == smallest[crowded]
        surplus = symbols[crowded].sum(axis=1, keepdims=True, dtype=np.int64) - (keys.shape[1] - negatives)
        symbols[crowded] -= tied & (tied.cumsum(axis=1) <= surplus)
    symbols *= 2
    symbols -= 1
