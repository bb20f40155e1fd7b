"""One optimizer step, and the steps of an epoch one after the other."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from itertools import chain
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from equalbits.nn import Bits, after_step_, ahead_ranker, bop_parameters, layers_with_hook, penalty
from equalbits.optim import BalancedBop, Bop, CombinedOptimizer
from equalbits.training import distributed
from equalbits.training.config import OptimizerConfig, TrainConfig
from equalbits.training.distill import Loss
from equalbits.training.score import Meter, as_logits, count_guesses, device_of, images_and_labels


class Batches(Protocol):
    """What training asks of its data: a number of batches, and the batches of any epoch from any batch on."""

    def __len__(self) -> int: ...

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (images, labels) of one epoch."""
        ...


class _Iterated:
    """A plain loader, such as torch's, as :class:`Batches`: each epoch is another pass over it.

    What such a loader draws hangs on torch's random state. So its first batch is fetched, and those to be left out
    are, as soon as the epoch is asked for: whoever seeds before that gets the same epoch from any batch on. Generators
    of its own are seeded likewise, and workers of its own begin anew: both would draw on from the epochs before.
    """

    def __init__(self, loader: Collection[tuple[Tensor, Tensor]]) -> None:
        self.loader = loader
        if isinstance(loader, DataLoader) and loader.persistent_workers:
            self.loader = copy(loader)
            vars(self.loader)["persistent_workers"] = False

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        tell_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if tell_epoch is not None:  # a DistributedSampler shuffles by it
            tell_epoch(number)
        for generator in _generators(self.loader):
            generator.manual_seed((torch.initial_seed() + 1) % 2**63)  # not quite as the net's, which draws others
        fetched = iter(self.loader)
        batches = chain([batch for batch in [next(fetched, None)] if batch is not None], fetched)
        for _ in range(start_batch):
            next(batches, None)
        return batches


def _generators(loader: object) -> list[torch.Generator]:
    """Those that a loader of torch's and its samplers were given; among several processes, not those of samplers.

    Processes that share images out by a sampler of one's own have it seeded alike, or each otherwise: so it must stay.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    drawing = [getattr(sampler, "generator", None) for sampler in samplers]
    own = getattr(loader, "generator", None)
    found = [own, *drawing] if distributed.place().world_size == 1 else [own] if own not in drawing else []
    return [generator for generator in found if isinstance(generator, torch.Generator)]


AnyBatches = Batches | Collection[tuple[Tensor, Tensor]] | DataLoader[Any]


def as_batches(loader: AnyBatches) -> Batches:
    """The loader itself where it knows epochs, else a view of it that does."""
    try:
        len(loader)
    except TypeError:
        raise TypeError(
            f"batches of type {type(loader).__name__} do not say how many they are: give a DataLoader of a data set "
            "with a length, or a list of batches, which can be gone through again"
        ) from None
    return cast("Batches", loader) if hasattr(loader, "epoch") else _Iterated(cast("Collection[Any]", loader))


def make_optimizer(model: nn.Module, config: OptimizerConfig, *, capture: bool = False) -> torch.optim.Optimizer:
    """The optimizer of all parameters that learn; with ``capture`` its learning rate lives on the device."""
    if config.flips:
        return _latent_free(model, config, capture=capture)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise ValueError("the model has no parameter that learns: every one has requires_grad=False")
    if any(isinstance(module, Bits) for module in model.modules()):
        raise ValueError(
            f"optimizer.name={config.name!r} would make bits real numbers: a net of bits needs 'bop' or 'balanced-bop'"
        )
    return _torchs_own(learning, config, capture=capture)


def _torchs_own(learning: list[nn.Parameter], config: OptimizerConfig, *, capture: bool) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {
        "lr": _rate(learning[0], config, capture=capture),
        "weight_decay": config.weight_decay,
        "fused": learning[0].device.type == "cuda" or None,
    }
    name = config.reals if config.flips else config.name
    if name == "sgd":
        return torch.optim.SGD(learning, momentum=config.momentum, nesterov=config.nesterov, **shared)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(learning, betas=config.betas, capturable=capture, **shared)


def _latent_free(model: nn.Module, config: OptimizerConfig, *, capture: bool) -> torch.optim.Optimizer:
    """Bop for the bits, one of torch's own for the real parameters that learn, where there are any."""
    bits, reals = bop_parameters(model)
    kind = Bop if config.name == "bop" else BalancedBop
    rate = _rate(bits[0]["params"][0], config, capture=capture)
    flipping = kind(bits, gamma=config.gamma, tau=config.tau, lr=rate)
    learning = [parameter for parameter in reals if parameter.requires_grad]
    return CombinedOptimizer(flipping, _torchs_own(learning, config, capture=capture)) if learning else flipping


