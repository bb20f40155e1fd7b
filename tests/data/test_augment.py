"""Each batched function beside a slow twin that handles one image, one pixel at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equalbits.data import centre_crop, normalise, random_crop

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
    batch = random_crop(images[indices], dx, dy, flips, size=(height, width), padding=padding)
    twin = torch.stack(
        [
            slow_window(images[i], int(y) - padding, int(x) - padding, bool(flip), (height, width))
            for i, x, y, flip in zip(indices, dx, dy, flips, strict=True)
        ]
    )
    assert torch.equal(batch, twin)
    assert batch.dtype == torch.uint8 and batch.is_contiguous()


@settings(deadline=None)
@given(st.integers(0, 99))
def test_normalising_is_that_of_the_slow_twin(seed):
    images = pictures(seed, 3, 3, 4, 5)
    torch.testing.assert_close(
        normalise(images, MEAN, STD).double(), slow_normalise(images, MEAN, STD), atol=1e-6, rtol=1e-6
    )


def test_the_middle_offset_without_a_flip_changes_nothing():
    images = pictures(0, 3, 3, 32, 32)
    four = torch.full((3,), 4)
    assert torch.equal(random_crop(images, four, four, four < 0, size=(32, 32), padding=4), images)
    assert torch.equal(centre_crop(images, size=(32, 32)), images)


def test_padding_is_black_before_it_is_normalised():
    zero = torch.zeros(1, dtype=torch.int64)
    padded = random_crop(pictures(1, 1, 3, 8, 8), zero, zero, zero > 0, size=(8, 8), padding=4)
    torch.testing.assert_close(normalise(padded, MEAN, STD)[0, :, 0, 0], -MEAN / STD)


def test_flipping_twice_is_no_flip():
    images = pictures(2, 4, 3, 6, 6)
    none = torch.zeros(4, dtype=torch.int64)
    once = random_crop(images, none, none, none == 0, size=(6, 6))
    assert torch.equal(once, images.flip(-1))
    assert torch.equal(random_crop(once, none, none, none == 0, size=(6, 6)), images)


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(1, 4), st.integers(4, 9), st.integers(1, 4))
def test_a_random_crop_is_that_of_the_slow_twin(seed, count, side, size):
    random = np.random.default_rng(seed)
    images = pictures(seed, count, 3, side, side)
    dx, dy = torch.from_numpy(random.integers(0, side - size + 1, (2, count)))
    flips = torch.from_numpy(random.integers(0, 2, count)).bool()
    batch = random_crop(images, dx, dy, flips, size=(size, size))
    twin = torch.stack(
        [slow_window(images[i], int(dy[i]), int(dx[i]), bool(flips[i]), (size, size)) for i in range(count)]
    )
    assert torch.equal(batch, twin)


@pytest.mark.parametrize(("side", "size", "start"), [(8, 4, 2), (7, 4, 2), (5, 4, 0), (5, 5, 0)])
def test_a_centre_crop_keeps_the_middle(side, size, start):
    images = pictures(3, 2, 3, side, side)
    batch = centre_crop(images, size=(size, size))
    assert torch.equal(batch, images[:, :, start : start + size, start : start + size])


def test_a_batch_is_made_by_one_traced_graph():
    """No value decides a shape or a branch: one recording serves other values, as a CUDA graph needs."""
    images = pictures(5, 6, 3, 8, 8)

    def step(indices: Tensor, dx: Tensor, dy: Tensor, flips: Tensor) -> Tensor:
        return normalise(random_crop(images[indices], dx, dy, flips, size=(8, 8), padding=4), MEAN, STD)

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
        row = [values.index_select(0, step.view(1))[0] for values in randoms]
        batch, _ = gpu.pick(order.index_select(0, step.view(1))[0], row)
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
