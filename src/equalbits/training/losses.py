"""The training loss: cross-entropy to the labels, plus distillation from a teacher if there is one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.nn import evaluation_mode
from equalbits.training.compilation import can_compile, compile_separately
from equalbits.training.config import TrainConfig
from equalbits.training.evaluation import device_of

#: Maps (logits, labels, images) to the batch's mean loss. Labels are classes, or shares of all classes.
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


def mixup_share(alpha: float, device: torch.device) -> Tensor:
    """Draw the share of the first image in a mixed one from Beta(alpha, alpha) (Zhang et al. 2018), on the device."""
    return torch.distributions.Dirichlet(torch.full((2,), alpha, device=device), validate_args=False).sample()[0]


def mix_with_reversed(batch: Tensor, share: Tensor) -> Tensor:
    """Mix each image of a batch, or each row of class shares, with its counterpart in the reversed batch.

    >>> mix_with_reversed(torch.eye(2), torch.tensor(0.75))
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]])
    """
    return share * batch + (1 - share) * batch.flip(0)


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
    with ExitStack() as hooks, evaluation_mode(teacher):
        for role, net in (("student", model), ("teacher", teacher)):
            modules = dict(net.named_modules())
            for name in config.distill.layers:
                if name not in modules:
                    raise ValueError(f"distill.layers names {name!r}, which the {role} does not have")
                hooks.enter_context(modules[name].register_forward_hook(partial(_record, outputs, (role, name))))
        yield _distillation_loss(teacher, config, outputs)


def _distillation_loss(teacher: nn.Module, config: TrainConfig, outputs: dict[tuple[str, str], Tensor]) -> Loss:
    """Return the loss with a teacher; ``outputs`` holds the last outputs of the paired layers."""
    distill, labels_only = config.distill, label_loss(config)
    device = device_of(teacher).type
    resolved = config.resolve_auto(device, can_capture=False, can_compile=can_compile())
    half = resolved.precision == "bf16"
    # A compiled forward would not call the hooks of paired layers.
    ask = compile_teacher(teacher) if resolved.speed in ("compiled", "captured") and not distill.layers else teacher

    def loss(logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=half):
            teacher_logits = ask(images).float()
        total = (1 - distill.weight) * labels_only(logits, labels, images)
        total = total + distill.weight * soft_label_loss(logits, teacher_logits, distill.temperature)
        for name in distill.layers:
            of_student, of_teacher = outputs["student", name], outputs["teacher", name]
            if of_student.dim() < 3 or of_student.shape[2:] != of_teacher.shape[2:]:
                raise ValueError(
                    f"distill.layers names {name!r}, which returns {tuple(of_student.shape)} in the student and "
                    f"{tuple(of_teacher.shape)} in the teacher: pair layers with maps of the same size"
                )
            total = total + distill.attention * attention_distance(of_student, of_teacher)
        outputs.clear()
        return total

    return loss


def compile_teacher(teacher: nn.Module) -> Callable[[Tensor], Tensor]:
    """Compile the teacher's forward for full batches; a smaller last batch would need a second compilation."""
    full_size = 0

    def forward(images: Tensor) -> Tensor:
        logits: Tensor = teacher(images)
        return logits

    compiled = compile_separately(forward)

    def ask(images: Tensor) -> Tensor:
        nonlocal full_size
        full_size = max(full_size, len(images))
        return (compiled if len(images) == full_size else forward)(images)

    return ask


def _record(
    outputs: dict[tuple[str, str], Tensor], key: tuple[str, str], module: nn.Module, inputs: object, output: Tensor
) -> None:
    """Store the output of a layer."""
    outputs[key] = output
