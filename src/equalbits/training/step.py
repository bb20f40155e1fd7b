"""One optimizer step, plain or captured whole as a CUDA graph."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from equalbits.training.config import OptimizerConfig, TrainConfig
from equalbits.training.distill import Loss
from equalbits.training.score import Meter, count_guesses


class Batches(Protocol):
    """What training asks of its data: a number of batches, and the batches of any epoch from any batch on."""

    def __len__(self) -> int: ...

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over (images, labels) of one epoch."""
        ...


class _Iterated:
    """A plain loader, such as torch's, as :class:`Batches`: each epoch is another pass over it."""

    def __init__(self, loader: Collection[tuple[Tensor, Tensor]]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int, start_batch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(iter(self.loader), start_batch, None)


AnyBatches = Batches | Collection[tuple[Tensor, Tensor]] | DataLoader[Any]


def as_batches(loader: AnyBatches) -> Batches:
    """The loader itself where it knows epochs, else a view of it that does."""
    return cast("Batches", loader) if hasattr(loader, "epoch") else _Iterated(cast("Collection[Any]", loader))


def make_optimizer(model: nn.Module, config: OptimizerConfig, *, capture: bool = False) -> torch.optim.Optimizer:
    """The optimizer of all parameters that learn; with ``capture`` its learning rate lives on the device."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learning:
        raise ValueError("the model has no parameter that learns: every one has requires_grad=False")
    device = learning[0].device
    shared: dict[str, Any] = {
        "lr": torch.tensor(config.lr, device=device) if capture else config.lr,
        "weight_decay": config.weight_decay,
        "fused": device.type == "cuda" or None,
    }
    if config.name == "sgd":
        return torch.optim.SGD(learning, momentum=config.momentum, nesterov=config.nesterov, **shared)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(learning, betas=config.betas, capturable=capture, **shared)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set it for every group, in place where it lives on the device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


class Step:
    """Forward, backward, and one move of the optimizer; what was right is counted into the meter.

    The batch is worked through in ``config.accumulate`` parts to save memory. Only full batches run compiled, so that
    an epoch's smaller last batch costs no second compilation.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, config: TrainConfig, meter: Meter
    ) -> None:
        self.model, self.optimizer, self.loss, self.config, self.meter = model, optimizer, loss, config, meter
        self.compiled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
        self.full_size: int | None = None
        if config.speed in ("compiled", "captured"):
            self.compiled = torch.compile(self.forward, dynamic=False)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of some images, and what :func:`count_guesses` counts of them."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            logits = self.model(images)
        logits = logits.float()
        loss = self.loss(logits, labels, images)
        return loss, count_guesses(logits, labels, loss * len(labels))

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        """Take one step."""
        if self.full_size is None:
            self.full_size = len(labels)
        if self.compiled is not None and images.dim() == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        forward = self.compiled if self.compiled is not None and len(labels) == self.full_size else self.forward
        self.optimizer.zero_grad(set_to_none=True)
        parts = list(zip(images.chunk(self.config.accumulate), labels.chunk(self.config.accumulate), strict=True))
        for number, (some, theirs) in enumerate(parts):
            alone = isinstance(self.model, DistributedDataParallel) and number < len(parts) - 1
            with self.model.no_sync() if alone else nullcontext():  # type: ignore[operator]
                loss, counts = forward(some, theirs)
                (loss * (len(theirs) / len(labels)) if len(parts) > 1 else loss).backward()  # type: ignore[no-untyped-call]
            self.meter.sums += counts
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()


def plain_steps(step: Step, batches: Batches, epoch: int, start: int) -> Iterator[None]:
    """Take the steps of an epoch one by one, each when asked for the next."""
    device = next(iter(step.model.parameters())).device
    for images, labels in batches.epoch(epoch, start):
        step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        yield


class DeviceBatches(Batches, Protocol):
    """Batches that live on the device and can be picked there by a counter, as a captured step needs."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many images each batch holds."""
        ...

    def permutation(self, epoch: int) -> Tensor:
        """The images of an epoch, (batch, image)."""
        ...

    def randoms(self, epoch: int) -> Sequence[Tensor] | None:
        """The random choices of an epoch, each (batch, image)."""
        ...

    def pick(self, indices: Tensor, randoms: Sequence[Tensor] | None) -> tuple[Tensor, Tensor]:
        """The batch of these images with these random choices."""
        ...


