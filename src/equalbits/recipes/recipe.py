"""A recipe: model, data and training settings under one name, frozen and validated, stored as TOML."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from equalbits._settings import Settings, check_mapping, setting
from equalbits.data import STATISTICS
from equalbits.models import list_models, model_options
from equalbits.runtime import MAX_PIXELS
from equalbits.training import TrainConfig


class ModelConfig(Settings, group="model"):
    """Network and quantizers by name, and options of the network."""

    name: str = setting("network", allowed="a name of ``equalbits list models``, or ``timm:NAME`` for one of timm")
    weight_quantizer: str = setting(
        "method that binarizes weights; settings follow a colon, such as ``bihalf:p_pos=0.25``",
        default="bihalf",
        allowed="a name of ``equalbits list methods``; empty: none",
    )
    input_quantizer: str = setting(
        "quantizer of the inputs of binary layers, with settings as above",
        default="",
        allowed="a name of ``equalbits list inputs``; empty: none",
    )
    init: Literal["torch", "kaiming"] = setting(
        "initialization of the weights: torch's default or Kaiming normal", default="torch"
    )
    init_from: str = setting(
        "trained network whose weights are the initial ones, as ``--start-from`` gives it; a recipe is trained first, "
        "on the images of this one, into ``OUT/init``",
        default="",
        allowed="a name of ``equalbits list``, the directory of a finished run, a ``.safetensors`` file, "
        "``timm:NAME`` for pretrained weights of timm, or ``zoo:NAME``; empty: none",
    )
    options: dict[str, Any] = setting(
        "keyword arguments of the network",
        default_factory=dict,
        allowed="a table, set by key as in ``model.options.width=0.5``",
    )

    def check(self) -> None:
        """Require options that compare, so that a resumed run is that of the same recipe."""
        for name, value in self.options.items():
            if value != value:  # only NaN differs from itself
                raise ValueError(f"model.options.{name}=nan must be a finite number, or another value")


class DataConfig(Settings, group="data"):
    """Data set by name, and its batches."""

    name: str = setting(
        "data set; ``synthetic`` accepts a shape and a number of classes, such as ``synthetic:3x32x32:10``",
        allowed="a name of ``equalbits list data``",
    )
    batch_size: int = setting("training images per step, over all processes", default=128, at_least=1)
    augment: bool = setting("random shifts and horizontal flips of training images", default=True)
    erase: int = setting(
        "side in pixels of a square at a random position of each training image that is set to the mean (0: none); "
        "at most twice the image's side; needs ``augment``",
        default=0,
        at_least=0,
    )
    mirror: bool = setting("flip half of the training images horizontally; part of ``augment``", default=True)
    resized_crop: float = setting(
        "smallest share of the area of a training image that is cropped at random and scaled back, such as 0.25, in "
        "place of random shifts (0: none); needs ``augment``",
        default=0.0,
        at_least=0,
        at_most=1,
    )
    randaugment: int = setting(
        "number of random operations (RandAugment) on each training image, such as 2 (0: none); needs ``augment``",
        default=0,
        at_least=0,
        at_most=8,
    )
    statistics: str = setting(
        "data set whose mean and std normalize the pixels",
        default="",
        allowed=f"``{'``, ``'.join(STATISTICS)}``; empty: the data set's own",
    )
    test_batch_size: int = setting("batch size of the evaluation; does not change scores", default=1000, at_least=1)
    limit: int = setting("number of training images to use (0: all)", default=0, at_least=0)
    hold_out: int = setting(
        "number of training images to hold out and evaluate on in place of the test data, for tuning",
        default=0,
        at_least=0,
    )
    resize: int = setting("image files: side of the square that images are resized to", default=256)
    fit: Literal["stretch", "crop", "pad"] = setting(
        "image files: how they become square; ``stretch`` ignores the aspect ratio, ``crop`` cuts the longer side, "
        "``pad`` adds black",
        default="stretch",
    )
    crop: int = setting("image files: side of the crop that the network sees; at most ``resize``", default=224)
    workers: int = setting(
        "image files: number of decoding processes (0: decode in the training process)", default=4, at_least=0
    )

    max_pixels: int = setting(
        "image files: most pixels of a file, checked before it is decoded, which takes about 10 bytes for each",
        default=MAX_PIXELS,
        at_least=1,
    )

    def check(self) -> None:
        """Require augmentation for its parts."""
        for name in ("erase", "resized_crop", "randaugment"):
            if getattr(self, name) and not self.augment:
                given = f"data.{name}={getattr(self, name)}"
                raise ValueError(f"{given} is part of augmentation: set data.augment=true, or data.{name}=0")


class Recipe(Settings):
    """Recipe: model, data and training settings under a name."""

    name: str = setting("name of the run (default: that of the TOML file)")
    about: str = setting("description of the recipe in one line", default="")
    expected: float | None = setting("published accuracy in per cent, if any", default=None, at_least=0, at_most=100)
    model: ModelConfig
    data: DataConfig
    train: TrainConfig

    def check(self) -> None:
        """Require a name that can also be a directory."""
        if not self.name.strip(". ") or not self.name.isprintable() or re.search(r"[/\\]", self.name):
            raise ValueError(f"name={self.name!r} also names a directory: use a word without slashes and line breaks")

    def with_settings(self, settings: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with some settings replaced, by the dotted names of :meth:`to_toml`.

        A change of ``model.name`` drops the options that the new network does not accept.

        >>> from equalbits.recipes import get_recipe
        >>> get_recipe("cifar10-conv2").with_settings({"epochs": 2, "optimizer.lr": 0.05}).train.optimizer.lr
        0.05
        """
        check_mapping(settings)
        recipe, network = self, settings.get("model.name", self.model.name)
        if network != self.model.name and (network in list_models() or str(network).startswith("timm:")):
            accepted = model_options(network)
            options = {k: v for k, v in self.model.options.items() if k in accepted and _is_valid(v, accepted[k])}
            recipe = replace(self, model=replace(self.model, options=options))
        return super(Recipe, recipe).with_settings(settings)


def _is_valid(value: object, default: object) -> bool:
    """Return True if an option with this default takes the value: a width can be a factor or a number of channels.

    >>> _is_valid(0.25, 16), _is_valid(0.25, 1.0), _is_valid(2, 1.0)
    (False, True, True)
    """
    return not isinstance(default, int) or isinstance(default, bool) or isinstance(value, int)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return Recipe.from_dict({"name": path.stem, **table})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
