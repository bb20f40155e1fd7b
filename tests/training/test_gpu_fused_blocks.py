"""On a GPU: blocks in fused passes, and convolutions computed again, train as separate modules, in less memory."""

import math
from typing import Any

import pytest
import torch
from gpu_case import make_resnets_shallow

from equalbits.data import Loader, load_dataset
from equalbits.functional import fused_rprelu
from equalbits.models import create_model, pooling, residual_blocks
from equalbits.nn import fused_norm
from equalbits.training import optimizer, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
shallow = pytest.fixture(autouse=True)(make_resnets_shallow)


#: Switches by name, without which steps keep all in 16 bits.
OFF: dict[str, Any] = {
    "RECOMPUTE_FROM": {"eager": math.inf, "compiled": math.inf},
    "KEEP_IN_8_BITS": False,
    "UPDATES_IN_BACKWARD": ("small",),
    "AVERAGED_SHORTCUTS": False,
    "POOLS_IN_BYTES": False,
}
AGAIN = {"RECOMPUTE_FROM": {"eager": 1.0, "compiled": 1.0}}
IN_8_BITS = {"KEEP_IN_8_BITS": True, "UPDATES_IN_BACKWARD": ("normal", "small")}
LARGE_IMAGES = {"AVERAGED_SHORTCUTS": True, "POOLS_IN_BYTES": True}
#: Nets, and settings with which captured steps train the same within rounding.
SAVINGS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "resnet18, sign": [("normal", AGAIN), ("small", {}), ("normal", IN_8_BITS)],
    "resnet18, rsign": [("normal", AGAIN), ("small", {})],
    "imagenet_resnet18, sign": [("normal", LARGE_IMAGES), ("normal", LARGE_IMAGES | IN_8_BITS | AGAIN)],
}


@pytest.mark.parametrize("case", SAVINGS)
def test_captured_steps_that_save_memory_train_the_same(
    case: str, make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, inputs = case.split(", ")
    side = 16 if name == "resnet18" else 64
    data, losses = load_dataset(f"synthetic:3x{side}x{side}:4:64", split="train", device="cuda"), []
    for memory, switches in [("normal", {}), *SAVINGS[case]]:
        for switch, value in (OFF | switches).items():
            module = next(each for each in (fused_norm, pooling, optimizer) if hasattr(each, switch))
            monkeypatch.setattr(module, switch, value)
        torch.manual_seed(0)
        shape = {"num_classes": 4, "image_size": side, "width": 0.5, **({"rprelu": True} if inputs == "rsign" else {})}
        net = create_model(name, input_quantizer=inputs, **shape).cuda()
        config = make_config(epochs=3, speed="captured", precision="bf16", memory=memory, lr=0.01)
        history = train(net, Loader(data, batch_size=16, shuffle=True), config)
        losses.append([epoch.train.loss for epoch in history.epochs])
    for saved in losses[1:]:
        torch.testing.assert_close(losses[0][0], saved[0], rtol=0.02, atol=0.02)
        torch.testing.assert_close(losses[0], saved, rtol=0.05, atol=0.05)


def test_plain_steps_with_the_fused_norm_train_as_without(make_config) -> None:
    data = load_dataset("synthetic:3x16x16:4:64", split="train", device="cuda")
    losses = []
    for fuse in (False, True):
        torch.manual_seed(0)
        net = create_model("resnet18", input_quantizer="sign", num_classes=4, image_size=16, width=0.5).cuda()
        if not fuse:  # a hook inside must be called
            net.head.register_forward_hook(lambda *_: None)
        config = make_config(epochs=2, speed="plain", precision="fp32", lr=0.01)
        history = train(net, Loader(data, batch_size=16, shuffle=True), config)
        losses.append([epoch.train.loss for epoch in history.epochs])
    torch.testing.assert_close(losses[0], losses[1], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("speed", ["plain", "captured"])
def test_losses_with_the_fused_rprelu_are_those_of_separate_modules(
    speed: str, make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of 200 steps, in means of 20; the first ones before rounding flips signs."""
    data = load_dataset("synthetic:3x16x16:4:320", split="train", device="cuda")
    losses, launched, gpu_for = [], [], fused_rprelu.RPRELU.kernels
    monkeypatch.setattr(fused_rprelu.RPRELU, "kernels", lambda c: launched.append(c.shape) or gpu_for(c))
    for fuse in (False, True):
        torch.manual_seed(0)
        shape = {"num_classes": 4, "image_size": 16, "width": 0.5}
        net = create_model("resnet18", input_quantizer="rsign", rprelu=True, **shape).cuda()
        if not fuse:
            monkeypatch.setattr(residual_blocks, "can_fuse", lambda *_: False)
        config = make_config(epochs=10, speed=speed, precision="bf16", lr=0.01)
        history = train(net, Loader(data, batch_size=16, shuffle=True), config)
        losses.append([epoch.train.loss for epoch in history.epochs])
        assert (len(launched) >= 2 * 4) == fuse  # forward and backward of each half of a block
        monkeypatch.setattr(residual_blocks, "can_fuse", fused_norm.can_fuse)
    torch.testing.assert_close(losses[0][0], losses[1][0], rtol=0.03, atol=0.03)
    torch.testing.assert_close(losses[0], losses[1], rtol=0.1, atol=0.25)  # on a CPU up to 0.2 apart
    assert max(losses[0][-1], losses[1][-1]) < 0.3
