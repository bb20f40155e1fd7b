import hashlib
import struct
import zlib
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from equalbits.data import DataError, embedded, load_dataset


def encode(images, labels) -> bytes:
    """Pack uint8 images (image, row, column) and their labels as the shipped files are."""
    differences = images.copy()
    differences[:, 1:] -= images[:, :-1]
    packer = zlib.compressobj(9, strategy=zlib.Z_RLE)
    body = struct.pack("<III", *images.shape) + labels.tobytes() + differences.tobytes()
    return packer.compress(body) + packer.flush()


@settings(deadline=None)
@given(arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))), st.integers(min_value=0))
def test_decoding_inverts_encoding(images, seed):
    labels = np.random.default_rng(seed).integers(0, 256, len(images), dtype=np.uint8)
    again, their_labels = embedded.decode(encode(images, labels))
    np.testing.assert_array_equal(again, images)
    np.testing.assert_array_equal(their_labels, labels)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_shipped_images_survive_another_encoding(split):
    images, labels = embedded.read(split)
    again, their_labels = embedded.decode(encode(images, labels))
    np.testing.assert_array_equal(again, images)
    np.testing.assert_array_equal(their_labels, labels)


def test_the_shipped_images_are_the_publishers():
    # sums of the decoded pixels and labels, taken from the publisher's idx files
    sums = {}
    for split in ("train", "test"):
        images, labels = embedded.read(split)
        sums[split] = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    assert sums == {
        "train": "b134f74849da1a1bcd32ee8c73b764a5657b0f25350e9ed3b4a4e8cb8505b14b",
        "test": "5e916b2e91811fe46845f5b34d536fd2cb7788e5c5bc5531b5e3b9ee89e9bad9",
    }


def test_the_embedded_set_has_its_size_classes_and_near_balance():
    train, test = (load_dataset("fashion", split=split) for split in ("train", "test"))
    assert (tuple(train.images.shape), tuple(test.images.shape)) == ((10000, 1, 28, 28), (2000, 1, 28, 28))
    assert len(train.classes) == 10 and train.classes[9] == "ankle boot"
    for data in (train, test):
        share = torch.bincount(data.labels, minlength=10) / len(data)
        assert share.min() > 0.09 and share.max() < 0.11


def test_the_statistics_of_the_embedded_set_normalise_it():
    data = load_dataset("fashion", split="train")
    pixels = data.images.double() / 255
    assert abs(pixels.mean() - data.mean[0]) < 0.002
    assert abs(pixels.std() - data.std[0]) < 0.002


def test_a_changed_file_is_refused(monkeypatch):
    monkeypatch.setitem(embedded.SHA256, "test", "0" * 64)
    with pytest.raises(DataError, match=r"fashion-test.bin: sha256 is 280f.* install equalbits again"):
        embedded.read("test")


def test_the_files_are_small_and_carry_their_licence():
    folder = files(embedded)
    assert sum(len(folder.joinpath(f"fashion-{split}.bin").read_bytes()) for split in ("train", "test")) < 5_000_000
    licence = folder.joinpath("LICENSE-fashion-mnist.txt").read_text()
    assert "Zalando SE" in licence and "Permission is hereby granted" in licence
