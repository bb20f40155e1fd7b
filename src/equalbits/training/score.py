"""Scores as counts: every image is counted once, and shares are taken last."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.training import distributed
from equalbits.training.stop_signals import check_scored


@dataclass(frozen=True)
class Score:
    """How many images of how many were right, first guess and among the first five, and the summed loss.

    >>> str(Score(correct=79, total=100, correct_top5=95, loss_sum=62.0))
    '79.00 % of 100 (loss 0.6200)'
    """

    correct: int
    total: int
    correct_top5: int
    loss_sum: float

    @property
    def accuracy(self) -> float:
        """Per cent right at the first guess."""
        return 100 * self.correct / self.total

    @property
    def accuracy_top5(self) -> float:
        """Per cent with the right class among the first five."""
        return 100 * self.correct_top5 / self.total

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return self.loss_sum / self.total

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} % of {self.total:,} (loss {self.loss:.4f})"


class Meter:
    """Counts on the device, so that reading them is the only time the host waits."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # as count_guesses gives them

    def read(self, *, everywhere: bool = True) -> Score:
        """The counts so far, of all processes or of this one."""
        sums = distributed.summed(self.sums) if everywhere else self.sums
        correct, total, correct_top5, loss = sums.tolist()
        return Score(int(correct), int(total), int(correct_top5), loss)


def count_guesses(logits: Tensor, labels: Tensor, loss_sum: Tensor) -> Tensor:
    """Right guesses, images, right among the first five, and loss of a batch, as four float64 sums.

    The label's class beats another when its logit is larger, or equal at a lower index, as argmax has it: a net that
    says the same of every class is not right by default, and one that says NaN never is. Comparisons alone, so that a
    compiler can fuse them.
    """
    logits = logits.detach()
    own = logits.gather(1, labels[:, None])
    indices = torch.arange(logits.shape[1], device=logits.device)
    beaten = (logits < own) | ((logits == own) & (indices >= labels[:, None]))  # its own class included, unless NaN
    rank = logits.shape[1] - beaten.sum(dim=1)
    first, among_five = rank == 0, (rank < 5) & beaten.any(dim=1)
    total = torch.full((), len(labels), dtype=torch.float64, device=logits.device)
    return torch.stack([first.sum().double(), total, among_five.sum().double(), loss_sum.detach().double()])


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode while the ``with`` lasts; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:  # a part may have been in another mode than the whole
            if module.training != training:
                module.train(training)


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    for parameter in model.parameters():
        return parameter.device
    raise ValueError(f"the model, a {type(model).__name__}, has no parameters")


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, precision: str = "fp32") -> Score:
    """Score a model on every image of ``batches``; over all processes where there are several.

    A model whose weights or loss are not finite is refused with a :class:`NonFiniteError`.
    """
    score = count_score(model, batches, precision=precision)
    check_scored(score.loss_sum, model)
    return score


def images_and_labels(batch: Any, where: str) -> tuple[Tensor, Tensor]:
    """The two of a batch, labels as torch's loss takes them; those that number no class for each image are refused."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        kind = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
        raise ValueError(f"{where} is a {kind}: give a loader of (images, labels), images as one tensor")
    images, given = batch
    try:
        numbers = torch.as_tensor(given)
        what = f"{numbers.dtype} of shape {tuple(numbers.shape)}"
    except (ValueError, TypeError, RuntimeError):  # words, or rows of unlike lengths
        numbers, what = torch.empty(0), f"a {type(given).__name__} that is no tensor of numbers"
    if numbers.shape != images.shape[:1] or numbers.is_floating_point() or numbers.is_complex():
        raise ValueError(
            f"the labels of {where} are {what}, beside images of shape {tuple(images.shape)}: give each image the "
            "number of its class, as in torch.tensor([3, 0])"
        )
    return images, numbers.long()


def as_logits(output: Any) -> Tensor:
    """What a model gives, in float32; all but a tensor of (image, class) is refused."""
    if not isinstance(output, Tensor) or output.dim() != 2:
        what = (
            f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        )
        raise ValueError(f"the model gives {what}: wrap it so that it gives its logits alone, as (image, class)")
    return output.float()


@contextmanager
def known_classes(where: str) -> Iterator[None]:
    """Say where a label lies that is no class of the model; torch names its number alone."""
    try:
        yield
    except IndexError as error:
        if not str(error).startswith("Target "):  # torch's word for a label
            raise
        raise ValueError(
            f"a label of {where} is no class of the model ({error.args[0].rstrip('.')}): number classes from 0, and "
            "give the model an output for each"
        ) from None


def count_score(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, precision: str) -> Score:
    """What :func:`evaluate` counts, whatever the numbers are."""
    device = device_of(model)
    meter = Meter(device)
    with (
        in_evaluation(model),
        torch.no_grad(),
        torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"),
    ):
        for number, batch in enumerate(batches, 1):
            where = f"batch {number} of the test images"
            images, labels = (part.to(device) for part in images_and_labels(batch, where))
            logits = as_logits(model(images))
            with known_classes(where):
                loss = nnf.cross_entropy(logits, labels, reduction="sum")
            meter.sums += count_guesses(logits, labels, loss)
    score = meter.read()
    if score.total == 0:
        raise ValueError("there was no image to score: the test data is empty")
    return score
