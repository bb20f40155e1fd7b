"""Settings of a training run: frozen dataclasses, validated at construction."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from equalbits.training.setting_rules import OneOf, Within, check_settings


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer settings. Weight decay applies to every parameter, as in the paper's code.

    - ``name``: the optimizer; ``bop`` and ``balanced-bop`` need the weight quantizer ``bits``
    - ``lr``: initial learning rate
    - ``momentum``: momentum of SGD
    - ``nesterov``: use Nesterov momentum in SGD; needs ``momentum`` above 0
    - ``weight_decay``: weight decay; decoupled from the gradient in ``adamw``
    - ``betas``: decay of the running averages of the gradient and its square in ``adam`` and ``adamw``
    - ``gamma``: adaptivity rate of Bop's average of the gradient; it follows the schedule as ``lr`` does
    - ``tau``: threshold of that average above which Bop flips a bit
    - ``reals``: optimizer of the real parameters beside ``bop`` and ``balanced-bop``; Bop's authors use ``adam``
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
        """True for optimizers that flip bits and train only the other parameters by gradient."""
        return self.name in ("bop", "balanced-bop")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate schedule.

    - ``name``: ``cosine`` and ``linear`` decay to near 0, ``step`` decays at the milestones
    - ``per``: update the learning rate each epoch or each step
    - ``milestones``: epochs, in ascending order, after which ``step`` multiplies the learning rate by ``factor``
    - ``factor``: factor of ``step``
    - ``warmup_epochs``: epochs of linear warm-up to ``lr``; fewer than ``epochs``
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
            raise ValueError(f"schedule.milestones={list(self.milestones)} must be in ascending order")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Distillation from a teacher: the loss is ``(1 − weight) · labels + weight · teacher's soft labels``.

    - ``weight``: share of the distillation loss; above 0 it needs a teacher (``--teacher``)
    - ``temperature``: divisor of the logits of both networks; higher is softer
    - ``attention``: weight of the distance between attention maps of paired layers, as in Real-to-Binary; above 0 it
      needs a teacher and ``layers``
    - ``layers``: names of the layers to pair; both networks must have them
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
        """True if the loss uses a teacher."""
        return self.weight > 0 or self.attention > 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of :func:`train` besides the model and the batches.

    - ``epochs``: number of epochs
    - ``seed``: seed of initialization, shuffling, augmentation and dropout
    - ``precision``: precision of forward and backward; ``auto`` is bf16 on a GPU and fp32 on a CPU
    - ``speed``: execution of a step: ``plain`` (eager), ``compiled`` (torch.compile), ``captured`` (compiled, in one
      CUDA graph) or ``recorded`` (eager, in one CUDA graph: slower steps, but no compile time); ``auto`` is the fastest
      that works on a GPU, and plain on a CPU
    - ``label_smoothing``: share of each label that is spread evenly over all classes
    - ``clip_norm``: maximum norm of all gradients together (0: no clipping)
    - ``accumulate``: number of parts that a batch is split into to save memory; gradients accumulate to one step
    - ``sync_batch_norm``: synchronize batch norm across processes; needs GPUs
    - ``evaluate_every``: evaluate on the test data every n epochs, and after the last
    - ``checkpoint_seconds``: minimum time between two checkpoints, in seconds

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
                f"schedule.warmup_epochs={self.schedule.warmup_epochs} must be less than epochs={self.epochs}"
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
