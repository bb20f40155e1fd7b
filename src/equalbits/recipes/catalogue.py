"""The recipes that have a name: the paper's experiments, and small ones on the embedded data.

Each row of the paper's experiments is one recipe; the method is a setting (``model.weight_quantizer``), since a fair
comparison changes nothing else.
"""

import difflib
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from equalbits._settings import flatten
from equalbits.recipes.recipe import DataConfig, ModelConfig, Recipe, read_recipe
from equalbits.recipes.run_record import FREE
from equalbits.training import OptimizerConfig, ScheduleConfig, TrainConfig

_SHALLOW = TrainConfig(epochs=100, optimizer=OptimizerConfig(weight_decay=1e-4))
_STEPS = ScheduleConfig(name="step", milestones=(150, 250, 320))
_DEEP = TrainConfig(epochs=350, optimizer=OptimizerConfig(weight_decay=5e-4), schedule=_STEPS)
_IMAGENET = TrainConfig(epochs=100, schedule=ScheduleConfig(name="step", milestones=(30, 60, 90)))
_PUBLISHED = {"conv2": 79.25, "conv4": 87.68, "conv6": 89.92, "conv8": 90.40}
#: What was best on held-out images (`equalbits reproduce tab2-tuned`), beside the paper's own settings.
_TUNED = {
    "conv2": {"optimizer.weight_decay": 5e-4, "epochs": 200},
    "conv4": {"optimizer.weight_decay": 5e-4, "label_smoothing": 0.1},
    "conv6": {"optimizer.weight_decay": 5e-4, "label_smoothing": 0.1, "data.erase": 8},
    "conv8": {"optimizer.weight_decay": 5e-4, "label_smoothing": 0.1, "data.erase": 8},
}
_SAME_RESULT = FREE | {"seed", "precision"}  # within a score's spread


def _recipes() -> list[Recipe]:
    found = []
    for net, score in _PUBLISHED.items():
        about = f"{net.capitalize()} of the paper's table 2: all layers binary, no batch norm, torch's own start"
        found.append(_recipe(f"cifar10-{net}", about, net, "cifar10", _SHALLOW, expected=score))
        about = f"{net.capitalize()} as in cifar10-{net}" + ("; in the paper's figure 5" if net == "conv2" else "")
        found.append(_recipe(f"cifar100-{net}", about, net, "cifar100", _SHALLOW))
    for net, settings in _TUNED.items():
        about = f"{net.capitalize()} of the paper's table 2 with settings that we tuned on held-out images"
        found.append(_recipe(f"cifar10-{net}-tuned", about, net, "cifar10", _SHALLOW).with_settings(settings))
    resnet20 = TrainConfig(epochs=400)
    sharpness = "; EDE's t starts at 0.001 (for its weights, too: irnet:t_min=0.001)"
    for bits, inputs, more in (("1w32a", "", ""), ("1w1a", "ede:t_min=0.001", sharpness)):
        about = f"IR-Net's ResNet-20 and its settings, which the paper announces and does not report{more}"
        model = ModelConfig(name="resnet20", input_quantizer=inputs, init="kaiming")
        images = DataConfig(name="cifar10", statistics="imagenet")
        found.append(Recipe(name=f"cifar10-resnet20-{bits}", about=about, model=model, data=images, train=resnet20))
    for data, nets in {
        "cifar10": ("resnet18", "resnet34"),
        "cifar100": ("vgg16", "resnet18", "resnet34", "inception_v3", "shufflenet"),
    }.items():
        for net in nets:
            widths = ("", "sign") if net.startswith("resnet") else ("",)
            for inputs in widths:
                bits = "1w1a" if inputs else "1w32a"
                where = "figure 7 and released code" if data == "cifar100" else "released code"
                about = f"{net} of the paper's {where}, {bits}: first, last and downsampling layers real"
                name = f"{data}-{net.replace('_', '-')}-{bits}"
                found.append(_as_released(_recipe(name, about, net, data, _DEEP, inputs=inputs)))
    for net, score in (("imagenet_resnet18", 60.40), ("imagenet_resnet34", 64.17)):
        about = "ImageNet row of the paper's table 3, binary weights and activations"
        name = net.replace("_", "-")
        found.append(_recipe(name, about, net, "imagenet", _IMAGENET, inputs="sign", expected=score, batch_size=256))
    quick = TrainConfig(epochs=3, schedule=ScheduleConfig(per="step"))
    about = "A small net on the data that comes with the package: seconds an epoch on a laptop"
    for net in ("conv2", "conv4"):
        model = ModelConfig(name=net, options={"width": 0.25, "batch_norm": True})
        found.append(
            Recipe(name=f"fashion-{net}", about=about, model=model, data=DataConfig(name="fashion"), train=quick)
        )
    return [*found, _comparison()]


