"""A run interrupted anywhere resumes to the bits of an uninterrupted one."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from equalbits.nn import BinaryLinear, Bits
from equalbits.training import (
    CheckpointError,
    InterruptedTraining,
    OptimizerConfig,
    load_checkpoint,
    save_checkpoint,
    train,
)

LAST, BEST = "last.safetensors", "best.safetensors"


def stop_after(step: int):
    """A watcher that sends this process a signal at a step."""

    def watch(model: nn.Module, done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


def as_rows(history) -> list[dict]:
    return [{**record.as_dict(), "seconds": None} for record in history.epochs]


def assert_same_checkpoint(path: Path, other: Path) -> None:
    (mine, facts), (theirs, expected) = load_checkpoint(path), load_checkpoint(other)
    assert sorted(mine) == sorted(theirs)
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    for known in (facts, expected):
        known.pop("seconds")
        known["history"] = [{**record, "seconds": None} for record in known["history"]]
    assert facts == expected


OPTIMIZERS = [
    OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=0.01),
    OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adamw"])
def test_a_run_stopped_at_any_step_ends_with_the_same_bits(
    optimizer, tmp_path, make_net, make_loader, make_config
) -> None:
    config = make_config(optimizer=optimizer, warmup=1, clip_norm=1.0)
    whole = make_net(dropout=0.4, norm=True)
    expected = train(whole, make_loader(), config, test=make_loader("test"), out=tmp_path / "whole")
    stops = (1, 3, 5, 6, 7, 12, 14, 17)  # inside epochs of 6 steps, at an end (6, 12), and just before one (5, 17)
    for step in stops:
        model = make_net(seed=0 if step == 1 else 77, dropout=0.4, norm=True)  # later ones bring nothing of their own
        with pytest.raises(InterruptedTraining, match="stopped by SIGTERM; everything up to this step is in") as caught:
            watch = [stop_after(step)]
            train(model, make_loader(), config, test=make_loader("test"), watchers=watch, out=tmp_path / "parts")
        assert caught.value.signal_number == signal.SIGTERM
    model = make_net(seed=99, dropout=0.4, norm=True)
    history = train(model, make_loader(), config, test=make_loader("test"), out=tmp_path / "parts")
    assert as_rows(history) == as_rows(expected)
    assert_same_checkpoint(tmp_path / "parts" / LAST, tmp_path / "whole" / LAST)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), whole.state_dict().values(), strict=True))
    best, _ = load_checkpoint(tmp_path / "parts" / BEST)
    expected_best, _ = load_checkpoint(tmp_path / "whole" / BEST)
    assert all(torch.equal(best[name], tensor) for name, tensor in expected_best.items())


def bits_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    bits = BinaryLinear(64, 8, weight_quantizer=Bits(p_pos=0.5))
    return nn.Sequential(nn.Flatten(), bits, nn.BatchNorm1d(8), nn.Linear(8, 4))


def test_an_interrupted_net_of_bits_resumes_flipping(tmp_path, make_loader, make_config) -> None:
    config = make_config(optimizer=OptimizerConfig(name="balanced-bop", lr=0.05, gamma=0.3, tau=1e-4))
    whole = bits_net(0)
    start = whole[1].weight.detach().clone()
    train(whole, make_loader(), config)
    assert not torch.equal(whole[1].weight, start)
    for step in (2, 9):
        with pytest.raises(InterruptedTraining):
            train(bits_net(0 if step == 2 else 5), make_loader(), config, watchers=[stop_after(step)], out=tmp_path)
    parts = bits_net(6)
    train(parts, make_loader(), config, out=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(parts.state_dict().values(), whole.state_dict().values(), strict=True))


class Noisy(Dataset):
    """Draws a random number at every access, as a transform of torchvision does."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int):
        return torch.randn(1, 8, 8) + index, index % 4


def test_a_shuffling_torch_dataloader_resumes_with_the_same_images(tmp_path, make_net, make_config) -> None:
    def loader() -> DataLoader:
        return DataLoader(Noisy(), batch_size=4, shuffle=True)

    whole, parts = make_net(), make_net()
    config = make_config(lr=0.001)
    train(whole, loader(), config)
    for step in (2, 7):
        torch.manual_seed(step)  # the caller's own state has no say
        with pytest.raises(InterruptedTraining):
            train(parts, loader(), config, watchers=[stop_after(step)], out=tmp_path)
    train(parts, loader(), config, out=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(parts.parameters(), whole.parameters(), strict=True))


def test_the_seconds_of_an_epoch_are_those_of_all_its_pieces(tmp_path, make_net, make_loader, make_config) -> None:
    with pytest.raises(InterruptedTraining):
        train(make_net(), make_loader(), make_config(epochs=1), watchers=[stop_after(2)], out=tmp_path)
    tensors, facts = load_checkpoint(tmp_path / LAST)
    assert facts["seconds"] > 0
    save_checkpoint(tmp_path / LAST, tensors, {**facts, "seconds": 5000.0})
    history = train(make_net(), make_loader(), make_config(epochs=1), out=tmp_path)
    assert 5000 < history.epochs[0].seconds < 5060


def test_a_finished_run_returns_at_once_with_the_same_result(tmp_path, make_net, make_loader, make_config) -> None:
    model, again = make_net(), make_net(seed=5)
    history = train(model, make_loader(), make_config(), test=make_loader("test"), out=tmp_path)
    content = (tmp_path / LAST).read_bytes()
    steps: list[int] = []
    watch = [lambda net, step: steps.append(step)]
    second = train(again, make_loader(), make_config(), test=make_loader("test"), out=tmp_path, watchers=watch)
    assert second == history
    assert steps == [18]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert (tmp_path / LAST).read_bytes() == content


