"""Settings of a training run: frozen, validated at construction, varied by :func:`dataclasses.replace`."""

from dataclasses import replace
from typing import Literal

from equalbits._settings import Settings, setting

Speed = Literal["auto", "plain", "compiled", "captured", "recorded"]


class OptimizerConfig(Settings, group="optimizer"):
    """Optimizer settings. Weight decay applies to every parameter, as in the paper's code."""

    name: Literal["sgd", "adam", "adamw", "bop", "balanced-bop"] = setting(
        "optimizer; ``bop`` and ``balanced-bop`` need the weight quantizer ``bits``", default="sgd"
    )
    lr: float = setting("initial learning rate", default=0.1, above=0)
    momentum: float = setting("momentum of SGD", default=0.9, at_least=0, below=1)
    nesterov: bool = setting("use Nesterov momentum in SGD; needs ``momentum`` above 0", default=False)
    weight_decay: float = setting("weight decay; decoupled from the gradient in ``adamw``", default=1e-4, at_least=0)
    betas: tuple[float, float] = setting(
        "decay of the running averages in ``adam`` and ``adamw``", default=(0.9, 0.999), at_least=0, below=1
    )
    gamma: float = setting(
        "adaptivity rate of Bop's gradient average; scheduled like ``lr``", default=1e-4, above=0, at_most=1
    )
    tau: float = setting("threshold of that average above which Bop flips a bit", default=1e-8, at_least=0)
    reals: Literal["sgd", "adam", "adamw"] = setting(
        "optimizer of the real parameters beside Bop; the authors of Bop use ``adam``", default="sgd"
    )

    def check(self) -> None:
        """Require momentum for Nesterov."""
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov=true needs optimizer.momentum above 0")

    @classmethod
    def named(cls, name: str) -> "OptimizerConfig":
        """Return the optimizer of this name; the default ``lr`` is for SGD, so Adam needs one."""
        if name in ("adam", "adamw"):
            example = f'{{"name": "{name}", "lr": 0.001}}'
            raise ValueError(f"optimizer={name!r} needs its learning rate, since the default is SGD's: give {example}")
        return super().named(name)

    @property
    def flips_bits(self) -> bool:
        """True if the optimizer flips bits and trains only the other parameters by gradient steps."""
        return self.name in ("bop", "balanced-bop")


class ScheduleConfig(Settings, group="schedule"):
    """Learning rate schedule."""

    name: Literal["cosine", "linear", "step", "constant"] = setting(
        "``cosine`` and ``linear`` decay to near 0, ``step`` decays at the milestones", default="cosine"
    )
    per: Literal["epoch", "step"] = setting("update the learning rate each epoch or each step", default="epoch")
    milestones: tuple[int, ...] = setting(
        "epochs, ascending, after which ``step`` multiplies the learning rate by ``factor``", default=(), at_least=1
    )
    factor: float = setting("factor of ``step``", default=0.1, above=0)
    warmup_epochs: int = setting("epochs of linear warm-up to ``lr``; fewer than ``epochs``", default=0, at_least=0)

    def check(self) -> None:
        """Require increasing milestones, and some for ``step``."""
        if self.name == "step" and not self.milestones:
            raise ValueError("schedule.name='step' needs schedule.milestones, as in [150, 250, 320]")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"schedule.milestones={list(self.milestones)} must be in ascending order")


