"""A recipe: which model on which data with which settings, frozen, checked, and written as TOML."""

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from equalbits.data import STATISTICS
from equalbits.models import list_models, model_options
from equalbits.training import TrainConfig, Within, check_settings, flat

#: Name of each type of setting, for messages.
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", dict: "a group"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Network and quantizers by name, and options of the network.

    - ``name``: the network
    - ``weight_quantizer``: the method that binarizes weights, with its settings after a colon, such as
      ``bihalf:p_pos=0.25``
    - ``input_quantizer``: the quantizer of the inputs of binary layers, with settings as above
    - ``init``: initialization of the weights: torch's default or Kaiming normal
    - ``options``: keyword arguments of the network, such as ``model.options.width=0.5``
    """

    name: Annotated[str, "a name of ``equalbits list models``"]
    weight_quantizer: Annotated[str, "a name of ``equalbits list methods``; empty: none"] = "bihalf"
    input_quantizer: Annotated[str, "a name of ``equalbits list inputs``; empty: none"] = ""
    init: Annotated[str, "``torch`` or ``kaiming``"] = "torch"
    options: Annotated[dict[str, Any], "an option of the network"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data set by name, and its batches.

    - ``name``: the data set; ``synthetic`` accepts a shape and a number of classes, such as ``synthetic:3x32x32:10``
    - ``batch_size``: training images per step, over all processes
    - ``augment``: random shifts and horizontal flips of training images
    - ``erase``: side in pixels of a square at a random position of each training image that is set to the mean
      (0: none); at most twice the image's side; needs ``augment``
    - ``statistics``: data set whose mean and std normalize the pixels
    - ``test_batch_size``: batch size of the evaluation; does not change scores
    - ``limit``: number of training images to use (0: all)
    - ``hold_out``: number of training images to hold out and evaluate on in place of the test data, for tuning
    - ``resize``: image files: side of the square that images are resized to
    - ``crop``: image files: side of the crop that the network sees; at most ``resize``
    - ``workers``: image files: number of decoding processes (0: decode in the training process)
    """

    name: Annotated[str, "a name of ``equalbits list data``"]
    batch_size: Annotated[int, Within(at_least=1)] = 128
    augment: bool = True
    erase: Annotated[int, Within(at_least=0)] = 0
    statistics: Annotated[str, f"``{'``, ``'.join(STATISTICS)}``; empty: the data set's own"] = ""
    test_batch_size: Annotated[int, Within(at_least=1)] = 1000
    limit: Annotated[int, Within(at_least=0)] = 0
    hold_out: Annotated[int, Within(at_least=0)] = 0
    resize: int = 256
    crop: int = 224
    workers: Annotated[int, Within(at_least=0)] = 4

    def __post_init__(self) -> None:
        check_settings(self, "data.")
        if self.erase and not self.augment:
            raise ValueError(
                f"data.erase={self.erase} is a part of augmentation: set data.augment=true, or data.erase=0"
            )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Recipe: model, data and training settings under a name.

    - ``name``: name of the run (default: that of the TOML file)
    - ``about``: description of the recipe in one line
    - ``expected``: published accuracy in per cent, if any
    """

    name: str
    about: str = ""
    expected: float | None = None
    model: ModelConfig
    data: DataConfig
    train: TrainConfig

    def __post_init__(self) -> None:
        if not self.name.strip(". ") or re.search(r"[/\\\x00-\x1f]", self.name):
            raise ValueError(f"name={self.name!r} names a folder, too: write some word without slashes or line breaks")
        if self.expected is not None and not 0 <= self.expected <= 100:
            raise ValueError(f"expected={self.expected} must be a score in per cent, from 0 to 100")

    def with_settings(self, settings: Mapping[str, Any]) -> "Recipe":
        """The recipe with some settings replaced, by the names :meth:`to_toml` writes.

        Options that a network of another name does not take, or not such values of, are left behind with the old one.

        >>> from equalbits.recipes import get_recipe
        >>> get_recipe("cifar10-conv2").with_settings({"epochs": 2, "optimizer.lr": 0.05}).train.optimizer.lr
        0.05
        """
        table = self.as_dict()
        other = settings.get("model.name", self.model.name)
        if other != self.model.name and other in list_models():  # it has no use for all options of this one
            taken = model_options(other)
            table["model"]["options"] = {
                name: value for name, value in self.model.options.items() if name in taken and _fits(value, taken[name])
            }
        for path, value in settings.items():
            _put(table, path, value)
        return recipe_from_dict(table)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, nested as in the TOML: training's settings stand at the top."""
        table = dataclasses.asdict(self)
        train = table.pop("train")
        plain = {name: value for name, value in train.items() if not isinstance(value, dict)}
        nested = {name: value for name, value in train.items() if isinstance(value, dict)}
        return {**{k: v for k, v in table.items() if k not in ("model", "data")}, **plain} | {
            "model": table["model"],
            "data": table["data"],
            **nested,
        }

    def to_toml(self) -> str:
        """The recipe as TOML, which :func:`read_recipe` reads back."""
        return _toml(self.as_dict())


