"""Reductions over any axes, broadcasting and constants pack with equal outputs."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import PackError, pack
from equalbits.nn import BinaryConv2d, SignActivation
from equalbits.runtime import PackedModel


class Written(nn.Module):
    """A model whose forward is the function given; among its numbers are a matrix, a token and a map."""

    def __init__(self, forward):
        super().__init__()
        self.written = forward
        self.conv = BinaryConv2d(4, 6, 3, padding=1, input_quantizer=SignActivation())
        self.matrix = nn.Parameter(torch.randn(3, 6))
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.map = nn.Parameter(torch.randn(2, 5, 7))

    def forward(self, images):
        return self.written(self, self.conv(images))


EXACT = {
    "the largest pixel": lambda _, x: x.amax((2, 3)),
    "the largest, kept": lambda _, x: x.amax((-2, -1), keepdim=True) + x.amax(3, keepdim=True),
    "the largest channel": lambda _, x: x.amax(1, keepdim=True),
    "the largest of all": lambda _, x: x.amax((1, 2, 3), keepdim=True).flatten(1),
    "the smallest": lambda _, x: x.amin((1, 3)),
    "max along an axis": lambda _, x: x.flatten(2).max(-1)[0] - x.min(1, keepdim=True).values.amax((2, 3)),
    "maxout": lambda _, x: x.unflatten(1, (3, 2)).amax(2),
    "two halves": lambda _, x: torch.max(*x.chunk(2, 1)) + torch.min(*x.chunk(2, 1)),
    "the larger, of unlike shapes": lambda _, x: torch.maximum(x, x[:, :1, :, :1]),
    "the largest of branches": lambda _, x: torch.stack([x, -x, x.flip(1)]).amax(0) - torch.stack([x, -x]).min(0)[0],
    "a sum of branches before the batch": lambda _, x: torch.stack([x, x.relu(), -x]).sum(0),
    "a bound": lambda _, x: torch.maximum(torch.zeros_like(x), x) + torch.minimum(x, torch.tensor(1.5)),
    "a bound for more channels": lambda _, x: torch.maximum(x[:, :1], torch.zeros(5, 1, 1)),
    "uneven windows": lambda _, x: nnf.adaptive_max_pool2d(x, (3, 4)),
    "uneven windows of a row": lambda _, x: nnf.adaptive_max_pool1d(x.flatten(2), 4),
    "zeros beside": lambda _, x: torch.cat([torch.zeros_like(x[:, :3]), x, torch.zeros_like(x)], 1),
    "a map beside": lambda net, x: torch.cat([x, net.map.expand(len(x), -1, -1, -1)], 1),
    "a token before": lambda net, x: torch.cat([net.token.expand(len(x), -1, -1), x.flatten(2).mT], 1),
    "nothing at first": lambda _, x: torch.cat([torch.tensor([]), x], 1).relu(),
}
NEAR = {
    "a sum of pixels": lambda _, x: x.sum((2, 3)),
    "a sum of sums": lambda _, x: x.sum(-1).sum(-1, keepdim=True),
    "a sum of channels": lambda _, x: x.sum(1),
    "a mean of channels": lambda _, x: x.mean(1, keepdim=True),
    "a mean over all": lambda _, x: x.relu().mean((1, 2, 3), keepdim=True).flatten(1),
    "a mean of branches": lambda _, x: torch.stack([x, x.relu(), -x], 1).mean(1),
    "a mean of branches before the batch": lambda _, x: torch.stack([x, x.relu(), -x]).mean(dim=0),
    "a mean of channels and rows": lambda _, x: x.mean((1, 2)),
    "a sum with what holds for all pixels": lambda _, x: x + x.mean((2, 3), keepdim=True) - x.mean(1, keepdim=True),
    "a sum of a row and a column": lambda _, x: x.mean(2, keepdim=True) + x.mean(3, keepdim=True),
    "a matrix from the left": lambda net, x: net.matrix @ x.flatten(2),
}


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
def test_reductions_equal_the_models(name):
    torch.manual_seed(0)
    model, images = Written((EXACT | NEAR)[name]), torch.randn(3, 4, 5, 7)
    packed = pack(model, images)
    for batch in (images, images[:1]):
        answer = model(batch).detach().numpy()
        for engine in ("numpy", "auto"):
            found = PackedModel(packed.network, engine=engine)(batch.numpy())
            np.testing.assert_allclose(
                found, answer, rtol=0, atol=(5e-7 if name in EXACT else 1e-5) * np.abs(answer).max()
            )


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: x.mean((1, 2, 3)).unsqueeze(1),
        lambda _, x: x.sum((1, 2, 3))[:, None],
        lambda _, x: x.flatten(1).max(1).values.unsqueeze(1),
        lambda _, x: x.flatten(1)[:, 0].unsqueeze(1),
    ],
    ids=["mean", "sum", "max", "entry"],
)
def test_outputs_without_a_class_axis_are_refused_with_a_remedy(forward):
    with pytest.raises(PackError, match=r"returns a single number per image: keep an axis, with keepdim=True"):
        pack(Written(forward), torch.randn(3, 4, 5, 7))


@pytest.mark.parametrize("divisor", [None, 5])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("window", [(2, 2, 1), (3, 2, 1), ((3, 2), 3, (1, 0)), (3, 3, 0)], ids=str)
def test_means_over_windows_that_reach_beyond_are_the_models(window, counted, divisor):
    torch.manual_seed(0)
    images = torch.randn(3, 4, 8, 10)
    pool = nn.AvgPool2d(*window, ceil_mode=True, count_include_pad=counted, divisor_override=divisor)
    packed, answer = pack(pool, images), pool(images).numpy()
    for engine in ("numpy", "auto"):
        found = PackedModel(packed.network, engine=engine)(images.numpy())
        np.testing.assert_allclose(found, answer, rtol=0, atol=1e-6)
