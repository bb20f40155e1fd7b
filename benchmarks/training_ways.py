"""Ways to train a ResNet-18: a net, real or binary, switches of equalbits, and a speed, as in "1w1a 8bits, captured".

* real: the same network with real weights and ReLU blocks; 1w1a: bi-half weights and the sign of the inputs. "small"
  computes its convolutions again in the backward pass, "again100" those whose outputs have at least 100 values per
  weight, "never" none (``equalbits.nn.fused_norm.RECOMPUTE_FROM``). "small" also updates latents in the backward
  pass, unless it is "kept"; "early" does so alone (``equalbits.training.optimizer.UPDATES_IN_BACKWARD``). "8bits"
  keeps inputs of fused norms in 8 bits (``nn.fused_norm.KEEP_IN_8_BITS``), "pool" a byte per output of the stem's max
  pool, and "averages" averages of shortcuts alone (``models.pooling``).
* best: the net of the recipe ``cifar10-resnet18-best``, with RSign and RPReLU; "unfused" computes its norms,
  activations and signs one by one, "taught" adds the loss of a real teacher.
* captured: bfloat16, compiled, each step one CUDA graph. plain: eager, bfloat16 autocast.
* 224: 224×224 images at batch 256; otherwise CIFAR's at batch 128.
"""

import math
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import gpu_step
import torch
from live_memory import StepMemory
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.models import create_model, pooling, residual_blocks
from equalbits.nn import SignActivation, fused_norm, recompute_convolutions_
from equalbits.training import DistillConfig, TrainConfig, make_optimizer, optimizer
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.evaluation import Meter
from equalbits.training.loop import TrainStep
from equalbits.training.losses import training_loss

LOSS_STEPS = 200
DEVICE = "cuda"
DEFAULTS = dict(fused_norm.RECOMPUTE_FROM)
CAN_FUSE = residual_blocks.can_fuse


class Case(NamedTuple):
    """A net and data: CIFAR's shape at batch 128, or ImageNet's at batch 256."""

    net: str
    classes: int
    side: int
    batch: int

    def loader(self, steps: int) -> Loader:
        """Return random images of this shape, on the device."""
        name = f"synthetic:3x{self.side}x{self.side}:{self.classes}:{self.batch * steps}"
        data = load_dataset(name, split="train", device=DEVICE)
        return Loader(data, batch_size=self.batch, shuffle=True, augment=self.side == 32)


CIFAR, LARGE = Case("resnet18", 10, 32, 128), Case("imagenet_resnet18", 1000, 224, 256)


def act_as(way: str) -> None:
    """Set the switches that a way names, and the others to their defaults."""
    residual_blocks.can_fuse = (lambda *_: False) if "unfused" in way else CAN_FUSE
    fused_norm.RECOMPUTE_FROM = dict(DEFAULTS)
    optimizer.UPDATES_IN_BACKWARD = () if "kept" in way else ("normal", "small") if "early" in way else ("small",)
    fused_norm.KEEP_IN_8_BITS = "8bits" in way
    pooling.POOLS_IN_BYTES, pooling.AVERAGED_SHORTCUTS = "pool" in way, "averages" in way
    for word in way.split(",")[0].split()[1:]:
        if word == "never" or word.startswith("again"):
            least = math.inf if word == "never" else float(word.removeprefix("again"))
            fused_norm.RECOMPUTE_FROM = dict.fromkeys(DEFAULTS, least)


def make_model(way: str, case: Case = CIFAR) -> nn.Module:
    torch.manual_seed(0)
    quantizers: dict[str, Any] = {"weight_quantizer": None}
    if way.startswith("best"):
        quantizers = {"weight_quantizer": "bihalf", "input_quantizer": "rsign", "rprelu": True}
    elif not way.startswith("real"):
        quantizers = {"weight_quantizer": "bihalf", "input_quantizer": SignActivation()}
    model = create_model(case.net, num_classes=case.classes, **quantizers)
    recompute_convolutions_(model, "small" in way)
    return model


class Run:
    """The training steps of one way, ready to run, and the memory of one step."""

    def __init__(self, way: str, case: Case, loader: Loader) -> None:
        self.way, self.loader, self.count = way, loader, min(gpu_step.STEPS, len(loader))
        self.batch: tuple[Tensor, Tensor] | None = None
        act_as(way)
        speed = way.split(", ")[1] if DEVICE == "cuda" else "plain"
        distill = DistillConfig(weight=0.9, temperature=4.0) if "taught" in way else DistillConfig()
        memory: Any = "small" if "small" in way else "normal"
        config = TrainConfig(epochs=1, speed=speed, precision="bf16", memory=memory, distill=distill)  # type: ignore[arg-type]
        model = make_model(way, case).to(DEVICE)
        if speed == "captured":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        made = make_optimizer(model, config.optimizer, capture=speed == "captured")
        for group in made.param_groups:
            group["lr"] = group["lr"] * 0.2  # so that 200 steps on noise stay finite
        self.meter = Meter(torch.device(DEVICE))
        teacher = make_model("real", case).to(DEVICE) if "taught" in way else None
        self.ended = ExitStack()  # never left: it would put the teacher back into training mode
        loss = self.ended.enter_context(training_loss(model, teacher, config))
        self.step = TrainStep(model.train(), made, loss, config, self.meter)
        models = [model] if teacher is None else [model, teacher]
        self.graph: CudaGraphSteps | None = None
        with StepMemory(models, made) as self.memory:
            if speed == "captured":  # recorded from the begin of the capture
                self.graph = CudaGraphSteps([self.step], [loader])
            else:
                self.steps(1)
                self.memory.begin()
                self.steps(1)

    def steps(self, count: int) -> None:
        """Take the first ``count`` batches of the loader's first epoch."""
        if self.graph is not None:
            self.graph.counter.zero_()
            for _ in range(count):
                self.graph.graph.replay()
            return
        act_as(self.way)
        for number, batch in enumerate(self.loader.epoch(0)):
            if number == count:
                return
            self.step(*batch)

    def timed(self) -> None:
        """Take some steps, eager ones without the time to make batches."""
        if self.graph is not None:
            self.steps(self.count)
            return
        act_as(self.way)
        self.batch = self.batch or next(iter(self.loader.epoch(0)))
        for _ in range(self.count):
            self.step(*self.batch)

    def milliseconds(self) -> float:
        """Return the time of a step."""
        if DEVICE == "cuda":
            return gpu_step.milliseconds(self.timed) * gpu_step.STEPS / self.count
        start = time.perf_counter()
        self.timed()
        return (time.perf_counter() - start) * 1e3 / self.count

    def losses(self) -> list[float]:
        """Return the loss of the first step, and the mean of every 20 steps."""
        self.steps(1)
        first = self.meter.sums.tolist()
        rows = [first]
        for _ in range(LOSS_STEPS // gpu_step.STEPS):
            self.steps(self.count)
            rows.append(self.meter.sums.tolist())
        return [mean_loss([0.0] * 4, first)] + [mean_loss(a, b) for a, b in pairwise(rows)]


def mean_loss(before: list[float], after: list[float]) -> float:
    """Return the mean loss between two readings of a meter: correct, images, correct in the top 5, and loss."""
    return (after[3] - before[3]) / (after[1] - before[1])
