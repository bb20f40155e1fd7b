"""Windows of an image, and convolutions of each part of an image by itself, pack to what torch computes."""

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.deploy import PackError, pack
from equalbits.nn import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, SignActivation


def check(model: nn.Module, *shape: int) -> list[str]:
    """Pack a model, compare it on other images than it was packed on, and return the kinds of its operations."""
    torch.manual_seed(0)
    packed, images = pack(model.eval(), torch.randn(2, *shape)), torch.randn(3, *shape)
    with torch.no_grad():
        expected = model(images).numpy()
    np.testing.assert_allclose(packed(images.numpy()), expected, atol=1e-5 * np.abs(expected).max())
    return [operation.kind for operation in packed.network.operations]


class Parts(nn.Module):
    """Convolve the upper and the lower half of an image as two images: the batch is folded with the halves."""

    def __init__(self, layer: nn.Module, channels: int = 8) -> None:
        super().__init__()
        self.layer, self.norm = layer, nn.BatchNorm2d(channels)
        nn.init.normal_(self.norm.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, channels, rows, columns = images.shape
        halves = images.reshape(batch, channels, 2, rows // 2, columns).transpose(1, 2)
        made = self.norm(self.layer(halves.reshape(batch * 2, channels, rows // 2, columns))).relu()
        return made.reshape(batch, -1)


WINDOWS = [
    {"kernel_size": 1},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": 5, "padding": 2, "stride": 2, "groups": 2},
    {"kernel_size": 3, "padding": 2, "dilation": 2},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 3, "padding": (1, 0), "stride": (2, 1)},
    {"kernel_size": (1, 3), "padding": (0, 1)},
]


@pytest.mark.parametrize("inputs", [None, SignActivation()], ids=["real inputs", "signs"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_convolution_of_the_parts_of_an_image_packs(window, inputs):
    assert "conv" in check(Parts(BinaryConv2d(4, 8, **window, input_quantizer=inputs)), 4, 14, 9)


def test_a_pointwise_convolution_of_parts_pads_nothing():
    assert "pad" not in check(Parts(nn.Conv2d(4, 8, 1)), 4, 14, 9)


class Rows(nn.Module):
    """Convolve each row of an image as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = BinaryConv1d(4, 8, 3, stride=2, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, channels, rows, columns = images.shape
        made = self.layer(images.transpose(1, 2).reshape(batch * rows, channels, columns)).relu()
        return made.reshape(batch, -1)


def test_a_convolution_of_each_row_packs():
    check(Rows(), 4, 6, 9)


def test_indices_of_the_parts_of_an_image_pack():
    class Indexed(nn.Module):
        def forward(self, parts: torch.Tensor) -> torch.Tensor:
            return parts[:, [3, 1, 2]].index_select(2, torch.tensor([2, 0])).unfold(3, 4, 2).flatten(3)

    assert "conv" in check(Parts(nn.Sequential(BinaryConv2d(4, 4, 1), Indexed()), channels=3), 4, 6, 9)


POOLS = {
    "max": nn.MaxPool2d(2, 1),
    "mean": nn.AvgPool2d(2, padding=1),
    "adaptive mean": nn.AdaptiveAvgPool2d((2, 3)),
    "pad": nn.ConstantPad2d((1, 0, 2, -1), 0.5),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_or_padding_of_the_parts_of_an_image_packs(name):
    check(Parts(nn.Sequential(BinaryConv2d(4, 8, 1), POOLS[name])), 4, 12, 9)


class PadBatch(nn.Module):
    """Pad the first axis."""

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(parts, (0, 0, 0, 0, 0, 0, 2, 0))


def test_padding_the_batch_of_parts_is_refused_in_one_line():
    with pytest.raises(PackError, match="'layer' pads the batch: a packed network treats each image by itself"):
        pack(Parts(PadBatch(), channels=4), torch.randn(2, 4, 6, 5))


def test_an_image_that_is_repeated_for_each_of_its_parts_packs():
    class Query(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            halves = images.reshape(len(images) * 2, -1, images.shape[-1])
            query = images.mean((1, 2), keepdim=True).squeeze(1).repeat_interleave(2, 0)
            return (halves @ query.transpose(1, 2)).reshape(len(images), -1)

    check(nn.Sequential(BinaryConv2d(4, 8, 1), Query()), 4, 6, 9)


class Heads(nn.Module):
    """Fold the batch with the heads behind an axis of queries, keys and values, as SAM's attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = BinaryConv2d(4, 12, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, _, rows, columns = images.shape
        apart = self.layer(images).reshape(batch, 3, 2, 2, rows * columns).transpose(0, 1)
        query, key, value = apart.reshape(3, batch * 2, 2, rows * columns).unbind(0)
        scores = (query.transpose(1, 2) @ key).softmax(-1)
        return (scores @ value.transpose(1, 2)).reshape(batch, -1)


def test_heads_that_are_folded_with_the_batch_behind_another_axis_pack():
    assert "softmax" in check(Heads(), 4, 3, 5)


def test_a_transposed_convolution_of_parts_is_refused_in_one_line():
    with pytest.raises(PackError, match="'layer' transposes a convolution of a batch folded with another axis: keep"):
        pack(Parts(BinaryConvTranspose2d(4, 8, 2)), torch.randn(2, 4, 6, 5))


class Unfolded(nn.Module):
    """Multiply each window of an image by bits, and add the windows to an image again, as VOLO's attention does."""

    def __init__(self, kernel: tuple[int, int], **window: int | tuple[int, int]) -> None:
        super().__init__()
        inputs = 4 * kernel[0] * kernel[1]
        self.layer, self.window = BinaryConv1d(inputs, inputs // 2, 1), {"kernel_size": kernel, **window}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = self.layer(nn.functional.unfold(images, **self.window)).relu()
        return nn.functional.fold(made, images.shape[2:], **self.window).flatten(1)


@pytest.mark.parametrize(
    ("kernel", "window"),
    [
        ((3, 3), {"padding": 1, "stride": 2}),
        ((2, 3), {"dilation": (1, 2), "padding": (0, 1), "stride": (2, 1)}),
        ((3, 3), {}),
        ((2, 2), {"stride": 2}),
    ],
    ids=str,
)
def test_unfold_and_fold_pack(kernel, window):
    check(Unfolded(kernel, **window), 4, 13, 10)


class Sliding(nn.Module):
    """Take windows along axes with ``Tensor.unfold``, as HaloNet's attention does."""

    def __init__(self, axes: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.layer, self.axes = BinaryConv2d(4, 8, 3, padding=1), axes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = self.layer(images)
        for axis, size, step in self.axes:
            made = made.unfold(axis, size, step)
        return made.flatten(1)


@pytest.mark.parametrize(
    "axes", [[(2, 4, 2)], [(2, 5, 3), (3, 3, 2)], [(1, 2, 2), (2, 7, 7)], [(-1, 6, 4)], [(3, 3, 1)]], ids=str
)
def test_windows_of_a_tensor_pack(axes):
    check(Sliding(axes), 4, 14, 9)


def test_windows_of_the_batch_are_refused_in_one_line():
    with pytest.raises(PackError, match="reorders the batch: a packed network treats each image by itself"):
        pack(Sliding([(0, 1, 1)]), torch.randn(2, 4, 6, 5))
