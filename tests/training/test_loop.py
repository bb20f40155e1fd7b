"""The loop reports to watchers, accepts any loader, and leaves global state unchanged."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from equalbits.nn import BinaryConv2d, BinaryLinear, IRNet, PrunedSign, binarize_, set_progress
from equalbits.training import EpochRecord, StepRecord, TrainConfig, evaluate, train, training_run


def test_watchers_are_called_before_the_first_step_and_after_every_step(make_net, make_loader, make_config) -> None:
    model = make_net()
    start = model[0].weight.clone()
    steps, moved = [], []

    def watch(watched: torch.nn.Module, step: int) -> None:
        assert watched is model
        steps.append(step)
        moved.append(not torch.equal(watched[0].weight, start))

    train(model, make_loader(), make_config(epochs=2), watchers=[watch])
    assert steps == list(range(13))  # two epochs of six batches
    assert moved == [False] + [True] * 12


def test_every_epoch_is_reported_with_counts_of_every_image(make_net, make_loader, make_config) -> None:
    records: list[EpochRecord | StepRecord] = []
    model, test = make_net(), make_loader("test")
    history = train(model, make_loader(), make_config(), test=test, reporters=[records.append])
    assert [record for record in records if isinstance(record, EpochRecord)] == list(history.epochs)
    assert [record.epoch for record in history.epochs] == [1, 2, 3]
    assert {record.train.total for record in history.epochs} == {44}
    assert {record.test.total for record in history.epochs if record.test} == {11}
    assert history.last and history.last.test == evaluate(model, test)
    assert model.training


def test_a_net_learns_a_separable_problem(make_net, make_loader, make_config) -> None:
    history = train(make_net(), make_loader(augment=False), make_config(epochs=15, lr=0.1), test=make_loader("test"))
    assert history.epochs[-1].train.accuracy > 80 > history.epochs[0].train.accuracy


def test_epochs_are_scored_as_often_as_asked_and_always_the_last(make_net, make_loader, make_config) -> None:
    config = make_config(epochs=5, evaluate_every=2)
    history = train(make_net(), make_loader(), config, test=make_loader("test"))
    assert [record.test is not None for record in history.epochs] == [False, True, False, True, True]
    unscored = train(make_net(), make_loader(), make_config())
    assert (unscored.last, unscored.best) == (None, None)


def test_a_step_record_states_the_position_in_the_epoch(make_net, make_loader, make_config, monkeypatch) -> None:
    monkeypatch.setattr(training_run, "REPORT_SECONDS", 0.0)
    records: list[EpochRecord | StepRecord] = []
    train(make_net(), make_loader(), make_config(epochs=2), reporters=[records.append])
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert [(record.epoch, record.batch) for record in steps] == [(e, b) for e in (1, 2) for b in range(1, 7)]
    assert [record.train.total for record in steps[:6]] == [8, 16, 24, 32, 40, 44]
    assert all(record.images_per_second > 0 for record in steps)
    assert all(record.seconds_left > 0 for record in steps[:-1])
    assert steps[-1].seconds_left == 0


def test_quantizers_see_the_progress_of_training(make_net, make_loader, make_config) -> None:
    model = make_net()
    quantizer = IRNet("fixed")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, 4))
    binarize_(model, quantizer, where="1")
    seen: list[float] = []
    watch = [lambda net, step: seen.append(float(net[1].weight_quantizer.progress))]
    train(model, make_loader(batch_size=44), make_config(epochs=4), watchers=watch)
    assert seen == [0.0, 0.0, 0.25, 0.5, 0.75]


def test_the_callers_random_state_and_precision_are_unchanged(make_net, make_loader, make_config) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = torch.backends.cudnn.allow_tf32
    train(make_net(dropout=0.5), make_loader(), make_config(precision="fp32"))
    assert torch.equal(torch.rand(3), expected)
    assert torch.backends.cudnn.allow_tf32 == before


def test_the_seed_decides_the_randomness_inside_the_net(make_net, make_loader, make_config) -> None:
    def weights(seed: int) -> torch.Tensor:
        model = make_net(dropout=0.5)
        train(model, make_loader(), make_config(seed=seed))
        return model[0].weight.detach()

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_a_torch_dataloader_works_and_reshuffles_each_epoch(make_net, make_config) -> None:
    images, seen = torch.randn(10, 1, 8, 8), []
    images[:, 0, 0, 0] = torch.arange(10)

    class Noting(torch.nn.Sequential):
        def forward(self, batch):
            seen.append(batch[:, 0, 0, 0].tolist())
            return super().forward(batch)

    loader = DataLoader(TensorDataset(images, torch.arange(10) % 4), batch_size=5, shuffle=True)
    train(Noting(*make_net()), loader, make_config(lr=1e-4))
    orders = [seen[2 * epoch] + seen[2 * epoch + 1] for epoch in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_a_loader_that_ends_early_is_named(make_net, make_loader, make_config) -> None:
    class Short(list):
        def __len__(self) -> int:
            return 9

    with pytest.raises(ValueError, match="the loader ended after 6 of its 9 batches"):
        train(make_net(), Short(make_loader().epoch(0)), make_config())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_without_images_is_refused_by_its_number(accumulate, make_net, make_loader) -> None:
    (images, labels), *_ = make_loader().epoch(0)
    with pytest.raises(ValueError, match=r"^batch 2 holds no image: leave it out of the loader$"):
        train(make_net(), [(images, labels), (images[:0], labels[:0])], TrainConfig(epochs=1, accumulate=accumulate))


def test_no_batch_and_no_parameter_are_refused(make_net, make_loader) -> None:
    with pytest.raises(ValueError, match="there is no batch to train on"):
        train(make_net(), [], TrainConfig(epochs=1))
    with pytest.raises(ValueError, match="has no parameters"):
        train(torch.nn.Flatten(), make_loader(), TrainConfig(epochs=1))


def test_a_global_mask_follows_the_weights(make_loader, make_config) -> None:
    def pruned() -> PrunedSign:
        return PrunedSign(0.75, scope="global")

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        BinaryConv2d(1, 4, 3, weight_quantizer=pruned()),
        torch.nn.Flatten(),
        BinaryLinear(144, 4, weight_quantizer=pruned()),
    )
    train(model, make_loader(), make_config(lr=0.5))
    kept = [layer.weight_quantizer.sieve.kept for layer in (model[0], model[2])]
    magnitudes = torch.cat([model[0].weight.abs().flatten(), model[2].weight.abs().flatten()])
    assert sum(int(mask.sum()) for mask in kept) == round(0.25 * len(magnitudes))
    threshold = magnitudes.sort(descending=True).values[round(0.25 * len(magnitudes)) - 1]
    assert torch.equal(kept[0], model[0].weight.abs() >= threshold)


def test_an_emptied_layer_is_warned_about_once_per_run(make_loader, make_config) -> None:
    quantizer = PrunedSign(0.75, scope="global")
    model = nn.Sequential(
        nn.Flatten(), BinaryLinear(64, 8, weight_quantizer=quantizer), BinaryLinear(8, 4, weight_quantizer=quantizer)
    )
    with torch.no_grad():
        model[2].weight.mul_(1e-9)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(model, make_loader(), make_config(lr=1e-12))
        assert [str(each.message).split(", so")[0] for each in caught] == ["the global ranking leaves no weight in '2'"]


@pytest.mark.parametrize("ramp", [0.0, 0.5])
def test_the_first_watcher_sees_the_global_masks_of_the_first_step(ramp, make_loader, make_config) -> None:
    quantizer = PrunedSign(0.75, scope="global", ramp=ramp)
    model = nn.Sequential(
        nn.Flatten(), *(BinaryLinear(*shape, weight_quantizer=quantizer) for shape in ((64, 8), (8, 4)))
    )
    set_progress(model, 1.0)  # as an earlier training leaves it
    total = 64 * 8 + 8 * 4
    zeros = []

    def watch(net: nn.Module, step: int) -> None:
        zeros.append(sum(int((net[place].symbols() == 0).sum()) for place in (1, 2)))

    train(model, make_loader(), make_config(epochs=2), watchers=[watch])
    assert zeros == [int((0.5 if ramp else 0.75) * total)] * 7 + [int(0.75 * total)] * 6


class _Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(1, 6, 6), 0)])


@pytest.mark.parametrize(
    "batches", [iter([]), None, DataLoader(_Stream(), batch_size=1)], ids=lambda each: type(each).__name__
)
def test_batches_without_a_length_raise_a_clear_error(batches, make_net, make_config) -> None:
    with pytest.raises(TypeError, match=rf"^batches of type {type(batches).__name__} have no length: give"):
        train(make_net(), batches, make_config())
