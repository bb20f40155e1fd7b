"""The loss of a batch: labels, and what a teacher says of it where there is one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.training.config import TrainConfig

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
    """The loss to train with; listens to the paired layers of model and teacher only while the ``with`` lasts."""
    distill, labels_only = config.distill, label_loss(config)
    if teacher is None or not distill.wants_teacher:
        if distill.wants_teacher:
            raise ValueError("distill is set but no teacher is given: pass teacher=, or distill.weight=0")
        yield labels_only
        return
    teacher.eval().requires_grad_(False)
    seen: dict[tuple[str, str], Tensor] = {}
    hooks = []
    for who, net in (("student", model), ("teacher", teacher)):
        modules = dict(net.named_modules())
        for name in distill.layers:
            if name not in modules:
                raise ValueError(f"distill.layers names {name!r}, which the {who} does not have")
            hooks.append(modules[name].register_forward_hook(_note(seen, who, name)))

    def loss(logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        with torch.no_grad():
            advice = teacher(images).float()
        total = (1 - distill.weight) * labels_only(logits, labels, images)
        total = total + distill.weight * soft_label_loss(logits, advice, distill.temperature)
        for name in distill.layers:
            distance = attention_distance(seen["student", name], seen["teacher", name])
            total = total + distill.attention * distance
        seen.clear()
        return total

    try:
        yield loss
    finally:
        for hook in hooks:
            hook.remove()


def _note(seen: dict[tuple[str, str], Tensor], who: str, name: str) -> Callable[[nn.Module, object, Tensor], None]:
    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        seen[who, name] = output

    return note
