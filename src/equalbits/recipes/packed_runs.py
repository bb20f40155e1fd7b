"""Pack a run, and test a packed model on the images of its run or on the data set with its classes."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from equalbits.data import (
    WITHOUT_FILES,
    DataError,
    Dataset,
    FolderDataset,
    centre_crop,
    check_root_is_read,
    data_root,
    load_dataset,
    normalise,
    spread,
)
from equalbits.deploy import Preprocessing, other_class, pack
from equalbits.recipes.build import DataSpec, make_loader
from equalbits.recipes.recipe import read_recipe
from equalbits.recipes.run_dir import data_root_of, load_run, unfinished_epoch
from equalbits.runtime import PackedModel
from equalbits.training import Score, evaluate

#: Test images to compare with the model, most seconds to score all of them, and training images for calibration.
_COMPARED, _MOST_SECONDS, _CALIBRATED = 64, 60.0, 256
#: Data sets that are looked for by the class names of a packed file.
_CANDIDATES = ("fashion", "cifar10", "cifar100", "imagefolder", "imagenet", "tinyimagenet")


def pack_run(
    out: Path,
    *,
    which: str = "last",
    root: Path | None = None,
    rest: str = "float32",
    linear_inputs: str = "float32",
    activations: str = "float32",
) -> tuple[PackedModel, nn.Module, Tensor]:
    """Pack a run's model; return the packed model, the model, and the random images that verified it.

    With ``activations``, training images of the run set the ranges. They are found in ``root`` or in the data directory
    the run recorded.
    """
    model, log = load_run(out, which=which).model, logging.getLogger("equalbits")
    if unfinished := unfinished_epoch(out):
        log.warning("%s is not finished: epoch %d of %d", out, *unfinished)
    images = DataSpec.read(out / "model.json")
    example = torch.randn(8, images.channels, images.size, images.size, generator=torch.Generator().manual_seed(0))
    preprocessing = Preprocessing(images.mean, images.std, images.resize, images.fit)
    packer = partial(pack, model, rest=rest, linear_inputs=linear_inputs, preprocessing=preprocessing)
    packed = packer(example, class_names=images.classes)
    if activations != "float32":
        try:
            shown = _some_images(packed, dataset_of(out, "train", root), _CALIBRATED)
            calibration = _normalised(shown, packed)
        except DataError as error:
            log.warning("no training images to calibrate on, so random ones set the ranges: %s", error)
            calibration = example
        packer = partial(packer, activations=activations, calibration=calibration)
        packed = packer(calibration[:8], class_names=images.classes)
    return packed, model, example


class ByteBatches:
    """Batches of uint8 images of a data set for a packed model, which prepares image files itself."""

    def __init__(self, model: PackedModel, dataset: Dataset | FolderDataset, batch_size: int = 64) -> None:
        shape = (dataset.images.shape[1], *dataset.crop_size) if isinstance(dataset, Dataset) else model.input_shape
        if shape != model.input_shape:
            given, taken = ("×".join(map(str, each)) for each in (shape, model.input_shape))
            raise DataError(f"{dataset.name} has images of {given}, the packed model takes {taken}: name other data")
        if model.network.mean is None:
            raise DataError("the packed model holds no mean and std for images of bytes: pack it with preprocessing=")
        self.model, self.dataset, self.batch_size = model, dataset, batch_size

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.dataset), self.batch_size):
            part = slice(start, start + self.batch_size)
            if isinstance(self.dataset, Dataset):
                images = centre_crop(self.dataset.images[part].cpu(), size=self.dataset.crop_size)
            else:
                most = self.dataset.decoding.max_pixels
                pictures = [self.model.prepare(path, max_pixels=most) for path in self.dataset.paths[part]]
                images = torch.from_numpy(np.stack(pictures))
            yield images, self.dataset.labels[part].cpu()


def check_on_test_images(
    packed: PackedModel, model: nn.Module, out: Path, root: Path | None = None
) -> tuple[str, Score | None]:
    """Compare a packed model with the model on some test images of its run; return how many have the same class.

    Its score on all of them follows, or None where that takes more than a minute. Images are found in ``root`` or in
    the data directory the run recorded; :class:`DataError` where there are none.
    """
    dataset = dataset_of(out, "test", root)
    images = _some_images(packed, dataset, _COMPARED)
    start = time.perf_counter()
    answers = packed(images.numpy())
    seconds = (time.perf_counter() - start) * len(dataset) / len(images)
    with torch.no_grad():
        expected = model(_normalised(images, packed)).numpy()
    same = f"{int((~other_class(answers, expected)).sum())} of {len(images)} test images"
    if seconds > _MOST_SECONDS:
        return same, None
    return same, evaluate(packed, ByteBatches(packed, dataset), progress=True)


def dataset_of(out: Path, split: str, root: Path | None = None) -> Dataset | FolderDataset:
    """Return the images of a run, found in ``root`` or in the data directory it recorded."""
    with data_root_of(out, root) as here:
        return make_loader(read_recipe(out / "recipe.toml").data, split, root=here).dataset


def _some_images(packed: PackedModel, dataset: Dataset | FolderDataset, count: int) -> Tensor:
    """Return up to ``count`` images of bytes, spread evenly over a data set."""
    few = dataset.select(spread(count, len(dataset)))
    return next(iter(ByteBatches(packed, few, batch_size=len(few))))[0]


def _normalised(images: Tensor, packed: PackedModel) -> Tensor:
    return normalise(images, *map(torch.tensor, (packed.network.mean, packed.network.std)))


def images_with_classes(model: PackedModel, name: str = "", root: Path | str | None = None) -> Dataset | FolderDataset:
    """Return the test images of a data set, by default of the one that has the classes of a packed model.

    Where ``root`` is given, the images are read from it: a data set of the package does not take their place.
    """
    if name:
        check_root_is_read(name, root)
        dataset = load_dataset(name, root, split="test")
        if dataset.classes != model.classes:
            theirs, ours = _first(dataset.classes), _first(model.classes)
            raise DataError(f"{name} has the classes {theirs}, but the packed model {ours}: name other data")
        return dataset
    found = ""
    for candidate in _CANDIDATES:
        if root and candidate in WITHOUT_FILES:
            continue
        with suppress(DataError):
            dataset = load_dataset(candidate, root, split="test")
            if dataset.classes == model.classes:
                return dataset
            found = f", but {_first(dataset.classes)}" if root else ""
    where = f"no data set in {data_root(root)} has the classes of the packed model ({_first(model.classes)}){found}"
    raise DataError(f"{where}: name the folder with --data, and the data set with --dataset")


def _first(classes: tuple[str, ...]) -> str:
    return ", ".join((*classes[:3], "…") if len(classes) > 3 else classes) or "none"
