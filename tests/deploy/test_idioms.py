"""Idioms of forward methods pack with equal outputs, or are refused in one line: never a wrong output."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import PackError, pack
from equalbits.deploy.torch_export import trace_program
from equalbits.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, SignActivation


class Written(nn.Module):
    """A model whose forward is the function given."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.written = forward
        self.edges = nn.Parameter(torch.linspace(-1, 1, 4).reshape(4, 1, 1))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, images):
        return self.written(self, images)


def packs(model, images):
    """The packed model; its answers are the model's, whatever number of images there are."""
    packed = pack(model, images)
    for batch in (images, images[:1], images.repeat(3, 1, 1, 1)):
        with torch.no_grad():
            answer = model.eval()(batch).numpy()
        np.testing.assert_allclose(packed(batch.numpy()), answer, atol=1e-5 * np.abs(answer).max())
    return packed


def images_with_edges(*shape):
    """Random images that contain both zeros and the thresholds of :class:`Written`."""
    torch.manual_seed(0)
    images = torch.randn(shape)
    images[0, :, 0, 0], images[0, :, 0, 1] = 0.0, -0.0
    images[1, :, 0, 0] = torch.linspace(-1, 1, shape[1])
    return images


SIGNS = {
    "ones_like": lambda _, x: torch.where(x > 0, torch.ones_like(x), -torch.ones_like(x)),
    "full_like": lambda _, x: torch.where(x >= 0, torch.full_like(x, 2.0), torch.full_like(x, -0.5)),
    "new_ones": lambda _, x: torch.where(x < 0, x.new_full(x.shape, -1.0), x.new_ones(x.shape)),
    "a sum": lambda _, x: x + torch.ones_like(x) * 2 - torch.zeros_like(x),
    "a bool times two": lambda _, x: (x > 0) * 2.0 - 1,
    "a bool off a number": lambda _, x: 1.0 - 2.0 * (x < 0),
    "a bool added": lambda _, x: x + (x > 0),
    "whole numbers": lambda _, x: (x > 0).int() * 2 - 1.0,
    "a product of bools": lambda _, x: ((x > -0.5) * (x < 1)).float(),
    "both of two bools": lambda _, x: torch.where((x > -0.5) & ~(x >= 1), 1.0, -1.0),
    "a bool moved": lambda _, x: torch.where((x > 0).flatten(1).reshape(x.shape), 2.0, -1.0),
    "a bool of the batch folded": lambda _, x: (x.flatten(0, 1) > 0).float().reshape(x.shape),
    "edges <": lambda model, x: torch.where(model.edges < x, 1.0, -1.0),
    "edges <=": lambda model, x: torch.where(model.edges <= x, 1.0, -1.0),
    "edges >": lambda model, x: torch.where(model.edges > x, 1.0, -1.0),
    "edges >=": lambda model, x: torch.where(model.edges >= x, 1.0, -1.0),
}


@pytest.mark.parametrize("name", SIGNS)
def test_signs_written_in_any_way_pack(name):
    images = images_with_edges(3, 4, 5, 6)
    packs(Written(lambda model, x: SIGNS[name](model, x).flatten(1)), images)
    packed = packs(Written(lambda model, x: model.conv(SIGNS[name](model, x)), conv=BinaryConv2d(4, 3, 3)), images)
    stored = [packed.network.tensors[name] for name in packed.network.tensors if name.endswith("gain_shift")]
    assert {array.shape for array in stored} <= {(2, 4)}, "one number each, not one for each pixel"


BOOLS = {
    "a sum": lambda x: ((x > 1) + (x > 2)).float(),
    "a sum with constants": lambda x: ((x > 1) + torch.tensor([True, False, True, False])).float(),
    "a sum of one axis": lambda x: (x > 1).sum(1, keepdim=True, dtype=torch.bool).float(),
    "of constants": lambda x: torch.logical_and(x > 1, torch.tensor([0.0, 2.0, 5.0, -0.5])).float(),
    "compared with constants": lambda x: ((x > 1) >= torch.tensor([True, False, True, False])).float(),
}


@pytest.mark.parametrize("name", BOOLS)
def test_bools_stay_bools_where_the_example_has_none_that_are_true(name):
    model = Written(lambda _, x: BOOLS[name](x.flatten(1)))
    packed = pack(model, -torch.rand(3, 4, 1, 1))
    images = torch.tensor([[3.0, 2.5, 0.0, 1.5], [-1.0, 1.5, 2.5, 3.0]])[:, :, None, None]
    np.testing.assert_array_equal(packed(images.numpy()), model(images).numpy())


