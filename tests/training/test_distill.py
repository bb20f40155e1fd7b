"""Distillation: the loss equals the formula, and the teacher is unchanged."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.training import DistillConfig, TrainConfig, train
from equalbits.training.losses import attention_distance, soft_label_loss, training_loss

LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
ADVICE = torch.tensor([[0.0, 3.0, 0.0], [1.0, 1.0, 4.0]])


def test_soft_labels_are_cross_entropy_to_the_teachers_softmax_at_a_temperature() -> None:
    for temperature in (1.0, 4.0):
        rows = []
        for mine, theirs in zip((LOGITS / temperature).tolist(), (ADVICE / temperature).tolist(), strict=True):
            shares = [math.exp(value) / sum(map(math.exp, theirs)) for value in theirs]
            logs = [value - math.log(sum(map(math.exp, mine))) for value in mine]
            rows.append(-sum(share * log for share, log in zip(shares, logs, strict=True)))
        expected = temperature**2 * sum(rows) / 2
        assert float(soft_label_loss(LOGITS, ADVICE, temperature)) == pytest.approx(expected, rel=1e-6)


def test_soft_labels_pull_as_hintons_divergence_does() -> None:
    mine = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(soft_label_loss(mine, ADVICE, 2.0), mine)
    divergence = nnf.kl_div((mine / 2).log_softmax(1), (ADVICE / 2).softmax(1), reduction="batchmean") * 4
    (expected,) = torch.autograd.grad(divergence, mine)
    torch.testing.assert_close(gradient, expected)


def test_attention_is_the_distance_of_unit_maps_of_squared_activations() -> None:
    student = torch.tensor([[[[1.0, 2.0]], [[1.0, 0.0]]]])  # (image, channel, row, column): squares average to 1, 2
    teacher = torch.tensor([[[[2.0, 0.0]]]])  # another number of channels; squares are 4, 0
    mine, theirs = torch.tensor([1.0, 2.0]) / math.sqrt(5), torch.tensor([1.0, 0.0])
    assert float(attention_distance(student, teacher)) == pytest.approx(float((mine - theirs).norm()), rel=1e-6)
    assert float(attention_distance(student, 7 * student)) == pytest.approx(0, abs=1e-6)


def make_pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    teacher = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(180, 4))
    return student, teacher


def test_the_whole_loss_weighs_labels_teacher_and_attention() -> None:
    student, teacher = make_pair()
    teacher.eval()
    images, labels = torch.randn(6, 1, 8, 8), torch.arange(6) % 4
    distill = DistillConfig(weight=0.3, temperature=2.0, attention=5.0, layers=("0",))
    with training_loss(student, teacher, TrainConfig(epochs=1, distill=distill, label_smoothing=0.1)) as loss:
        logits = student(images)
        found = loss(logits, labels, images)
    with torch.no_grad():
        expected = 0.7 * nnf.cross_entropy(logits, labels, label_smoothing=0.1)
        expected += 0.3 * soft_label_loss(logits, teacher(images), 2.0)
        expected += 5.0 * attention_distance(student[0](images), teacher[0](images))
    torch.testing.assert_close(found.detach(), expected)


def test_the_teachers_mode_is_restored_and_hooks_are_removed(make_loader, make_config) -> None:
    student, teacher = make_pair()
    teacher.train()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    distill = DistillConfig(weight=0.5, attention=1.0, layers=("0",))
    train(student, make_loader(), make_config(distill=distill), teacher=teacher)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert teacher.training and all(parameter.requires_grad for parameter in teacher.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not any(module._forward_hooks for net in (student, teacher) for module in net.modules())


def test_hooks_are_removed_when_training_fails(make_loader, make_config) -> None:
    student, teacher = make_pair()

    def fail(model: nn.Module, step: int) -> None:
        raise KeyError(step)

    distill = DistillConfig(attention=1.0, layers=("0",))
    with pytest.raises(KeyError):
        train(student, make_loader(), make_config(distill=distill), teacher=teacher, watchers=[fail])
    assert not any(module._forward_hooks for net in (student, teacher) for module in net.modules())
    assert teacher.training


def test_a_student_trained_on_soft_labels_alone_agrees_with_its_teacher(make_net, make_loader, make_config) -> None:
    teacher, student = make_net(1), make_net(2)
    images, _ = next(make_loader(count=64, batch_size=64, augment=False).epoch(0))

    def agreement() -> float:
        with torch.no_grad():
            return float((student(images).argmax(1) == teacher(images).argmax(1)).float().mean())

    before = agreement()
    config = make_config(epochs=10, distill=DistillConfig(weight=1.0))
    train(student, make_loader(count=64, augment=False), config, teacher=teacher)
    assert agreement() > before + 0.25


@pytest.mark.parametrize(
    ("distill", "has_teacher", "line"),
    [
        (DistillConfig(weight=0.5), False, "distill is set but no teacher is given"),
        (DistillConfig(), True, "a teacher is given but not used: set distill.weight or distill.attention above 0"),
        (DistillConfig(attention=1.0, layers=("9",)), True, "distill.layers names '9', which the student does not"),
        (
            DistillConfig(attention=1.0, layers=("2",)),
            True,
            r"names '2', which returns \(8, 108\) in the student and .*: pair",
        ),
    ],
)
def test_incomplete_distillation_settings_raise(distill, has_teacher, line, make_loader, make_config) -> None:
    student, teacher = make_pair()
    with pytest.raises(ValueError, match=line):
        train(student, make_loader(), make_config(distill=distill), teacher=teacher if has_teacher else None)


def test_layers_whose_maps_differ_in_size_are_refused(make_loader, make_config) -> None:
    student, _ = make_pair()
    teacher = nn.Sequential(nn.Conv2d(1, 5, 8), nn.Flatten(), nn.Linear(5, 4))  # one pixel would pass for every other
    distill = DistillConfig(attention=1.0, layers=("0",))
    with pytest.raises(
        ValueError, match=r"returns \(8, 3, 6, 6\) in the student and \(8, 5, 1, 1\) in the teacher: pair"
    ):
        train(student, make_loader(), make_config(distill=distill), teacher=teacher)


def test_a_model_cannot_teach_itself(make_net, make_loader, make_config) -> None:
    model = make_net()
    with pytest.raises(ValueError, match="the teacher is the model itself"):
        train(model, make_loader(), make_config(distill=DistillConfig(weight=1.0)), teacher=model)
