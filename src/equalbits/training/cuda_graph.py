"""Whole training steps captured as a CUDA graph, of one net or of a stack of nets."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equalbits.nn import SeveralGradientsError
from equalbits.training.batches import DeviceBatches
from equalbits.training.checkpoint_file import optimizer_tensors
from equalbits.training.compilation import compile_separately
from equalbits.training.evaluation import device_of

if TYPE_CHECKING:
    from equalbits.training.loop import TrainStep


class CudaGraphSteps:
    """The steps of several nets as one CUDA graph: pick a batch, augment it and train on it, without the host.

    A smaller last batch has a graph of its own; if that cannot be captured, the batch is trained on without a graph.
    The nets are distributed over ``lanes`` streams inside the graph, by default one each, so that small nets run
    concurrently. Each net sees the batches of its own loader.
    """

    def __init__(
        self, steps: Sequence["TrainStep"], loaders: Sequence[DeviceBatches], *, lanes: int | None = None
    ) -> None:
        if not all(device_of(step.model).type == "cuda" for step in steps):
            speed = steps[0].config.speed
            raise ValueError(f"speed={speed!r} needs the model on a CUDA device: move it there, or set speed='plain'")
        self.steps, self.loaders = steps, loaders
        device = steps[0].meter.sums.device
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.held = [(loader.permutation(0), loader.randoms(0)) for loader in loaders]
        # The row of a smaller batch is padded with repeats; loaders may differ in which batch is smaller.
        sizes = zip(*(loader.sizes for loader in loaders), strict=True)  # of each batch, one per net
        smaller = [any(size < self._width(net) for net, size in enumerate(of_nets)) for of_nets in sizes]
        self.full = smaller.index(True) if True in smaller else len(smaller)
        self.drawn: tuple[int, list[tuple[Tensor, Sequence[Tensor] | None]]] | None = None
        # Higher priority than the streams that rank latents ahead.
        streams = min(lanes or len(steps), len(steps))
        self.side, *self.streams = (torch.cuda.Stream(device, priority=-1) for _ in range(streams))  # type: ignore[no-untyped-call]
        compiled = steps[0].compiled is not None
        self.pick = compile_separately(_pick_batch) if compiled else _pick_batch
        self.graph = torch.cuda.CUDAGraph()
        self.rest: torch.cuda.CUDAGraph | None = None
        # The tensors that each graph writes gradients to.
        self.gradients: dict[torch.cuda.CUDAGraph, list[tuple[nn.Parameter, Tensor | None]]] = {}
        if self.full:
            states = [set(step.optimizer.state) for step in steps]
            try:
                self._capture(self.graph, 0)
            except SeveralGradientsError:  # of a layer that is called twice, say
                for step, before in zip(steps, states, strict=True):
                    step.updates = None
                    for latents in set(step.optimizer.state) - before:  # torch's SGD takes momentum of all or of none
                        del step.optimizer.state[latents]
                self._capture(self.graph, 0)
        if self.full == len(smaller) - 1:
            rest = torch.cuda.CUDAGraph()
            with suppress(RuntimeError, ValueError):  # the step without a graph raises the same, with its batch number
                self._capture(rest, self.full)
                self.rest = rest

    def epoch(self, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch, one for each item requested."""
        self._stage(epoch)
        self.counter.fill_(start)
        batches = len(self.loaders[0])
        for batch in range(start, batches):
            graph = self.graph if batch < self.full else self.rest
            if graph is None:
                self._step_without_graph(batch)
            else:
                if batch in (start, self.full):
                    for parameter, gradient in self.gradients[graph]:
                        parameter.grad = gradient
                graph.replay()
            if batch == batches - 1:
                self._draw(epoch + 1)  # while the device is busy
            yield

    def _width(self, net: int) -> int:
        """Return the size of a net's full batches."""
        return self.held[net][0].shape[1]

    def _step_without_graph(self, batch: int) -> None:
        """Train every net on a batch without a graph."""
        for step, loader, (order, randoms) in zip(self.steps, self.loaders, self.held, strict=True):
            size = loader.sizes[batch]
            step(*loader.pick(order[batch, :size], [values[batch, :size] for values in randoms or ()] or None))

    def _draw(self, epoch: int) -> None:
        """Draw an epoch's order and random choices, on a stream that does not wait for the steps."""
        with torch.cuda.stream(self.side):
            self.drawn = epoch, [(loader.permutation(epoch), loader.randoms(epoch)) for loader in self.loaders]

    def _stage(self, epoch: int) -> None:
        """Copy an epoch's order and random choices to where the graph reads them."""
        if self.drawn is None or self.drawn[0] != epoch:
            self._draw(epoch)
        torch.cuda.current_stream().wait_stream(self.side)
        for held, (order, randoms) in zip(self.held, self.drawn[1], strict=True):  # type: ignore[index]
            held[0].copy_(order)
            for buffer, values in zip(held[1] or (), randoms or (), strict=True):
                buffer.copy_(values)

    def _step_all(self, batch: int) -> None:
        """Train every net on the batch that the counter points to, of the size of ``batch``; advance the counter."""
        home = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(home)
        lanes = [home, *self.streams]
        for number, step in enumerate(self.steps):
            with torch.cuda.stream(lanes[number % len(lanes)]):
                if step.ranker is not None:
                    step.ranker.rank()  # while the batch is made
                size = self.loaders[number].sizes[batch]
                pick = self.pick if size == self._width(number) else _pick_batch
                step(*pick(self.loaders[number], self.counter, *self.held[number], size))
        for stream in self.streams:
            home.wait_stream(stream)
        self.counter += 1

    def _capture(self, graph: torch.cuda.CUDAGraph, batch: int) -> None:
        """Warm up on a side stream, capture a step of the size of ``batch``, and restore all state, also on failure."""
        saved = [_copied_to_host(_tensors(step)) for step in self.steps]  # the device may have no memory for a copy
        self.side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.side):
                for _ in range(3):
                    self.counter.fill_(batch)  # there may be fewer batches than this
                    self._step_all(batch)
            torch.cuda.current_stream().wait_stream(self.side)
            for step in self.steps:
                step.optimizer.zero_grad(set_to_none=True)
            # Gradient accumulators belong to the stream they were made on, so capture on the stream of the warm-up.
            # Collect first: reference cycles left by a compilation may hold accumulators.
            gc.collect()
            with torch.cuda.graph(graph, stream=self.side):
                self._step_all(batch)
            parameters = [parameter for step in self.steps for parameter in step.model.parameters()]
            self.gradients[graph] = [(parameter, parameter.grad) for parameter in parameters]
        finally:
            torch.cuda.synchronize(self.counter.device)  # after a failed warm-up, streams have not joined
            for step in self.steps:
                step.in_progress = False
                if step.ranker is not None:
                    step.ranker.forget()  # the latents are about to be restored
            with torch.no_grad():
                for step, tensors in zip(self.steps, saved, strict=True):
                    for name, tensor in _tensors(step).items():
                        if name in tensors:
                            tensor.copy_(tensors[name])
                        else:
                            tensor.zero_()  # optimizer state made by the warm-up: it starts at zero
        self.counter.zero_()


def _pick_batch(
    loader: DeviceBatches, counter: Tensor, order: Tensor, randoms: Sequence[Tensor] | None, size: int
) -> tuple[Tensor, Tensor]:
    """Return the first ``size`` images of the batch that a counter on the device points to."""
    row = counter[None]
    drawn = [values.index_select(0, row)[0, :size] for values in randoms] if randoms else None
    images, labels = loader.pick(order.index_select(0, row)[0, :size], drawn)
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images, labels


def _copied_to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _tensors(step: "TrainStep") -> dict[str, Tensor]:
    """Return every tensor that a step changes, by name."""
    found: dict[str, Tensor] = {f"parameter.{name}": tensor for name, tensor in step.model.named_parameters()}
    found |= {f"buffer.{name}": tensor for name, tensor in step.model.named_buffers()}
    found |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors(step.optimizer)[0].items()}
    if step.average is not None:
        found |= {f"average.{name}": tensor for name, tensor in step.average.tensors.items()}
        found["updates"] = step.average.updates
    return {**found, "meter": step.meter.sums}
