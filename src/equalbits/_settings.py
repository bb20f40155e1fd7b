"""Settings classes: one declaration per setting states its type, default, bounds and meaning.

A subclass of :class:`Settings` is a frozen dataclass that validates its fields at construction. The same declarations
read TOML tables and ``--set`` assignments, suggest the nearest name, and fill docs/settings.md.
"""

import math
import operator
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from inspect import cleandoc
from numbers import Integral, Real
from types import UnionType
from typing import Any, ClassVar, Literal, Self, dataclass_transform, get_args, get_origin, get_type_hints

from equalbits._text import nearest_name
from equalbits._toml import flatten, toml_text

#: Of each type: its description, and the class of the values it takes.
_TYPES: dict[object, tuple[str, type]] = {
    bool: ("true or false", bool),
    int: ("an integer", Integral),
    float: ("a number", Real),
    str: ("a string", str),
    dict: ("a table", Mapping),
}
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}


def check_mapping(settings: object) -> None:
    """Raise unless settings are given by name in a dict."""
    if not isinstance(settings, Mapping):
        raise ValueError(f'settings={settings!r} must be a dict, as in with_settings({{"epochs": 2}})')


def setting(
    doc: str, *, default: Any = MISSING, default_factory: Any = MISSING, allowed: str = "", **bounds: float
) -> Any:
    """Declare a field of a settings class; without a default it is required.

    ``bounds`` are ``above``, ``at_least``, ``below`` and ``at_most``. ``allowed`` describes the valid values where the
    type and the bounds do not.
    """
    metadata = {"doc": doc, "allowed": allowed, "bounds": bounds}
    return field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass(frozen=True)
