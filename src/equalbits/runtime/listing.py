"""Operations as lines of text, the form they have in a file: ``conv layer1.conv kernel=3 padding=1 p_pos=0.5``.

A line is words between single spaces. The first is the kind. A word without ``=`` is the layer: every tensor in the
file that is called by the layer's name, a dot and a part of that kind belongs to the operation. Every other word is
``name=value``: ``in`` for the values it reads (the one made just before when it is left out), a part for a tensor by
another name, or a setting. Numbers are as in JSON, lists have commas between them.
"""

import json
import re
from collections.abc import Collection
from typing import Any

from equalbits.runtime.network import Operation
from equalbits.runtime.operations import KINDS

_NAME = re.compile(r"[^\s=]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False}


def write_operation(place: int, operation: Operation, tensors: Collection[str]) -> str:
    """An operation's line; what goes without saying is left out.

    >>> write_operation(4, Operation.of("max_pool", (4,), {}, {"kernel": 2, "stride": 2}), ())
    'max_pool kernel=2 stride=2'
    """
    words = [operation.kind]
    layers = {name.removesuffix(f".{part}") for part, name in operation.tensors.items()}
    layer = layers.pop() if len(layers) == 1 else ""
    if layer and _found(operation.kind, layer, tensors) == operation.tensors:
        words.append(_checked(layer))
    else:
        words += [f"{part}={_checked(name)}" for part, name in operation.tensors.items()]
    if operation.inputs != (place,):
        words.append(f"in={','.join(map(str, operation.inputs))}")
    for name, setting in KINDS[operation.kind].settings.items():
        value = operation.settings[name]
        if setting.required or value != setting.default:
            short = setting.shorten(value)
            words.append(f"{name}={','.join(map(str, short)) if isinstance(short, list) else json.dumps(short)}")
    return " ".join(words)


def read_operation(place: int, line: str, tensors: Collection[str]) -> Operation:
    """The operation of a line; refuses, in one line, what its kind does not know.

    >>> read_operation(4, "max_pool kernel=2 stride=2", ()).inputs
    (4,)
    """
    kind, *words = line.split(" ")
    parts = (*KINDS[kind].tensors, *KINDS[kind].optional) if kind in KINDS else ()
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name, value = (name, value) if equals else ("", name)
        if name in named:
            raise ValueError(f"({kind[:40]}) says {name[:80]!r} twice")
        named[name] = value
    names = _found(kind, named.pop(""), tensors) if "" in named else {}
    names |= {part: named.pop(part) for part in parts if part in named}
    inputs = _value(named.pop("in")) if "in" in named else [place]
    inputs = inputs if isinstance(inputs, list) else [inputs]
    if not all(type(value) is int and value >= 0 for value in inputs):
        raise ValueError(f"({kind[:40]}) reads {str(inputs)[:80]}: it must list values, from 0")
    settings = {name: _value(value) for name, value in named.items()}
    return Operation.of(kind, tuple(inputs), names, settings)


def _found(kind: str, layer: str, tensors: Collection[str]) -> dict[str, str]:
    """The tensors of a layer by their part."""
    parts = (*KINDS[kind].tensors, *KINDS[kind].optional) if kind in KINDS else ()
    return {part: f"{layer}.{part}" for part in parts if f"{layer}.{part}" in tensors}


def _value(text: str) -> Any:
    """A number, a truth value or a list of numbers; any other text is given back, for the setting to refuse."""
    if "," in text:
        return [_value(item) for item in text.split(",")] if len(text) < 200 else text
    if text in _WORDS:
        return _WORDS[text]
    return json.loads(text) if len(text) < 40 and _NUMBER.fullmatch(text) else text


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"tensor {name!r} has a space or an equals sign in its name, or none: call it otherwise")
    return name
