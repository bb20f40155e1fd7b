import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.data import DataError, Dataset, Loader, load_dataset
from equalbits.data.sampling import Plan, Shard


def numbered(count: int) -> Dataset:
    """Images whose pixels and labels both say their number."""
    numbers = torch.arange(count)
    images = numbers.byte().view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    return Dataset("numbered", images, numbers, tuple(map(str, range(count))), (0.0,), (1 / 255,))


def seen(loader: Loader, epoch: int = 0) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader.epoch(epoch)]


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_every_image_is_seen_exactly_once_over_all_ranks(count, batch_size, world_size, shuffle):
    if shuffle and 0 < count % (batch_size * world_size) < world_size:
        with pytest.raises(DataError, match=r"images for . ranks: change batch_size"):
            Plan(count, batch_size, shuffle, shard=Shard(0, world_size))
        return
    data = numbered(count)
    everything = []
    for rank in range(world_size):
        loader = Loader(data, batch_size=batch_size, shuffle=shuffle, shard=Shard(rank, world_size))
        batches = seen(loader, epoch=2)
        assert [len(batch) for batch in batches] == list(loader.sizes) and len(batches) == len(loader)
        assert all(batches), "no batch is empty"
        everything += [image for batch in batches for image in batch]
    assert sorted(everything) == list(range(count))