def _fits(value: Any, default: Any) -> bool:
    """Whether an option of one network can be another's, which has this default: a width may be a share or a count.

    >>> _fits(0.25, 16), _fits(0.25, 1.0), _fits(2, 1.0)
    (False, True, True)
    """
    return not isinstance(default, int) or isinstance(default, bool) or isinstance(value, int)


def recipe_from_dict(table: Mapping[str, Any]) -> Recipe:
    """Build a recipe from plain data; a name or type that does not fit is refused with the nearest that does."""
    own = {"name", "about", "expected", "model", "data"}
    train = {name: value for name, value in table.items() if name not in own}
    known = own | {f.name for f in dataclasses.fields(TrainConfig)}
    for name in table:
        _check_known(name, known, "")
    rest = {name: value for name, value in table.items() if name in own}
    return _build(Recipe, {**rest, "train": train}, "")  # type: ignore[no-any-return]


def read_recipe(path: Path) -> Recipe:
    """Read a recipe of one's own from a TOML file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors put a mark before the first word
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return recipe_from_dict({"name": path.stem, **table})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` words; a value is TOML where it reads as such, a number that TOML has not, or a plain word.

    >>> parse_settings(["optimizer.lr=.05", "model.name=conv4", "schedule.milestones=[10, 20]"])
    {'optimizer.lr': 0.05, 'model.name': 'conv4', 'schedule.milestones': [10, 20]}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{assignment!r} is not a setting: write name=value, as in optimizer.lr=0.05")
        try:
            settings[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name.strip()] = _number_or_word(text.strip())
    return settings


def _number_or_word(text: str) -> float | str:
    """``.5`` and ``1.`` as numbers."""
    return float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE) else text


def _put(table: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    elsewhere = [name for name in flat(table) if name.rpartition(".")[2] == last]
    if elsewhere and path not in elsewhere and parents[-1:] != ["options"]:
        raise ValueError(f"no setting {path!r}; did you mean {elsewhere[0]!r}?")
    for depth, name in enumerate(parents):
        if not isinstance(table.get(name), dict):
            shown = ".".join(parents[: depth + 1])
            raise ValueError(f"no setting {path!r}: {shown!r} is not a group{_nearest(name, table)}")
        table = table[name]
    if last not in table and (not parents or parents[-1] != "options"):
        raise ValueError(f"no setting {path!r}{_nearest(last, table, path.removesuffix(last))}")
    if isinstance(table.get(last), dict):
        inner = ", ".join(f"{path}.{name}" for name in table[last] or ["NAME"])
        raise ValueError(f"{path!r} is a group of settings: set one of {inner}")
    table[last] = value


def _check_known(name: str, known: Iterable[str], group: str) -> None:
    if name not in known:
        elsewhere = [] if difflib.get_close_matches(name.lower(), known) else _named(name, Recipe)
        hint = f"; did you mean {elsewhere[0]!r}?" if elsewhere else _nearest(name, known, group)
        raise ValueError(f"no setting {group + name!r}{hint}")


def _named(name: str, kind: Any, group: str = "") -> list[str]:
    """All settings of this name, in whatever group: a line of a file may stand below the wrong table."""
    found: list[str] = []
    for each, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found += _named(name, hint, "" if each == "train" else f"{each}.")
        elif each == name:
            found.append(group + name)
    return found


def _nearest(name: str, known: Iterable[str], group: str = "") -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f"; did you mean {group + close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


def _build(kind: Any, table: Mapping[str, Any], path: str) -> Any:
    """Build a settings class from plain data, checking names and types on the way."""
    hints = get_type_hints(kind)
    for name in table:
        _check_known(name, hints, path)
    required = [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in table
    ]
    if required:
        raise ValueError(
            f"setting {path}{required[0]} is missing; equalbits list --show fashion-conv2 prints a whole file"
        )
    return kind(**{name: _typed(hints[name], value, path + name) for name, value in table.items()})


def _typed(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}={value!r} must be a group of settings")
        return _build(hint, value, "" if path == "train" else path + ".")
    if get_origin(hint) is tuple:
        inner, *others = get_args(hint)
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path}={value!r} must be a list, as in [1, 2]")
        if others != [...] and len(value) != 1 + len(others):
            raise ValueError(f"{path}={value!r} must be a list of {1 + len(others)}")
        return tuple(_typed(inner, item, path) for item in value)
    if hint == float | None:
        return None if value is None else _typed(float, value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{path} has {len(str(value))} digits, more than a number can have: write less") from None
    wanted = get_origin(hint) or hint
    if type(value) is not wanted:
        raise ValueError(f"{path}={value!r} must be {WORDS.get(wanted, wanted)}")
    return value


def _toml(table: Mapping[str, Any], path: str = "") -> str:
    plain = {name: value for name, value in table.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{name} = {toml_value(value)}" for name, value in plain.items()]
    for name, value in table.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{path}{name}]", _toml(value, f"{path}{name}.").rstrip()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML writes it, and as ``--set`` reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's strings are JSON's but for DEL
    return repr(value)
