import os

import numpy as np
import pytest
import torch

from equalbits.data import DataError, load_dataset


@pytest.mark.parametrize("place", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "."])
def test_the_binary_edition_is_found_in_the_usual_directories(tmp_path, cifar10_binary, place):
    root = tmp_path / "data"
    parts = cifar10_binary(root / place)
    for split, (images, labels) in parts.items():
        data = load_dataset("cifar10", root, split=split)
        np.testing.assert_array_equal(data.images.numpy(), images)
        np.testing.assert_array_equal(data.labels.numpy(), labels)
        assert data.classes[3] == "cat" and data.images.is_contiguous()


def test_cifar100_takes_the_fine_label_of_the_two(tmp_path, cifar100_binary):
    parts = cifar100_binary(tmp_path / "cifar-100-binary")
    data = load_dataset("cifar100", tmp_path, split="train")
    np.testing.assert_array_equal(data.images.numpy(), parts["train"][0])
    np.testing.assert_array_equal(data.labels.numpy(), parts["train"][1])
    assert len(data.classes) == 100 and data.classes[99] == "kind 99"


@pytest.mark.parametrize("place", [".", "cifar10"])
def test_numpy_files_are_read_in_the_same_layout(tmp_path, cifar10_numpy, place):
    parts = cifar10_numpy(tmp_path / place)
    data = load_dataset("cifar10", tmp_path, split="test")
    np.testing.assert_array_equal(data.images.numpy(), parts["test"][0])
    np.testing.assert_array_equal(data.labels.numpy(), parts["test"][1])
    assert data.images.is_contiguous()


def test_channels_are_in_the_order_red_green_blue(tmp_path, cifar10_binary):
    folder = tmp_path / "cifar-10-batches-bin"
    cifar10_binary(folder)
    pixels = np.repeat(np.array([200, 100, 50], dtype=np.uint8), 1024)
    (folder / "test_batch.bin").write_bytes(bytes([7]) + pixels.tobytes())
    data = load_dataset("cifar10", tmp_path, split="test")
    assert data.images[0, :, 0, 0].tolist() == [200, 100, 50] and data.labels.tolist() == [7]


def test_loaded_data_does_not_change_with_the_file(tmp_path, cifar10_numpy):
    parts = cifar10_numpy(tmp_path)
    data = load_dataset("cifar10", tmp_path, split="train")
    data.images.zero_()  # writable, and no window into the file
    again = load_dataset("cifar10", tmp_path, split="train")
    np.testing.assert_array_equal(again.images.numpy(), parts["train"][0])


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_missing_data_names_the_place_and_the_ways_to_get_it(tmp_path):
    with pytest.raises(DataError) as error:
        load_dataset("cifar10", tmp_path, split="train")
    text = one_line(error)
    assert str(tmp_path) in text and "equalbits download cifar10 --data" in text and "cifar-10-binary.tar.gz" in text
    assert "pickles" not in text


@pytest.mark.parametrize(("name", "pickled"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
@pytest.mark.parametrize("place", [".", "own"])
def test_the_edition_in_pickles_is_named_and_not_read(tmp_path, name, pickled, place):
    home = tmp_path / (name if place == "own" else place)
    (home / pickled).mkdir(parents=True)
    with pytest.raises(DataError) as error:
        load_dataset(name, tmp_path, split="train")
    assert (
        f"not in {tmp_path} except as pickles ({pickled}), which may run code and are never read: download"
        in one_line(error)
    )


@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        ("data_batch_3.bin", lambda old: None, "data_batch_3.bin: No such file"),
        ("data_batch_2.bin", lambda old: old[:-100], "12192 bytes is not a whole number of 3073-byte records"),
        ("data_batch_2.bin", lambda old: b"", "0 bytes is not a whole number"),
        ("data_batch_5.bin", lambda old: old[:3073] + b"\x0a" + old[3074:], "label 10 of image 1 is outside 0..9"),
        ("batches.meta.txt", lambda old: None, "it must hold 10 class names"),
        ("batches.meta.txt", lambda old: b"cat\ndog\n", "2 class names, but 10 are needed"),
        ("batches.meta.txt", lambda old: b"\xff\xfe\x00", "not text"),
    ],
)
def test_a_broken_binary_file_is_named_in_one_line(tmp_path, cifar10_binary, file, damage, says):
    folder = tmp_path / "cifar-10-batches-bin"
    cifar10_binary(folder)
    new = damage((folder / file).read_bytes())
    (folder / file).unlink() if new is None else (folder / file).write_bytes(new)
    with pytest.raises(DataError) as error:
        load_dataset("cifar10", tmp_path, split="train")
    assert says in one_line(error) and file in one_line(error)


