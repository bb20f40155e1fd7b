"""Weights of a trained real network start a binary one: by name, by order, from a file or from timm."""

import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import equalbits as eb


class Block(nn.Module):
    """A residual block with the names of torchvision and timm."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, bias=False), nn.BatchNorm2d(after)
        if before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after))


def other_names(width: int = 4, classes: int = 3) -> nn.Module:
    """A ResNet-18 for small images with the names of torchvision and timm."""
    net = nn.Module()
    net.conv1, net.bn1 = nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width)
    sides = [width, width, 2 * width, 4 * width, 8 * width]
    for stage in range(4):
        blocks = [Block(sides[stage], sides[stage + 1]), Block(sides[stage + 1], sides[stage + 1])]
        setattr(net, f"layer{stage + 1}", nn.Sequential(*blocks))
    net.fc = nn.Linear(8 * width, classes)
    return net


def binary_net(classes: int = 3) -> nn.Module:
    return eb.create_model("resnet18", num_classes=classes, weight_quantizer="bihalf", width=1 / 16)


def test_every_convolution_and_norm_of_a_resnet_is_found_under_other_names() -> None:
    real, model = other_names(), binary_net()
    report = eb.load_real(model, real)
    weights, ours = real.state_dict(), model.state_dict()
    assert dict(report.loaded)["head"] == "fc" and not report.left_new
    for name, other in report.loaded:
        assert torch.equal(ours[f"{name}.weight"], weights[f"{other}.weight"])
    convolutions = [other for _, other in report.loaded if weights[f"{other}.weight"].dim() == 4]
    assert sorted(convolutions) == sorted(name for name, each in real.named_modules() if isinstance(each, nn.Conv2d))
    assert eb.audit(model).exact


def test_a_classifier_of_other_classes_stays_new() -> None:
    model = binary_net(classes=7)
    before = model.state_dict()["head.weight"].clone()
    assert eb.load_real(model, other_names()).left_new == ("head",)
    assert torch.equal(model.state_dict()["head.weight"], before)


def test_files_and_state_dicts_load_like_the_model(tmp_path: Path) -> None:
    real = binary_net()
    save_file(real.state_dict(), tmp_path / "net.safetensors")
    save_file({f"model.{name}": value for name, value in real.state_dict().items()}, tmp_path / "last.safetensors")
    for source in (real, real.state_dict(), tmp_path / "net.safetensors", str(tmp_path / "last.safetensors"), tmp_path):
        model = binary_net()
        assert all(name == other for name, other in eb.load_real(model, source).loaded)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), real.parameters(), strict=True))


def test_pretrained_weights_of_timm_are_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    real = other_names()

    def create_model(name: str, *, pretrained: bool) -> nn.Module:
        asked.append((name, pretrained))
        return real

    timm = types.SimpleNamespace(create_model=create_model, list_models=lambda: ["resnet18"])
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert len(eb.load_real(binary_net(), "timm:resnet18").loaded) == 41 and asked == [("resnet18", True)]
    with pytest.raises(ValueError, match="timm has no model 'resnet19'"):
        eb.load_real(binary_net(), "timm:resnet19")


def test_weights_that_timm_cannot_load_are_refused_with_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, *, pretrained: bool) -> nn.Module:
        raise FileNotFoundError("the Hub was not reached.\nCheck your connection.")

    timm = types.SimpleNamespace(create_model=create_model, list_models=lambda: ["resnet18"])
    monkeypatch.setitem(sys.modules, "timm", timm)
    line = "timm:resnet18: its pretrained weights could not be loaded: the Hub was not reached. Check your connection$"
    with pytest.raises(ValueError, match=line):
        eb.load_real(binary_net(), "timm:resnet18")


def test_another_network_and_a_wrong_file_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("no tensors")
    for source, line in (
        (other_names(width=8), ": use one of the same network"),
        (
            tmp_path / "none.safetensors",
            "does not exist: give the directory of a run, a .safetensors file, or timm:NAME",
        ),
        (tmp_path, "is no run: give the directory of a run, a .safetensors file"),
        (tmp_path / "text.safetensors", "is not a safetensors file"),
    ):
        with pytest.raises(ValueError) as caught:
            eb.load_real(binary_net(), source)
        assert line in str(caught.value) and "\n" not in str(caught.value)
