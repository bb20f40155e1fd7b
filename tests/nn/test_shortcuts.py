"""A shortcut around each binary convolution makes deep nets without shortcuts of their own learn."""

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

import equalbits as eb
from equalbits.nn import BiHalf, SignActivation, adapt_for_binary_inputs_, binarize_, freeze
from equalbits.nn.shortcuts import Shortcut


def inverted_residual(given: int, made: int, stride: int) -> list[nn.Module]:
    """Three convolutions as in MobileNetV2: wider, depthwise, narrower; without its shortcut."""
    wide = 4 * given
    return [
        *(nn.Conv2d(given, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
        *(nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
        *(nn.Conv2d(wide, made, 1, bias=False), nn.BatchNorm2d(made)),
    ]


def mobile_net() -> nn.Sequential:
    torch.manual_seed(0)
    widths = [(12, 12, 1), (12, 18, 2), *[(18, 18, 1)] * 4, (18, 24, 2), (24, 24, 1)]
    blocks = [layer for block in widths for layer in inverted_residual(*block)]
    stem = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU6())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def embedded(split: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    loader = eb.Loader(eb.load_dataset("fashion", split=split), batch_size=count)
    return next(iter(loader))


def adapted(shortcuts: bool, **settings: object):
    model, images = mobile_net(), embedded("train", 32)[0]
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    return model, adapt_for_binary_inputs_(model, images, shortcuts=shortcuts, **settings)


def accuracy_after_training(model: nn.Module) -> float:
    images, labels = embedded("train", 2048)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=5e-3)
    for step in range(40):
        part = slice(step * 48, step * 48 + 48)
        optimizer.zero_grad()
        nnf.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    images, labels = embedded("test", 500)
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


def test_a_deep_net_of_inverted_residuals_learns_only_with_shortcuts():
    assert accuracy_after_training(adapted(False)[0]) < 0.2
    model, report = adapted(True)
    assert len(report.shortcuts) == 23 and "  shortcut  4\n" in str(report)
    assert report.activation == "Identity" and report.constant == ()
    assert accuracy_after_training(model) > 0.4
    eb.audit(model)


def test_a_net_with_shortcuts_freezes_and_packs_to_the_same_logits():
    model, images = adapted(True)[0].eval(), embedded("test", 4)[0]
    with torch.no_grad():
        expected = model(images)
        assert torch.equal(freeze(model)(images), expected)
    packed = eb.pack(model, images[:2])
    torch.testing.assert_close(torch.from_numpy(packed(images.numpy())), expected, rtol=1e-3, atol=1e-3)


class NormWithActivation(nn.BatchNorm2d):
    """A batch norm that holds its activation, as timm's does."""

    def __init__(self, channels: int, after: float = 0.0) -> None:
        super().__init__(channels)
        self.act, self.after = nn.ReLU(), after

    def forward(self, images):
        return self.act(super().forward(images)) + self.after


@pytest.mark.parametrize(("given", "made", "stride"), [(4, 4, 1), (4, 12, 2), (12, 4, 2), (10, 4, 1), (4, 10, 1)])
def test_the_sum_comes_before_the_activation_that_a_norm_holds(given, made, stride):
    torch.manual_seed(0)
    conv = nn.Conv2d(given, made, 3, stride, 1)
    last = (nn.Conv2d(made, made, 1), nn.BatchNorm2d(made), nn.Flatten(), nn.LazyLinear(2))
    model = nn.Sequential(nn.Conv2d(2, given, 1), conv, NormWithActivation(made), *last).eval()
    images = torch.randn(2, 2, 7, 7)
    model(images)
    model[2].running_mean.normal_()
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    inputs = model[0](images)
    normalized = nnf.batch_norm(model[1](inputs), model[2].running_mean, model[2].running_var)
    assert adapt_for_binary_inputs_(model, images, activation=nn.PReLU, shortcuts=True).shortcuts == ("1",)
    assert isinstance(model[1], Shortcut) and isinstance(model[2], nn.Sequential)
    if stride > 1:
        inputs = nnf.avg_pool2d(inputs, 2, 2, ceil_mode=True, count_include_pad=False)
    channels = -(-given // made) * made
    inputs = inputs[:, [position * given // channels for position in range(channels)]]
    expected = normalized + inputs.unflatten(1, (made, -1)).mean(dim=2)
    torch.testing.assert_close(model[1](model[0](images)), expected)
    assert isinstance(model[2][0], nn.ReLU | nn.PReLU)


def test_only_a_pair_that_is_called_once_and_keeps_its_values_gets_a_shortcut():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 1), shared, nn.BatchNorm2d(4), shared, nn.BatchNorm2d(4)),
        *(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), NormWithActivation(4, after=1.0)),
        *(nn.Conv2d(4, 4, 1), nn.PReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)),
    )
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    assert adapt_for_binary_inputs_(model, torch.randn(2, 3, 8, 8), shortcuts=True).shortcuts == ()
    with pytest.raises(ValueError, match="shortcuts=True needs an example"):
        adapt_for_binary_inputs_(model, shortcuts=True)
