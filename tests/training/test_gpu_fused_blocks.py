"""On a GPU: blocks in fused passes, and convolutions computed again, train as separate modules, in less memory."""

import math

import pytest
import torch

from equalbits.data import Loader, load_dataset
from equalbits.functional import fused_rprelu
from equalbits.models import create_model, residual_blocks
from equalbits.nn import fused_norm
from equalbits.training import TrainConfig, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("memory", ["normal", "small"])
@pytest.mark.parametrize("inputs", ["sign", "rsign"])
def test_a_captured_resnet_that_recomputes_convolutions_trains_the_same(
    inputs: str, memory: str, make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_dataset("synthetic:3x16x16:4:64", split="train", device="cuda")
    losses = []
    for least in (math.inf, 1.0):
        monkeypatch.setattr(fused_norm, "RECOMPUTE_FROM", {"eager": least, "compiled": least})
        torch.manual_seed(0)
        shape = {"num_classes": 4, "image_size": 16, "width": 0.5}
        net = create_model("resnet18", input_quantizer=inputs, rprelu=inputs == "rsign", **shape).cuda()
        config = make_config(
            epochs=3, speed="captured", precision="bf16", memory=memory if least == 1 else "normal", lr=0.01
        )
        history = train(net, Loader(data, batch_size=16, shuffle=True), config)
        losses.append([epoch.train.loss for epoch in history.epochs])
    torch.testing.assert_close(losses[0][0], losses[1][0], rtol=0.01, atol=0.01)
    torch.testing.assert_close(losses[0], losses[1], rtol=0.05, atol=0.05)


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
        assert (len(launched) >= 2 * 16) == fuse  # forward and backward of each half of a block
        monkeypatch.setattr(residual_blocks, "can_fuse", fused_norm.can_fuse)
    torch.testing.assert_close(losses[0][0], losses[1][0], rtol=0.03, atol=0.03)
    torch.testing.assert_close(losses[0], losses[1], rtol=0.1, atol=0.25)  # on a CPU up to 0.2 apart
    assert max(losses[0][-1], losses[1][-1]) < 0.3


def test_captured_steps_of_a_net_with_rprelu_take_less_memory_than_those_of_the_real_one() -> None:
    peaks = captured_peaks({"weight_quantizer": "bihalf", "input_quantizer": "rsign", "rprelu": True})
    assert peaks[1] < peaks[0]


def test_captured_steps_of_a_binary_resnet_take_less_memory_than_those_of_the_real_one() -> None:
    peaks = captured_peaks({"weight_quantizer": "bihalf", "input_quantizer": "sign"})
    assert peaks[1] < 0.9 * peaks[0]


def captured_peaks(binary: dict[str, object]) -> list[int]:
    """Return the peak memory of captured steps of the real ResNet-18, and of a binary one."""
    data, peaks = load_dataset("synthetic:3x32x32:4:256", split="train", device="cuda"), []
    for quantizers in ({"weight_quantizer": None}, binary):
        net = create_model("resnet18", num_classes=4, **quantizers).cuda()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train(net, Loader(data, batch_size=128), TrainConfig(epochs=1, speed="captured", precision="bf16"))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    return peaks
