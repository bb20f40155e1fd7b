"""Quantizers by name, with settings behind a colon: ``"bihalf"``, ``"bihalf:p_pos=0.25"``, ``"irnet:t_max=5"``.

A name is how recipes, commands and saved runs say which method they mean. A method of one's own joins the table
with :func:`register_quantizer` and is then known everywhere a name is taken.
"""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from torch import nn

from equalbits._text import unknown_name
from equalbits.nn.quantizer import BiHalf, IRNet, Sign, SignActivation, WeightQuantizer

Made = TypeVar("Made", bound=nn.Module)
Factory = TypeVar("Factory", bound=Callable[..., nn.Module])


def quantizer_by_name(name: str) -> WeightQuantizer:
    """The weight quantizer of that name, fresh; settings may follow a colon, parted by commas.

    >>> quantizer_by_name("bihalf:p_pos=0.25")
    BiHalf(p_pos=0.25)
    >>> quantizer_by_name("bihlaf")
    Traceback (most recent call last):
    ValueError: weight quantizer 'bihlaf' is not known: did you mean 'bihalf'? There are: ...
    """
    return _WEIGHT_QUANTIZERS.make(name)


def input_quantizer_by_name(name: str) -> nn.Module:
    """The input quantizer of that name, fresh; settings as for :func:`quantizer_by_name`.

    >>> input_quantizer_by_name("ede:t_min=0.001")
    SignActivation('decaying', t_min=0.001, t_max=10.0)
    """
    return _INPUT_QUANTIZERS.make(name)


def register_quantizer(name: str) -> Callable[[Factory], Factory]:
    """Give a weight quantizer class, or a function that makes one, a name of its own. A name taken is refused.

    >>> @register_quantizer("bihalf")
    ... class Mine(WeightQuantizer): ...
    Traceback (most recent call last):
    ValueError: weight quantizer 'bihalf' is taken: choose another name
    """
    return _WEIGHT_QUANTIZERS.register(name)


def register_input_quantizer(name: str) -> Callable[[Factory], Factory]:
    """As :func:`register_quantizer`, for what flows into a layer."""
    return _INPUT_QUANTIZERS.register(name)


def list_quantizers() -> list[str]:
    """The names :func:`quantizer_by_name` knows."""
    return sorted(_WEIGHT_QUANTIZERS.factories)


def list_input_quantizers() -> list[str]:
    """The names :func:`input_quantizer_by_name` knows.

    >>> set(list_input_quantizers()) >= {"approx-sign", "ede", "sign", "sign-straight"}
    True
    """
    return sorted(_INPUT_QUANTIZERS.factories)


def quantizer_settings(name: str) -> dict[str, Any]:
    """What may follow the colon of a weight quantizer's name, with the defaults.

    >>> quantizer_settings("bihalf")
    {'p_pos': 0.5, 'estimator': 'straight'}
    """
    return _WEIGHT_QUANTIZERS.settings(name)


def input_quantizer_settings(name: str) -> dict[str, Any]:
    """As :func:`quantizer_settings`, for an input quantizer."""
    return _INPUT_QUANTIZERS.settings(name)


def settings_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """The arguments a class or function takes by name, with their defaults (``inspect.Parameter.empty``: none)."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(factory).parameters
    return {name: parameter.default for name, parameter in parameters.items() if parameter.kind in by_name}


@dataclass(frozen=True)
class _Table(Generic[Made]):
    """Names and what makes the thing named."""

    kind: str
    factories: dict[str, Callable[..., Made]]

    def register(self, name: str) -> Callable[[Factory], Factory]:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"{name!r} cannot name a {self.kind}: use letters, digits, '-', '_' and '.'")
        if name in self.factories:
            raise ValueError(f"{self.kind} {name!r} is taken: choose another name")

        def add(factory: Factory) -> Factory:
            self.factories[name] = factory  # type: ignore[assignment]
            return factory

        return add

    def settings(self, name: str) -> dict[str, Any]:
        if name not in self.factories:
            raise unknown_name(self.kind, name, self.factories)
        return settings_of(self.factories[name])

    def make(self, text: str) -> Made:
        name, _, rest = text.partition(":")
        known = self.settings(name)
        settings: dict[str, Any] = {}
        for setting, value in (_setting(text, part) for part in rest.split(",") if part.strip()):
            if setting not in known:
                raise unknown_name(f"{self.kind} {name!r}: setting", setting, known)
            if setting in settings:
                raise ValueError(f"{text!r} does not make a {self.kind}: {setting} is given twice; give it once")
            if isinstance(known[setting], bool) and isinstance(value, str):  # any word would count as true
                raise ValueError(
                    f"{setting}={value!r} is neither true nor false: write {setting}=true or {setting}=false"
                )
            settings[setting] = value
        try:
            return self.factories[name](**settings)
        except TypeError as error:  # a setting is missing, or a word stands where a number should, such as inf
            for setting, value in settings.items():
                if isinstance(known[setting], int | float) and isinstance(value, str):
                    way = f"must be a number, as in {setting}={known[setting]}"
                    raise ValueError(f"{setting}={value} of {text!r} {way}") from error
            raise ValueError(f"{text!r} does not make a {self.kind}: {error}") from error


def _setting(text: str, part: str) -> tuple[str, Any]:
    name, equals, value = (word.strip() for word in part.partition("="))
    if not (name and equals and value):
        raise ValueError(f"{part!r} in {text!r} is not a setting: write name=value, as in 'bihalf:p_pos=0.25'")
    if value in ("true", "false"):  # as --set writes them; the word "false" would count as true
        return name, value == "true"
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value  # a plain word, as in statistics=fixed


_WEIGHT_QUANTIZERS: _Table[WeightQuantizer] = _Table(
    "weight quantizer",
    {
        "sign": Sign,
        "bihalf": BiHalf,
        "irnet": partial(IRNet, "learned"),
        "irnet-stable": partial(IRNet, "fixed"),
        "irnet-through": partial(IRNet, "through"),
        "irnet-identity": partial(IRNet, "identity"),
    },
)
_INPUT_QUANTIZERS: _Table[nn.Module] = _Table(
    "input quantizer",
    {
        "sign": lambda: SignActivation("clipped"),
        "approx-sign": lambda: SignActivation("polynomial"),
        "ede": partial(SignActivation, "decaying"),
        "sign-straight": lambda: SignActivation("straight"),
    },
)
