"""Settings are validated at construction, and ``auto`` is resolved by the device."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from equalbits.models import create_model
from equalbits.training import DistillConfig, OptimizerConfig, TrainConfig, train


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: TrainConfig(epochs=0), "epochs=0 must be an integer, at least 1"),
        (lambda: TrainConfig(epochs=1, seed=-1), "seed=-1 must be an integer, at least 0"),
        (lambda: TrainConfig(epochs=1, seed=2**63), r"must be an integer, at least 0 and below 2\*\*63"),
        (lambda: TrainConfig(epochs=1, seed=10**400), r"must be an integer, at least 0 and below 2\*\*63"),
        (lambda: TrainConfig(epochs=1, precision="fp16"), "precision='fp16' must be one of auto, fp32"),
        (lambda: TrainConfig(epochs=1, speed="fast"), "speed='fast' must be one of auto, plain"),
        (
            lambda: TrainConfig(epochs=1, label_smoothing=1.0),
            "label_smoothing=1.0 must be a number, at least 0 and below 1",
        ),
        (lambda: TrainConfig(epochs=1, clip_norm=float("nan")), "clip_norm=nan must be a finite number, at least 0"),
        (lambda: TrainConfig(epochs=1, accumulate=0), "accumulate=0 must be an integer, at least 1"),
        (lambda: TrainConfig(epochs=1, checkpoint_seconds=-1), "checkpoint_seconds=-1 must be a number, at least 0"),
        (lambda: OptimizerConfig(name="lion"), "optimizer.name='lion' must be one of sgd, adam, adamw"),
        (lambda: OptimizerConfig(lr=0), "optimizer.lr=0 must be a number, above 0"),
        (lambda: OptimizerConfig(momentum=1), "optimizer.momentum=1 must be a number, at least 0 and below 1"),
        (lambda: OptimizerConfig(nesterov=True, momentum=0), "nesterov=true needs optimizer.momentum above 0"),
        (
            lambda: OptimizerConfig(betas=(0.9, 1.0)),
            r"optimizer.betas=\(0.9, 1.0\) must be a list of 2 numbers in brackets, each at least 0 and below 1",
        ),
        (lambda: DistillConfig(weight=1.5), "distill.weight=1.5 must be a number, at least 0 and at most 1"),
        (lambda: DistillConfig(temperature=0), "distill.temperature=0 must be a number, above 0"),
        (lambda: DistillConfig(attention=1.0), "distill.attention needs distill.layers"),
    ],
)
def test_an_invalid_setting_is_rejected_with_its_name_and_the_valid_values(make, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        make()


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        TrainConfig(epochs=1).epochs = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("device", "able", "precision", "speed"),
    [
        ("cpu", {"can_capture": True}, "fp32", "plain"),
        ("cuda", {"can_capture": True}, "bf16", "captured"),
        ("cuda", {"can_capture": False}, "bf16", "compiled"),
        ("cuda", {"can_capture": True, "can_compile": False}, "bf16", "plain"),
    ],
)
def test_auto_is_resolved_for_the_device(device: str, able: dict, precision: str, speed: str) -> None:
    config = TrainConfig(epochs=1).resolve_auto(device, **able)
    assert (config.precision, config.speed) == (precision, speed)


def test_an_explicit_precision_or_speed_is_never_changed() -> None:
    config = TrainConfig(epochs=1, precision="tf32", speed="compiled")
    for device in ("cpu", "cuda"):
        assert config.resolve_auto(device, can_capture=True) == config


def test_small_memory_trains_the_same_resnet() -> None:
    losses = []
    for memory in ("normal", "small"):
        torch.manual_seed(0)
        model = create_model("resnet18", width=0.125, num_classes=3, input_quantizer="sign").double()
        batches = [(torch.randn(4, 3, 32, 32).double(), torch.arange(4) % 3) for _ in range(2)]
        losses.append(train(model, batches, TrainConfig(epochs=1, memory=memory)).epochs[-1].train.loss)
        assert model.stage1[0].recomputes_convolutions == (memory == "small")
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def test_small_memory_is_refused_where_it_saves_nothing() -> None:
    with pytest.raises(ValueError, match="memory='small' needs a binary ResNet"):
        train(torch.nn.Linear(2, 2), [(torch.ones(2, 2), torch.zeros(2).long())], TrainConfig(epochs=1, memory="small"))
