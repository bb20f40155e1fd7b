"""Tiny data sets in the real formats."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Arrays = dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def draw(seed: int, count: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Random images (image, 3, 32, 32) and labels, the last label being the highest."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, classes, count, dtype=np.uint8)
    labels[-1] = classes - 1
    return images, labels


@pytest.fixture
def cifar10_binary() -> Callable[[Path], Arrays]:
    def write(folder: Path) -> Arrays:
        folder.mkdir(parents=True)
        parts = [draw(seed, 4, 10) for seed in range(6)]
        names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
        for name, (images, labels) in zip(names, parts, strict=True):
            records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
            (folder / name).write_bytes(records.tobytes())
        (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
        images, labels = (np.concatenate([part[what] for part in parts[:5]]) for what in (0, 1))
        return {"train": (images, labels), "test": parts[5]}

    return write


@pytest.fixture
def cifar100_binary() -> Callable[[Path], Arrays]:
    def write(folder: Path) -> Arrays:
        folder.mkdir(parents=True)
        parts = {split: draw(seed, 6, 100) for seed, split in enumerate(("train", "test"))}
        for split, (images, fine) in parts.items():
            records = np.concatenate([fine[:, None] // 5, fine[:, None], images.reshape(len(images), -1)], axis=1)
            (folder / f"{split}.bin").write_bytes(records.tobytes())
        (folder / "fine_label_names.txt").write_text("\n".join(f"kind {number}" for number in range(100)) + "\n")
        return parts

    return write


@pytest.fixture
def cifar10_numpy() -> Callable[[Path], Arrays]:
    def write(folder: Path) -> Arrays:
        folder.mkdir(parents=True, exist_ok=True)
        parts = {split: draw(seed, 5, 10) for seed, split in enumerate(("train", "test"))}
        for split, (images, labels) in parts.items():
            np.save(folder / f"{split}_images.npy", images.transpose(0, 2, 3, 1))
            np.save(folder / f"{split}_labels.npy", labels)
        (folder / "classes.txt").write_text("\n".join(TEN) + "\n")
        return parts

    return write


@pytest.fixture
def image_tree() -> Callable[..., Path]:
    """Write root/<split>/<class>/<n>.png, n-th image of a class filled with a shade that tells it apart."""
    from PIL import Image

    def write(root: Path, *, held_out: str = "val", suffix: str = ".png", **options: Any) -> Path:
        for split, count in (("train", 4), (held_out, 2)):
            for kind, name in enumerate(("cat", "dog", "owl")):
                folder = root / split / name
                folder.mkdir(parents=True)
                for number in range(count):
                    shade = (40 * number, 80 * kind, 200 if split == "train" else 100)
                    Image.new("RGB", (20 + 4 * number, 16), shade).save(folder / f"{number}{suffix}", **options)
        return root

    return write