def _as_released(recipe: Recipe) -> Recipe:
    """The released CIFAR-10 network has statistics of its own, and its stem's norm before the PReLU."""
    if recipe.data.name != "cifar10":
        return recipe
    order = {"model.options.norm_first": True} if recipe.model.input_quantizer else {}
    return recipe.with_settings({"data.statistics": "cifar10-resnet18", **order})


def _comparison() -> Recipe:
    """A net that every method can train: batch norm behind each layer, as several of them need."""
    return Recipe(
        name="fashion-compare",
        about="A narrow Conv4 with batch norm on the data that comes with the package, to compare methods on",
        model=ModelConfig(name="conv4", options={"width": 0.25, "batch_norm": True}),
        data=DataConfig(name="fashion", batch_size=125),  # which cuts 10,000 images into whole batches
        train=TrainConfig(epochs=10, schedule=ScheduleConfig(per="step")),
    )


def _recipe(
    name: str,
    about: str,
    net: str,
    data: str,
    train: TrainConfig,
    *,
    inputs: str = "",
    expected: float | None = None,
    batch_size: int = 128,
) -> Recipe:
    return Recipe(
        name=name,
        about=about,
        expected=expected,
        model=ModelConfig(name=net, input_quantizer=inputs),
        data=DataConfig(name=data, batch_size=batch_size),
        train=train,
    )


_CATALOGUE = {recipe.name: recipe for recipe in _recipes()}


def list_recipes(pattern: str = "*") -> list[str]:
    """The names of the recipes that match.

    >>> list_recipes("fashion-*")
    ['fashion-conv2', 'fashion-conv4', 'fashion-compare']
    """
    return [name for name in _CATALOGUE if fnmatchcase(name, pattern)]


def get_recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in _CATALOGUE:
        close = difflib.get_close_matches(name.lower(), _CATALOGUE, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`equalbits list recipes` shows them"
        raise ValueError(f"no recipe {name!r}; {hint}")
    return _CATALOGUE[name]


def published_score(recipe: Recipe) -> float | None:
    """The score that a paper gives for this very recipe; None once a setting differs that decides the result.

    >>> published_score(get_recipe("cifar10-conv2").with_settings({"seed": 3}))
    79.25
    >>> published_score(get_recipe("cifar10-conv2").with_settings({"epochs": 3}))
    """
    return None if own_settings(recipe.as_dict()) else recipe.expected


def own_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe, as plain data, has other than the one of its name, among the settings that decide the result.

    >>> own_settings(get_recipe("fashion-conv2").with_settings({"seed": 3, "epochs": 5}).as_dict())
    {'epochs': 5}
    """
    if recipe["name"] not in _CATALOGUE:
        return {}
    known = flatten(_CATALOGUE[recipe["name"]].as_dict())
    return {
        name: value
        for name, value in flatten(dict(recipe)).items()
        if name not in _SAME_RESULT and known.get(name) != value
    }


def find_recipe(word: str) -> Recipe:
    """The recipe of this name, or the one in this TOML file."""
    path = Path(word)
    if word.endswith(".toml"):
        return read_recipe(path)
    if word not in _CATALOGUE and (path / "recipe.toml").is_file():
        again, file = (shlex.quote(str(place)) for place in (path, path / "recipe.toml"))
        raise ValueError(f"{path} is the folder of a run: go on with train --resume {again}, or name {file}")
    near = path.parent / f"{path.stem}.toml"
    if word not in _CATALOGUE and near.is_file():
        raise ValueError(f"no recipe {word!r}; did you mean the file {near}?")
    if word not in _CATALOGUE and path.is_file():
        show = "equalbits list --show fashion-conv2 prints a whole file"
        raise ValueError(f"{path} is no recipe: write it as TOML, in a file whose name ends in .toml; {show}")
    return get_recipe(word)
