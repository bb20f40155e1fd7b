"""Named recipes: the paper's experiments, and small ones on the data of the package.

A recipe names a network and its data. The method is a setting (``model.weight_quantizer``), because a fair comparison
changes nothing else.
"""

import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from equalbits._text import nearest_name
from equalbits._toml import flatten
from equalbits.recipes.recipe import Recipe, read_recipe
from equalbits.recipes.run_record import FREE

#: Settings by dotted name, as ``--set`` takes them. All others have the defaults of docs/settings.md: SGD with momentum
#: 0.9 and a learning rate of 0.1, batches of 128, weight decay 1e-4, a cosine schedule, BiHalf weights.
_Settings = dict[str, Any]

_CONVNET: _Settings = {"epochs": 100, "optimizer.weight_decay": 1e-4}
_RESNET20: _Settings = {"epochs": 400, "model.init": "kaiming", "data.statistics": "imagenet"}
_DEEP: _Settings = {
    "epochs": 350,
    "optimizer.weight_decay": 5e-4,
    "schedule.name": "step",
    "schedule.milestones": [150, 250, 320],
}
_TEACHER: _Settings = {
    "epochs": 200,
    "optimizer.weight_decay": 5e-4,
    "optimizer.nesterov": True,
    "schedule.per": "step",
    "schedule.warmup_epochs": 5,
    "model.weight_quantizer": "",
    "model.init": "kaiming",
    "data.erase": 8,
    "evaluate_every": 10,  # of 200 or 300 epochs
}
_BEST: _Settings = _TEACHER | {
    "epochs": 300,
    "optimizer.weight_decay": 1e-4,
    "model.weight_quantizer": "bihalf",
    "model.input_quantizer": "rsign",
    "model.options.rprelu": True,
    "distill.weight": 0.9,
    "distill.temperature": 4.0,
    "weight_average": 0.999,
}
_IMAGENET: _Settings = {
    "epochs": 100,
    "data.batch_size": 256,
    "schedule.name": "step",
    "schedule.milestones": [30, 60, 90],
    "model.input_quantizer": "sign",
}
_FASHION: _Settings = {"schedule.per": "step", "model.options.width": 0.25, "model.options.batch_norm": True}


def _convnets() -> Iterator[Recipe]:
    """Table 2 and figure 5: every layer binary, no batch norm, default initialization of torch."""
    published = {"conv2": 79.25, "conv4": 87.68, "conv6": 89.92, "conv8": 90.40}
    for net, accuracy in published.items():
        about = f"{net.capitalize()} of the paper's table 2: all layers binary, no batch norm, torch's initialization"
        yield _recipe(f"cifar10-{net}", about, net, "cifar10", _CONVNET | {"expected": accuracy})
        about = f"{net.capitalize()} as in cifar10-{net}" + ("; in the paper's figure 5" if net == "conv2" else "")
        yield _recipe(f"cifar100-{net}", about, net, "cifar100", _CONVNET)


def _tuned_convnets() -> Iterator[Recipe]:
    """Table 2 with the settings that were best on held-out images (``equalbits reproduce tab2-tuned``)."""
    smooth = {"optimizer.weight_decay": 5e-4, "label_smoothing": 0.1}
    tuned: dict[str, _Settings] = {
        "conv2": {"optimizer.weight_decay": 5e-4, "epochs": 200},
        "conv4": smooth,
        "conv6": smooth | {"data.erase": 8},
        "conv8": smooth | {"data.erase": 8},
    }
    for net, settings in tuned.items():
        about = f"{net.capitalize()} of the paper's table 2 with settings tuned on held-out images"
        yield _recipe(f"cifar10-{net}-tuned", about, net, "cifar10", _CONVNET | settings)


def _irnet() -> Iterator[Recipe]:
    """ResNet-20 with the settings of IR-Net's authors."""
    about = "ResNet-20 with IR-Net's settings, which the paper announces but does not report"
    yield _recipe("cifar10-resnet20-1w32a", about, "resnet20", "cifar10", _RESNET20)
    about += "; EDE's t starts at 0.001 (for the weights as well: irnet:t_min=0.001)"
    inputs = {"model.input_quantizer": "ede:t_min=0.001"}
    yield _recipe("cifar10-resnet20-1w1a", about, "resnet20", "cifar10", _RESNET20 | inputs)


def _deep() -> Iterator[Recipe]:
    """Figure 7 and the released code: first, last and downsampling layers are real."""
    binary_inputs = {"model.input_quantizer": "sign"}
    # The released CIFAR-10 code has its own mean and std, and with binary inputs normalizes the stem before the PReLU.
    cifar10 = _DEEP | {"data.statistics": "cifar10-resnet18"}
    for net in ("resnet18", "resnet34"):
        about = f"{net} of the paper's released code, {{}}: first, last and downsampling layers real"
        yield _recipe(f"cifar10-{net}-1w32a", about.format("1w32a"), net, "cifar10", cifar10)
        norm_first = binary_inputs | {"model.options.norm_first": True}
        yield _recipe(f"cifar10-{net}-1w1a", about.format("1w1a"), net, "cifar10", cifar10 | norm_first)
    cifar100 = _DEEP | {"model.init": "kaiming"}  # as the paper's text says
    for net in ("vgg16", "resnet18", "resnet34", "inception_v3", "shufflenet"):
        name = net.replace("_", "-")
        about = f"{net} of the paper's figure 7 and released code, {{}}: first, last and downsampling layers real"
        yield _recipe(f"cifar100-{name}-1w32a", about.format("1w32a"), net, "cifar100", cifar100)
        if net.startswith("resnet"):
            yield _recipe(f"cifar100-{name}-1w1a", about.format("1w1a"), net, "cifar100", cifar100 | binary_inputs)