class Declaration:
    """A declared setting by its dotted name, as in ``optimizer.lr``."""

    name: str
    hint: Any
    default: Any  # MISSING where there is none
    doc: str
    allowed: str
    bounds: Mapping[str, float]

    def convert(self, value: object) -> Any:
        """Return the value in its declared type; raise a one-line error if it is not allowed."""
        if value is None and self.default is None:
            return None
        try:
            return _convert(value, self.hint, self.bounds)
        except (TypeError, OverflowError) as error:
            shown, allowed = repr(value), self.allowed.replace("``", "")
            shown = shown if len(shown) < 80 else f"{shown[:40]}…"
            if isinstance(error, OverflowError):
                allowed = allowed.replace("a number", "a finite number")
            raise ValueError(f"{self.name}={shown} must be {allowed}") from None


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting, field))
class Settings:
    """Base of the settings classes; ``group`` is the TOML table of the settings, empty for the top level.

    >>> class Warmup(Settings, group="warmup"):
    ...     epochs: int = setting("epochs of warm-up", default=5, at_least=0)
    >>> Warmup(epochs=-1)
    Traceback (most recent call last):
    ValueError: warmup.epochs=-1 must be an integer, at least 0
    """

    group: ClassVar[str]
    declared: ClassVar[dict[str, Declaration]]  # by field name
    nested: ClassVar[dict[str, type["Settings"]]]  # by field name

    def __init_subclass__(cls, group: str = "") -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        cls.__init__ = _refuse_unknown(cls.__init__)  # type: ignore[method-assign]
        cls.group, cls.declared, cls.nested = group, {}, {}
        hints = get_type_hints(cls)
        for each in fields(cls):  # type: ignore[arg-type]
            hint = hints[each.name]
            if isinstance(hint, type) and issubclass(hint, Settings):
                cls.nested[each.name] = hint
                continue
            doc, allowed, bounds = (each.metadata[key] for key in ("doc", "allowed", "bounds"))
            hint = get_args(hint)[0] if get_origin(hint) is UnionType else hint  # float for float | None
            name = f"{group}.{each.name}" if group else each.name
            default = each.default if each.default_factory is MISSING else each.default_factory()
            allowed = allowed or _describe(hint, bounds)
            cls.declared[each.name] = Declaration(name, hint, default, doc, allowed, bounds)
        items = (f"- ``{name}``: {each.doc} ({each.allowed})" for name, each in cls.declared.items())
        cls.__doc__ = "\n".join([cleandoc(cls.__doc__ or ""), "", *items])

    def __post_init__(self) -> None:
        for name, kind in self.nested.items():
            object.__setattr__(self, name, kind.of(getattr(self, name), name))
        for name, declaration in self.declared.items():
            object.__setattr__(self, name, declaration.convert(getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raise if settings contradict each other; subclasses override it."""

    @classmethod
    def of(cls, given: object, argument: str) -> Self:
        """Return settings that an ``argument`` gives as such, as a table, or by their ``name`` alone."""
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            return cls(**given)
        if isinstance(given, str) and "name" in cls.declared:
            return cls.named(given)
        by_name = ", or its name" if "name" in cls.declared else ""
        raise ValueError(f"{argument}={given!r} must be {cls.__name__}(…), a dict of its settings{by_name}")

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the settings of this name, all others at their defaults."""
        return cls._construct({cls.declared["name"].name: name})

    @classmethod
    def classes(cls) -> list[type["Settings"]]:
        """Return this class and the classes nested in it."""
        return [cls, *(inner for kind in cls.nested.values() for inner in kind.classes())]

    @classmethod
    def declarations(cls) -> dict[str, Declaration]:
        """Return all settings of this class and of the classes nested in it, by dotted name."""
        return {each.name: each for kind in cls.classes() for each in kind.declared.values()}

    @classmethod
    def from_dict(cls, table: Mapping[str, object]) -> Self:
        """Construct settings from nested tables, as TOML and JSON hold them; missing settings get their defaults."""
        known = cls.declarations()
        values = cls._flatten(table)
        for name in values:
            if name not in known:
                raise ValueError(_unknown_setting(name, known))
        for name, declaration in known.items():
            if declaration.default is MISSING and name not in values:
                example = "equalbits list --show fashion-conv2 prints a complete file"
                raise ValueError(f"setting {name} is missing; {example}")
        return cls._construct(values)

    @classmethod
    def _flatten(cls, table: Mapping[str, object]) -> dict[str, Any]:
        """Return the values by dotted name; keys of a setting that is itself a table are collected in it."""
        tables = [name for name, each in cls.declarations().items() if get_origin(each.hint) is dict]
        values: dict[str, Any] = {}
        for name, value in flatten(table, whole=tables).items():
            parent, _, key = name.rpartition(".")
            if parent in tables and isinstance(values.get(parent, {}), Mapping):
                values[parent] = {**values.get(parent, {}), key: value}
            else:
                values[name] = value
        return values

    @classmethod
    def _construct(cls, values: Mapping[str, Any]) -> Self:
        own = {name: values[each.name] for name, each in cls.declared.items() if each.name in values}
        return cls(**own, **{name: kind._construct(values) for name, kind in cls.nested.items()})

    def with_settings(self, settings: Mapping[str, object]) -> Self:
        """Return a copy with some settings replaced, by dotted name."""
        check_mapping(settings)
        return self.from_dict({**self._flatten(self.as_dict()), **settings})

    def as_dict(self) -> dict[str, Any]:
        """Return nested tables, as :meth:`from_dict` reads them: the settings of the top level, then the groups."""
        plain: dict[str, Any] = {name: deepcopy(getattr(self, name)) for name in self.declared}
        groups: dict[str, Any] = {}
        for field_name, kind in self.nested.items():
            inner = getattr(self, field_name).as_dict()
            for name, value in {kind.group: inner}.items() if kind.group else inner.items():
                (groups if isinstance(value, dict) else plain)[name] = value
        return plain | groups

    def to_toml(self) -> str:
        """Return the settings as TOML."""
        return toml_text(self.as_dict())


def _refuse_unknown(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor of a settings class: explain an unknown name in one line."""

    @wraps(init)
    def wrapped(self: Settings, *values: object, **given: object) -> None:
        kind, known = type(self), [*self.declared, *self.nested]
        if values:
            raise TypeError(f"{kind.__name__} takes its settings by name, as in {kind.__name__}({known[0]}=…)")
        for name, value in given.items():
            if name in known:
                continue
            group = next((group for group, inner in self.nested.items() if name in inner.declared), "")
            nearest = nearest_name(name, known)
            hint = f"give {group}={{{name!r}: {value!r}}}" if group else f"there are {', '.join(known)}"
            hint = f"did you mean {nearest}?" if nearest and not group else hint
            raise TypeError(f"{kind.__name__} has no setting {name!r}: {hint}")
        init(self, **given)

    return wrapped


def _convert(value: Any, hint: Any, bounds: Mapping[str, float]) -> Any:
    """Return the value in the type of the hint.

    Raise TypeError for another type or a value out of bounds, and OverflowError for a float that is not finite.
    """
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is tuple and isinstance(value, list | tuple) and (inner[-1] is ... or len(value) == len(inner)):
        return tuple(_convert(item, inner[0], bounds) for item in value)
    if kind is Literal and value in inner:
        return value
    if kind in _TYPES and isinstance(value, _TYPES[kind][1]) and isinstance(value, bool) == (kind is bool):
        value = kind(value)
        if kind is float and not math.isfinite(value):
            raise OverflowError
        if all(_BOUNDS[name](value, bound) for name, bound in bounds.items()):
            return value
    raise TypeError


def _describe(hint: object, bounds: Mapping[str, float]) -> str:
    """Describe the valid values by type and bounds, as in ``a number, at least 0 and below 1``."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(f'``{choice}``' for choice in inner)}"
    limits = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in bounds.items())
    if kind is tuple:
        count = "" if inner[-1] is ... else f"{len(inner)} "
        words = f"a list of {count}{_TYPES[inner[0]][0].partition(' ')[2]}s in brackets"
        return f"{words}, each {limits}" if limits else words
    return f"{_TYPES[kind][0]}, {limits}" if limits else _TYPES[kind][0]


def _unknown_setting(name: str, known: Collection[str]) -> str:
    """Return the error for an unknown name: suggest the same name in another group, else the nearest in its group."""
    if _inside(name, known):
        return f"{name!r} is a group of settings: set one of {', '.join(_inside(name, known))}"
    group, _, last = name.rpartition(".")
    same = [other for other in known if other.rpartition(".")[2] == last]
    candidates = same or _inside(group, known) or _inside("", known)
    nearest = nearest_name(name, candidates, cutoff=0 if same else 0.82)  # names of one group are similar anyway
    hint = f"did you mean {nearest!r}?" if nearest else f"there are {', '.join(candidates)}"
    return f"no setting {name!r}; {hint}"


def _inside(group: str, known: Collection[str]) -> list[str]:
    """Return the settings and groups directly inside a group; empty if it is not a group."""
    prefix = f"{group}." if group else ""
    inside = (name.removeprefix(prefix).partition(".")[0] for name in known if name.startswith(prefix))
    return list(dict.fromkeys(prefix + name for name in inside))
