"""Resized crops, mirroring and RandAugment: pure functions of random choices, drawn from seed, epoch and position."""

import pytest
import torch

from equalbits.data import Augmentation, DataError, Loader, Shard, load_dataset
from equalbits.data.augment import random_crop, resized_crop
from equalbits.data.randaugment import OPERATIONS, random_operation

DATA = load_dataset("synthetic:3x8x8:4:24", split="train")
NONE = torch.zeros(4)


def batches(augment: Augmentation, **settings: object) -> torch.Tensor:
    loader = Loader(DATA, **{"batch_size": 8, "shuffle": True, "augment": augment, "seed": 1, **settings})
    return torch.cat([images for images, _ in loader.epoch(2)])


def test_a_crop_of_the_whole_image_is_the_image_mirrored_where_asked() -> None:
    images, flips = DATA.images[:4].float(), torch.tensor([True, False, True, False])
    found = resized_crop(images, NONE, NONE, flips, (NONE + 1, NONE + 1), size=(8, 8))
    zero = NONE.long()
    torch.testing.assert_close(found, random_crop(images, zero, zero, flips, size=(8, 8)), rtol=0, atol=1e-3)


EACH = (Augmentation(resized_crop=0.3), Augmentation(4, False, 0.5, 2), Augmentation(randaugment=3))


@pytest.mark.parametrize("augment", EACH, ids=str)
def test_augmented_epochs_resume_and_shard_with_the_same_bits(augment: Augmentation) -> None:
    whole = batches(augment)
    loader = Loader(DATA, batch_size=8, shuffle=True, augment=augment, seed=1)
    assert torch.equal(torch.cat([images for images, _ in loader.epoch(2, start_batch=1)]), whole[8:])
    ranks = [batches(augment, batch_size=4, shard=Shard(rank, 2)).view(3, 4, 3, 8, 8) for rank in range(2)]
    torch.testing.assert_close(torch.cat(ranks, dim=1).flatten(0, 1), whole)
    assert whole.isfinite().all() and not torch.equal(whole, batches(Augmentation()))


def test_without_mirroring_no_image_is_mirrored() -> None:
    drawn = Loader(DATA, batch_size=8, augment=Augmentation(mirror=False)).randoms(0)
    assert not drawn[2].any() and Loader(DATA, batch_size=8, augment=True).randoms(0)[2].any()


def test_parts_lie_inside_the_image_and_have_the_drawn_area() -> None:
    left, top, _, height, width = Loader(DATA, batch_size=8, augment=Augmentation(resized_crop=0.25)).randoms(0)
    assert min(left.min(), top.min()) >= 0 and (left + width).max() <= 1 + 1e-6 and (top + height).max() <= 1 + 1e-6
    assert (height * width).min() >= 0.24 and (height * width).max() <= 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_changes_its_image_alone_and_stays_in_range(name: str) -> None:
    images = DATA.images[:2].float()
    choices = torch.tensor([OPERATIONS.index(name), OPERATIONS.index("identity")])
    found = random_operation(images, choices, torch.tensor([0.7, 0.7]))
    assert torch.equal(found[1], images[1]) and found.min() >= 0 and found.max() <= 255
    assert torch.equal(found[0], images[0]) == (name == "identity")


def test_the_repr_of_an_augmentation_names_its_parts() -> None:
    assert str(Augmentation()) == "Augmentation(erase=0)"
    assert str(Augmentation(4, False, 0.5)) == "Augmentation(erase=4, mirror=False, resized_crop=0.5)"
    with pytest.raises(DataError, match="resized_crop=2 must be a share of the area"):
        Augmentation(resized_crop=2)
