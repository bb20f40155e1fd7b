"""The training loss: cross-entropy to the labels, plus distillation from a teacher if there is one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils.hooks import RemovableHandle

from equalbits.training.config import TrainConfig
from equalbits.training.score import device_of, evaluation_mode

#: Maps (logits, labels, images) to the batch's mean loss.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def label_loss(config: TrainConfig) -> Loss:
    """Return cross-entropy with ``config.label_smoothing``."""
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
    """Distance between the attention maps of two layers: mean squared activations, normalized to unit length.

    The numbers of channels may differ, the sizes of the maps may not (Zagoruyko & Komodakis 2017; Martinez et al.
    2020).
    """
    maps = [nnf.normalize(layer.float().square().mean(dim=1).flatten(1), dim=1) for layer in (student, teacher)]
    distance: Tensor = torch.linalg.vector_norm(maps[0] - maps[1], dim=1)
    return distance.mean()


@contextmanager
def training_loss(model: nn.Module, teacher: nn.Module | None, config: TrainConfig) -> Iterator[Loss]:
    """Yield the loss to train with.

    Inside the ``with`` the teacher is in evaluation mode, and forward hooks record the paired layers of both nets.
    """
    if (teacher is not None) != config.distill.needs_teacher:
        raise ValueError(
            "distill is set but no teacher is given: give one, or set distill.weight=0"
            if teacher is None
            else "a teacher is given but not used: set distill.weight or distill.attention above 0"
        )
    if teacher is None:
        yield label_loss(config)
        return
    if teacher is model:
        raise ValueError("the teacher is the model itself: give another net")
    if device_of(teacher).type == "cuda":
        teacher.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as the images of a fast step
    outputs: dict[tuple[str, str], Tensor] = {}
    hooks = _record_outputs(outputs, {"student": model, "teacher": teacher}, config.distill.layers)
    try:
        with evaluation_mode(teacher):
            yield _distillation_loss(teacher, config, outputs)
    finally:
        for hook in hooks:
            hook.remove()


def _distillation_loss(teacher: nn.Module, config: TrainConfig, outputs: dict[tuple[str, str], Tensor]) -> Loss:
    """Return the loss with a teacher; ``outputs`` holds the last outputs of the paired layers."""
    distill, labels_only = config.distill, label_loss(config)
    device = device_of(teacher).type
    half = config.resolve_auto(device, can_capture=False).precision == "bf16"

    def loss(logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=half):
            teacher_logits = teacher(images).float()
        total = (1 - distill.weight) * labels_only(logits, labels, images)
        total = total + distill.weight * soft_label_loss(logits, teacher_logits, distill.temperature)
        for name in distill.layers:
            of_student, of_teacher = outputs["student", name], outputs["teacher", name]
            _check_maps(name, of_student, of_teacher)
            total = total + distill.attention * attention_distance(of_student, of_teacher)
        outputs.clear()
        return total

    return loss


def _check_maps(name: str, student: Tensor, teacher: Tensor) -> None:
    if student.dim() < 3 or student.shape[2:] != teacher.shape[2:]:
        raise ValueError(
            f"distill.layers names {name!r}, which returns {tuple(student.shape)} in the student and "
            f"{tuple(teacher.shape)} in the teacher: pair layers with maps of the same size, such as convolutions"
        )


def _record_outputs(
    outputs: dict[tuple[str, str], Tensor], nets: dict[str, nn.Module], layers: tuple[str, ...]
) -> list[RemovableHandle]:
    """Hook the named layers of both nets, so that each forward stores their outputs."""
    modules = {role: dict(net.named_modules()) for role, net in nets.items()}
    for role, by_name in modules.items():
        for name in layers:
            if name not in by_name:
                raise ValueError(f"distill.layers names {name!r}, which the {role} does not have")

    def hook_of(role: str, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            outputs[role, name] = output

        return hook

    return [
        by_name[name].register_forward_hook(hook_of(role, name)) for role, by_name in modules.items() for name in layers
    ]