def stopped(tmp_path, make_net, make_loader, make_config) -> Path:
    with pytest.raises(InterruptedTraining):
        train(make_net(), make_loader(), make_config(), watchers=[stop_after(2)], out=tmp_path)
    return tmp_path / LAST


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"epochs": 4}, "was made with epochs=3, this run has epochs=4: use the same settings to resume, or another"),
        ({"seed": 1}, "was made with seed=0, this run has seed=1"),
        ({"optimizer": OptimizerConfig(lr=0.2)}, "was made with optimizer.lr=0.05, this run has optimizer.lr=0.2"),
        ({"precision": "bf16"}, "was made with precision=fp32, this run has precision=bf16"),
        ({"accumulate": 2}, "was made with accumulate=1, this run has accumulate=2"),
    ],
)
def test_other_settings_are_refused_in_one_line(change, line, tmp_path, make_net, make_loader, make_config) -> None:
    path = stopped(tmp_path, make_net, make_loader, make_config)
    content = path.read_bytes()
    with pytest.raises(CheckpointError, match=line) as caught:
        train(make_net(), make_loader(), dataclasses.replace(make_config(), **change), out=tmp_path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_setting_missing_from_the_checkpoint_had_its_default(tmp_path, make_net, make_loader, make_config) -> None:
    path = stopped(tmp_path, make_net, make_loader, make_config)
    tensors, facts = load_checkpoint(path)
    del facts["config"]["optimizer"]["nesterov"]
    save_checkpoint(path, tensors, facts)
    other = make_config(optimizer=OptimizerConfig(lr=0.05, nesterov=True))
    with pytest.raises(CheckpointError, match=r"was made with optimizer\.nesterov=False, this run has .*=True"):
        train(make_net(), make_loader(), other, out=tmp_path)
    assert len(train(make_net(), make_loader(), make_config(), out=tmp_path).epochs) == 3


def test_batches_of_another_number_and_weights_of_another_model_are_refused(
    tmp_path, make_net, make_loader, make_config
) -> None:
    stopped(tmp_path, make_net, make_loader, make_config)
    with pytest.raises(CheckpointError, match="was made with batches=6, this run has batches=11"):
        train(make_net(), make_loader(batch_size=4), make_config(), out=tmp_path)
    with pytest.raises(CheckpointError, match="holds the weights of another model"):
        train(make_net(norm=True), make_loader(), make_config(), out=tmp_path)


def test_settings_that_change_no_result_may_differ(tmp_path, make_net, make_loader, make_config) -> None:
    stopped(tmp_path, make_net, make_loader, make_config)
    config = make_config(checkpoint_seconds=5.0, evaluate_every=3, speed="plain")
    assert len(train(make_net(), make_loader(), config, out=tmp_path).epochs) == 3


@pytest.mark.parametrize("missing", ["meter", "optimizer", "history"])
def test_a_checkpoint_that_lacks_a_part_is_refused(missing, tmp_path, make_net, make_loader, make_config) -> None:
    path = stopped(tmp_path, make_net, make_loader, make_config)
    tensors, facts = load_checkpoint(path)
    tensors.pop(missing, None)
    facts.pop(missing, None)
    save_checkpoint(path, tensors, facts)
    with pytest.raises(CheckpointError, match=r"cannot resume from .*last.safetensors: it holds no training state"):
        train(make_net(), make_loader(), make_config(), out=tmp_path)


def test_a_damaged_checkpoint_stops_the_run_before_it_starts(tmp_path, make_net, make_loader, make_config) -> None:
    path = stopped(tmp_path, make_net, make_loader, make_config)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        train(make_net(), make_loader(), make_config(), out=tmp_path)


def test_a_checkpoint_is_saved_as_often_as_asked(tmp_path, make_net, make_loader, make_config) -> None:
    saved: list[tuple[int, int]] = []

    def watch(model: nn.Module, step: int) -> None:
        if (tmp_path / LAST).exists():
            facts = load_checkpoint(tmp_path / LAST)[1]
            saved.append((step, facts["epoch"] * 6 + facts["batch"]))

    train(make_net(), make_loader(), make_config(checkpoint_seconds=0.0), watchers=[watch], out=tmp_path)
    assert saved == [(step, step - 1) for step in range(2, 19)]
    rare, there = tmp_path / "rare", []
    watch_rare = [lambda model, step: there.append((rare / LAST).exists())]
    train(make_net(), make_loader(), make_config(checkpoint_seconds=1000.0), watchers=watch_rare, out=rare)
    assert there == [False] * 19
    assert load_checkpoint(rare / LAST)[1]["epoch"] == 3  # at the end, always


class StoppedWhileScored:
    """Test images whose second batch sends a stop signal; counts the images read."""

    def __init__(self, images) -> None:
        self.images, self.given = list(images), 0

    def __iter__(self):
        for batch in self.images:
            self.given += 1
            if self.given == 2:
                signal.raise_signal(signal.SIGTERM)
            yield batch


def test_a_run_interrupted_during_evaluation_evaluates_after_the_resume(
    tmp_path, make_net, make_loader, make_config
) -> None:
    config, images = make_config(epochs=2), [(torch.randn(3, 1, 8, 8), torch.arange(3))] * 5
    expected = train(make_net(norm=True), make_loader(), config, test=images, out=tmp_path / "whole")
    test = StoppedWhileScored(images)
    with pytest.raises(InterruptedTraining):
        train(make_net(norm=True), make_loader(), config, test=test, out=tmp_path / "parts")
    assert test.given == 2
    history = train(make_net(seed=9, norm=True), make_loader(), config, test=images, out=tmp_path / "parts")
    assert as_rows(history) == as_rows(expected)
    assert_same_checkpoint(tmp_path / "parts" / LAST, tmp_path / "whole" / LAST)