def _rate(parameter: nn.Parameter, config: OptimizerConfig, *, capture: bool) -> float | Tensor:
    return torch.tensor(config.lr, device=parameter.device) if capture else config.lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set it for every group, in place where it lives on the device; Bop's ``gamma`` moves as it does."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


class Step:
    """Forward, backward, and one move of the optimizer; what was right is counted into the meter.

    The batch is worked through in ``config.accumulate`` parts to save memory. Only full batches run compiled, so that
    an epoch's smaller last batch costs no second compilation. On a CPU a step whose loss is not finite is not taken:
    ``refused`` then holds its images.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, config: TrainConfig, meter: Meter
    ) -> None:
        self.model, self.optimizer, self.loss, self.config, self.meter = model, optimizer, loss, config, meter
        self.compiled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
        self.full_size = 0
        self.refused: Tensor | None = None
        self.under_way = False  # the net is then between two steps' states, and not fit to be saved
        self.penalised, self.acts = layers_with_hook(model, "penalty"), bool(layers_with_hook(model, "after_step_"))
        if config.speed in ("compiled", "captured"):
            self.compiled = torch.compile(self.forward, dynamic=False)
        dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        self.ahead = ahead_ranker(model, dtype) if config.in_graph else None

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of some images, and what :func:`count_guesses` counts of them."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            output = self.model(images)
        logits = as_logits(output)
        loss = self.loss(logits, labels, images)
        counts = count_guesses(logits, labels, loss * len(labels))
        return (loss + penalty(self.penalised) if self.penalised else loss), counts

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        """Take one step."""
        self.under_way = True
        self.full_size = max(self.full_size, len(labels))
        if self.config.speed != "plain" and images.dim() == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        weight = distributed.weight_of_part(len(labels), images.device)
        count = min(self.config.accumulate, len(labels))
        parts = list(zip(images.chunk(count), labels.chunk(count), strict=True))
        compiled = self.compiled if len(labels) == self.full_size else None
        for number, (some, theirs) in enumerate(parts):
            with self._gradients_kept_here(number < len(parts) - 1):
                with self.ahead or nullcontext():
                    loss, counts = (compiled or self.forward)(some, theirs)
                self.meter.sums += counts
                if loss.device.type == "cpu" and not math.isfinite(loss.item()):
                    self.refused = some
                    self.meter.sums[3] += loss.detach()  # the counts know no penalty, which may be what is not finite
                    return
                if len(parts) > 1 or not isinstance(weight, float):
                    loss = loss * (weight * (len(theirs) / len(labels)))
                loss.backward()  # type: ignore[no-untyped-call]
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        if self.acts:
            after_step_(self.model)
        self.under_way = False

    def _gradients_kept_here(self, more_to_come: bool) -> AbstractContextManager[None]:
        """Share gradients with other processes once a batch, after its last part."""
        if more_to_come and isinstance(self.model, DistributedDataParallel):
            return cast("AbstractContextManager[None]", self.model.no_sync())
        return nullcontext()


def plain_steps(step: Step, batches: Batches, epoch: int, start: int) -> Iterator[None]:
    """Take the steps of an epoch one by one, each when asked for the next."""
    return _each(step, batches.epoch(epoch, start), start)


def _each(step: Step, batches: Iterator[tuple[Tensor, Tensor]], start: int) -> Iterator[None]:
    device = device_of(step.model)
    for number, batch in enumerate(batches, start + 1):
        images, labels = images_and_labels(batch, f"batch {number}")
        if len(labels) == 0:
            raise ValueError(f"batch {number} holds no image: leave it out of the loader")
        step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        yield
