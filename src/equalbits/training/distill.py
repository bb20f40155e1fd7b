"""The loss of a batch: labels, and what a teacher says of it where there is one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils.hooks import RemovableHandle

from equalbits.training.config import TrainConfig
from equalbits.training.score import in_evaluation

#: (logits, labels, images) to the batch's mean loss.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def label_loss(config: TrainConfig) -> Loss:
    """Plain cross-entropy, with label smoothing where asked."""
    return lambda logits, labels, images: nnf.cross_entropy(logits, labels, label_smoothing=config.label_smoothing)


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy to the teacher's soft labels (Hinton et al. 2015), scaled by ``temperature²``.

    >>> teacher = torch.tensor([[2.0, 0.0]])
    >>> float(soft_label_loss(teacher, teacher)) < float(soft_label_loss(-teacher, teacher))
    True
    """
    targets = (teacher_logits / temperature).softmax(dim=1)
    return nnf.cross_entropy(logits / temperature, targets) * temperature**2


def attention_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """How far apart two layers look: the distance of their maps of squared activations, each of unit length.

    The channels may differ, the maps' sizes may not (Zagoruyko & Komodakis 2017; Martinez et al. 2020).
    """
    maps = [nnf.normalize(layer.float().square().mean(dim=1).flatten(1), dim=1) for layer in (student, teacher)]
    distance: Tensor = torch.linalg.vector_norm(maps[0] - maps[1], dim=1)
    return distance.mean()


@contextmanager
def distilling(model: nn.Module, teacher: nn.Module | None, config: TrainConfig) -> Iterator[Loss]:
    """The loss to train with.

    While the ``with`` lasts the teacher is in evaluation mode and the paired layers of both nets are listened to;
    afterwards both are as they were.
    """
    if (teacher is not None) != config.distill.wants_teacher:
        raise ValueError(
            "distill is set but no teacher is given: name one, or set distill.weight=0"
            if teacher is None
            else "a teacher is given but has no say: set distill.weight or distill.attention above 0"
        )
    if teacher is None:
        yield label_loss(config)
        return
    if teacher is model:
        raise ValueError("the teacher is the model itself: give another net")
    seen: dict[tuple[str, str], Tensor] = {}
    hooks = _listen(seen, {"student": model, "teacher": teacher}, config.distill.layers)
    try:
        with in_evaluation(teacher):
            yield _taught(teacher, config, seen)
    finally:
        for hook in hooks:
            hook.remove()


def _taught(teacher: nn.Module, config: TrainConfig, seen: dict[tuple[str, str], Tensor]) -> Loss:
    """The loss that asks the teacher; ``seen`` holds what the paired layers just gave out."""
    distill, labels_only = config.distill, label_loss(config)

    def loss(logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        with torch.no_grad():
            advice = teacher(images).float()
        total = (1 - distill.weight) * labels_only(logits, labels, images)
        total = total + distill.weight * soft_label_loss(logits, advice, distill.temperature)
        for name in distill.layers:
            mine, theirs = seen["student", name], seen["teacher", name]
            _check_maps(name, mine, theirs)
            total = total + distill.attention * attention_distance(mine, theirs)
        seen.clear()
        return total

    return loss


def _check_maps(name: str, student: Tensor, teacher: Tensor) -> None:
    if student.dim() < 3 or student.shape[2:] != teacher.shape[2:]:
        raise ValueError(
            f"distill.layers names {name!r}, which gives {tuple(student.shape)} in the student and "
            f"{tuple(teacher.shape)} in the teacher: pair layers that give maps of one size, as convolutions do"
        )


def _listen(
    seen: dict[tuple[str, str], Tensor], nets: dict[str, nn.Module], layers: tuple[str, ...]
) -> list[RemovableHandle]:
    modules = {who: dict(net.named_modules()) for who, net in nets.items()}
    for who, known in modules.items():
        for name in layers:
            if name not in known:
                raise ValueError(f"distill.layers names {name!r}, which the {who} does not have")
    return [
        known[name].register_forward_hook(_note(seen, who, name)) for who, known in modules.items() for name in layers
    ]


def _note(seen: dict[tuple[str, str], Tensor], who: str, name: str) -> Callable[[nn.Module, object, Tensor], None]:
    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        seen[who, name] = output

    return note
