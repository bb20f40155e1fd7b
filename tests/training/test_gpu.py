"""On a GPU: captured, recorded and compiled steps train what plain ones train."""

import dataclasses
import os
import signal
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear, IRNet
from equalbits.training import (
    DistillConfig,
    InterruptedTraining,
    NonFiniteError,
    OptimizerConfig,
    StackError,
    TrainConfig,
    load_checkpoint,
    train,
    train_stack,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SPEEDS = ["compiled", "captured", "recorded"]


def seeded(config: TrainConfig | Sequence[TrainConfig], seeds: Sequence[int]) -> list[TrainConfig]:
    configs = [config] * len(seeds) if isinstance(config, TrainConfig) else config
    return [dataclasses.replace(each, seed=seed) for each, seed in zip(configs, seeds, strict=True)]


def make_net(seed: int = 0, *, quantizer=BiHalf) -> nn.Sequential:
    """No bias before a batch norm: its gradient is rounding noise alone, which Adam would make a step of."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        BinaryConv2d(16, 16, 3, stride=2, bias=False, weight_quantizer=quantizer()),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        BinaryLinear(144, 4),
    ).cuda()


def make_loader(count: int = 84, batch_size: int = 16, **settings) -> Loader:
    """Five batches of 16 and one of 4."""
    data = load_dataset(f"synthetic:1x8x8:4:{count}", split="train", device="cuda")
    return Loader(data, batch_size=batch_size, **{"shuffle": True, "augment": True, **settings})


def make_test() -> Loader:
    return Loader(load_dataset("synthetic:1x8x8:4:84", split="test", device="cuda"), batch_size=8)


def assert_close(model: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3, msg=name)


class Witness(nn.Module):
    """Adds up the images it saw and what its dropout let through, each weighed by when it came."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(64, 4), nn.Dropout(share)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(8, 8, dtype=torch.float64))
        self.register_buffer("passed", torch.zeros(64, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        self.count += 1
        self.seen += self.count * images.double().sum(dim=(0, 1))
        kept = self.dropout(torch.ones_like(images.flatten(1)))
        self.passed += self.count * kept.double().sum(dim=0)
        return self.linear(images.flatten(1) * kept)


def assert_same_images(one: Witness, other: Witness) -> None:
    """A compiled batch is normalised with other last digits; another crop or order would be off by a thousandfold."""
    torch.testing.assert_close(one.seen, other.seen, rtol=0, atol=1e-3)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_twenty_steps_are_those_of_plain_training(speed: str, optimizer: str, make_config) -> None:
    settings = {"epochs": 4, "precision": "fp32", "optimizer": OptimizerConfig(name=optimizer, lr=0.01)}
    plain, fast = make_net(), make_net()
    expected = train(plain, make_loader(), make_config(speed="plain", **settings), test=make_test())
    found = train(fast, make_loader(), make_config(speed=speed, **settings), test=make_test())
    assert_close(fast, plain)
    for mine, theirs in zip(found.epochs, expected.epochs, strict=True):
        assert mine.train.total == theirs.train.total == 84  # warm-up steps do not count; the last batch does
        assert mine.train.loss == pytest.approx(theirs.train.loss, rel=1e-2)
        assert mine.lr == theirs.lr


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_soft_labels_teach_the_same_as_in_plain_training(speed: str, precision: str, make_config) -> None:
    settings = {"epochs": 4, "precision": precision, "lr": 0.01, "distill": DistillConfig(weight=0.7, temperature=2.0)}
    teacher = make_net(seed=1, quantizer=IRNet)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    nets, losses = [make_net(), make_net()], []
    for each, net in zip(("plain", speed), nets, strict=True):
        history = train(net, make_loader(), make_config(speed=each, **settings), test=make_test(), teacher=teacher)
        losses.append([epoch.train.loss for epoch in history.epochs])
    if precision == "fp32":
        assert_close(*nets)
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if precision == "fp32" else 5e-2)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert teacher.training


@pytest.mark.parametrize("speed", SPEEDS)
def test_averaged_weights_are_those_of_plain_training(speed: str, make_config) -> None:
    settings = {"epochs": 4, "precision": "fp32", "lr": 0.01, "weight_average": 0.9}
    plain, fast = make_net(), make_net()
    train(plain, make_loader(), make_config(speed="plain", **settings), test=make_test())
    train(fast, make_loader(), make_config(speed=speed, **settings), test=make_test())
    assert_close(fast, plain)


def test_a_layer_that_is_used_twice_trains_as_in_plain_training(make_config) -> None:
    runs = []
    for speed in ("plain", "captured"):
        torch.manual_seed(0)
        twice = BinaryConv2d(16, 16, 3, padding=1, bias=False)
        rows = [nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), twice, nn.BatchNorm2d(16), nn.ReLU(), twice]
        net = nn.Sequential(*rows, nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(576, 4)).cuda()
        train(net, make_loader(), make_config(speed=speed, precision="fp32", lr=0.01))
        runs.append(net)
    assert_close(*runs)


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_images_are_the_same_to_the_last_crop_and_in_the_same_order(speed: str, make_config) -> None:
    plain, fast = Witness().cuda(), Witness().cuda()
    train(plain, make_loader(), make_config(speed="plain", precision="fp32"))
    train(fast, make_loader(), make_config(speed=speed, precision="fp32"))
    assert float(fast.count) == float(plain.count) == 18
    assert_same_images(fast, plain)


@pytest.mark.parametrize("speed", ["plain", *SPEEDS])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_run_interrupted_anywhere_resumes_to_the_same_result(
    speed: str, optimizer: str, tmp_path, make_config
) -> None:
    config = make_config(speed=speed, precision="fp32", optimizer=OptimizerConfig(name=optimizer, lr=0.01))

    def stop_after(step: int):
        return [lambda model, done: os.kill(os.getpid(), signal.SIGTERM) if done == step else None]

    whole, parts = make_net(), make_net()
    expected = train(whole, make_loader(), config, test=make_test())
    for step in (2, 5, 6, 11, 15):  # in an epoch, before and after its smaller last batch
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


def test_quantizers_see_the_progress_of_training_inside_a_graph(make_config) -> None:
    plain, fast = make_net(quantizer=IRNet), make_net(quantizer=IRNet)
    settings = {"epochs": 4, "precision": "fp32", "lr": 0.01}
    train(plain, make_loader(), make_config(speed="plain", **settings))
    train(fast, make_loader(), make_config(speed="captured", **settings))
    assert float(fast[3].weight_quantizer.progress) == 0.75
    assert_close(fast, plain)


@pytest.mark.parametrize(("count", "batch_size"), [(16, 16), (40, 16), (10, 16)])
def test_epochs_of_very_few_batches_can_be_captured(count: int, batch_size: int, make_config) -> None:
    plain, fast = Witness().cuda(), Witness().cuda()
    train(plain, make_loader(count, batch_size), make_config(speed="plain", precision="fp32"))
    history = train(fast, make_loader(count, batch_size), make_config(speed="captured", precision="fp32"))
    assert [record.train.total for record in history.epochs] == [count] * 3
    assert_same_images(fast, plain)


@pytest.mark.parametrize("speed", ["captured", "recorded"])
def test_gradients_after_a_step_are_its_own_even_after_a_smaller_batch(speed: str, make_config) -> None:
    seen: dict[str, list[float]] = {"plain": [], speed: []}
    for way, sizes in seen.items():

        def watch(model: nn.Module, step: int, sizes: list[float] = sizes) -> None:
            if step:
                sizes.append(float(model[0].weight.grad.abs().sum()))

        train(make_net(), make_loader(), make_config(speed=way, precision="fp32", lr=0.01), watchers=[watch])
    assert len(seen[speed]) == 18
    assert seen[speed] == pytest.approx(seen["plain"], rel=0.02)


def test_a_net_in_evaluation_mode_is_captured_in_training_mode(make_config) -> None:
    for way in ("alone", "stack"):
        model = make_net().eval()
        if way == "alone":
            train(model, make_loader(), make_config(speed="captured"))
        else:
            train_stack([model], [make_loader()], seeded(make_config(speed="captured"), [0]))
        assert int(model[1].num_batches_tracked) == 18


def test_parts_of_a_batch_and_clipping_can_be_captured(make_config) -> None:
    settings = {"precision": "fp32", "lr": 0.01, "accumulate": 2, "clip_norm": 0.5}
    plain, fast = Witness().cuda(), Witness().cuda()
    fast.load_state_dict(plain.state_dict())
    train(plain, make_loader(), make_config(speed="plain", **settings))
    train(fast, make_loader(), make_config(speed="captured", **settings))
    torch.testing.assert_close(fast.linear.weight, plain.linear.weight, rtol=1e-3, atol=1e-4)


def test_a_captured_stack_trains_what_each_net_trains_alone(make_config) -> None:
    seeds = [0, 1, 2]
    config = make_config(speed="captured", precision="fp32", lr=0.01)
    alone, stacked = [make_net(seed) for seed in seeds], [make_net(seed) for seed in seeds]
    for model, seed in zip(alone, seeds, strict=True):
        train(model, make_loader(seed=seed), make_config(speed="captured", precision="fp32", lr=0.01, seed=seed))
    histories = train_stack(stacked, [make_loader().with_seed(seed) for seed in seeds], seeded(config, seeds))
    for mine, theirs in zip(stacked, alone, strict=True):
        assert_close(mine, theirs)
    assert [record.train.total for history in histories for record in history.epochs] == [84] * 9


def test_a_captured_stack_may_have_different_batch_sizes(make_config) -> None:
    counts, nets = (84, 90), [Witness().cuda() for _ in range(2)]
    config = make_config(speed="captured", precision="fp32")
    train_stack(nets, [make_loader(count) for count in counts], seeded(config, [0, 0]))
    for count, net in zip(counts, nets, strict=True):
        alone = Witness().cuda()
        train(alone, make_loader(count), make_config(speed="plain", precision="fp32"))
        assert_same_images(net, alone)


def test_a_last_batch_of_one_image_raises_a_clear_error(make_config) -> None:
    net = make_net().append(nn.BatchNorm1d(4).cuda())  # over pixels it has enough of one image, over logits not
    with pytest.raises(ValueError, match="batch norm cannot train on one image"):
        train(net, make_loader(81), make_config(speed="captured"))
    with pytest.raises(ValueError, match="batch norm cannot train on one image"):
        train_stack([net], [make_loader(81)], seeded(make_config(speed="captured"), [0]))


def test_a_captured_stack_of_several_settings_continues_without_diverged_nets(make_config) -> None:
    settings = [{"lr": 0.01}, {"lr": 1e30}, {"lr": 0.003, "label_smoothing": 0.1}]
    configs = [make_config(speed="captured", precision="fp32", **some) for some in settings]
    kinds = [BiHalf, BiHalf, lambda: IRNet("fixed")]
    alone, stacked = ([make_net(seed, quantizer=kind) for seed, kind in enumerate(kinds)] for _ in range(2))
    for seed in (0, 2):
        train(alone[seed], make_loader(seed=seed), dataclasses.replace(configs[seed], seed=seed))
    with pytest.raises(StackError) as caught:
        train_stack(stacked, [make_loader(seed=seed) for seed in range(3)], seeded(configs, range(3)))
    assert list(caught.value.errors) == [1]
    for seed in (0, 2):
        assert_close(stacked[seed], alone[seed])


def test_an_interrupted_captured_stack_resumes_to_the_same_result(tmp_path, make_config) -> None:
    config = make_config(speed="captured", precision="fp32", lr=0.01, checkpoint_seconds=0)

    def run(checkpoint, **told) -> list[nn.Module]:
        nets = [make_net(seed) for seed in range(2)]
        loaders = [make_loader(seed=seed) for seed in range(2)]
        train_stack(nets, loaders, seeded(config, range(2)), checkpoint=checkpoint, **told)
        return nets

    whole = run(None)
    with pytest.raises(InterruptedTraining):
        run(tmp_path / "stack", reporters=[[lambda record: signal.raise_signal(signal.SIGTERM)], []])
    for mine, theirs in zip(run(tmp_path / "stack"), whole, strict=True):
        assert_close(mine, theirs)


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
