"""Which batches a captured step sees, without a GPU: streams do nothing, and a graph is the calls made while it was
recorded, made again. What streams and graphs themselves do is for ``test_gpu_*.py``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from equalbits.data import Loader, load_dataset
from equalbits.nn import BackwardUpdates, BinaryLinear
from equalbits.nn.rank_ahead import ACTIVE_RANKERS
from equalbits.training import TrainConfig, cuda_graph, make_optimizer
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.evaluation import Meter
from equalbits.training.loop import TrainStep
from equalbits.training.losses import label_loss
from equalbits.training.optimizer import update_latents_


class Graph:
    """Replays what was called while it was recorded."""

    recording: "Graph | None" = None

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


#: Each time the host has waited for the device.
waited: list[torch.device] = []


class Stream:
    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, other: "Stream") -> None: ...


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> type[CudaGraphSteps]:
    @contextmanager
    def recorded(graph: Graph, stream: Stream) -> Iterator[None]:
        Graph.recording = graph
        try:
            yield
        finally:
            Graph.recording = None

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        yield

    class Recorded(CudaGraphSteps):
        def _step_all(self, batch: int) -> None:
            call = partial(super()._step_all, batch)
            if Graph.recording is None:
                call()
            else:
                Graph.recording.calls.append(call)

    for name, fake in {"Stream": Stream, "CUDAGraph": Graph, "graph": recorded, "stream": on}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(device))
    waited.clear()
    monkeypatch.setattr(cuda_graph, "device_of", lambda model: torch.device("cuda"))
    return Recorded


def make_step(seed: int = 0) -> TrainStep:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).train()
    config = TrainConfig(epochs=3, speed="plain", precision="fp32")
    return TrainStep(
        model, make_optimizer(model, config.optimizer), label_loss(config), config, Meter(torch.device("cpu"))
    )


def make_loader(count: int, batch_size: int = 16, seed: int = 0) -> Loader:
    data = load_dataset(f"synthetic:1x8x8:4:{count}", split="train")
    return Loader(data, batch_size=batch_size, shuffle=True, augment=True, seed=seed)


def state(step: TrainStep) -> dict[str, Tensor]:
    return {**step.model.state_dict(), "meter": step.meter.sums}


def assert_same(step: TrainStep, other: TrainStep) -> None:
    for (name, mine), theirs in zip(state(step).items(), state(other).values(), strict=True):
        assert torch.equal(mine, theirs), name


def plain(loader: Loader, epochs: int = 3, seed: int = 0) -> TrainStep:
    step = make_step(seed)
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            step(*batch)
    return step


def go_through(steps: CudaGraphSteps, epochs: int = 3) -> None:
    for epoch in range(epochs):
        for _ in steps.epoch(epoch, 0):
            pass


@pytest.mark.parametrize("count", [84, 80, 16, 18, 10])
def test_every_batch_is_trained_on_once_the_smaller_last_one_too(count: int, capture: type[CudaGraphSteps]) -> None:
    step, loader = make_step(), make_loader(count)
    steps = capture([step], [loader])
    assert (steps.rest is None) == (count in (80, 16, 10))  # ten alone are no smaller than the others
    go_through(steps)
    assert_same(step, plain(loader))


@pytest.mark.parametrize("start", range(6))
def test_an_epoch_resumes_at_any_batch(start: int, capture: type[CudaGraphSteps]) -> None:
    step, loader = make_step(), make_loader(84)
    for number, batch in enumerate(loader.epoch(0)):
        if number < start:
            step(*batch)
    assert sum(1 for _ in capture([step], [loader]).epoch(0, start)) == 6 - start
    assert_same(step, plain(loader, epochs=1))


@pytest.mark.parametrize(
    "sizes",
    [
        ((84, 16), (90, 16)),
        ((90, 16), (84, 16)),
        ((84, 16), (96, 16)),
        ((96, 16), (84, 16)),
        ((84, 16), (110, 20)),
        ((96, 16), (120, 20)),
    ],
)
def test_nets_of_a_stack_may_have_different_batch_sizes(
    sizes: tuple[tuple[int, int], ...], capture: type[CudaGraphSteps]
) -> None:
    loaders = [make_loader(count, batch_size, seed) for seed, (count, batch_size) in enumerate(sizes)]
    steps = [make_step(seed) for seed in range(2)]
    go_through(capture(steps, loaders))
    for seed, (step, loader) in enumerate(zip(steps, loaders, strict=True)):
        assert_same(step, plain(loader, seed=seed))


def test_a_last_batch_that_cannot_be_captured_is_trained_without_a_graph(
    capture: type[CudaGraphSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = capture([make_step()], [make_loader(81)])  # one image, and a batch norm
    assert alone.rest is None
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        go_through(alone, epochs=1)

    whole = capture._capture

    def refused(self: CudaGraphSteps, graph: Graph, batch: int) -> None:
        whole(self, graph, batch)
        if batch:
            raise RuntimeError("no room for a second graph")

    monkeypatch.setattr(capture, "_capture", refused)
    step, loader = make_step(), make_loader(84)
    go_through(capture([step], [loader]))
    assert_same(step, plain(loader))


def test_a_warm_up_that_fails_in_the_second_net_restores_the_first(capture: type[CudaGraphSteps]) -> None:
    class Short(TrainStep):
        """Runs out of memory on a small batch, the first time."""

        failed: list[int] | None = None

        def __call__(self, images: Tensor, labels: Tensor) -> None:
            if len(labels) < 16 and not self.failed:
                self.failed = [len(waited)]
                self.in_progress = True
                raise RuntimeError("out of memory")
            super().__call__(images, labels)

    steps, loaders = [make_step(0), make_step(1)], [make_loader(84, seed=seed) for seed in range(2)]
    steps[1].__class__ = Short
    before = [{name: tensor.clone() for name, tensor in state(step).items()} for step in steps]
    stack = capture(steps, loaders)
    assert stack.rest is None and not any(step.in_progress for step in steps)
    assert steps[1].failed == [1] and len(waited) == 2  # once for each graph, before anything is put back
    for step, kept in zip(steps, before, strict=True):
        assert all(torch.equal(tensor, kept[name]) for name, tensor in state(step).items())
    go_through(stack)
    for seed, (step, loader) in enumerate(zip(steps, loaders, strict=True)):
        assert_same(step, plain(loader, seed=seed))


def test_batches_that_are_smaller_before_the_last_are_trained_on_too(capture: type[CudaGraphSteps]) -> None:
    loader = make_loader(84)

    class Dwindling:
        """The same batches, the last two cut short."""

        sizes = (16, 16, 16, 16, 8, 3)
        permutation, randoms, pick = loader.permutation, loader.randoms, loader.pick

        def __len__(self) -> int:
            return 6

    step = make_step()
    go_through(capture([step], [Dwindling()]))  # type: ignore[list-item]
    assert step.meter.read(all_processes=False).total == 3 * sum(Dwindling.sizes)


def test_a_layer_that_is_used_twice_is_captured_with_updates_after_the_backward_pass(
    capture: type[CudaGraphSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*, in_backward: bool) -> TrainStep:
        torch.manual_seed(0)
        twice, config = BinaryLinear(64, 64, bias=False), TrainConfig(epochs=3, speed="plain", precision="fp32")
        model = nn.Sequential(nn.Flatten(), twice, nn.BatchNorm1d(64), twice, nn.Linear(64, 4)).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9, fused=True)
        step = TrainStep(model, optimizer, label_loss(config), config, Meter(torch.device("cpu")))
        if in_backward:
            twice.ranked_ahead = 0, torch.float32
            monkeypatch.setattr(ACTIVE_RANKERS, "stack", [lambda _: (twice.symbols() * twice.scale).detach()])
            step.updates = BackwardUpdates([twice], partial(update_latents_, optimizer))
        return step

    loader, steps = make_loader(80), [make(in_backward=in_backward) for in_backward in (False, True)]
    for step in steps:
        go_through(capture([step], [loader]))
    assert steps[1].updates is None
    assert_same(*steps)
