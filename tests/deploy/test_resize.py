"""Resizing of images and rows packs with equal outputs; nearest neighbours to the last bit."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import pack
from equalbits.nn import BinaryConv2d, SignActivation
from equalbits.runtime import PackedModel


class Resized(nn.Module):
    """A model that changes the size of what it reads."""

    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def forward(self, images):
        return nnf.interpolate(images, **self.settings)


SIZES = [
    {"scale_factor": 2},
    {"scale_factor": 3.0},
    {"scale_factor": (1.7, 0.6)},
    {"scale_factor": 2.3, "recompute_scale_factor": True},
    {"size": (10, 7)},
    {"size": (13, 3)},
    {"size": 4},
]


def answers(model, images):
    """Outputs of the model and of each engine, for one image and for all."""
    packed = pack(model, images)
    for batch in (images, images[:1]):
        with torch.no_grad():
            answer = model.eval()(batch).numpy()
        for engine in ("numpy", "auto"):
            yield PackedModel(packed.network, engine=engine)(batch.numpy()), answer


@pytest.mark.parametrize("settings", SIZES, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_neighbour_resizing_equals_the_models_to_the_last_bit(mode, settings):
    torch.manual_seed(0)
    for found, answer in answers(Resized(mode=mode, **settings), torch.randn(3, 4, 5, 7)):
        np.testing.assert_array_equal(found, answer)


@pytest.mark.parametrize("settings", SIZES, ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("more", [{"align_corners": True}, {"align_corners": False}, {"antialias": True}], ids=str)
def test_interpolated_pixels_equal_the_models(mode, settings, more):
    torch.manual_seed(0)
    for found, answer in answers(Resized(mode=mode, **settings, **more), torch.randn(3, 4, 5, 7)):
        np.testing.assert_allclose(found, answer, atol=1e-5 * np.abs(answer).max())


@pytest.mark.parametrize("settings", [{"size": 12}, {"scale_factor": 2.5}, {"scale_factor": 0.4}], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_rows_may_have_another_length(mode, settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 6, 3), Resized(mode=mode, **settings), nn.ReLU())
    for found, answer in answers(model, torch.randn(3, 4, 1, 11)):
        np.testing.assert_allclose(found, answer, atol=1e-5 * np.abs(answer).max())


def test_an_image_may_keep_its_size():
    settings = {"size": (5, 7), "mode": "bilinear", "align_corners": True}
    model = nn.Sequential(nn.ReLU(), Resized(**settings))
    assert [operation.kind for operation in pack(model, torch.randn(3, 4, 5, 7)).network.operations] == ["relu"]


class UNet(nn.Module):
    """A net that downsamples and upsamples, with skip connections."""

    def __init__(self, **settings):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(4, 8, 3, padding=1), self.binary(8, 8), self.binary(8, 8)])
        self.up = nn.ModuleList([self.binary(16, 8), self.binary(16, 6)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(3)])
        self.settings = settings

    @staticmethod
    def binary(inputs, filters):
        return BinaryConv2d(inputs, filters, 3, padding=1, input_quantizer=SignActivation())

    def forward(self, images):
        seen = []
        for layer, norm in zip(self.down, self.norms, strict=True):
            images = norm(layer(nnf.max_pool2d(images, 2) if seen else images))
            seen.append(images)
        images = seen.pop()
        for layer in self.up:
            beside = seen.pop()
            images = layer(torch.cat([nnf.interpolate(images, size=beside.shape[2:], **self.settings), beside], 1))
        return images


@pytest.mark.parametrize("settings", [{"mode": "nearest"}, {"mode": "bilinear", "align_corners": False}], ids=str)
def test_a_net_that_downsamples_and_upsamples_packs(settings):
    torch.manual_seed(0)
    model = UNet(**settings)
    for norm in model.norms:
        norm.running_mean.normal_()
    for found, answer in answers(model, torch.randn(3, 4, 13, 17)):
        np.testing.assert_allclose(found, answer, atol=1e-4 * np.abs(answer).max())
