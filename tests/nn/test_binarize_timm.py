"""``binarize_`` on families of timm: each converts, learns, and keeps exact counts in every filter."""

import importlib.util
import sys
import warnings

import pytest
import torch
from torch import nn

from equalbits import functional as F
from equalbits.nn import BiHalf, BinaryLayer, SignActivation, all_layers, binarize_, freeze


def import_timm():
    """timm, or a skip where it is not there.

    It imports torchvision, which fails at once where it lacks its compiled operators; defining the two names it
    looks up first is enough, since no model here calls them.
    """
    if importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None:
        pytest.skip("timm and torchvision are not installed", allow_module_level=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
        try:
            import timm
        except (ImportError, RuntimeError) as error:
            pytest.skip(f"timm does not import: {error}", allow_module_level=True)
    return timm


timm = import_timm()

FIRST, LAST, GATE = "the first layer", "the last layer", "a squeeze-and-excite gate"
DOWN = "a downsampling layer (by its name)"
FAMILIES = {  # name: arguments, how many layers become binary, what is left and why (a part of each name)
    "resnet18": ({}, 16, {"conv1": FIRST, "layer2.0.downsample.0": DOWN, "fc": LAST}),
    "mobilenetv3_small_050": ({}, 34, {"conv_stem": FIRST, "blocks.0.0.se.conv_reduce": GATE}),
    "convnext_atto": ({}, 36, {"stem.0": FIRST, "stages.1.downsample.1": DOWN, "head.fc": LAST}),
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 3}, 12, {"patch_embed.proj": FIRST, "head": LAST}),
    "efficientnet_b0": ({}, 48, {"conv_stem": FIRST, "blocks.1.0.se.conv_expand": GATE, "classifier": LAST}),
    "mixer_s32_224": ({"img_size": 64}, 32, {"stem.proj": FIRST, "head": LAST}),
    "beit_base_patch16_224": (
        {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 3},
        6,
        {"blocks.0.attn.qkv": "Attention accesses its .weight directly instead of calling the layer", "head": LAST},
    ),
}


def convert(name: str, arguments: dict, **how: object):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's own
        model = timm.create_model(name, num_classes=7, **arguments)
    return model, binarize_(model, BiHalf(0.4), **how)


def assert_learns_with_exact_counts(model: nn.Module, size: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called: list[nn.Module] = []
    layers = [module for module in model.modules() if isinstance(module, BinaryLayer)]
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: called.append(layer))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3, size, size)).square().mean().backward()
        optimizer.step()
    assert {id(layer) for layer in called} == {id(layer) for layer in layers}
    for layer in layers:
        assert layer.weight.grad is not None
        rows = layer.to_filters(layer.binary_weight()).flatten(1)
        assert set((rows > 0).sum(dim=1).tolist()) == {F.positive_count(rows.shape[1], 0.4)}
        assert torch.equal(rows.abs(), layer.scale.expand(rows.shape))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_timm_model_converts_trains_and_keeps_exact_counts(name):
    arguments, count, left = FAMILIES[name]
    model, report = convert(name, arguments)
    assert len(report.replaced) == count
    assert left.items() <= dict(report.left_real).items()
    assert_learns_with_exact_counts(model, arguments.get("img_size", 32))


@pytest.mark.filterwarnings("ignore:a binary layer's input is constant")
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_every_layer_may_be_binary_with_binary_inputs(name):
    arguments = FAMILIES[name][0]
    model, report = convert(name, arguments, input_quantizer=SignActivation(), where=all_layers)
    assert {reason for _, reason in report.left_real} <= {
        "of class timm.layers.linear.Linear, which may override forward"
    }
    assert_learns_with_exact_counts(model, arguments.get("img_size", 32))


def test_timms_reparameterization_is_right_on_a_frozen_model_and_wrong_on_latents():
    from timm.utils import reparameterize_model

    torch.manual_seed(0)
    model, _ = convert("repvgg_a0", {})
    model, images = model.eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected, frozen = model(images), freeze(model)
        assert torch.equal(frozen(images), expected)
        torch.testing.assert_close(reparameterize_model(frozen)(images), expected, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(reparameterize_model(model)(images), expected, rtol=1e-3, atol=1e-4)
