"""Scores as counts: each image counts once; percentages are computed last."""

import sys
from collections.abc import Iterable, Sized
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.nn import check_module, evaluation_mode
from equalbits.runtime import PackedModel
from equalbits.training import distributed
from equalbits.training.batches import check_iterable, images_and_labels
from equalbits.training.divergence import check_scored


@dataclass(frozen=True)
class Score:
    """Number of correct images, top-1 and top-5, of ``total``, and the summed loss.

    >>> str(Score(correct=79, total=100, correct_top5=95, loss_sum=62.0))
    '79.00 % of 100 (loss 0.6200)'
    """

    correct: int
    total: int
    correct_top5: int
    loss_sum: float

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy in per cent."""
        return 100 * self.correct / self.total

    @property
    def accuracy_top5(self) -> float:
        """Top-5 accuracy in per cent."""
        return 100 * self.correct_top5 / self.total

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return self.loss_sum / self.total

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} % of {self.total:,} (loss {self.loss:.4f})"


class Meter:
    """Running counts on the device; the host waits only when it reads them."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # as count_correct returns them

    def read(self, *, all_processes: bool = True) -> Score:
        """Return the counts so far, of all processes or of this one."""
        sums = distributed.summed(self.sums) if all_processes else self.sums
        correct, total, correct_top5, loss = sums.tolist()
        return Score(int(correct), int(total), int(correct_top5), loss)


def count_correct(logits: Tensor, labels: Tensor, loss_sum: Tensor) -> Tensor:
    """Return four float64 sums of a batch: correct, images, correct in the top 5, and loss.

    The label's class beats another if its logit is larger, or equal at a lower index, as with argmax: a net with equal
    logits is not correct by default, and one that returns NaN never is. Only comparisons, so that a compiler can fuse
    them.
    """
    logits = logits.detach()
    own = logits.gather(1, labels[:, None])
    indices = torch.arange(logits.shape[1], device=logits.device)
    beaten = (logits < own) | ((logits == own) & (indices >= labels[:, None]))  # its own class included, unless NaN
    rank = logits.shape[1] - beaten.sum(dim=1)
    top1, top5 = rank == 0, (rank < 5) & beaten.any(dim=1)
    total = torch.full((), len(labels), dtype=torch.float64, device=logits.device)
    return torch.stack([top1.sum().double(), total, top5.sum().double(), loss_sum.detach().double()])


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters."""
    check_module(model)
    for parameter in model.parameters():
        return parameter.device
    raise ValueError(f"the model, a {type(model).__name__}, has no parameters")


class _Packed(nn.Module):
    """A packed model as a module; batches may be normalised floats or uint8."""

    def __init__(self, model: PackedModel) -> None:
        super().__init__()
        self.model, self.empty = model, nn.Parameter(torch.zeros(0))  # a parameter on the CPU, where it runs

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.model(images.numpy()))


def evaluate(
    model: nn.Module | PackedModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    precision: str = "fp32",
    progress: bool = False,
) -> Score:
    """Score a model, or a packed one, on every image of ``batches``, over all processes if there are several.

    With ``progress``, a terminal shows a progress bar. Raises :class:`NonFiniteError` if weights or loss are NaN or
    infinite.
    """
    check_iterable(batches)
    batches = _with_progress(batches) if progress else batches
    model = _Packed(model) if isinstance(model, PackedModel) else model
    score = count_score(model, batches, precision=precision)
    check_scored(score.loss_sum, model)
    return score


def _with_progress(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
    """Iterate over batches with a progress bar on stderr, where that is a terminal."""
    if not (sys.stderr.isatty() and distributed.rank_from_env().is_writer):
        return batches
    total = len(batches) if isinstance(batches, Sized) else None
    return track(batches, "evaluating", total=total, console=Console(stderr=True, highlight=False), transient=True)


def as_logits(output: object) -> Tensor:
    """Return a model's output in float32; raise unless it is a tensor (image, class)."""
    if not isinstance(output, Tensor) or output.dim() != 2:
        found = (
            f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        )
        raise ValueError(f"the model returns {found}: wrap it to return only its logits, (image, class)")
    return output.float()


class LabelError(ValueError):
    """A label that is not a class of the model."""


def check_labels(labels: Tensor, logits: Tensor) -> None:
    """Raise if a label on the CPU has no logit; on a GPU the loss asserts it, and a check would wait for the device."""
    classes = logits.shape[1]
    if labels.device.type == "cpu" and bool(((labels < 0) | (labels >= classes)).any()):
        label = int(labels[(labels < 0) | (labels >= classes)][0])
        raise LabelError(
            f"label {label} is not a class of the model, which has {classes} outputs: number classes from 0, and give "
            "the model an output for each"
        )


def count_score(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, precision: str) -> Score:
    """Count the score of a model as :func:`evaluate` does, without the check for NaN."""
    device = device_of(model)
    meter = Meter(device)
    with (
        evaluation_mode(model),
        torch.no_grad(),
        torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"),
    ):
        for number, batch in enumerate(batches, 1):
            name = f"batch {number} of the test images"
            images, labels = (part.to(device) for part in images_and_labels(batch, name))
            logits = as_logits(model(images))
            try:
                check_labels(labels, logits)
            except LabelError as error:
                raise ValueError(f"{name}: {error}") from None
            meter.sums += count_correct(logits, labels, nnf.cross_entropy(logits, labels, reduction="sum"))
    score = meter.read()
    if score.total == 0:
        raise ValueError("there was no image to score: the test data is empty")
    return score
