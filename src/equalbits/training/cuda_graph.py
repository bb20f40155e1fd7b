"""Steps captured whole as a CUDA graph, of one net or of several side by side."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor, nn

from equalbits.training.checkpoint import optimizer_tensors
from equalbits.training.score import device_of
from equalbits.training.step import Batches, Step


class DeviceBatches(Batches, Protocol):
    """Batches that live on the device and can be picked there by a counter, as a captured step needs."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many images each batch holds: as many as a row of :meth:`permutation`, or fewer."""
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

    An epoch's smaller last batch has a graph of its own; where it cannot be recorded it is trained on step by step.

    Nets are dealt out to ``lanes`` streams inside the graph, if you do not say one each, so that small nets fill the
    device side by side. All nets see an epoch's batches of their own loaders at the same time.
    """

    def __init__(self, steps: Sequence[Step], loaders: Sequence[DeviceBatches], *, lanes: int | None = None) -> None:
        if not all(device_of(step.model).type == "cuda" for step in steps):
            speed = steps[0].config.speed
            raise ValueError(f"speed={speed!r} needs the model on a CUDA device: move it there, or set speed='plain'")
        self.steps, self.loaders = steps, loaders
        device = steps[0].meter.sums.device
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.held = [(loader.permutation(0), loader.randoms(0)) for loader in loaders]
        # The row of a smaller batch ends in repeats, and loaders may differ in which batch is smaller.
        smaller = [any(size < self._width(net) for net, size in enumerate(sizes)) for sizes in self._sizes()]
        self.full = smaller.index(True) if True in smaller else len(smaller)
        self.drawn: tuple[int, list[tuple[Tensor, Sequence[Tensor] | None]]] | None = None
        # Of higher priority than the streams on which symbols are found ahead.
        streams = min(lanes or len(steps), len(steps))
        self.side, *self.streams = (torch.cuda.Stream(device, priority=-1) for _ in range(streams))  # type: ignore[no-untyped-call]
        compiled = steps[0].compiled is not None
        self.pick = torch.compile(_batch, dynamic=False) if compiled else _batch
        self.graph = torch.cuda.CUDAGraph()
        self.rest: torch.cuda.CUDAGraph | None = None
        # For each graph where it writes each parameter's gradient.
        self.gradients: dict[torch.cuda.CUDAGraph, list[tuple[nn.Parameter, Tensor | None]]] = {}
        if self.full:
            self._capture(self.graph, 0)
        if self.full == len(smaller) - 1:
            rest = torch.cuda.CUDAGraph()
            with suppress(RuntimeError, ValueError):  # what is wrong, the step tells better when it comes
                self._capture(rest, self.full)
                self.rest = rest

    def epoch(self, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch one by one, each when asked for the next."""
        self._stage(epoch)
        self.counter.fill_(start)
        batches = len(self.loaders[0])
        for batch in range(start, batches):
            graph = self.graph if batch < self.full else self.rest
            if graph is None:
                self._one_by_one(batch)
            else:
                if batch in (start, self.full):
                    for parameter, gradient in self.gradients[graph]:
                        parameter.grad = gradient
                graph.replay()
            if batch == batches - 1:
                self._draw(epoch + 1)  # while the device is busy with what it was told
            yield

    def _width(self, net: int) -> int:
        """How many images a full batch of a net has."""
        return self.held[net][0].shape[1]

    def _sizes(self) -> Iterator[tuple[int, ...]]:
        """For each batch how many images it has for each net."""
        return zip(*(loader.sizes for loader in self.loaders), strict=True)

    def _one_by_one(self, batch: int) -> None:
        """The step of every net on a batch, without a graph."""
        for step, loader, (order, randoms) in zip(self.steps, self.loaders, self.held, strict=True):
            size = loader.sizes[batch]
            step(*loader.pick(order[batch, :size], [values[batch, :size] for values in randoms or ()] or None))

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

    def _all(self, batch: int) -> None:
        """The step of every net, each in its lane, on batches as large as that one; then the count of batches."""
        home = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(home)
        lanes = [home, *self.streams]
        for number, step in enumerate(self.steps):
            with torch.cuda.stream(lanes[number % len(lanes)]):
                if step.ahead is not None:
                    step.ahead.rank()  # while the batch is made
                size = self.loaders[number].sizes[batch]
                pick = self.pick if size == self._width(number) else _batch
                step(*pick(self.loaders[number], self.counter, *self.held[number], size))
        for stream in self.streams:
            home.wait_stream(stream)
        self.counter += 1

    def _capture(self, graph: torch.cuda.CUDAGraph, batch: int) -> None:
        """Warm up on a side stream, record a step on batches as large as that one, and put all back as it was.

        Also when recording fails.
        """
        kept = [{name: tensor.detach().clone() for name, tensor in _tensors(step).items()} for step in self.steps]
        self.side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.side):
                for _ in range(3):
                    self.counter.fill_(batch)  # there may be fewer batches than this
                    self._all(batch)
            torch.cuda.current_stream().wait_stream(self.side)
            for step in self.steps:
                step.optimizer.zero_grad(set_to_none=True)
            # What sums up a gradient belongs to the stream it was made on. So the stream of the warm-up records, and
            # what a first compilation left in cycles is let go before.
            gc.collect()
            with torch.cuda.graph(graph, stream=self.side):
                self._all(batch)
            learning = [parameter for step in self.steps for parameter in step.model.parameters()]
            self.gradients[graph] = [(parameter, parameter.grad) for parameter in learning]
        finally:
            torch.cuda.synchronize(self.counter.device)  # where the warm-up failed, no stream has waited for the others
            for step in self.steps:
                step.under_way = False
                if step.ahead is not None:
                    step.ahead.forget()  # what the warm-up had begun: the latents are about to change back
            with torch.no_grad():
                for step, tensors in zip(self.steps, kept, strict=True):
                    for name, tensor in _tensors(step).items():
                        if name in tensors:
                            tensor.copy_(tensors[name])
                        else:
                            tensor.zero_()  # made by the warm-up: an optimizer's fresh state is zero
        self.counter.zero_()


def _batch(
    loader: DeviceBatches, counter: Tensor, order: Tensor, randoms: Sequence[Tensor] | None, size: int
) -> tuple[Tensor, Tensor]:
    """The first ``size`` images of the batch that a counter on the device points to."""
    row = counter[None]
    drawn = [values.index_select(0, row)[0, :size] for values in randoms] if randoms else None
    images, labels = loader.pick(order.index_select(0, row)[0, :size], drawn)
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images, labels


def _tensors(step: Step) -> dict[str, Tensor]:
    """All that a step changes, by name."""
    found: dict[str, Tensor] = {f"parameter.{name}": tensor for name, tensor in step.model.named_parameters()}
    found |= {f"buffer.{name}": tensor for name, tensor in step.model.named_buffers()}
    found |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors(step.optimizer)[0].items()}
    return {**found, "meter": step.meter.sums}