@pytest.mark.parametrize(
    "combine",
    [
        lambda x: torch.logical_not(torch.where(x > 1, 3.0, 2.0)),
        lambda x: ~torch.where(x > 1, 1, 0),
        lambda x: torch.logical_and(torch.where(x > 1, 2.0, 0.0), x > 1),
        lambda x: torch.logical_and(x > 1, torch.where(x > 1, 2.0, 0.0)),
        lambda x: (x > 1) & torch.tensor([2, 3, 1, 1]),
    ],
)
def test_numbers_combined_as_bools_are_refused(combine):
    with pytest.raises(PackError, match=r"(negates|combines) numbers as bools"):
        pack(Written(lambda _, x: combine(x.flatten(1)).float()), -torch.rand(3, 4, 1, 1))


def test_addmm_multiplies_by_its_factors():
    weight, bias = torch.arange(8.0).reshape(4, 2), torch.tensor([1.0, -2.0])
    packs(Written(lambda _, x: torch.addmm(bias, x.flatten(1), weight, beta=3, alpha=0.5)), torch.randn(3, 4, 1, 1))
    packs(Written(lambda _, x: torch.addmm(bias, x.flatten(1), weight, beta=0)), torch.randn(3, 4, 1, 1))


def test_a_sign_written_as_a_choice_of_constants_is_computed_in_float64():
    conv = BinaryConv2d(4, 3, 3, bias=False)
    model = Written(lambda model, x: model.conv(torch.where(x >= 0, 1.0, -1.0)).flatten(1), conv=conv)
    frozen = trace_program(model, images_with_edges(3, 4, 5, 6))
    exact = frozen.run(torch.float64)[frozen.output_node.name]
    assert exact.dtype == torch.float64
    whole = exact / conv.scale.double()
    torch.testing.assert_close(whole, whole.round(), atol=1e-12, rtol=0)


def in_autocast(_, images):
    with torch.autocast("cpu", torch.bfloat16):
        return images.flatten(1) @ torch.ones(120, 3)


REFUSED = [
    (lambda _, x: x.flatten(1) / len(x), "treats a single image differently from a batch of 3"),
    (lambda _, x: x.flatten(1) if len(x) > 1 else x.flatten(1) + 1, "treats a single image differently"),
    (
        lambda _, x: x[:, 0] * x[:, :3],  # three images: torch repeats it along the channels
        r"layer 'mul' multiplies values of shape \(5, 6\) and \(3, 5, 6\): give both as many",
    ),
    (lambda _, x: x.half().float(), r"layer 'to' casts to torch\.float16, which rounds"),
    (lambda _, x: x.int().float(), r"layer 'to' casts to torch\.int32"),
    (lambda _, x: x.bool().float(), r"layer 'to' casts to torch\.bool"),
    (lambda _, x: (-(x > 9).byte()).float(), r"layer 'neg' computes in torch\.uint8, where numbers wrap at 256"),
    (lambda _, x: ((x > 9).byte() * 200 + 100).float(), r"layer 'mul' computes in torch\.uint8"),
    (lambda _, x: x.relu() if x.sum() > 0 else x, "its forward branches on values of the image; do the same"),
    (in_autocast, r"layer 'matmul' casts to torch\.bfloat16, which rounds"),
    (lambda _, x: x - x.mean((0, 2)).mean(), r"takes the mean over axes \[0, 2\], the batch included"),
    (lambda _, x: x.amax() + x, r"layer 'amax' takes the maximum over axes \(\), the batch included"),
    (lambda _, x: x + x.sum(), r"layer 'sum_1' takes the mean over axes \[\].*: name all axes but the batch"),
    (lambda _, x: x + x.max(), r"does aten\.max\.default.*: name all axes but the batch"),
    (lambda _, x: x.max(2)[1].float(), "layer 'to' reads the indices of maxima"),
    (lambda _, x: x + nnf.max_pool2d(x, 1, return_indices=True)[1], "layer 'add' reads the indices of maxima"),
    (lambda _, x: x + nnf.adaptive_max_pool2d(x, 1, True)[1], "layer 'add' reads the indices of maxima"),
    (lambda _, x: x.max(2)[1], "but gets the indices of maxima: this cannot be packed"),
    (lambda model, x: torch.maximum(x, model.edges), "takes the maximum or minimum with several constants"),
    (
        lambda _, x: x.flatten(2)[:, :3, :4] + x.flatten(1)[:, :4],
        r"repeats a value of shape \(4,\) along new axes: add those with unsqueeze",
    ),
    (lambda _, x: nnf.max_pool1d(x.flatten(2), 2, dilation=2), "pools with dilation"),
]


