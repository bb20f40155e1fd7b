"""Mixup mixes each image and its label with another of the batch."""

import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.training.losses import mixup_share, soft_label_loss


def test_a_step_with_mixup_is_the_step_on_mixed_images_and_losses() -> None:
    images, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.manual_seed(0)
    mixed, plain = nn.Linear(3, 3), nn.Linear(3, 3)
    plain.load_state_dict(mixed.state_dict())
    shares: list[float] = []

    class Seen(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            first = (given - images.flip(0))[:, 0] / (images - images.flip(0))[:, 0]
            shares.append(float(first[0]))
            torch.testing.assert_close(given, shares[0] * images + (1 - shares[0]) * images.flip(0))
            return self.net(given)

    settings = {"epochs": 1, "optimizer": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}}
    eb.train(Seen(mixed), [(images, labels)], {**settings, "mixup": 0.5})
    share = shares[0]
    logits = plain(share * images + (1 - share) * images.flip(0))
    loss = share * nn.functional.cross_entropy(logits, labels)
    (loss + (1 - share) * nn.functional.cross_entropy(logits, labels.flip(0))).backward()
    torch.testing.assert_close(mixed.weight.detach(), (plain.weight - 0.1 * plain.weight.grad).detach())


def test_shares_follow_the_beta_distribution() -> None:
    torch.manual_seed(0)
    drawn = torch.stack([mixup_share(0.2, torch.device("cpu")) for _ in range(500)])
    assert drawn.min() >= 0 and drawn.max() <= 1 and abs(float(drawn.mean()) - 0.5) < 0.06
    assert float(drawn.var()) == pytest.approx(0.25 / 1.4, rel=0.2)


def test_a_teacher_answers_for_the_mixed_images() -> None:
    images, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    seen: list[torch.Tensor] = []

    class Teacher(nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            seen.append(given)
            return super().forward(given)

    torch.manual_seed(0)
    teacher, mixed, plain = Teacher(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
    plain.load_state_dict(mixed.state_dict())
    settings = {"epochs": 1, "optimizer": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}, "mixup": 0.5}
    eb.train(mixed, [(images, labels)], {**settings, "distill": {"weight": 1.0}}, teacher=teacher)
    (given,) = seen
    assert not torch.equal(given, images)
    soft_label_loss(plain(given), teacher(given).detach()).backward()
    torch.testing.assert_close(mixed.weight.detach(), (plain.weight - 0.1 * plain.weight.grad).detach())
