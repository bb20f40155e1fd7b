"""Initial weights that Sign, IR-Net and bi-half binarize to the same bits: half of each filter +1, half −1."""

import torch
from torch import Tensor, nn

from equalbits.analysis import binary_layers
from equalbits.functional import as_filters, positive_count

#: Distance kept from the cut, as a share of the mean magnitude, so that rounding moves no weight across.
_MARGIN = 0.01


def halved(latents: Tensor) -> Tensor:
    """Shift and scale the weights of each filter, keeping their order, so that mean and median are 0.

    Sign cuts at 0 and IR-Net at the mean, so both then give bi-half's symbols. The median is moved to 0 first,
    then both sides are scaled to the same sum.

    >>> halved(torch.tensor([[1.0, 2.0, 3.0, 10.0]])).sign()
    tensor([[-1., -1.,  1.,  1.]])
    """
    rows = as_filters(latents).double()  # (filter, connection)
    connections = rows.shape[1]
    negatives = connections - positive_count(connections, 0.5)
    if negatives == 0:
        return latents.abs()
    ordered = rows.sort(dim=1).values
    rows = rows - (ordered[:, negatives - 1 : negatives] + ordered[:, negatives : negatives + 1]) / 2
    is_positive = torch.zeros_like(rows, dtype=torch.bool)
    is_positive.scatter_(1, rows.argsort(dim=1, stable=True)[:, negatives:], True)
    sizes = rows.abs() + _MARGIN * rows.abs().mean(dim=1, keepdim=True)
    above, below = ((sizes * side).sum(dim=1, keepdim=True) for side in (is_positive, ~is_positive))
    middle = (above + below) / 2
    balanced = torch.where(is_positive, sizes * middle / above, -sizes * middle / below)
    return balanced.to(latents.dtype).view_as(latents)


class HalfStart:
    """Watcher that applies :func:`halved` before the first step and counts the filters that are not exactly half."""

    def __init__(self) -> None:
        self.filters = self.off = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Before the first step, shift the latents and count the filters that are not exactly half."""
        if step:
            return
        for layer in binary_layers(model).values():
            filters = layer.to_filters(layer.weight)
            layer.weight.copy_(layer.from_filters(halved(filters)))
            rows = as_filters(layer.symbols())
            self.filters += len(rows)
            self.off += int(((rows > 0).sum(dim=1) != positive_count(rows.shape[1], 0.5)).sum())