def test_a_coarse_label_out_of_range_shows_a_damaged_file(tmp_path, cifar100_binary):
    folder = tmp_path / "cifar-100-binary"
    cifar100_binary(folder)
    old = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(bytes([20]) + old[1:])
    with pytest.raises(DataError, match=r"train.bin: label 20 of image 0 is outside 0..19"):
        load_dataset("cifar100", tmp_path, split="train")


@pytest.mark.parametrize(
    ("what", "array", "says"),
    [
        ("images", np.zeros((5, 32, 32, 3), np.float32), "holds float32 (5, 32, 32, 3), but must be uint8"),
        (
            "images",
            np.zeros((5, 3, 32, 32), np.uint8),
            "holds uint8 (5, 3, 32, 32), but must be uint8 (images, 32, 32, 3)",
        ),
        ("images", np.zeros((0, 32, 32, 3), np.uint8), "holds uint8 (0, 32, 32, 3)"),
        ("images", np.zeros((4, 32, 32, 3), np.uint8), "4 images but 5 labels"),
        ("images", np.array([{"a": 1}], dtype=object), "without pickles"),
        ("labels", np.full(5, 10, np.uint8), "label 10 of image 0 is outside 0..9"),
        ("labels", np.full(5, -1, np.int64), "label -1 of image 0"),
        ("labels", np.zeros(5, np.float64), "holds float64 (5,), but must be integers"),
        ("labels", np.zeros((5, 1), np.int64), "holds int64 (5, 1), but must be integers"),
    ],
)
def test_a_wrong_numpy_array_is_named_in_one_line(tmp_path, cifar10_numpy, what, array, says):
    cifar10_numpy(tmp_path)
    np.save(tmp_path / f"train_{what}.npy", array, allow_pickle=True)
    with pytest.raises(DataError) as error:
        load_dataset("cifar10", tmp_path, split="train")
    assert says in one_line(error) and "train_" in one_line(error)


@pytest.mark.parametrize("keep", [0, 5, 70, 1000])
def test_a_truncated_numpy_file_is_named_in_one_line(tmp_path, cifar10_numpy, keep):
    cifar10_numpy(tmp_path)
    path = tmp_path / "train_images.npy"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train_images.npy: not a complete numpy file"):
        load_dataset("cifar10", tmp_path, split="train")


def test_a_numpy_file_whose_header_is_damaged_is_named_in_one_line(tmp_path, cifar10_numpy):
    cifar10_numpy(tmp_path)
    path = tmp_path / "train_images.npy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(5, 32, 32, 3)", b"((((((((((((((", 1))
    assert path.read_bytes() != content
    with pytest.raises(DataError, match=r"train_images.npy: not a complete numpy file"):
        load_dataset("cifar10", tmp_path, split="train")


def test_missing_labels_are_named(tmp_path, cifar10_numpy):
    cifar10_numpy(tmp_path)
    (tmp_path / "train_labels.npy").unlink()
    with pytest.raises(DataError, match=r"train_labels.npy: No such file or directory; put the file there again"):
        load_dataset("cifar10", tmp_path, split="train")


def test_an_archive_of_arrays_is_not_an_array(tmp_path, cifar10_numpy):
    cifar10_numpy(tmp_path)
    with (tmp_path / "train_labels.npy").open("wb") as file:
        np.savez(file, labels=np.zeros(5))
    with pytest.raises(DataError, match="holds several arrays"):
        load_dataset("cifar10", tmp_path, split="train")


def test_labels_are_int64_whatever_the_file_holds(tmp_path, cifar10_numpy):
    cifar10_numpy(tmp_path)
    np.save(tmp_path / "train_labels.npy", np.arange(5, dtype=np.int16))
    assert load_dataset("cifar10", tmp_path, split="train").labels.dtype == torch.int64


@pytest.mark.parametrize("name", ["data_batch_3.bin", "batches.meta.txt"])
def test_a_pipe_in_place_of_a_file_is_named_and_does_not_hang(tmp_path, cifar10_binary, name):
    folder = tmp_path / "cifar-10-batches-bin"
    cifar10_binary(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(DataError, match=f"{name}: not a file; delete it"):
        load_dataset("cifar10", tmp_path, split="train")