class CapturedSteps:
    """Several nets' steps as one CUDA graph: batches picked, augmented and trained on with no word from the host.

    Each net has its own stream inside the graph, so that small nets fill the device side by side. All nets see an
    epoch's batches of their own loaders at the same time.
    """

    def __init__(self, steps: Sequence[Step], loaders: Sequence[DeviceBatches]) -> None:
        if not all(next(iter(step.model.parameters())).is_cuda for step in steps):
            raise ValueError("speed='captured' needs the model on a CUDA device: move it there, or set speed='plain'")
        self.steps, self.loaders = steps, loaders
        self.full = [size == loaders[0].sizes[0] for size in loaders[0].sizes].count(True)
        device = steps[0].meter.sums.device
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.held = [(loader.permutation(0), loader.randoms(0)) for loader in loaders]
        self.drawn: tuple[int, list[tuple[Tensor, Sequence[Tensor] | None]]] | None = None
        self.side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.streams: list[torch.cuda.Stream] = [torch.cuda.Stream(device) for _ in steps[1:]]  # type: ignore[no-untyped-call]
        self.graph = torch.cuda.CUDAGraph()
        self._capture()

    def epoch(self, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch one by one, each when asked for the next."""
        self._stage(epoch)
        self.counter.fill_(start)
        for batch in range(start, self.full):
            self.graph.replay()
            if batch == self.full - 1:
                self._draw(epoch + 1)  # while the device is busy with what it was told
            yield
        for batch in range(max(start, self.full), len(self.loaders[0])):
            for step, loader in zip(self.steps, self.loaders, strict=True):
                step(*next(loader.epoch(epoch, batch)))
            yield

    def _draw(self, epoch: int) -> None:
        """Draw an epoch's order and random choices, on a stream that waits for no step."""
        with torch.cuda.stream(self.side):
            self.drawn = epoch, [(loader.permutation(epoch), loader.randoms(epoch)) for loader in self.loaders]

    def _stage(self, epoch: int) -> None:
        """Put an epoch's order and random choices where the graph looks for them."""
        if self.drawn is None or self.drawn[0] != epoch:
            self._draw(epoch)
        torch.cuda.current_stream().wait_stream(self.side)
        for held, (order, randoms) in zip(self.held, self.drawn[1], strict=True):  # type: ignore[index]
            held[0].copy_(order)
            for mine, theirs in zip(held[1] or (), randoms or (), strict=True):
                mine.copy_(theirs)

    def _all(self) -> None:
        """The step of every net, each on a stream of its own, then the count of batches."""
        home = torch.cuda.current_stream()
        for number, step in enumerate(self.steps):
            stream = home if number == 0 else self.streams[number - 1]
            stream.wait_stream(home)
            with torch.cuda.stream(stream):
                row = self.counter[None]
                order, randoms = self.held[number]
                order = order.index_select(0, row)[0]
                drawn = [values.index_select(0, row)[0] for values in randoms] if randoms else None
                step(*self.loaders[number].pick(order, drawn))
        for stream in self.streams:
            home.wait_stream(stream)
        self.counter += 1

    def _capture(self) -> None:
        """Warm up on a side stream, put everything back as it was, then record."""
        before = [_tensors(step) for step in self.steps]
        kept = [{name: tensor.clone() for name, tensor in tensors.items()} for tensors in before]
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for _ in range(3):
                self._all()
        torch.cuda.current_stream().wait_stream(self.side)
        for step in self.steps:
            step.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self._all()
        with torch.no_grad():
            for step, tensors in zip(self.steps, kept, strict=True):
                for name, tensor in _tensors(step).items():
                    if name in tensors:
                        tensor.copy_(tensors[name])
                    else:
                        tensor.zero_()  # made by the warm-up: an optimizer's fresh state is zero
        self.counter.zero_()


def _tensors(step: Step) -> dict[str, Tensor]:
    """All that a step changes, by name."""
    found = {f"model.{name}": tensor for name, tensor in step.model.state_dict().items()}
    found["meter"] = step.meter.sums
    for number, state in enumerate(step.optimizer.state.values()):
        found |= {f"optimizer.{number}.{name}": value for name, value in state.items() if isinstance(value, Tensor)}
    return found
