"""A step equals plain torch: the loss, gradients and updates of a loop written by hand."""

import copy
import dataclasses
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.nn import BinaryLinear
from equalbits.training import OptimizerConfig, TrainConfig, train
from equalbits.training.randomness import step_seed

OPTIMIZERS = {
    "sgd": (OptimizerConfig(lr=0.1, momentum=0.8, weight_decay=0.01), torch.optim.SGD, {"momentum": 0.8}),
    "nesterov": (
        OptimizerConfig(lr=0.1, nesterov=True, weight_decay=0.01), torch.optim.SGD, {"momentum": 0.9, "nesterov": True},
    ),
    "plain sgd": (OptimizerConfig(lr=0.1, momentum=0, weight_decay=0.01), torch.optim.SGD, {}),
    "adam": (
        OptimizerConfig(name="adam", lr=0.1, weight_decay=0.01, betas=(0.8, 0.9)), torch.optim.Adam,
        {"betas": (0.8, 0.9)},
    ),
    "adamw": (OptimizerConfig(name="adamw", lr=0.1, weight_decay=0.01), torch.optim.AdamW, {}),
}  # fmt: skip


def assert_same_weights(model: nn.Module, other: nn.Module, **tolerance: float) -> None:
    for (name, mine), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        if tolerance:
            torch.testing.assert_close(mine, theirs, msg=name, **tolerance)
        else:
            assert torch.equal(mine, theirs), name


def by_hand(model, loader, optimizer, *, epochs=2, smoothing=0.0, clip=0.0, rates=(0.1, 0.05)):
    """The loop one would write."""
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = rates[epoch]
        for images, labels in loader.epoch(epoch):
            optimizer.zero_grad()
            nnf.cross_entropy(model(images), labels, label_smoothing=smoothing).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_the_loop_one_would_write_by_hand_to_the_bit(name: str, make_net, make_loader) -> None:
    config, kind, settings = OPTIMIZERS[name]
    ours, theirs = make_net(), make_net()
    train(ours, make_loader(), TrainConfig(epochs=2, optimizer=config))
    by_hand(theirs, make_loader(), kind(theirs.parameters(), lr=0.1, weight_decay=0.01, **settings))
    assert_same_weights(ours, theirs)


def test_label_smoothing_and_clipping_are_torchs(make_net, make_loader, make_config) -> None:
    ours, theirs, plain = make_net(), make_net(), make_net()
    config = TrainConfig(epochs=2, optimizer=OptimizerConfig(lr=0.1), label_smoothing=0.2, clip_norm=0.3)
    train(ours, make_loader(), config)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    by_hand(theirs, make_loader(), optimizer, smoothing=0.2, clip=0.3)
    assert_same_weights(ours, theirs)
    train(plain, make_loader(), dataclasses.replace(config, label_smoothing=0.0, clip_norm=0.0))
    assert not torch.equal(ours[0].weight, plain[0].weight)


def test_gradient_accumulation_takes_the_same_step_as_the_whole_batch(make_net, make_loader) -> None:
    whole = make_net().double()
    loader = [(images.double(), labels) for images, labels in make_loader().epoch(0)]
    config = TrainConfig(epochs=2, optimizer=OptimizerConfig(lr=0.1))
    parts = copy.deepcopy(whole)
    history = train(whole, loader, config)
    for pieces in (3, 50, 10**20):  # 8 and 4 images into 3 uneven parts; more parts than images, or than torch counts
        in_parts = copy.deepcopy(parts)
        other = train(in_parts, loader, dataclasses.replace(config, accumulate=pieces))
        assert_same_weights(in_parts, whole, rtol=1e-5, atol=1e-7)  # logits are counted in float32
        assert other.epochs[1].train.correct == history.epochs[1].train.correct
        assert other.epochs[1].train.loss == pytest.approx(history.epochs[1].train.loss)


def test_layers_that_are_frozen_stay_and_a_model_that_is_all_frozen_is_refused(make_net, make_loader) -> None:
    model = make_net()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    train(model, make_loader(), TrainConfig(epochs=1))
    assert torch.equal(model[0].weight, before)
    with pytest.raises(ValueError, match="no trainable parameter"):
        train(model.requires_grad_(False), make_loader(), TrainConfig(epochs=1))