@pytest.mark.parametrize("batch_size", [60, 10**12, 10**30])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_batch_larger_than_the_data_holds_all_images_and_takes_no_more_memory(batch_size, world_size):
    share = -(-60 // world_size)
    for rank in range(world_size):
        other = Plan(60, share, True, shard=Shard(rank, world_size))
        plan = Plan(60, batch_size, True, shard=Shard(rank, world_size))
        assert plan.sizes == other.sizes == (60 // world_size,)
        assert torch.equal(plan.permutation(3), other.permutation(3))
        assert all(map(torch.equal, plan.windows(3, offsets=9), other.windows(3, offsets=9)))


@pytest.mark.parametrize(("world_size", "count"), [(2, 1000), (4, 1000), (2, 1023), (3, 128 * 3 + 7)])
def test_several_processes_together_see_the_images_of_one(world_size, count):
    data = load_dataset(f"synthetic:3x12x12:10:{count}", split="train")
    batch_size = 128 if world_size == 3 else 128 // world_size
    options = {"shuffle": True, "augment": True, "seed": 5}
    one = Loader(data, batch_size=batch_size * world_size, **options)
    many = [Loader(data, batch_size=batch_size, shard=Shard(rank, world_size), **options) for rank in range(world_size)]
    assert {len(loader) for loader in many} == {len(one)}
    for (images, labels), *parts in zip(one.epoch(1), *(loader.epoch(1) for loader in many), strict=True):
        assert torch.equal(torch.cat([part[0] for part in parts]), images)
        assert torch.equal(torch.cat([part[1] for part in parts]), labels)
        assert max(len(part[1]) for part in parts) - min(len(part[1]) for part in parts) <= 1


@pytest.mark.parametrize("start", [0, 1, 4, 7, 8])
def test_an_epoch_resumed_in_the_middle_has_the_same_bits(start):
    data = load_dataset("synthetic:3x12x12:10:250", split="train")
    whole = list(Loader(data, batch_size=32, shuffle=True, augment=True, seed=3).epoch(6))
    torch.manual_seed(1)  # whatever else happens in the new process
    rest = list(Loader(data, batch_size=32, shuffle=True, augment=True, seed=3).epoch(6, start_batch=start))
    assert len(rest) == 8 - start
    for (images, labels), (theirs, their_labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(images, theirs) and torch.equal(labels, their_labels)


def test_epochs_and_seeds_differ_and_the_global_generator_is_unchanged():
    data = load_dataset("synthetic:3x12x12:10:100", split="train")
    before = torch.random.get_rng_state()
    loader = Loader(data, batch_size=100, shuffle=True, augment=True)
    other = Loader(data, batch_size=100, shuffle=True, augment=True, seed=1)
    orders = [loader.permutation(0), loader.permutation(1), other.permutation(0)]
    flips = [loader.randoms(0)[2], loader.randoms(1)[2], other.randoms(0)[2]]
    for group in (orders, flips):
        assert not any(torch.equal(group[i], group[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    list(loader.epoch(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_plan_is_the_same_on_every_machine():
    plan = Plan(10, 5, shuffle=True, seed=7)
    assert plan.permutation(3).tolist() == [[9, 8, 0, 4, 2], [3, 1, 7, 5, 6]]
    assert plan.windows(3, offsets=9)[0].tolist() == [[7, 8, 8, 7, 3], [0, 1, 6, 8, 4]]


def test_the_random_choices_cover_their_range_evenly():
    dx, dy, flips = Plan(90_000, 90_000).windows(0, offsets=9)
    for offsets in (dx, dy):
        assert torch.bincount(offsets.flatten(), minlength=9).sub(10_000).abs().max() < 500
    assert abs(flips.double().mean() - 0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack([dx, dy]).flatten(1).double())[0, 1]) < 0.02


def test_each_image_of_a_batch_has_its_own_crop_and_flip():
    data = load_dataset("synthetic:1x32x32:2:256", split="train")
    choices = torch.stack([values[0].long() for values in Loader(data, batch_size=256, augment=True).randoms(0)], dim=1)
    assert len(choices.unique(dim=0)) > 100  # of 162 possible ones


def test_rows_of_the_whole_epoch_rebuild_every_batch():
    """What a captured step does: rows of the plan by number, then pick."""
    data = load_dataset("synthetic:3x12x12:10:100", split="train")
    loader = Loader(data, batch_size=32, shuffle=True, augment=True, seed=2)
    order, randoms = loader.permutation(4), loader.randoms(4)
    assert tuple(order.shape) == tuple(randoms[0].shape) == (4, 32) and loader.sizes == (32, 32, 32, 4)
    for batch, (images, labels) in enumerate(loader.epoch(4)):
        whole, _ = loader.pick(order[batch], [values[batch] for values in randoms])  # a fixed shape, repeats at the end
        assert tuple(whole.shape) == (32, 3, 12, 12)
        assert torch.equal(whole[: loader.sizes[batch]], images)
        assert torch.equal(data.labels[order[batch, : loader.sizes[batch]]], labels)


def test_without_shuffling_the_order_is_the_files_and_pixels_are_normalised():
    loader = Loader(numbered(10), batch_size=4)
    assert seen(loader) == seen(loader, 9) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for images, labels in loader:
        torch.testing.assert_close(images[:, 0, 0, 0], labels.float())
    assert loader.randoms(0) is None


def test_a_shuffled_loader_asks_for_the_epochs_number():
    for options in ({"shuffle": True}, {"augment": True}):
        with pytest.raises(DataError, match=r"iterate over loader.epoch\(number\)"):
            iter(Loader(numbered(4), batch_size=2, **options))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size=0 must be an integer, at least 1"),
        ({"batch_size": 2, "shuffle": True, "shard": Shard(0, 2)}, "the last batch has 1 images for 2 ranks"),
    ],
)
def test_invalid_settings_raise_at_construction(options, says):
    with pytest.raises(DataError, match=says):
        Loader(numbered(5), **options)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 1), (0, 0)])
def test_a_rank_outside_the_world_raises(rank, world_size):
    with pytest.raises(DataError, match=f"rank={rank} must be 0 to world_size-1={world_size - 1}"):
        Shard(rank, world_size)


def test_a_bad_start_or_epoch_is_refused_before_the_first_batch():
    loader = Loader(numbered(5), batch_size=2, shuffle=True)
    for start in (-1, 4):
        with pytest.raises(DataError, match=f"start_batch={start} must be 0 to 3"):
            loader.epoch(0, start_batch=start)
    with pytest.raises(DataError, match="epoch -1 must be 0 or more"):
        loader.epoch(-1)
