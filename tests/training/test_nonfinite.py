"""A non-finite loss stops the run with step, layer and remedy; non-finite weights are never saved."""

import pytest
import torch
from torch import Tensor, nn

from equalbits.nn import BinaryLinear, BNNPlus, SignActivation
from equalbits.training import (
    NonFiniteError,
    OptimizerConfig,
    TrainConfig,
    evaluate,
    load_checkpoint,
    train,
    training_run,
)

LAST = "last.safetensors"


class Spoil(nn.Module):
    """Gives NaN from some forward pass on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.passes = at, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        return inputs * float("nan") if self.passes >= self.at else inputs


def spoiled(net: nn.Module, at: int) -> nn.Module:
    net[4] = Spoil(at)
    return net


def all_finite(path) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in load_checkpoint(path)[0].values())


def test_a_loss_that_is_nan_stops_with_step_layer_and_last_good_checkpoint(
    tmp_path, make_net, make_loader, make_config
) -> None:
    model = spoiled(make_net(), at=9)
    with pytest.raises(NonFiniteError) as caught:
        train(model, make_loader(), make_config(checkpoint_seconds=0.0), out=tmp_path)
    line = str(caught.value)
    assert line.startswith("the loss is nan at step 9; first non-finite output in layer '4', a Spoil; ")
    assert line.endswith(f"the last good checkpoint is {tmp_path / LAST}; lower optimizer.lr or set clip_norm=1")
    assert "\n" not in line
    assert all_finite(tmp_path / LAST)
    assert load_checkpoint(tmp_path / LAST)[1]["batch"] == 2  # step 8
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())  # the step was not taken
    assert not any(module._forward_hooks for module in model.modules())


def test_a_run_resumes_from_the_last_good_checkpoint(tmp_path, make_net, make_loader, make_config) -> None:
    config = make_config(checkpoint_seconds=0.0)
    with pytest.raises(NonFiniteError):
        train(spoiled(make_net(), at=9), make_loader(), config, out=tmp_path)
    whole, mended = spoiled(make_net(), at=1000), spoiled(make_net(), at=1000)
    train(whole, make_loader(), config)
    train(mended, make_loader(), config, out=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(mended.parameters(), whole.parameters(), strict=True))


def test_the_error_states_that_nothing_was_saved(make_net, make_loader, make_config) -> None:
    with pytest.raises(NonFiniteError, match=r"the loss is nan at step 2; .*; nothing was saved before it"):
        train(spoiled(make_net(), at=2), make_loader(), make_config())


def test_non_finite_weights_under_a_finite_loss_are_never_saved(tmp_path, make_net, make_loader, make_config) -> None:
    model = make_net()

    def spoil(net: nn.Module, step: int) -> None:
        if step == 4:
            net[7].weight.data[0, 0] = float("inf")

    with pytest.raises(NonFiniteError, match="non-finite weights at step 4; first non-finite weights in layer '7'"):
        train(model, make_loader(), make_config(checkpoint_seconds=0.0), watchers=[spoil], out=tmp_path)
    assert all_finite(tmp_path / LAST)
    assert load_checkpoint(tmp_path / LAST)[1]["batch"] == 3


def test_the_best_model_and_the_history_never_contain_non_finite_weights(
    tmp_path, make_net, make_loader, make_config
) -> None:
    def spoil(net: nn.Module, step: int) -> None:
        if step == 6:  # the last of the epoch: the loss of none of its steps knows
            net[0].weight.data.fill_(float("nan"))

    records = []
    with pytest.raises(NonFiniteError, match="non-finite weights at step 6"):
        train(
            make_net(), make_loader(), make_config(), test=make_loader("test"), watchers=[spoil], out=tmp_path,
            reporters=[records.append],
        )  # fmt: skip
    assert records == []
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_penalty_that_is_not_finite_stops_the_run_too() -> None:
    model = nn.Sequential(BinaryLinear(4, 3, weight_quantizer=BNNPlus(penalty_weight=1e38)))
    with torch.no_grad():
        model[0].weight.fill_(1e3)
    batches = [(torch.randn(4, 4), torch.randint(3, (4,)))]
    with pytest.raises(NonFiniteError, match="the loss is inf at step 1; all weights are still finite"):
        train(model, batches, TrainConfig(epochs=1))


def test_images_that_are_not_finite_are_blamed(make_net, make_loader, make_config) -> None:
    batches = list(make_loader().epoch(0))
    batches[3] = (batches[3][0] / 0, batches[3][1])
    with pytest.raises(
        NonFiniteError, match=r"at step 4; the images themselves are not finite; .*; correct them, or data"
    ) as caught:
        train(make_net(), batches, make_config())
    assert "optimizer.lr" not in str(caught.value)  # no learning rate helps


def test_non_finite_test_images_are_distinguished_from_training_images(make_net, make_loader, make_config) -> None:
    images, labels = next(iter(make_loader("test")))
    where = r"the loss of the test images is nan at step 6; all weights are still finite, so check the images"
    with pytest.raises(NonFiniteError, match=where):
        train(make_net(), make_loader(), make_config(), test=[(images / 0, labels)])


def test_a_label_outside_the_classes_is_named_with_its_batch(make_net, make_loader, make_config) -> None:
    batches = list(make_loader().epoch(0))
    batches[3][1][-1] = 9
    with pytest.raises(
        ValueError, match=r"batch 4: label 9 is not a class of the model, which has 4 outputs: number classes"
    ):
        train(make_net(), batches, make_config())

    images, labels = next(iter(make_loader("test")))
    test = [(images, labels), (images, labels + 9)]
    with pytest.raises(
        ValueError, match=r"batch 2 of the test images: label \d+ is not a class of the model, .*: number"
    ):
        train(make_net(), make_loader(), make_config(), test=test)

    def broken(model: nn.Module, inputs: object) -> None:
        raise IndexError("list index out of range")

    model = make_net()
    model.register_forward_pre_hook(broken)
    with pytest.raises(IndexError, match="list index"):  # someone else's mistake stays what it is
        train(model, make_loader(), make_config())


def test_a_learning_rate_far_too_large_is_caught(make_net, make_loader, make_config) -> None:
    huge = make_config(epochs=30, schedule="constant", optimizer=OptimizerConfig(lr=1e30))
    with pytest.raises(NonFiniteError, match=r"lower optimizer.lr or set clip_norm=1"):
        train(make_net(), make_loader(), huge)


def hidden_by_signs() -> nn.Module:
    """A net whose logits are finite whatever its stem holds."""
    signs = BinaryLinear(64, 4, input_quantizer=SignActivation())
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), signs)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda net: net[1].weight.data.fill_(float("nan")), "first non-finite weights in layer '1'; use another"),
        (lambda net: net[1].bias.data[3:].fill_(float("inf")), "first non-finite weights in layer '1'; use another"),
        (lambda net: net[2].running_var.fill_(float("nan")), "buffer '2.running_var' holds NaN; use another"),
    ],
)
def test_a_net_with_nan_hidden_by_signs_gets_no_score(spoil, message, make_loader) -> None:
    model = hidden_by_signs()
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    assert evaluate(model, make_loader("test")).total == 11
    spoil(model)
    assert model.eval()(torch.randn(2, 1, 8, 8)).isfinite().all()
    with pytest.raises(NonFiniteError, match=f"cannot score a diverged model: {message}"):
        evaluate(model, make_loader("test"))


def test_a_loss_that_is_nan_gives_no_score(make_net, make_loader) -> None:
    with pytest.raises(NonFiniteError, match="the loss is nan on the test images; all weights are still finite"):
        evaluate(spoiled(make_net(), at=1), make_loader("test"))


def test_weights_that_signs_hide_are_noticed_within_the_epoch(make_loader, make_config, monkeypatch) -> None:
    monkeypatch.setattr(training_run, "REPORT_SECONDS", 0.0)

    def spoil(net: nn.Module, step: int) -> None:
        if step == 2:
            net[1].weight.data.fill_(float("nan"))

    with pytest.raises(NonFiniteError, match="non-finite weights at step 2; first non-finite weights in layer '1'"):
        train(hidden_by_signs(), make_loader(), make_config(), watchers=[spoil])
