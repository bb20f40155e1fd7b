"""Squares erased from training images: exactly those pixels, drawn again each epoch; nothing else changes."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equalbits.data import (
    Augmentation,
    DataError,
    Dataset,
    Decoding,
    FolderLoader,
    Loader,
    erase_squares,
    load_dataset,
)
from equalbits.data.sampling import Plan, Shard

OPTIONS = {"shuffle": True, "augment": True}


def erasing(side: int) -> dict[str, Any]:
    return {"shuffle": True, "augment": Augmentation(erase=side)}


def counted(count: int, size: tuple[int, int] = (6, 6)) -> Dataset:
    """Images without a pixel that normalizes to 0, so that erased pixels are known."""
    pixels = torch.arange(count * 2 * size[0] * size[1]) * 37 % 251
    images = pixels.byte().view(count, 2, *size)
    return Dataset("counted", images, torch.arange(count), tuple(map(str, range(count))), (0.7301, 0.3301), (0.2, 0.3))


def slow_erase(image: Tensor, row: int, column: int, side: int) -> Tensor:
    """One pixel after another, as a square laid on an endless plane would cover them."""
    out = image.clone()
    for y in range(row - side // 2, row - side // 2 + side):
        for x in range(column - side // 2, column - side // 2 + side):
            if 0 <= y < image.shape[1] and 0 <= x < image.shape[2]:
                out[:, y, x] = 0
    return out


@settings(deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
def test_erasing_is_that_of_the_slow_twin(data, height, width, count):
    side = data.draw(st.integers(0, 2 * max(height, width)))
    rows, columns = (
        torch.tensor(data.draw(st.lists(st.integers(0, length - 1), min_size=count, max_size=count)))
        for length in (height, width)
    )
    images = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(side)) + 0.5
    before = images.clone()
    erased = erase_squares(images, rows, columns, side=side)
    twin = [slow_erase(images[i], int(rows[i]), int(columns[i]), side) for i in range(count)]
    assert torch.equal(erased, torch.stack(twin))
    assert torch.equal(images, before)
    assert erased.is_contiguous() and erased.dtype == torch.float32


@pytest.mark.parametrize(
    ("row", "column", "side", "gone"),
    [
        (0, 0, 4, 2 * 2),  # rows -2 to 1
        (0, 7, 4, 2 * 3),  # columns 5 to 8 of 8
        (7, 0, 4, 3 * 2),
        (7, 7, 4, 3 * 3),
        (4, 4, 4, 4 * 4),
        (0, 0, 3, 2 * 2),
        (7, 7, 3, 2 * 2),
        (0, 4, 3, 2 * 3),
        (3, 5, 1, 1),
        (0, 7, 16, 8 * 8),  # twice the side: everything, wherever the centre lies
    ],
)
def test_the_count_of_erased_pixels_is_right_in_the_corners(row, column, side, gone):
    erased = erase_squares(torch.ones(1, 2, 8, 8), torch.tensor([row]), torch.tensor([column]), side=side)
    assert [int((channel == 0).sum()) for channel in erased[0]] == [gone, gone]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(0, 9), st.integers(0, 5), st.sampled_from([(6, 6), (5, 8)]))
def test_a_loader_erases_its_own_square_of_each_image_and_leaves_every_other_pixel(side, seed, epoch, size):
    data = counted(23, size)
    plain = Loader(data, batch_size=7, seed=seed, **OPTIONS)
    erased = Loader(data, batch_size=7, seed=seed, **erasing(side))
    rows, columns = erased.plan.squares(epoch, size=size)
    for batch, ((images, labels), (theirs, their_labels)) in enumerate(
        zip(erased.epoch(epoch), plain.epoch(epoch), strict=True)
    ):
        places = zip(theirs, rows[batch], columns[batch], strict=False)  # the last row is longer
        twin = [slow_erase(image, int(row), int(column), side) for image, row, column in places]
        assert (theirs != 0).all() and torch.equal(images, torch.stack(twin))
        assert torch.equal(labels, their_labels)


@pytest.mark.parametrize(("seed", "epoch", "digest"), [(0, 0, "63945525f6447146"), (7, 3, "a8aa2e9f6431795a")], ids=str)
def test_without_erasing_every_batch_is_unchanged(seed, epoch, digest):
    known = counted(40)
    data = Dataset("counted", known.images, known.labels, known.classes, (0.0, 0.0), (1 / 255, 1 / 255))
    for loader in (
        Loader(data, batch_size=12, seed=seed, **OPTIONS),
        Loader(data, batch_size=12, seed=seed, **erasing(0)),
    ):
        assert len(loader.randoms(epoch)) == 3
        pixels = torch.cat([images.round().byte() for images, _ in loader.epoch(epoch)])
        assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == digest


def test_squares_are_the_same_on_every_machine():
    rows, columns = Plan(6, 3, shuffle=True, seed=7).squares(3, size=(32, 8))
    assert rows.tolist() == [[27, 7, 26], [16, 20, 20]]
    assert columns.tolist() == [[6, 5, 5], [5, 7, 0]]


def test_centres_of_erased_squares_are_uniform_over_all_pixels():
    plan = Plan(60_000, 60_000)
    rows, columns = plan.squares(0, size=(5, 4))
    counts = torch.bincount((rows * 4 + columns).flatten(), minlength=20)
    assert len(counts) == 20 and counts.sub(3_000).abs().max() < 300
    drawn = torch.stack([rows, columns, *(values.long() for values in plan.windows(0, offsets=9))]).flatten(1).double()
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.02


def test_each_image_epoch_and_seed_has_a_square_of_its_own():
    data = counted(100, (32, 32))
    loader = Loader(data, batch_size=100, **erasing(8))
    other = loader.with_seed(1)
    drawn = [torch.stack(some.randoms(epoch)[3:])[:, 0] for some, epoch in ((loader, 0), (loader, 1), (other, 0))]
    assert all(len(squares.unique(dim=1).T) > 80 for squares in drawn)
    assert not any(torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 50), st.integers(1, 9), st.integers(1, 12), st.integers(0, 99), st.data())
def test_an_epoch_resumed_in_the_middle_has_the_same_bits(count, batch_size, side, seed, data):
    options = {"batch_size": batch_size, "seed": seed, **erasing(side)}
    whole = list(Loader(counted(count), **options).epoch(2))
    start = data.draw(st.integers(0, len(whole)))
    torch.manual_seed(start)  # whatever else happens in the new process
    other = Loader(counted(count), **{**options, "seed": seed + 1})
    list(other.epoch(1))
    rest = list(other.with_seed(seed).epoch(2, start_batch=start))
    assert len(rest) == len(whole) - start
    for (images, labels), (theirs, their_labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(images, theirs) and torch.equal(labels, their_labels)


@pytest.mark.parametrize(("world_size", "count"), [(2, 64), (4, 70), (3, 55)])
def test_several_processes_together_see_the_images_of_one(world_size, count):
    options = {"seed": 5, **erasing(3)}
    one = Loader(counted(count), batch_size=8 * world_size, **options)
    many = [Loader(counted(count), batch_size=8, shard=Shard(r, world_size), **options) for r in range(world_size)]
    for (images, labels), *parts in zip(one.epoch(1), *(loader.epoch(1) for loader in many), strict=True):
        assert torch.equal(torch.cat([part[0] for part in parts]), images)
        assert torch.equal(torch.cat([part[1] for part in parts]), labels)


def test_rows_of_the_whole_epoch_rebuild_every_batch_by_one_traced_graph():
    """What a captured step does: no value decides a shape or a branch."""
    loader = Loader(counted(30), batch_size=8, seed=2, **erasing(4))
    order, randoms = loader.permutation(4), loader.randoms(4)
    assert {tuple(values.shape) for values in randoms} == {(4, 8)} and len(randoms) == 5

    def step(counter: Tensor) -> Tensor:
        row = counter[None]
        return loader.pick(order.index_select(0, row)[0], [values.index_select(0, row)[0] for values in randoms])[0]

    traced = torch.fx.experimental.proxy_tensor.make_fx(step)(torch.tensor(0))
    for batch, (images, _) in enumerate(loader.epoch(4)):
        assert torch.equal(traced(torch.tensor(batch))[: loader.sizes[batch]], images)


def test_image_files_are_erased_the_same_way(tmp_path, image_tree):
    from PIL import Image

    image_tree(tmp_path)
    noise = np.random.default_rng(0)
    for path in tmp_path.glob("train/*/*.png"):
        Image.fromarray(noise.integers(0, 256, (18, 20, 3), dtype=np.uint8)).save(path)

    def batches(epoch: int, start: int = 0, *, erase: int = 0, **more: Any) -> list[tuple[Tensor, Tensor]]:
        decoding = Decoding(resize=16, crop=12, workers=0)
        data = replace(load_dataset("imagefolder", tmp_path, split="train"), decoding=decoding)
        options = {"batch_size": 5, "seed": 4, **erasing(erase), **more}
        return list(FolderLoader(data, **options).epoch(epoch, start_batch=start))

    erased, plain = batches(1, erase=7), batches(1)
    rows, columns = Plan(12, 5, shuffle=True, seed=4).squares(1, size=(12, 12))
    for batch, ((images, labels), (theirs, their_labels)) in enumerate(zip(erased, plain, strict=True)):
        places = zip(theirs, rows[batch], columns[batch], strict=False)  # the last row is longer
        twin = [slow_erase(image, int(row), int(column), 7) for image, row, column in places]
        assert torch.equal(images, torch.stack(twin)) and torch.equal(labels, their_labels)
    (rest,) = batches(1, start=2, erase=7)
    assert torch.equal(rest[0], erased[2][0])
    halves = [batches(1, erase=7, batch_size=2, shard=Shard(rank, 2)) for rank in range(2)]
    for (images, _), *parts in zip(batches(1, erase=7, batch_size=4), *halves, strict=True):
        torch.testing.assert_close(torch.cat([part[0] for part in parts]), images, atol=0, rtol=0)


@pytest.mark.parametrize("side", [-1, 13])
def test_squares_larger_than_the_images_raise_at_construction(tmp_path, image_tree, side):
    message = rf"^erase={side} must be 0 to 12, twice the side of the images$"
    with pytest.raises(DataError, match=message):
        Loader(counted(5), batch_size=2, **erasing(side))
    files = load_dataset("imagefolder", image_tree(tmp_path), split="train")
    files = replace(files, decoding=Decoding(resize=8, crop=6, workers=0))
    with pytest.raises(DataError, match=message):
        FolderLoader(files, batch_size=2, **erasing(side))


def test_the_largest_valid_square_erases_everything():
    (images, _), *_ = Loader(counted(5), batch_size=5, **erasing(12)).epoch(0)
    assert not images.any()


@pytest.mark.gpu
def test_a_captured_gpu_batch_has_the_bits_of_the_cpu():
    cpu = Loader(counted(96, (32, 32)), batch_size=32, **erasing(9))
    gpu = Loader(cpu.dataset.to("cuda"), batch_size=32, **erasing(9))
    order, randoms = gpu.permutation(3), gpu.randoms(3)
    counter = torch.zeros((), dtype=torch.int64, device="cuda")

    def body() -> Tensor:
        row = counter[None]
        images, _ = gpu.pick(order.index_select(0, row)[0], [values.index_select(0, row)[0] for values in randoms])
        counter.add_(1)
        return images

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = body()
    counter.zero_()
    for (images, _), (theirs, _) in zip(cpu.epoch(3), gpu.epoch(3), strict=True):
        graph.replay()
        assert torch.equal(out.cpu(), images) and torch.equal(theirs.cpu(), images)
