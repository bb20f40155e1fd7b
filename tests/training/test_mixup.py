"""Mixup mixes each image and its loss with another of the batch."""

import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.training.losses import mixup_share


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


def test_mixup_and_a_teacher_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"mixup=0.2 mixes labels, and a teacher gives its own: set mixup=0"):
        eb.TrainConfig(epochs=1, mixup=0.2, distill={"weight": 0.5})
