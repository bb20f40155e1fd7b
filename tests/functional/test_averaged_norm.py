"""The average of a norm of a 1×1 convolution, from averages and the covariance of the channels."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.functional import average_of_norm
from equalbits.functional.averaged_norm import _covariance_op, _gradient_op
from equalbits.models import create_model, pooling, residual_blocks


def draw(dtype: torch.dtype) -> list[torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 5, 6, 4, generator=noise, dtype=torch.float64) * 2 + 0.7
    weight = torch.randn(7, 5, 1, 1, generator=noise, dtype=torch.float64)
    gain, bias = torch.linspace(-1, 1.5, 7), torch.linspace(0.4, -0.2, 7)
    return [each.to(dtype).requires_grad_() for each in (inputs, weight, gain, bias)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_equal_those_of_torch_modules(layout: torch.memory_format) -> None:
    inputs, weight, gain, bias = draw(torch.float64)
    found, mean, variance = average_of_norm(inputs.contiguous(memory_format=layout), weight, gain, bias, eps=1e-3)
    products = nnf.conv2d(inputs, weight)
    expected = nnf.avg_pool2d(nnf.batch_norm(products, None, None, gain, bias, training=True, eps=1e-3), 2)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.var_mean(products, dim=(0, 2, 3), correction=0), (variance, mean))
    seeds = torch.linspace(-1, 2, found.numel(), dtype=torch.float64).view_as(found)
    gradients = [torch.autograd.grad((y * seeds).sum(), (inputs, weight, gain, bias)) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_under_autocast_it_is_about_as_exact_as_the_modules() -> None:
    noise = torch.Generator().manual_seed(0)
    inputs = (torch.randn(16, 32, 20, 20, generator=noise) + 0.5).bfloat16()  # channels with a mean
    weight, gain, bias = torch.randn(48, 32, 1, 1, generator=noise) * 0.2, torch.ones(48), torch.zeros(48)
    seeds = torch.randn(16, 48, 10, 10, generator=noise)
    found = []
    for way in ("exact", "modules", "averages"):
        dtype = torch.float64 if way == "exact" else None
        given = [each.to(dtype or each.dtype).requires_grad_() for each in (inputs, weight, gain, bias)]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is None):
            if way == "averages":
                outputs, _, _ = average_of_norm(*given)
            else:
                products = nnf.conv2d(*given[:2])
                outputs = nnf.avg_pool2d(nnf.batch_norm(products, None, None, *given[2:], training=True), 2)
        gradients = torch.autograd.grad((outputs * seeds).sum(), given[:3])
        found.append([outputs.detach().double(), *(each.double() for each in gradients)])
    exact, modules, averages = found
    for right, theirs, mine in zip(exact, modules, averages, strict=True):
        assert (mine - right).norm() < 3 * (theirs - right).norm()


def test_the_operators_pass_opcheck() -> None:
    inputs = draw(torch.float64)[0]
    torch.library.opcheck(_covariance_op, (inputs,))
    torch.library.opcheck(
        _gradient_op, (torch.ones(5, 5, dtype=torch.float64), *(each.detach() for each in (inputs, inputs[0, :, 0, 0])))
    )


def test_a_net_for_large_images_has_the_same_output_and_gradients_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    settings = {"num_classes": 3, "image_size": 64, "width": 0.1, "input_quantizer": "sign"}
    plain = create_model("imagenet_resnet18", **settings).double().train()
    images, found, names = torch.randn(3, 3, 64, 64, dtype=torch.float64), [], ("norm_and_add", "conv_norm_and_add")
    for net in (plain, copy.deepcopy(plain)):
        calls: list[object] = []
        with monkeypatch.context() as patch:
            for name in names:
                run = getattr(residual_blocks, name)
                count = lambda *given, calls=calls, run=run, **options: calls.append(given) or run(*given, **options)  # noqa: E731
                patch.setattr(residual_blocks, name, count)
            outputs = net(images)
        found.append((outputs, torch.autograd.grad(outputs.square().sum(), list(net.parameters())), [*net.buffers()]))
        assert len(calls) == (0 if net is plain else 1 + 16)
        monkeypatch.setattr(pooling, "AVERAGED_SHORTCUTS", True)
        for module in (residual_blocks, pooling):
            monkeypatch.setattr(module, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_shortcut_for_large_images_equals_its_modules(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain = create_model("imagenet_resnet18", num_classes=4, image_size=32, width=0.1, input_quantizer="sign").train()
    shortcut = plain.stage2[0].shortcut
    averaged = copy.deepcopy(shortcut)
    inputs = torch.randn(4, 6, 8, 8)
    expected = shortcut(inputs)
    monkeypatch.setattr(pooling, "AVERAGED_SHORTCUTS", True)
    monkeypatch.setattr(pooling, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    forward = torch.compile(averaged, backend="aot_eager", fullgraph=True) if compiled else averaged
    found = forward(inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dict(averaged.named_buffers()), dict(shortcut.named_buffers()))
    for outputs in (found, expected):
        outputs.square().sum().backward()
    for mine, theirs in zip(averaged.parameters(), shortcut.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_a_shortcut_applies_its_modules_unless_asked_and_if_it_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = create_model("imagenet_resnet18", num_classes=4, image_size=32, width=0.1, input_quantizer="sign").train()
    shortcut = net.stage2[0].shortcut
    monkeypatch.setattr(pooling, "can_fuse", lambda *_: True)  # says so itself on a GPU only
    assert not shortcut.can_average(torch.ones(1, 6, 8, 8))
    monkeypatch.setattr(pooling, "AVERAGED_SHORTCUTS", True)
    assert shortcut.can_average(torch.ones(1, 6, 8, 8)) and not shortcut.can_average(torch.ones(1, 6, 7, 8))
    shortcut.pool = nn.MaxPool2d(2)
    assert not shortcut.can_average(torch.ones(1, 6, 8, 8))
