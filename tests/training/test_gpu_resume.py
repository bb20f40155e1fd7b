"""On a GPU: interrupted runs resume to the same result; files of a run."""

import os
import signal

import pytest
import torch
from gpu_case import Witness, assert_close, make_loader, make_net, make_test
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.training import InterruptedTraining, NonFiniteError, OptimizerConfig, load_checkpoint, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


EVERYWHERE = (2, 5, 6, 11, 15)  # in an epoch, before and after its smaller last batch
RUNS = [(speed, name, EVERYWHERE) for speed in ("plain", "recorded") for name in ("sgd", "adamw")]


@pytest.mark.parametrize(
    ("speed", "optimizer", "stops"), [*RUNS, ("compiled", "sgd", (5, 11)), ("captured", "adamw", (5, 11))]
)
def test_a_run_interrupted_anywhere_resumes_to_the_same_result(
    speed: str, optimizer: str, stops: tuple[int, ...], tmp_path, make_config
) -> None:
    config = make_config(speed=speed, precision="fp32", optimizer=OptimizerConfig(name=optimizer, lr=0.01))

    def stop_after(step: int):
        return [lambda model, done: os.kill(os.getpid(), signal.SIGTERM) if done == step else None]

    whole, parts = make_net(), make_net()
    expected = train(whole, make_loader(), config, test=make_test())
    for step in stops:
        with pytest.raises(InterruptedTraining):
            train(parts, make_loader(), config, test=make_test(), watchers=stop_after(step), out=tmp_path)
        parts = make_net(seed=step)
    found = train(parts, make_loader(), config, test=make_test(), out=tmp_path)
    assert_close(parts, whole)
    assert [record.train.total for record in found.epochs] == [84, 84, 84]
    for mine, theirs in zip(found.epochs, expected.epochs, strict=True):
        assert mine.train.loss == pytest.approx(theirs.train.loss, rel=1e-2)


@pytest.mark.parametrize("speed", ["plain", "captured", "recorded"])
def test_dropout_depends_on_the_step_alone(speed: str, tmp_path, make_config) -> None:
    def run(**settings) -> Tensor:
        model = Witness(0.5).cuda()
        train(model, make_loader(), make_config(speed=speed, **settings))
        return model.passed

    first = run()
    assert torch.equal(run(), first)
    assert not torch.equal(run(seed=1), first)
    parts = Witness(0.5).cuda()
    for stop in (4, 9):
        watch = [lambda model, step, stop=stop: os.kill(os.getpid(), signal.SIGTERM) if step == stop else None]
        with pytest.raises(InterruptedTraining):
            train(parts, make_loader(), make_config(speed=speed), watchers=watch, out=tmp_path)
    train(parts, make_loader(), make_config(speed=speed), out=tmp_path)
    assert torch.equal(parts.passed, first)


def test_auto_captures_in_bf16_and_learns(tmp_path, make_config) -> None:
    config = make_config(epochs=15, lr=0.05)
    history = train(make_net(), make_loader(augment=False), config, test=make_test(), out=tmp_path)
    saved = load_checkpoint(tmp_path / "last.safetensors")[1]["config"]
    assert (saved["speed"], saved["precision"]) == ("captured", "bf16")
    assert history.epochs[-1].train.accuracy > 80


def test_data_on_the_cpu_is_trained_on_without_capture(tmp_path, make_config) -> None:
    data = load_dataset("synthetic:1x8x8:4:84", split="train")
    history = train(make_net(), Loader(data, batch_size=16, shuffle=True), make_config(epochs=1), out=tmp_path)
    assert load_checkpoint(tmp_path / "last.safetensors")[1]["config"]["speed"] == "compiled"
    assert history.epochs[0].train.total == 84


def test_non_finite_weights_are_never_saved(tmp_path, make_config) -> None:
    def spoil(model: nn.Module, step: int) -> None:
        if step == 9:
            model[0].weight.data.fill_(float("nan"))

    config = make_config(speed="captured", checkpoint_seconds=0.0)
    with pytest.raises(NonFiniteError, match="the last good checkpoint is"):
        train(make_net(), make_loader(), config, watchers=[spoil], out=tmp_path)
    tensors, facts = load_checkpoint(tmp_path / "last.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    assert facts["epoch"] * 6 + facts["batch"] == 8
