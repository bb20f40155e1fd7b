"""Settings of a training run: frozen, checked at birth, varied by :func:`dataclasses.replace`."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from equalbits.training.setting_rules import OneOf, Within, check_settings


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the parameters move. One group: weight decay acts on every parameter, as in the paper's code.

    - ``name``: the optimizer; ``bop`` and ``balanced-bop`` flip the weights of a net whose quantizer is ``bits``
    - ``lr``: the learning rate at the start, before the schedule lowers it
    - ``momentum``: the share of the last step that SGD keeps
    - ``nesterov``: whether SGD looks ahead along its momentum, which must then be above 0
    - ``weight_decay``: how strongly every parameter is pulled to 0 (``adamw``: apart from the gradient)
    - ``betas``: the averaging of the gradient and of its square in ``adam`` and ``adamw``
    - ``gamma``: how quickly Bop's average of the gradient adapts; it follows the schedule as ``lr`` does
    - ``tau``: how far that average must stand against a bit to flip it
    - ``reals``: what trains the real parameters beside ``bop`` and ``balanced-bop``; Bop's authors take ``adam``
    """

    name: Annotated[str, OneOf("sgd", "adam", "adamw", "bop", "balanced-bop")] = "sgd"
    lr: Annotated[float, Within(above=0)] = 0.1
    momentum: Annotated[float, Within(at_least=0, below=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Within(at_least=0)] = 1e-4
    betas: Annotated[tuple[float, float], Within(at_least=0, below=1)] = (0.9, 0.999)
    gamma: Annotated[float, Within(above=0, at_most=1)] = 1e-4
    tau: Annotated[float, Within(at_least=0)] = 1e-8
    reals: Annotated[str, OneOf("sgd", "adam", "adamw")] = "sgd"

    def __post_init__(self) -> None:
        check_settings(self, "optimizer.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov=true needs optimizer.momentum above 0")

    @property
    def flips(self) -> bool:
        """Whether bits are flipped, and only the other parameters move."""
        return self.name in ("bop", "balanced-bop")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate goes from its start to its end.

    - ``name``: the curve; ``cosine`` and ``linear`` end near 0, ``step`` falls at the milestones
    - ``per``: whether it moves each epoch or each step
    - ``milestones``: after how many epochs, in rising order, ``step`` multiplies the rate by ``factor``
    - ``factor``: what ``step`` multiplies the rate by
    - ``warmup_epochs``: so many epochs, fewer than all, in which the rate first rises to its start
    """

    name: Annotated[str, OneOf("cosine", "linear", "step", "constant")] = "cosine"
    per: Annotated[str, OneOf("epoch", "step")] = "epoch"
    milestones: Annotated[tuple[int, ...], Within(at_least=1)] = ()
    factor: Annotated[float, Within(above=0)] = 0.1
    warmup_epochs: Annotated[int, Within(at_least=0)] = 0

    def __post_init__(self) -> None:
        check_settings(self, "schedule.")
        if self.name == "step" and not self.milestones:
            raise ValueError("schedule.name='step' needs schedule.milestones, as in [150, 250, 320]")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"schedule.milestones={list(self.milestones)} must rise")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """How much a teacher counts: the loss is ``(1 − weight) · labels + weight · teacher's soft labels``.

    - ``weight``: the share of the loss that is the teacher's; above 0 it needs a teacher (``--teacher``)
    - ``temperature``: what both nets' logits are divided by before they are compared; higher is softer
    - ``attention``: adds so many times the distance between the attention maps of the paired layers, as
      Real-to-Binary does; above 0 it needs a teacher and ``layers``
    - ``layers``: the names of the layers to pair, which both nets have
    """

    weight: Annotated[float, Within(at_least=0, at_most=1)] = 0.0
    temperature: Annotated[float, Within(above=0)] = 1.0
    attention: Annotated[float, Within(at_least=0)] = 0.0
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self, "distill.")
        if self.attention > 0 and not self.layers:
            raise ValueError("distill.attention needs distill.layers, the names of the layers to match")

    @property
    def wants_teacher(self) -> bool:
        """Whether a teacher has any say."""
        return self.weight > 0 or self.attention > 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All that :func:`train` needs to know beside the model and the batches.

    - ``epochs``: how often every training image is seen
    - ``seed``: what the start, the order of the images, their augmentation and dropout hang on
    - ``precision``: what the net computes in; ``auto`` is bf16 on a GPU and fp32 on a CPU
    - ``speed``: how a step runs: ``plain`` (torch as it comes), ``compiled`` (torch.compile), ``captured`` (compiled,
      and one CUDA graph) or ``recorded`` (one CUDA graph, nothing compiled: slower steps that begin at once); ``auto``
      is the fastest that works on a GPU and plain on a CPU
    - ``label_smoothing``: the share of each label that is spread evenly over all classes
    - ``clip_norm``: the most the norm of all gradients together may be before a step (0: no limit)
    - ``accumulate``: in so many parts a batch is worked through, to save memory; the step is still one
    - ``sync_batch_norm``: whether batch norm averages over the processes, too; needs GPUs
    - ``evaluate_every``: the test data is scored every so many epochs, and after the last
    - ``checkpoint_seconds``: so many seconds at least lie between two checkpoints

    >>> TrainConfig(epochs=0)
    Traceback (most recent call last):
    ...
    ValueError: epochs=0 must be at least 1
    """

    epochs: Annotated[int, Within(at_least=1)]
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    seed: Annotated[int, Within(at_least=0, below=2**63)] = 0
    precision: Annotated[str, OneOf("auto", "fp32", "tf32", "bf16")] = "auto"
    speed: Annotated[str, OneOf("auto", "plain", "compiled", "captured", "recorded")] = "auto"
    label_smoothing: Annotated[float, Within(at_least=0, below=1)] = 0.0
    clip_norm: Annotated[float, Within(at_least=0)] = 0.0
    accumulate: Annotated[int, Within(at_least=1)] = 1
    sync_batch_norm: bool = False
    evaluate_every: Annotated[int, Within(at_least=1)] = 1
    checkpoint_seconds: Annotated[float, Within(at_least=0)] = 60.0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.schedule.warmup_epochs >= self.epochs and self.schedule.warmup_epochs > 0:
            raise ValueError(
                f"schedule.warmup_epochs={self.schedule.warmup_epochs} leaves nothing of {self.epochs} epochs"
            )

    @property
    def in_graph(self) -> bool:
        """Whether each step is one CUDA graph."""
        return self.speed in ("captured", "recorded")

    def settled(self, device: str, *, can_capture: bool, can_compile: bool = True) -> "TrainConfig":
        """The same settings with every ``auto`` decided for this kind of device."""
        on_gpu = device == "cuda"
        fastest = ("captured" if can_capture else "compiled") if on_gpu and can_compile else "plain"
        return replace(
            self,
            precision=("bf16" if on_gpu else "fp32") if self.precision == "auto" else self.precision,
            speed=fastest if self.speed == "auto" else self.speed,
        )
