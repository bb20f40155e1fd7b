"""Build what a recipe names: its device, its batches, its model."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equalbits._text import unknown_name
from equalbits.data import (
    Augmentation,
    DataError,
    Dataset,
    Decoding,
    FolderDataset,
    FolderLoader,
    Loader,
    Shard,
    load_dataset,
    spread,
)
from equalbits.models import create_model, list_models, model_options
from equalbits.nn import BinaryLayer, input_quantizer_by_name, list_input_quantizers, list_quantizers, quantizer_by_name
from equalbits.recipes.recipe import DataConfig, Recipe
from equalbits.training import CheckpointError, ProcessRank

#: Words users write for real-valued weights or inputs.
_NO_QUANTIZER = ("real", "none", "float", "fp32")


def check_names(recipe: Recipe) -> None:
    """Raise for an unknown model or quantizer and for invalid options of the model, without building it."""
    config = recipe.model
    if config.name.startswith("timm:"):
        model_options(config.name)  # raises for an unknown one
    elif config.name not in list_models():
        own = "a network of your own exists only in the script that registers it: run that instead of equalbits"
        raise ValueError(f"{unknown_name('model', config.name, list_models())}; {own}")
    instead = {name: f"set model.{name} instead" for name in ("weight_quantizer", "input_quantizer", "init")}
    instead["num_classes"] = "leave it out, it follows from the data"
    for name, value in config.options.items():
        if name in instead:
            raise ValueError(f"model.options.{name}={value}: {instead[name]}")
        default = model_options(config.name).get(name)
        if isinstance(default, bool) and not isinstance(value, bool):  # any word or list would count as true
            raise ValueError(f"model.options.{name}={value!r} must be true or false")
        if isinstance(default, int | float) and isinstance(value, str):
            raise ValueError(f"model.options.{name}={value!r} must be a number")
    for name, registered, create in (
        ("weight_quantizer", list_quantizers(), quantizer_by_name),
        ("input_quantizer", list_input_quantizers(), input_quantizer_by_name),
    ):
        word = getattr(config, name)
        if word.lower() in _NO_QUANTIZER and word not in registered:
            raise ValueError(f"model.{name}={word}: leave it empty for none, as in model.{name}=")
        if word:
            create(word)


def pick_device(name: str = "auto") -> str:
    """Return the device to train on; "auto" is the first GPU, or the CPU where there is none."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise ValueError(f"device={name!r} is not known: use auto, cpu, cuda, or cuda:1 for the second GPU")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        seen = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.device_count() else "no CUDA device"
        raise ValueError(f"device={name!r} is not there: torch sees {seen}; use --device cpu")
    return name