@pytest.mark.parametrize(("forward", "words"), REFUSED)
def test_unsupported_operations_are_refused_in_one_line(forward, words):
    with pytest.raises(PackError, match=words):
        pack(Written(forward), torch.randn(3, 4, 5, 6))


@pytest.mark.parametrize("name", SIGNS)
def test_rounding_that_depends_on_the_batch_is_not_taken_for_use_of_the_batch_size(name):
    def rounded(model, images):
        """Same operations with other numbers for a single image: rounding that depends on the batch."""
        values = SIGNS[name](model, images).flatten(1)
        alone = not torch.compiler.is_compiling() and len(images) == 1
        return values + 1 if alone else values

    pack(Written(rounded), images_with_edges(3, 4, 5, 6))


def test_a_model_that_cannot_answer_one_image_packs():
    conv = BinaryConv2d(4, 3, 3, input_quantizer=SignActivation())
    model = Written(lambda model, x: model.head(model.conv(x).mean((2, 3)).squeeze()), conv=conv, head=nn.Linear(3, 2))
    images = torch.randn(3, 4, 5, 6)
    assert pack(model, images)(images[0].numpy()).shape == (2,)


POOLS = [
    nn.MaxPool1d(2),
    nn.MaxPool1d(3, 2, 1, ceil_mode=True),
    nn.AvgPool1d(3, 2, 1),
    nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    nn.AdaptiveAvgPool1d(4),
    nn.AdaptiveMaxPool1d(5),
    nn.Sequential(nn.Flatten(), nn.AvgPool1d(4), nn.Unflatten(1, (6, -1))),
    nn.FeatureAlphaDropout(),
]


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: type(pool).__name__)
def test_networks_along_one_axis_pool(pool):
    torch.manual_seed(0)
    layers = [nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), pool]
    layers.append(BinaryConv1d(6, 7, 3, padding=1, input_quantizer=SignActivation()))
    model = nn.Sequential(nn.Flatten(2), *layers)
    model[2].running_mean.normal_()
    packs(model, torch.randn(3, 4, 5, 4))


MEANS = {
    "rows, then columns": lambda x: x.mean(3).mean(2),
    "columns, then rows, kept": lambda x: x.mean(2, keepdim=True).mean(-1, keepdim=True).flatten(1),
    "pixels in a row": lambda x: x.flatten(2).mean(-1),
    "tokens": lambda x: x.flatten(2).transpose(1, 2).mean(1),
    "tokens, kept": lambda x: x.flatten(2).transpose(1, 2).mean(1, keepdim=True).squeeze(1),
    "rows alone": lambda x: x.mean(2)[:, :, 0],
}


@pytest.mark.parametrize("name", MEANS)
def test_means_over_any_axis_of_pixels_pack(name):
    torch.manual_seed(0)
    layers = {"conv": BinaryConv2d(4, 6, 3, input_quantizer=SignActivation()), "head": BinaryLinear(6, 5)}
    packs(Written(lambda model, x: model.head(MEANS[name](model.conv(x))), **layers), torch.randn(3, 4, 5, 6))


def test_several_threads_pack_at_once():
    torch.manual_seed(0)
    images, start = torch.randn(3, 4, 5, 6), threading.Barrier(4)
    models = [nn.Sequential(BinaryConv2d(4, 3, 3), nn.Flatten(), nn.Linear(36, 2)).eval() for _ in range(4)]

    def packed(model):
        start.wait()
        return pack(model, images)(images.numpy())

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(packed, models))
    for model, answer in zip(models, found, strict=True):
        np.testing.assert_allclose(answer, model(images).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_example_that_is_not_finite_is_refused(number):
    images = torch.zeros(2, 4, 5, 6)
    images[1, 3, 4, 5] = number
    with pytest.raises(PackError, match="example holds numbers that are not finite"):
        pack(BinaryConv2d(4, 3, 3, input_quantizer=SignActivation()), images)


def test_anything_but_a_module_is_refused():
    with pytest.raises(PackError, match="the model is a function: pass a torch"):
        pack(in_autocast, torch.randn(2, 4, 5, 6))
