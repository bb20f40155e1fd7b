import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
import torch

from equalbits.data import STATISTICS, DataError, Dataset, FolderDataset, data_root, load_dataset


def made(**changes):
    fields = {
        "name": "made",
        "images": torch.zeros(4, 3, 2, 2, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 1, 0]),
        "classes": ("a", "b"),
        "mean": (0.5,) * 3,
        "std": (0.2,) * 3,
    }
    return Dataset(**{**fields, **changes})


def test_a_data_set_is_frozen_and_has_a_repr():
    data = made()
    assert repr(data) == "Dataset('made', 4 images 3×2×2, 2 classes, on cpu)" and len(data) == 4
    with pytest.raises(FrozenInstanceError):
        data.name = "other"


def test_a_limit_keeps_the_first_images():
    data = made().take(3)
    assert len(data) == 3 and data.labels.tolist() == [0, 1, 1]
    for count in (0, 5):
        with pytest.raises(DataError, match=rf"cannot take {count} images; choose 1 to 4 \(data.limit\)"):
            made().take(count)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": torch.zeros(4, 3, 2, 2)}, "must be uint8 of 4 axes, none empty, not torch.float32"),
        ({"images": torch.zeros(4, 2, 2, dtype=torch.uint8)}, "of 4 axes"),
        ({"images": torch.zeros(0, 3, 2, 2, dtype=torch.uint8)}, "none empty"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "4 images but 3 labels"),
        ({"labels": torch.zeros(4, dtype=torch.int32)}, "labels must be int64 of one axis, not torch.int32"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, "label 2 of image 2 is outside 0..1"),
        ({"mean": (0.5,)}, "3 channels need 3 means and stds, not 1 and 3"),
        ({"std": (0.2, 0.0, 0.2)}, "every std must be above 0"),
    ],
)
def test_an_inconsistent_data_set_is_refused_at_construction(changes, says):
    with pytest.raises(DataError, match=says):
        made(**changes)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cifar11", r"no data set 'cifar11'; did you mean 'cifar10'\? There are fashion, cifar10"),
        ("", "no data set ''; there are"),
        ("fashion:3", "no data set 'fashion:3'"),
        ("synthetic:3x32", "written synthetic:CxHxW:classes:count:seed"),
        ("synthetic:3x0x3", "must be 1 or more"),
        ("synthetic:1x2x2:0", "must be 1 or more"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(name, says):
    with pytest.raises(DataError, match=says):
        load_dataset(name, split="train")


def test_the_split_is_train_or_test():
    with pytest.raises(DataError, match=r"split='val' must be 'train' or 'test' \(the held-out images\)"):
        load_dataset("fashion", split="val")


def test_the_root_is_the_argument_then_the_environment_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUALBITS_DATA", str(tmp_path / "from-env"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "from-env"
    monkeypatch.delenv("EQUALBITS_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache/equalbits"


def test_data_is_found_through_the_environment(monkeypatch, tmp_path, cifar10_numpy):
    cifar10_numpy(tmp_path / "cifar10")
    monkeypatch.setenv("EQUALBITS_DATA", str(tmp_path))
    assert len(load_dataset("cifar10", split="test")) == 5


def test_cifar_normalises_as_its_recipe_says(tmp_path, cifar10_numpy):
    cifar10_numpy(tmp_path)
    data = load_dataset("cifar10", tmp_path, split="test")
    assert data.mean == (0.491, 0.482, 0.447) and data.std == (0.247, 0.243, 0.262)
    other = load_dataset("cifar10", tmp_path, split="test", statistics="imagenet")
    assert (other.mean, other.std) == STATISTICS["imagenet"]
    with pytest.raises(DataError, match="no statistics 'cifar'; there are fashion, cifar10"):
        load_dataset("cifar10", tmp_path, split="test", statistics="cifar")
    with pytest.raises(DataError, match="3 channels need 3 means"):
        load_dataset("cifar10", tmp_path, split="test", statistics="fashion")


def test_synthetic_data_depends_on_the_seed_alone():
    one, two = (load_dataset("synthetic:2x5x7:3:40", split="train") for _ in range(2))
    assert torch.equal(one.images, two.images) and torch.equal(one.labels, two.labels)
    assert tuple(one.images.shape) == (40, 2, 5, 7) and len(one.classes) == 3
    other = load_dataset("synthetic:2x5x7:3:40:1", split="train")
    assert not torch.equal(one.images, other.images)
    assert int(one.images[0].sum()) == 9669  # the bytes do not depend on the machine


def test_synthetic_data_has_default_sizes():
    train, test = (load_dataset("synthetic", split=split) for split in ("train", "test"))
    assert tuple(train.images.shape) == (1024, 3, 32, 32) and tuple(test.images.shape) == (256, 3, 32, 32)
    assert not torch.equal(train.images[:256], test.images)


def test_a_net_trained_on_synthetic_data_generalizes_to_its_test_data():
    train, test = (load_dataset("synthetic:3x16x16:10", split=split) for split in ("train", "test"))
    centres = torch.stack([train.images[train.labels == kind].double().mean(0) for kind in range(10)]).flatten(1)
    nearest = torch.cdist(test.images.double().flatten(1), centres).argmin(1)
    assert (nearest == test.labels).double().mean() > 0.95


@pytest.mark.parametrize(("name", "held_out"), [("imagenet", "val"), ("imagefolder", "test"), ("imagefolder", "val")])
def test_a_tree_of_images_is_listed_by_class(tmp_path, image_tree, name, held_out):
    image_tree(tmp_path, held_out=held_out)
    train, test = (load_dataset(name, tmp_path, split=split) for split in ("train", "test"))
    assert isinstance(train, FolderDataset)
    assert train.classes == test.classes == ("cat", "dog", "owl")
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and len(test) == 6
    assert train.paths[5] == str(tmp_path / "train/dog/1.png")
    assert (train.mean, train.std) == STATISTICS["imagenet"]
    assert repr(test) == f"FolderDataset('{name}', 6 files, 3 classes, for cpu)"
    assert train.select(torch.arange(5)).labels.tolist() == [0, 0, 0, 0, 1]


def test_a_tree_may_be_in_a_directory_of_its_name(tmp_path, image_tree):
    image_tree(tmp_path / "imagenet")
    assert len(load_dataset("imagenet", tmp_path, split="train")) == 12


def test_both_splits_are_in_one_directory(tmp_path, image_tree):
    image_tree(tmp_path / "imagefolder", held_out="val")
    (tmp_path / "imagefolder/val").rename(tmp_path / "val")  # beside the tree, where it may be of another
    with pytest.raises(DataError, match="imagefolder: no test/ or val/ in it; put the images there as test/<class>"):
        load_dataset("imagefolder", tmp_path, split="test")


def test_other_files_are_ignored(tmp_path, image_tree):
    image_tree(tmp_path)
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    (tmp_path / "train/cat/.hidden.png").write_text("not an image")
    (tmp_path / "train/.checkpoints").mkdir()
    (tmp_path / "train/readme").write_text("not a class")
    assert len(load_dataset("imagefolder", tmp_path, split="train")) == 12


def test_test_classes_keep_the_numbers_of_the_training_classes(tmp_path, image_tree):
    image_tree(tmp_path)
    for path in (tmp_path / "val/cat").iterdir():
        path.unlink()
    (tmp_path / "val/cat").rmdir()
    assert load_dataset("imagenet", tmp_path, split="test").labels.tolist() == [1, 1, 2, 2]


def test_a_missing_split_is_reported_with_remedies(tmp_path, image_tree):
    with pytest.raises(DataError, match=r"gone: there is no such folder; put .*, or name another folder \(--data\)$"):
        load_dataset("imagefolder", tmp_path / "gone", split="train")
    with pytest.raises(DataError, match=r": no train/ in it; put .*, or name another folder \(--data\)$"):
        load_dataset("imagefolder", tmp_path, split="train")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"no test/ .*, or hold training images back \(data.hold_out=200\)$"):
        load_dataset("imagefolder", tmp_path, split="test")


def test_a_directory_that_is_no_image_tree_is_refused(tmp_path, image_tree):
    with pytest.raises(DataError, match=r"no train/ in it; put the images there as train/<class>/<image>.png \(or"):
        load_dataset("imagefolder", tmp_path, split="train")
    with pytest.raises(DataError, match="no val/ or test/ in it"):
        load_dataset("imagenet", tmp_path, split="test")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="train: no class folders"):
        load_dataset("imagefolder", tmp_path, split="train")
    root = image_tree(tmp_path / "tree")
    (root / "train/empty").mkdir()
    with pytest.raises(DataError, match=r"train/empty: no images \(.bmp .jpeg .* fill the folder or remove it"):
        load_dataset("imagefolder", root, split="train")
    (tmp_path / "flat/train/images").mkdir(parents=True)
    with pytest.raises(DataError, match="train: only one class, 'images'; make a folder"):
        load_dataset("imagefolder", tmp_path / "flat", split="train")
    (root / "val/stranger").mkdir()
    with pytest.raises(DataError, match=r"val/stranger: no class of that name in .*train; use the same folder names"):
        load_dataset("imagefolder", root, split="test")


def test_importing_the_runtime_does_not_import_pillow_or_rich():
    code = "import sys, equalbits.data; sys.exit(str([name for name in ('PIL', 'rich') if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stderr.strip() == "[]"
