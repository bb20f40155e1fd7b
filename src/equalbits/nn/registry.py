"""Quantizers by name, with settings behind a colon: ``"bihalf"``, ``"bihalf:p_pos=0.25"``, ``"irnet:t_max=5"``.

Recipes, commands and saved runs refer to a method by its name. ``register_quantizer`` adds a method of your own.
"""

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import nn

from equalbits._text import unknown_name
from equalbits.nn.quantizer import WeightQuantizer

Q = TypeVar("Q", bound=nn.Module)
Factory = TypeVar("Factory", bound=Callable[..., nn.Module])


def settings_of(factory: Callable[..., object]) -> dict[str, Any]:
    """Return the arguments of a class or function with their defaults (``inspect.Parameter.empty``: required)."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(factory).parameters
    return {name: parameter.default for name, parameter in parameters.items() if parameter.kind in by_name}


class Registry(Generic[Q]):
    """Quantizers of one kind by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.factories: dict[str, Callable[..., Q]] = {}

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """Register a quantizer class, or a function that returns one, under a name that is not taken.

        >>> @register_quantizer("bihalf")
        ... class Mine(WeightQuantizer): ...
        Traceback (most recent call last):
        ValueError: weight quantizer 'bihalf' is taken: choose another name
        """
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"{name!r} cannot name a {self.kind}: use letters, digits, '-', '_' and '.'")
        if name in self.factories:
            raise ValueError(f"{self.kind} {name!r} is taken: choose another name")

        def add(factory: Factory) -> Factory:
            self.factories[name] = factory  # type: ignore[assignment]
            return factory

        return add

    def names(self) -> list[str]:
        """Return all names, sorted.

        >>> set(list_input_quantizers()) >= {"approx-sign", "ede", "sign", "sign-straight"}
        True
        """
        return sorted(self.factories)

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings of a quantizer with their defaults.

        >>> quantizer_settings("bihalf")
        {'p_pos': 0.5, 'estimator': 'straight'}
        """
        if name not in self.factories:
            raise unknown_name(self.kind, name, self.factories)
        return settings_of(self.factories[name])

    def create(self, text: str) -> Q:
        """Create the quantizer with that name; settings may follow a colon, separated by commas.

        >>> quantizer_by_name("bihalf:p_pos=0.25")
        BiHalf(p_pos=0.25)
        >>> input_quantizer_by_name("ede:t_min=0.001")
        SignActivation(estimator='decaying', t_min=0.001)
        >>> quantizer_by_name("bihlaf")
        Traceback (most recent call last):
        ValueError: weight quantizer 'bihlaf' is not known: did you mean 'bihalf'? There are: ...
        """
        name, _, rest = text.partition(":")
        defaults = self.settings(name)
        settings: dict[str, object] = {}
        for setting, value in (_parse_setting(text, part) for part in rest.split(",") if part.strip()):
            if setting not in defaults:
                raise unknown_name(f"{self.kind} {name!r}: setting", setting, defaults)
            if setting in settings:
                raise ValueError(f"{text!r} does not make a {self.kind}: {setting} is given twice; give it once")
            default = defaults[setting]
            if isinstance(default, int | float) and isinstance(value, str):  # a word, such as inf
                rule = "true or false" if isinstance(default, bool) else f"a number, as in {setting}={default}"
                raise ValueError(f"{setting}={value} of {text!r} must be {rule}")
            settings[setting] = value
        try:
            return self.factories[name](**settings)
        except TypeError as error:  # a setting is missing
            raise ValueError(f"{text!r} does not make a {self.kind}: {error}") from error


def _parse_setting(text: str, part: str) -> tuple[str, object]:
    name, equals, value = (word.strip() for word in part.partition("="))
    if not (name and equals and value):
        raise ValueError(f"{part!r} in {text!r} is not a setting: write name=value, as in 'bihalf:p_pos=0.25'")
    if value in ("true", "false"):  # as TOML writes them
        return name, value == "true"
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        return name, value  # a plain word, as in statistics=fixed


_weights: Registry[WeightQuantizer] = Registry("weight quantizer")
quantizer_by_name, quantizer_settings = _weights.create, _weights.settings
register_quantizer, list_quantizers = _weights.register, _weights.names

_inputs: Registry[nn.Module] = Registry("input quantizer")
input_quantizer_by_name, input_quantizer_settings = _inputs.create, _inputs.settings
register_input_quantizer, list_input_quantizers = _inputs.register, _inputs.names