@dataclass(frozen=True)
class DataSpec:
    """The images a model takes: classes, size and normalisation. Stored as model.json beside its weights."""

    classes: tuple[str, ...]
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int | None = None  # image files only: side they are scaled to before the center crop
    fit: str = "stretch"  # image files only

    @classmethod
    def of(cls, loader: Loader | FolderLoader) -> "DataSpec":
        """Describe the images of a loader."""
        dataset, resize, fit = loader.dataset, None, "stretch"
        if isinstance(dataset, Dataset):
            channels, height, width = dataset.images.shape[1:]
            if height != width:
                raise ValueError(f"{dataset.name}: images are {height}×{width}, and the networks here take square ones")
            if dataset.crop:
                height, resize = dataset.crop, height
        else:
            channels, height, resize = 3, dataset.decoding.crop, dataset.decoding.resize
            fit = dataset.decoding.fit
        return cls(dataset.classes, channels, height, dataset.mean, dataset.std, resize, fit)

    @classmethod
    def read(cls, path: Path) -> "DataSpec":
        """Read the model.json of a run."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist: name the folder of a run that train wrote") from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{path} does not describe the images of the model ({error}): train again") from None

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "DataSpec":
        """Rebuild it from plain data, as ``asdict`` and JSON give it."""
        mean, std = tuple(facts["mean"]), tuple(facts["std"])
        channels, size, resize = int(facts["channels"]), int(facts["size"]), facts.get("resize")
        fit = str(facts.get("fit", "stretch"))
        return cls(tuple(facts["classes"]), channels, size, mean, std, resize and int(resize), fit)

    def difference(self, other: "DataSpec") -> str:
        """Describe why a model of these images cannot take others, as ``2 classes (a, b), this data has 1 (a)``.

        Empty where it can. Classes must be in the same order too, since a label is their index.
        """
        if self.classes != other.classes:
            mine, theirs = (
                f"({', '.join(each.classes[:3])}{', …' if len(each.classes) > 3 else ''})" for each in (self, other)
            )
            return f"{len(self.classes)} classes {mine}, this data has {len(other.classes)} {theirs}"
        if (self.channels, self.size) != (other.channels, other.size):
            shapes = (f"{each.channels}×{each.size}×{each.size}" for each in (self, other))
            return "images of {}, this data has {}".format(*shapes)
        return ""


def make_model(recipe: Recipe, images: DataSpec) -> nn.Module:
    """Build the recipe's model for such images; its initial weights depend on the recipe's seed only."""
    check_names(recipe)
    config = recipe.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        try:
            return create_model(
                config.name,
                num_classes=len(images.classes),
                weight_quantizer=config.weight_quantizer or None,
                input_quantizer=config.input_quantizer or None,
                init=config.init,
                **{"in_channels": images.channels, "image_size": images.size, **config.options},
            )
        except (TypeError, OverflowError) as error:  # not a number, or not a whole one
            raise ValueError(f"model.options={config.options} do not make a {config.name}: {error}") from error


def make_with_common_start(recipe: Recipe, images: DataSpec) -> nn.Module:
    """Build the recipe's model with the initial weights that every method shares for this seed.

    A method that draws random numbers of its own (scores, rotations) would change all weights drawn after it. So the
    weights are copied from the net with sign weights, and each method then fits its state to them.
    """
    model = make_model(recipe, images)
    plain = make_model(recipe.with_settings({"model.weight_quantizer": "sign"}), images)
    start = dict(plain.named_parameters())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        for name, parameter in model.named_parameters():
            if name in start:
                parameter.copy_(start[name])
        for layer in model.modules():
            if isinstance(layer, BinaryLayer):
                layer.weight_quantizer.fit_(layer.to_filters(layer.weight.detach()))
    return model


def make_loader(
    data: DataConfig,
    split: str,
    *,
    root: Path | None,
    device: str = "cpu",
    seed: int = 0,
    place: ProcessRank = ProcessRank(),  # noqa: B008 (it is frozen)
) -> Loader | FolderLoader:
    """Return the batches of one split: shuffled and augmented for training, in order for testing.

    With ``data.hold_out`` that many training images, spread evenly, are the test split; the others are trained on.
    """
    training = split == "train"
    source = "train" if data.hold_out else split
    dataset = load_dataset(data.name, root, split=source, device=device, statistics=data.statistics or None)
    if data.hold_out:
        if data.hold_out >= len(dataset):
            nothing = f"data.hold_out={data.hold_out} leaves nothing to train on"
            raise ValueError(f"{nothing}: {dataset.name} has {len(dataset)} images")
        held = torch.zeros(len(dataset), dtype=torch.bool)
        held[spread(data.hold_out, len(dataset))] = True
        dataset = dataset.select((~held if training else held).nonzero().flatten())
    if training and data.limit:
        if isinstance(dataset, Dataset):
            dataset = dataset.take(data.limit)
        elif data.limit > len(dataset):
            raise DataError(f"{dataset.name}: cannot take {data.limit} files; choose 1 to {len(dataset)} (data.limit)")
        else:  # files are sorted by class: the first ones would miss classes
            dataset = dataset.select(spread(data.limit, len(dataset)))
    size = data.batch_size if training else data.test_batch_size
    if isinstance(dataset, FolderDataset):
        decoding = Decoding(data.resize, data.crop, data.workers, data.max_pixels, data.fit)
        if training and place.is_writer:
            _warn_if_enlarged(dataset, decoding)
        dataset = replace(dataset, decoding=decoding)
    augment = Augmentation(data.erase, data.mirror, data.resized_crop, data.randaugment)
    return Loader(
        dataset,
        batch_size=max(1, size // place.world_size),
        shuffle=training,
        augment=training and data.augment and augment,
        seed=seed,
        shard=Shard(place.rank, place.world_size),
    )


def _warn_if_enlarged(files: FolderDataset, decoding: Decoding) -> None:
    """Log a warning where the first picture is smaller than the crop that the net takes."""
    from PIL import Image  # heavy, and only image folders need it

    try:
        with Image.open(files.paths[0]) as picture:
            width, height = picture.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # the loader reports what is wrong
        return
    if max(width, height) < decoding.crop:
        logging.getLogger("equalbits").warning(
            "%s is %d×%d pixels: pictures are enlarged to %d×%d and cropped to %d×%d; set data.resize and data.crop "
            "to change that",
            files.paths[0], width, height, *(decoding.resize,) * 2, *(decoding.crop,) * 2,
        )  # fmt: skip