def test_bf16_trains_on_a_cpu_in_other_numbers_than_fp32(make_net, make_loader, make_config) -> None:
    half, full = make_net(), make_net()
    coarse = train(half, make_loader(), make_config(precision="bf16", epochs=6))
    fine = train(full, make_loader(), make_config(precision="fp32", epochs=6))
    assert half[0].weight.dtype == torch.float32
    assert not torch.equal(half[0].weight, full[0].weight)
    assert coarse.epochs[-1].train.loss < coarse.epochs[0].train.loss
    assert coarse.epochs[0].train.loss == pytest.approx(fine.epochs[0].train.loss, rel=0.05)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a compiler")
def test_a_compiled_step_trains_what_a_plain_one_trains(make_loader, make_config) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), BinaryLinear(64, 4))
    compiled = copy.deepcopy(plain)
    expected = train(plain, make_loader(), make_config(epochs=2, speed="plain"))
    found = train(compiled, make_loader(), make_config(epochs=2, speed="compiled"))
    assert_same_weights(compiled, plain, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(found.epochs, expected.epochs, strict=True):
        assert mine.train.loss == pytest.approx(theirs.train.loss, rel=1e-4)
        assert mine.train.total == 44  # the smaller last batch too


def test_a_captured_step_is_refused_where_there_is_no_gpu(make_net, make_loader, make_config) -> None:
    with pytest.raises(ValueError, match="speed='captured' needs the model on a CUDA device"):
        train(make_net(), make_loader(), make_config(speed="captured"))
    with pytest.raises(ValueError, match="speed='recorded' needs the model on a CUDA device"):
        train(make_net(), make_loader(), make_config(speed="recorded"))
    listed = list(make_loader().epoch(0))
    with pytest.raises(ValueError, match="speed='captured' needs one process, data on a GPU and distill"):
        train(make_net(), listed, make_config(speed="captured"))


def test_each_step_draws_its_dropout_from_a_seed_of_its_own(make_net, make_loader, monkeypatch) -> None:
    ours, theirs, loader = make_net(dropout=0.3), make_net(dropout=0.3), make_loader()
    with monkeypatch.context() as patch:
        # Torch's manual_seed notes the call stack for each kind of device that is not there: too slow for every step.
        patch.setattr("traceback.format_stack", lambda *_: pytest.fail("a step looked at the whole call stack"))
        train(
            ours, loader, TrainConfig(epochs=2, optimizer=OptimizerConfig(lr=0.1, momentum=0, weight_decay=0), seed=5)
        )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    with torch.random.fork_rng(devices=[]):
        for step, (images, labels) in enumerate(batch for epoch in range(2) for batch in loader.epoch(epoch)):
            optimizer.param_groups[0]["lr"] = (0.1, 0.05)[step // len(loader)]
            torch.manual_seed(step_seed(5, step, rank=0))
            optimizer.zero_grad()
            nnf.cross_entropy(theirs(images), labels).backward()
            optimizer.step()
    assert_same_weights(ours, theirs)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a compiler")
def test_many_models_are_compiled_in_one_process_and_the_callers_compiled_functions_stay() -> None:
    compilations: list[str] = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        compilations.append("compiled")
        return graph.forward

    @torch.compile(backend=count)
    def of_caller(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    of_caller(torch.ones(3))
    with torch._dynamo.config.patch(cache_size_limit=1, fail_on_cache_limit_hit=True):
        for width in (1, 2, 3):  # another width is another compilation
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 4))
            batch = torch.randn(4, 1, 8, 8), torch.arange(4)
            train(model, [batch], TrainConfig(epochs=1, speed="compiled"))
    of_caller(torch.ones(3))
    assert compilations == ["compiled"]


def test_the_backward_pass_runs_in_the_thread_of_the_forward_pass(make_net, make_loader, make_config) -> None:
    net, alone = make_net(), []
    next(net.parameters()).register_hook(lambda _: alone.append(not torch._C._is_multithreading_enabled()))
    train(net, make_loader(), make_config())
    assert alone and all(alone) and torch._C._is_multithreading_enabled()