class DistillConfig(Settings, group="distill"):
    """Distillation from a teacher: the loss is ``(1 − weight) · labels + weight · teacher's soft labels``."""

    weight: float = setting(
        "share of the distillation loss; above 0 it needs ``teacher`` or ``--teacher``",
        default=0.0,
        at_least=0,
        at_most=1,
    )
    teacher: str = setting(
        "teacher, used unless ``--teacher`` gives one; a recipe is trained first, on the images of this one, "
        "into ``OUT/teacher``",
        default="",
        allowed="a name of ``equalbits list``, or the directory of a finished run",
    )
    temperature: float = setting("divisor of the logits of both networks; higher is softer", default=1.0, above=0)
    attention: float = setting(
        "weight of the distance between attention maps (Real-to-Binary); above 0 it needs ``--teacher`` and ``layers``",
        default=0.0,
        at_least=0,
    )
    layers: tuple[str, ...] = setting(
        "names of the layers whose attention maps are compared, present in both networks", default=()
    )

    def check(self) -> None:
        """Require layers for attention."""
        if self.attention > 0 and not self.layers:
            raise ValueError("distill.attention needs distill.layers, the names of the layers to match")

    @property
    def needs_teacher(self) -> bool:
        """True if the loss has a term that needs a teacher."""
        return self.weight > 0 or self.attention > 0


class TrainConfig(Settings):
    """Settings of :func:`train` besides the model and the batches.

    >>> TrainConfig(epochs=0)
    Traceback (most recent call last):
    ...
    ValueError: epochs=0 must be an integer, at least 1
    """

    epochs: int = setting("number of epochs", at_least=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    distill: DistillConfig = DistillConfig()
    seed: int = setting(
        "seed of initialization, shuffling, augmentation and dropout",
        default=0,
        at_least=0,
        below=2**63,
        allowed="an integer, at least 0 and below 2**63",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = setting(
        "precision of forward and backward; ``auto`` is bf16 on a GPU and fp32 on a CPU", default="auto"
    )
    speed: Speed = setting(
        "execution of a step: ``plain`` (eager), ``compiled`` (torch.compile), ``captured`` (compiled, in one CUDA "
        "graph) or ``recorded`` (eager, in one CUDA graph: slower steps, but no compile time); ``auto`` is the fastest "
        "that works on a GPU, and plain on a CPU",
        default="auto",
    )
    memory: Literal["normal", "small"] = setting(
        "``small`` computes the convolutions of binary ResNets again in the backward pass, where it keeps only bits",
        default="normal",
    )
    label_smoothing: float = setting(
        "share of each label that is spread evenly over all classes", default=0.0, at_least=0, below=1
    )
    mixup: float = setting(
        "alpha of mixup, such as 0.2: each image is mixed with another of its batch, as are their labels (0: none)",
        default=0.0,
        at_least=0,
    )
    weight_average: float = setting(
        "decay of the moving average of the weights that is evaluated and kept in their place, such as 0.999 (0: none)",
        default=0.0,
        at_least=0,
        below=1,
    )
    clip_norm: float = setting("maximum norm of all gradients together (0: no clipping)", default=0.0, at_least=0)
    accumulate: int = setting(
        "number of parts that a batch is split into to save memory; the step is still one", default=1, at_least=1
    )
    sync_batch_norm: bool = setting("synchronize batch norm across processes; needs GPUs", default=False)
    evaluate_every: int = setting("evaluate on the test data every n epochs, and after the last", default=1, at_least=1)
    checkpoint_seconds: float = setting("minimum time between two checkpoints, in seconds", default=60.0, at_least=0)

    def check(self) -> None:
        """Require epochs after the warm-up."""
        warmup = self.schedule.warmup_epochs
        if warmup >= self.epochs:
            raise ValueError(f"schedule.warmup_epochs={warmup} must be less than epochs={self.epochs}")

    @property
    def uses_cuda_graph(self) -> bool:
        """True if each step is one CUDA graph."""
        return self.speed in ("captured", "recorded")

    def resolve_auto(self, device: str, *, can_capture: bool, can_compile: bool = True) -> "TrainConfig":
        """Return the same settings with each ``auto`` replaced by the choice for this type of device."""
        on_gpu = device == "cuda"
        fastest: Speed = ("captured" if can_capture else "compiled") if on_gpu and can_compile else "plain"
        return replace(
            self,
            precision=("bf16" if on_gpu else "fp32") if self.precision == "auto" else self.precision,
            speed=fastest if self.speed == "auto" else self.speed,
        )
