"""Few and small image files are decoded once; their batches equal those read from the files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equalbits.data import Augmentation, DataError, Dataset, Decoding, FolderLoader, Shard, load_dataset
from equalbits.data import image_folder as module

DECODING = Decoding(resize=16, crop=12, workers=0)


@pytest.fixture
def files(tmp_path, image_tree):
    """Two dozen pictures of noise, none of them square."""
    image_tree(tmp_path)
    random = np.random.default_rng(0)
    for path in tmp_path.glob("*/*/*.png"):
        Image.fromarray(random.integers(0, 256, (18, 25, 3), dtype=np.uint8)).save(path)
    return replace(load_dataset("imagefolder", tmp_path, split="train"), decoding=DECODING)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "augment": True, "seed": 3},
        {"shuffle": True, "augment": Augmentation(erase=5), "shard": Shard(1, 2)},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_batches_from_memory_are_those_from_files(files, options):
    read = FolderLoader(files, batch_size=5, **options)
    held = read.in_memory()
    assert held.sizes == read.sizes
    for epoch in (0, 2):
        for (images, labels), (theirs, their_labels) in zip(held.epoch(epoch), read.epoch(epoch), strict=True):
            assert torch.equal(images, theirs) and torch.equal(labels, their_labels)
    other = held.with_seed(9)
    assert other.dataset is held.dataset


def test_too_many_images_for_memory_are_refused_before_one_is_decoded(files, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 12 * 3 * 16 * 16 - 1)
    Path(files.paths[0]).write_bytes(b"")
    with pytest.raises(DataError, match=r"12 images of 16×16 take .* equalbits sweep --vary model.weight_quantizer"):
        FolderLoader(files, batch_size=5).in_memory()


def test_a_broken_file_is_named(files):
    Path(files.paths[3]).write_bytes(b"")
    with pytest.raises(DataError, match=r"3.png: not a readable image"):
        FolderLoader(files, batch_size=5).in_memory()


@pytest.mark.parametrize(("crop", "shape"), [(9, (1, 3, 8, 8)), (4, (1, 3, 8, 6)), (-1, (1, 3, 8, 8))])
def test_a_crop_that_does_not_fit_is_refused(crop, shape):
    images, labels = torch.zeros(shape, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(DataError, match=f"crop={crop} must be 1 to the side of square images"):
        Dataset("own", images, labels, ("a",), (0.5,) * 3, (0.5,) * 3, crop=crop)
