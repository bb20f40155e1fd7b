"""A score counts every image once, with the predictions of argmax."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from equalbits.training import EpochRecord, History, Score, evaluate, train
from equalbits.training.evaluation import count_correct


def counted(logits: Tensor, labels: Tensor) -> list[float]:
    return count_correct(logits, labels, torch.tensor(0.0)).tolist()


@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 10**6), st.integers(1, 4))
def test_correct_means_argmax_including_ties(images: int, classes: int, seed: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (images, classes), generator=generator).float()  # few levels: many ties
    labels = torch.randint(classes, (images,), generator=generator)
    ranking = torch.sort(logits, dim=1, descending=True, stable=True).indices
    expected_five = (ranking[:, :5] == labels[:, None]).any(dim=1).sum()
    correct, total, five, _ = counted(logits, labels)
    assert correct == (ranking[:, 0] == labels).sum() == (logits.argmax(dim=1) == labels).sum()
    assert five == expected_five
    assert total == images


def test_equal_logits_are_correct_only_for_the_first_class() -> None:
    assert counted(torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]))[0] == 2


def test_nan_logits_are_never_correct() -> None:
    labels = torch.arange(4)
    assert counted(torch.full((4, 4), float("nan")), labels)[:3] == [0, 4, 0]
    one = torch.eye(4)
    one[:, 0] = float("nan")
    assert counted(one, labels)[0] == 0


class Guess(nn.Module):
    """Predicts class 1 for every image, and records the modes it was called in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.inner, self.frozen = nn.Dropout(), nn.BatchNorm1d(3)
        self.modes: list[tuple[bool, bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append((self.training, self.inner.training, self.frozen.training))
        return torch.tensor([0.0, 1.0, 0.0]).expand(len(images), 3) + self.weight


def test_every_image_of_uneven_batches_counts_once() -> None:
    batches = [(torch.zeros(size, 1), torch.arange(size) % 3) for size in (5, 5, 2)]
    score = evaluate(Guess(), batches)
    assert (score.correct, score.total, score.correct_top5) == (2 + 2 + 1, 12, 12)
    expected = sum(
        nn.functional.cross_entropy(torch.tensor([[0.0, 1.0, 0.0]]).expand(len(y), 3), y, reduction="sum")
        for _, y in batches
    )
    assert score.loss_sum == pytest.approx(float(expected))
    assert score.accuracy == pytest.approx(100 * 5 / 12)


def test_scoring_runs_in_evaluation_mode_and_restores_every_mode() -> None:
    model = Guess().train()
    model.frozen.eval()
    evaluate(model, [(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))])
    assert model.modes == [(False, False, False)]
    assert (model.training, model.inner.training, model.frozen.training) == (True, True, False)


def test_the_mode_is_restored_when_scoring_fails() -> None:
    model = Guess().train()
    with pytest.raises(ValueError, match="not a class of the model"):
        evaluate(model, [(torch.zeros(2, 1), torch.tensor([0, 7]))])
    assert model.training


def test_scoring_no_images_is_refused() -> None:
    with pytest.raises(ValueError, match="no image to score"):
        evaluate(Guess(), [])


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="the model, a ReLU, has no parameters"):
        evaluate(nn.ReLU(), [])


def record(epoch: int, correct: int | None) -> EpochRecord:
    test = None if correct is None else Score(correct, 10, 10, 1.0)
    return EpochRecord(epoch, 0.1, Score(1, 10, 10, 1.0), test, 1.0)


def test_last_is_the_last_epoch_scored_and_best_the_first_of_the_best() -> None:
    history = History((record(1, 3), record(2, 7), record(3, None), record(4, 7), record(5, 5), record(6, None)))
    assert history.last is history.epochs[4]
    assert history.best is history.epochs[1]
    assert (History((record(1, None),)).last, History(()).best) == (None, None)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int8])
def test_labels_may_be_whole_numbers_of_any_kind(kind, make_net, make_loader, make_config) -> None:
    batches = list(make_loader().epoch(0))
    other = [(images, labels.to(kind)) for images, labels in batches]
    assert evaluate(make_net(), other) == evaluate(make_net(), batches)
    found, expected = (train(make_net(), data, make_config(epochs=1)) for data in (other, batches))
    assert [epoch.train for epoch in found.epochs] == [epoch.train for epoch in expected.epochs]


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (torch.arange(4)[:, None], r"torch.int64 of shape \(4, 1\)"),
        (torch.arange(4.0), r"torch.float32 of shape \(4,\)"),
        (torch.arange(4).to(torch.complex64), r"torch.complex64 of shape \(4,\)"),
        (torch.tensor(0), r"torch.int64 of shape \(\)"),
        (torch.arange(3), r"torch.int64 of shape \(3,\)"),
        (["cat", "dog", "dog", "cat"], "a list that is not a tensor of numbers"),
        ({"label": 0}, "a dict that is not a tensor of numbers"),
        ([[0], [1, 2]], "a list that is not a tensor of numbers"),
    ],
)
def test_labels_of_the_wrong_shape_are_refused(labels, what, make_net, make_config) -> None:
    batches = [(torch.ones(4, 1, 8, 8), labels)]
    beside = r", beside images of shape \(4, 1, 8, 8\): give each image the number of its class"
    with pytest.raises(ValueError, match=f"labels of batch 1 are {what}{beside}"):
        train(make_net(), batches, make_config(epochs=1))
    with pytest.raises(ValueError, match=f"labels of batch 1 of the test images are {what}{beside}"):
        evaluate(make_net(), batches)


@pytest.mark.parametrize(
    ("wrap", "what"),
    [
        (lambda images, labels: {"image": images, "label": labels}, "a dict of 2"),
        (lambda images, labels: (images, labels, labels), "a tuple of 3"),
        (lambda images, labels: (list(images), labels), "a tuple of 2"),
        (lambda images, labels: images, "a Tensor of 4"),
    ],
)
def test_batches_that_are_no_images_and_labels_are_refused_with_a_remedy(wrap, what, make_net, make_config) -> None:
    batches = [wrap(torch.ones(4, 1, 8, 8), torch.arange(4))]
    with pytest.raises(ValueError, match=rf"batch 1 is {what}: give a loader of \(images, labels\)"):
        train(make_net(), batches, make_config(epochs=1))
    with pytest.raises(ValueError, match=rf"batch 1 of the test images is {what}: give"):
        evaluate(make_net(), batches)


class Wrapped(nn.Module):
    """A net whose output is wrapped in a container."""

    def __init__(self, net, wrap) -> None:
        super().__init__()
        self.net, self.wrap = net, wrap

    def forward(self, images):
        return self.wrap(self.net(images))


@pytest.mark.parametrize(
    ("wrap", "what"),
    [
        (lambda logits: {"logits": logits}, "a dict"),
        (lambda logits: (logits, None), "a tuple"),
        (lambda logits: logits[..., None, None], r"a tensor of shape \(4, 4, 1, 1\)"),
    ],
)
def test_a_model_without_logits_is_refused_with_a_remedy(wrap, what, make_net, make_config) -> None:
    model, batches = Wrapped(make_net(), wrap), [(torch.ones(4, 1, 8, 8), torch.arange(4))]
    with pytest.raises(ValueError, match=f"the model returns {what}: wrap it"):
        train(model, batches, make_config(epochs=1))
    with pytest.raises(ValueError, match=f"the model returns {what}: wrap it"):
        evaluate(model, batches)