def _best() -> Iterator[Recipe]:
    """1-bit nets that are as accurate as we could make them, with real nets as their teachers."""
    for data in ("cifar10", "cifar100"):
        about = "real ResNet-18, the teacher of the best 1-bit nets"
        yield _recipe(f"{data}-resnet18-real", about, "resnet18", data, _TEACHER)
    about = (
        "{} with binary weights and activations, distilled from a real ResNet-18: first, last and shortcut layers real"
    )
    for data, net in (
        ("cifar10", "resnet18"),
        ("cifar10", "resnet20"),
        ("cifar10", "vgg_small"),
        ("cifar100", "resnet18"),
    ):
        teacher = {"distill.teacher": f"{data}-resnet18-real"}
        yield _recipe(f"{data}-{net.replace('_', '-')}-best", about.format(net), net, data, _BEST | teacher)


def _imagenet() -> Iterator[Recipe]:
    """Table 3: binary weights and activations."""
    about = "ImageNet row of the paper's table 3, binary weights and activations"
    for net, accuracy in {"resnet18": 60.40, "resnet34": 64.17}.items():
        settings = _IMAGENET | {"expected": accuracy}
        yield _recipe(f"imagenet-{net}", about, f"imagenet_{net}", "imagenet", settings)
    about = "the net and recipe for ImageNet on Tiny-ImageNet, its stand-in; binary weights and activations"
    for net in ("resnet18", "resnet34"):
        small = {"data.resize": 72, "data.crop": 64}  # as 256 and 224, with sides that the net can halve five times
        yield _recipe(f"tinyimagenet-{net}", about, f"imagenet_{net}", "tinyimagenet", _IMAGENET | small)


def _fashion() -> Iterator[Recipe]:
    """Small networks on the data of the package. Batch norm is there because several methods need it."""
    about = "Small network on the data of the package: seconds per epoch on a laptop"
    for net in ("conv2", "conv4"):
        yield _recipe(f"fashion-{net}", about, net, "fashion", _FASHION | {"epochs": 3})
    about = "Narrow Conv4 with batch norm on the data of the package, for the comparison of methods"
    settings = _FASHION | {"epochs": 10, "data.batch_size": 125}  # divides the 10,000 images
    yield _recipe("fashion-compare", about, "conv4", "fashion", settings)


def _pictures() -> Iterator[Recipe]:
    """A start for pictures of one's own: seconds per hundred on a laptop."""
    about = "your own pictures, from a directory per class in --data: ResNet-20 at 32×32; first and last layer real"
    small = {"epochs": 30, "schedule.per": "step", "data.batch_size": 32, "data.resize": 36, "data.crop": 32}
    yield _recipe("pictures", about, "resnet20", "imagefolder", small)


def _recipe(name: str, about: str, net: str, data: str, settings: _Settings) -> Recipe:
    return Recipe.from_dict({"name": name, "about": about, "model.name": net, "data.name": data, **settings})


_FAMILIES = (_convnets, _tuned_convnets, _irnet, _deep, _best, _imagenet, _fashion, _pictures)
_CATALOGUE = {recipe.name: recipe for family in _FAMILIES for recipe in family()}
_SAME_RESULT = FREE | {"seed", "precision"}  # up to the spread of the accuracy


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the recipes that match a pattern.

    >>> list_recipes("fashion-*")
    ['fashion-conv2', 'fashion-conv4', 'fashion-compare']
    """
    return [name for name in _CATALOGUE if fnmatchcase(name, pattern)]


def get_recipe(name: str) -> Recipe:
    """Return the recipe of this name."""
    if name not in _CATALOGUE:
        nearest = nearest_name(name, _CATALOGUE)
        hint = f"did you mean {nearest!r}?" if nearest else "`equalbits list recipes` shows them"
        raise ValueError(f"no recipe {name!r}; {hint}")
    return _CATALOGUE[name]


def published_score(recipe: Recipe) -> float | None:
    """Return the published accuracy of a recipe; None if a setting differs that changes the result.

    >>> published_score(get_recipe("cifar10-conv2").with_settings({"seed": 3}))
    79.25
    >>> published_score(get_recipe("cifar10-conv2").with_settings({"epochs": 3}))
    """
    return None if own_settings(recipe.as_dict()) else recipe.expected


def own_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the recipe of that name and change the result; all given as a dict.

    >>> own_settings(get_recipe("fashion-conv2").with_settings({"seed": 3, "epochs": 5}).as_dict())
    {'epochs': 5}
    """
    if recipe["name"] not in _CATALOGUE:
        return {}
    catalogued = flatten(_CATALOGUE[recipe["name"]].as_dict())
    return {
        name: value
        for name, value in flatten(dict(recipe)).items()
        if name not in _SAME_RESULT and catalogued.get(name) != value
    }


def find_recipe(word: str) -> Recipe:
    """Return the recipe of this name, or read it from this TOML file."""
    path = Path(word)
    if word.endswith(".toml"):
        return read_recipe(path)
    if word in _CATALOGUE:
        return _CATALOGUE[word]
    if (path / "recipe.toml").is_file():
        again, file = (shlex.quote(str(place)) for place in (path, path / "recipe.toml"))
        raise ValueError(f"{path} is the folder of a run: resume it with train --resume {again}, or give {file}")
    near = path.parent / f"{path.stem}.toml"
    if near.is_file():
        raise ValueError(f"no recipe {word!r}; did you mean the file {near}?")
    if path.is_file():
        example = "equalbits list --show fashion-conv2 prints a complete file"
        raise ValueError(f"{path} is not a recipe: write it as TOML, in a file whose name ends in .toml; {example}")
    return get_recipe(word)
