"""Settings of a training run: frozen, checked at birth, varied by :func:`dataclasses.replace`."""

import math
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the parameters move. One group: weight decay acts on every parameter, as in the paper's code.

    ``bop`` and ``balanced-bop`` are for nets whose weights are bits (quantizer ``bits``): they flip the bits by
    ``gamma`` and ``tau``, ``gamma`` following the schedule as ``lr`` does, and SGD trains the real parameters.
    """

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    gamma: float = 1e-4
    tau: float = 1e-8

    def __post_init__(self) -> None:
        check_choice("optimizer.name", self.name, ("sgd", "adam", "adamw", "bop", "balanced-bop"))
        check_range("optimizer.lr", self.lr, above=0)
        check_range("optimizer.momentum", self.momentum, at_least=0, below=1)
        check_range("optimizer.weight_decay", self.weight_decay, at_least=0)
        check_range("optimizer.gamma", self.gamma, above=0, at_most=1)
        check_range("optimizer.tau", self.tau, at_least=0)
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov=true needs optimizer.momentum above 0")
        for beta in self.betas:
            check_range("optimizer.betas", beta, at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate goes from its start to its end; ``per`` says whether it moves each epoch or each step."""

    name: str = "cosine"
    per: str = "epoch"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup_epochs: int = 0

    def __post_init__(self) -> None:
        check_choice("schedule.name", self.name, ("cosine", "linear", "step", "constant"))
        check_choice("schedule.per", self.per, ("epoch", "step"))
        check_range("schedule.factor", self.factor, above=0)
        check_range("schedule.warmup_epochs", self.warmup_epochs, at_least=0)
        if self.name == "step" and not self.milestones:
            raise ValueError("schedule.name='step' needs schedule.milestones, as in [150, 250, 320]")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"schedule.milestones={list(self.milestones)} must rise")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """How much a teacher counts: the loss is ``(1 − weight) · labels + weight · teacher's soft labels``.

    ``attention`` adds that many times the distance between the attention maps of the paired ``layers``, as
    Real-to-Binary does.
    """

    weight: float = 0.0
    temperature: float = 1.0
    attention: float = 0.0
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_range("distill.weight", self.weight, at_least=0, at_most=1)
        check_range("distill.temperature", self.temperature, above=0)
        check_range("distill.attention", self.attention, at_least=0)
        if self.attention > 0 and not self.layers:
            raise ValueError("distill.attention needs distill.layers, the names of the layers to match")

    @property
    def wants_teacher(self) -> bool:
        """Whether a teacher has any say."""
        return self.weight > 0 or self.attention > 0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All that :func:`train` needs to know beside the model and the batches.

    ``precision`` is ``fp32``, ``tf32`` or ``bf16``; ``speed`` is ``plain`` (torch as it comes), ``compiled``
    (torch.compile), ``captured`` (compiled, and each step one CUDA graph) or ``recorded`` (each step one CUDA graph,
    nothing compiled: slower steps, but they begin at once). ``auto`` takes bf16 and the fastest that works on a GPU,
    fp32 and plain on a CPU.

    >>> TrainConfig(epochs=0)
    Traceback (most recent call last):
    ...
    ValueError: epochs=0 must be at least 1
    """

    epochs: int
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    seed: int = 0
    precision: str = "auto"
    speed: str = "auto"
    label_smoothing: float = 0.0
    clip_norm: float = 0.0
    accumulate: int = 1
    sync_batch_norm: bool = False
    evaluate_every: int = 1
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_range("epochs", self.epochs, at_least=1)
        check_range("seed", self.seed, at_least=0, below=2**63)
        check_choice("precision", self.precision, ("auto", "fp32", "tf32", "bf16"))
        check_choice("speed", self.speed, ("auto", "plain", "compiled", "captured", "recorded"))
        check_range("label_smoothing", self.label_smoothing, at_least=0, below=1)
        check_range("clip_norm", self.clip_norm, at_least=0)
        check_range("accumulate", self.accumulate, at_least=1)
        check_range("evaluate_every", self.evaluate_every, at_least=1)
        check_range("checkpoint_seconds", self.checkpoint_seconds, at_least=0)
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


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not among the choices."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(choices)}")


def check_range(name: str, value: float, **bounds: float) -> None:
    """Refuse a number outside its bounds: ``above``, ``at_least``, ``below``, ``at_most``."""
    holds: dict[str, Any] = {
        "above": lambda bound: value > bound,
        "at_least": lambda bound: value >= bound,
        "below": lambda bound: value < bound,
        "at_most": lambda bound: value <= bound,
    }
    if math.isfinite(value) and all(holds[rule](bound) for rule, bound in bounds.items()):
        return
    rules = " and ".join(f"{rule.replace('_', ' ')} {bound:g}" for rule, bound in bounds.items())
    raise ValueError(f"{name}={value} must be {rules}")
