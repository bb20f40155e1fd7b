"""Each batched function beside a slow twin that handles one image, one pixel at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equalbits.data import BoxRandoms, Randoms, centre_crop, make_batch, normalise, random_crop, resized_crop

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
sizes = st.integers(1, 9)


def pictures(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def slow_window(image: Tensor, top: int, left: int, flip: bool, size: tuple[int, int]) -> Tensor:
    channels, height, width = image.shape
    out = torch.zeros(channels, *size, dtype=torch.uint8)
    for row in range(size[0]):
        for column in range(size[1]):
            y, x = row + top, column + left
            if 0 <= y < height and 0 <= x < width:
                out[:, row, size[1] - 1 - column if flip else column] = image[:, y, x]
    return out


def slow_normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    out = [(images[:, c].double() / 255 - mean[c].double()) / std[c].double() for c in range(images.shape[1])]
    return torch.stack(out, dim=1)


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(1, 5), sizes, sizes, st.integers(0, 4))
def test_crop_and_flip_are_those_of_the_slow_twin(seed, count, height, width, padding):
    random = np.random.default_rng(seed)
    images = pictures(seed, 7, 3, height, width)
    indices = torch.from_numpy(random.integers(0, 7, count))
    dx, dy = torch.from_numpy(random.integers(0, 2 * padding + 1, (2, count)))
    flips = torch.from_numpy(random.integers(0, 2, count)).bool()
    batch = make_batch(images, indices, Randoms(dx, dy, flips), MEAN, STD, padding=padding)
    twin = torch.stack(
        [
            slow_window(images[i], int(y) - padding, int(x) - padding, bool(flip), (height, width))
            for i, x, y, flip in zip(indices, dx, dy, flips, strict=True)
        ]
    )
    assert torch.equal(batch, normalise(twin, MEAN, STD))
    assert batch.dtype == torch.float32 and batch.is_contiguous()


@settings(deadline=None)
@given(st.integers(0, 99))
def test_normalising_is_that_of_the_slow_twin(seed):
    images = pictures(seed, 3, 3, 4, 5)
    torch.testing.assert_close(
        normalise(images, MEAN, STD).double(), slow_normalise(images, MEAN, STD), atol=1e-6, rtol=1e-6
    )


def test_the_middle_offset_without_a_flip_changes_nothing():
    images = pictures(0, 5, 3, 32, 32)
    indices = torch.tensor([4, 0, 0])
    four = torch.full((3,), 4)
    same = make_batch(images, indices, Randoms(four, four, four < 0), MEAN, STD)
    assert torch.equal(same, make_batch(images, indices, None, MEAN, STD))
    assert torch.equal(same, normalise(images[indices], MEAN, STD))


def test_padding_is_black_before_it_is_normalised():
    images = pictures(1, 1, 3, 8, 8)
    zero = torch.zeros(1, dtype=torch.int64)
    corner = make_batch(images, zero, Randoms(zero, zero, zero > 0), MEAN, STD)[0, :, 0, 0]
    torch.testing.assert_close(corner, -MEAN / STD)


def test_flipping_twice_is_no_flip():
    images = pictures(2, 4, 3, 6, 6)
    every = torch.arange(4)
    none = torch.zeros(4, dtype=torch.int64)
    zero, one = torch.zeros(3), torch.full((3,), 1 / 255)
    once = make_batch(images, every, Randoms(none, none, none == 0), zero, one, padding=0)
    twice = make_batch(once.round().byte(), every, Randoms(none, none, none == 0), zero, one, padding=0)
    assert torch.equal(twice.round().byte(), images)
    assert torch.equal(once.round().byte(), images.flip(-1))


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(1, 4), st.integers(4, 9), st.integers(1, 4))
def test_a_random_crop_is_that_of_the_slow_twin(seed, count, side, size):
    random = np.random.default_rng(seed)
    images = pictures(seed, count, 3, side, side)
    dx, dy = torch.from_numpy(random.integers(0, side - size + 1, (2, count)))
    flips = torch.from_numpy(random.integers(0, 2, count)).bool()
    batch = random_crop(images, Randoms(dx, dy, flips), MEAN, STD, size=size)
    twin = torch.stack(
        [slow_window(images[i], int(dy[i]), int(dx[i]), bool(flips[i]), (size, size)) for i in range(count)]
    )
    assert torch.equal(batch, normalise(twin, MEAN, STD))


@pytest.mark.parametrize(("side", "size", "start"), [(8, 4, 2), (7, 4, 2), (5, 4, 0), (5, 5, 0)])
def test_a_centre_crop_keeps_the_middle(side, size, start):
    images = pictures(3, 2, 3, side, side)
    batch = centre_crop(images, MEAN, STD, size=size)
    assert torch.equal(batch, normalise(images[:, :, start : start + size, start : start + size], MEAN, STD))


def slow_resized_crop(image: Tensor, box: list[float], flip: bool, size: int) -> Tensor:
    """Each new pixel as a mix of the four old pixels around its centre, the edge going on outside."""
    side = image.shape[-1]
    top, left, height, width = box
    out = torch.zeros(3, size, size, dtype=torch.float64)
    for row in range(size):
        for column in range(size):
            y = min(max((top + height * (row + 0.5) / size) * side - 0.5, 0), side - 1)
            x = min(max((left + width * (column + 0.5) / size) * side - 0.5, 0), side - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, side - 1), min(x0 + 1, side - 1)
            up = image[:, y0, x0].double() * (1 - x + x0) + image[:, y0, x1].double() * (x - x0)
            down = image[:, y1, x0].double() * (1 - x + x0) + image[:, y1, x1].double() * (x - x0)
            out[:, row, size - 1 - column if flip else column] = up * (1 - y + y0) + down * (y - y0)
    return out


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(2, 9), st.integers(1, 7))
def test_a_resized_crop_is_that_of_the_slow_twin(seed, side, size):
    random = np.random.default_rng(seed)
    images = pictures(seed, 3, 3, side, side)
    lengths = random.uniform(0.2, 1, (3, 2))
    boxes = torch.from_numpy(np.concatenate([random.uniform(0, 1, (3, 2)) * (1 - lengths), lengths], axis=1))
    flips = torch.from_numpy(random.integers(0, 2, 3)).bool()
    batch = resized_crop(images, BoxRandoms(boxes.float(), flips), MEAN, STD, size=size)
    twin = torch.stack([slow_resized_crop(images[i], boxes[i].tolist(), bool(flips[i]), size) for i in range(3)])
    torch.testing.assert_close(batch.double(), slow_normalise(twin, MEAN, STD), atol=2e-4, rtol=1e-4)


def test_the_whole_box_at_the_old_size_changes_nothing():
    images = pictures(4, 2, 3, 8, 8)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
    batch = resized_crop(images, BoxRandoms(boxes, torch.tensor([False, True])), MEAN, STD, size=8)
    wanted = torch.stack([images[0], images[1].flip(-1)])
    torch.testing.assert_close(batch, normalise(wanted, MEAN, STD), atol=1e-4, rtol=1e-4)


def test_a_batch_is_made_by_one_traced_graph():
    """No value decides a shape or a branch: one recording serves other values, as a CUDA graph needs."""
    images = pictures(5, 6, 3, 8, 8)

    def step(indices: Tensor, dx: Tensor, dy: Tensor, flips: Tensor) -> Tensor:
        return make_batch(images, indices, Randoms(dx, dy, flips), MEAN, STD)

    def inputs(seed: int) -> tuple[Tensor, ...]:
        random = np.random.default_rng(seed)
        drawn = torch.from_numpy(random.integers(0, 6, (4, 3)))
        return drawn[0], drawn[1], drawn[2], drawn[3] > 2

    traced = torch.fx.experimental.proxy_tensor.make_fx(step)(*inputs(0))
    assert torch.equal(traced(*inputs(1)), step(*inputs(1)))


@pytest.mark.gpu
def test_a_captured_gpu_batch_has_the_bits_of_the_cpu():
    from equalbits.data import Loader, load_dataset

    cpu = Loader(load_dataset("synthetic:3x32x32:10:512", split="train"), batch_size=64, shuffle=True, augment=True)
    gpu = Loader(cpu.dataset.to("cuda"), batch_size=64, shuffle=True, augment=True)
    order, randoms = gpu.permutation(0), gpu.randoms(0)
    assert randoms is not None
    step = torch.zeros((), dtype=torch.int64, device="cuda")

    def body() -> Tensor:
        row = Randoms(*(values.index_select(0, step.view(1))[0] for values in randoms))
        batch = make_batch(gpu.dataset.images, order.index_select(0, step.view(1))[0], row, gpu.mean, gpu.std)
        step.add_(1)
        return batch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    step.zero_()
    for (images, labels), (theirs, their_labels) in zip(cpu.epoch(0), gpu.epoch(0), strict=True):
        graph.replay()
        assert torch.equal(out.cpu(), images) and torch.equal(theirs.cpu(), images)
        assert torch.equal(their_labels.cpu(), labels)
