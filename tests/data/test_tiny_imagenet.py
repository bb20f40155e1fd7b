"""Tiny-ImageNet as published: pictures in a folder of each class's folder, and a list of the validation classes."""

import shutil

import pytest
import torch
from PIL import Image

from equalbits.cli import main
from equalbits.data import DataError, Decoding, FolderLoader, load_dataset
from equalbits.paper import Options, reproduce

CLASSES = [f"n{10_000_000 + 7 * number}" for number in range(200)]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The layout of tiny-imagenet-200 with two training pictures of 64×64 a class and 60 for validation."""
    root = tmp_path_factory.mktemp("data")
    home = root / "tiny-imagenet-200"
    (home / "val" / "images").mkdir(parents=True)
    (home / "test" / "images").mkdir(parents=True)  # no labels: never read
    for number, name in enumerate(CLASSES):
        images = home / "train" / name / "images"
        images.mkdir(parents=True)
        (images.parent / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t62\t62\n")
        for each in range(2):
            mode, shade = ("L", number) if each else ("RGB", (number, 255 - number, 60))  # some are grey
            Image.new(mode, (64, 64), shade).save(images / f"{name}_{each}.JPEG")
    lines = []
    for number in range(60):
        kind = 199 - 3 * number
        Image.new("RGB", (64, 64), (kind, 255 - kind, 60)).save(home / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{CLASSES[kind]}\t0\t32\t44\t62\n")
    (home / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def test_classes_are_those_of_the_training_folders_and_validation_labels_those_of_the_list(published):
    train = load_dataset("tinyimagenet", published, split="train")
    test = load_dataset("tinyimagenet", published / "tiny-imagenet-200", split="test")  # the folder itself will do
    assert train.classes == test.classes == tuple(CLASSES)
    assert train.labels.tolist() == [number for number in range(200) for _ in range(2)]
    assert len(test) == 60 and all("/val/images/" in path for path in test.paths)
    labels = {path.rpartition("_")[2]: label for path, label in zip(test.paths, test.labels.tolist(), strict=True)}
    assert labels == {f"{number}.JPEG": 199 - 3 * number for number in range(60)}


def test_pictures_show_the_class_of_their_label(published):
    files = load_dataset("tinyimagenet", published, split="test")
    loader = FolderLoader(files.__class__(**{**vars(files), "decoding": Decoding(72, 64, workers=0)}), batch_size=20)
    whole = loader.in_memory()
    assert whole.dataset.images.shape == (60, 3, 72, 72)
    red = whole.dataset.images[:, 0].float().mean(dim=(1, 2))
    assert torch.allclose(red, whole.dataset.labels.float(), atol=4)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda home: shutil.rmtree(home / "train"), "no tiny-imagenet-200/train in it; unpack Tiny-ImageNet there"),
        (lambda home: shutil.rmtree(home / "train" / CLASSES[3] / "images"), "images: there is no such folder"),
        (lambda home: (home / "val/val_annotations.txt").unlink(), "val_annotations.txt: No such file"),
        (lambda home: (home / "val/val_annotations.txt").write_bytes(b"\xff\xfe\n"), "it is not text"),
        (lambda home: (home / "val/val_annotations.txt").write_text("val_0.JPEG n1\n"), "line 1 has no class"),
        (lambda home: (home / "val/val_annotations.txt").write_text("val_0.JPEG\tn1\n"), "its class 'n1' is not in"),
        (lambda home: (home / "val/val_annotations.txt").write_text(""), "val_0.JPEG: no line on it"),
        (lambda home: [p.unlink() for p in (home / "val/images").iterdir()], "images: no images"),
    ],
)
def test_what_is_missing_is_named_in_one_line(published, tmp_path, damage, words):
    shutil.copytree(published / "tiny-imagenet-200", tmp_path / "tiny-imagenet-200")
    damage(tmp_path / "tiny-imagenet-200")
    with pytest.raises(DataError, match=words) as caught:
        for split in ("train", "test"):
            load_dataset("tinyimagenet", tmp_path, split=split)
    assert "\n" not in str(caught.value)


def test_the_recipe_trains_on_it_and_is_evaluated(published, tmp_path, capsys):
    small = ["epochs=1", "model.options.width=0.05", "data.workers=0", "data.batch_size=100", "speed=plain"]
    settings = [word for each in small for word in ("--set", each)]
    place = ["--data", str(published), "--out", str(tmp_path / "run")]
    assert main(["train", "tinyimagenet-resnet18", *settings, *place, "--device", "cpu"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert "of 60" in capsys.readouterr().out


def test_table_3_is_measured_on_it_in_stacks_and_names_the_stand_in(published, tmp_path):
    settings = {"epochs": 1, "model.options.width": 0.05, "data.batch_size": 200, "speed": "plain"}
    options = Options(
        root=published, device="cpu", seeds=(0, 1), settings=settings, grid={"nets": ["ResNet-18"]}, stack=3
    )
    rows = reproduce("tab3-tiny", tmp_path / "item", options=options)
    assert [(row.claim, row.paper, row.n) for row in rows] == [
        ("ResNet-18: bi-half above Sign, top-1", "+0.42 points, on ImageNet", 2),
        ("ResNet-18: bi-half above IR-Net, top-1", "+2.30 points, on ImageNet", 2),
    ]
    assert (tmp_path / "item" / "tab3-tiny.png").exists()
    assert "Tiny-ImageNet stands in for ImageNet" in (tmp_path / "item" / "claims.md").read_text()
    (irnet,) = (tmp_path / "item").glob("runs/resnet-18/irnet/seed0/run.json")
    assert '"input_quantizer": "ede"' in irnet.read_text()
