"""Operations as lines of text, their form in a file: ``conv stem kernel=3 padding=1 bias=64``.

A line is words between single spaces. The first is the kind. A word without ``=`` is the layer, which names the tensors
of the operation. Every other word is ``name=value``: ``in`` for the values it reads (by default the previous one), a
setting, or a tensor. Numbers are as in JSON; lists are comma-separated.

A matrix of weights is a tensor of its own in the file: ``weight`` of layer ``stem`` is called ``stem.weight``. All
shorter tensors, the *vectors*, are concatenated into one float32 and one float16 tensor. ``bias=64`` takes the next 64
numbers of the first and calls them ``stem.bias``; ``bias=64h`` takes them of the second. A tensor whose name exists
already is shared and not listed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from equalbits.runtime.op_specs import VECTORS, Array, Operation
from equalbits.runtime.ops import OPS, make_operation

#: Names of the tensors that hold the vectors, by dtype.
ROWS: dict[np.dtype[Any], str] = {np.dtype("<f4"): "vectors", np.dtype("<f2"): "halves"}

_NAME = re.compile(r"[^\s=:]+")
_COUNT = re.compile(r"([1-9][0-9]{0,8})(h?)(:.+)?")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False}
#: Maximum length of a list: 64 values to concatenate, of five digits each.
_MAX_LIST = 64 * 6


class Writer:
    """Writes operations as lines; :attr:`tensors` then holds the tensors of the file."""

    def __init__(self, operations: Iterable[Operation], tensors: Mapping[str, Array]) -> None:
        parts = {(part, name) for operation in operations for part, name in operation.tensors.items()}
        self._given = tensors
        self._matrices = {name: tensors[name] for part, name in sorted(parts) if part not in VECTORS}
        self._named = dict(self._matrices)  # tensors that a line can refer to by name so far
        self._vectors: dict[str, list[Array]] = {name: [] for name in ROWS.values()}
        if clash := sorted(self._matrices.keys() & set(ROWS.values())):
            raise ValueError(f"a tensor is called {clash[0]!r}, a reserved name: rename it")

    @property
    def tensors(self) -> dict[str, Array]:
        """Tensors of the file: matrices by name, and the concatenated vectors."""
        return self._matrices | {name: np.concatenate(parts) for name, parts in self._vectors.items() if parts}

    def line(self, place: int, operation: Operation) -> str:
        """Return the line of an operation; defaults are left out.

        >>> Writer((), {}).line(4, make_operation("max_pool", (4,), {}, {"kernel": 2, "stride": 2}))
        'max_pool kernel=2 stride=2'
        """
        words, used, layer = [operation.kind], operation.tensors, _layer(operation)
        implied = _implied(operation.kind, layer, self._named)
        if not layer or any(used.get(part) != name for part, name in implied.items()):
            layer, implied = "", {}
        words += [_checked(layer)] if layer else []
        for part in _parts(operation.kind):
            if part in used and part not in implied:
                words.append(f"{part}={self._tensor(part, used[part], layer)}")
        if operation.inputs != (place,):
            words.append(f"in={','.join(map(str, operation.inputs))}")
        for name, setting in operation.spec.settings.items():
            value = operation.settings[name]
            if setting.required or value != setting.default:
                short = setting.shorten(value)
                words.append(f"{name}={','.join(map(str, short)) if isinstance(short, list) else json.dumps(short)}")
        return " ".join(words)

    def _tensor(self, part: str, name: str, layer: str) -> str:
        """Return the word for a tensor that the layer does not imply: the length of a vector, or a full name."""
        if name in self._named:
            if _COUNT.fullmatch(name):
                raise ValueError(f"a tensor is called {name!r}, which reads as a length: rename it")
            return _checked(name)
        tensor = self._named[name] = self._given[name]
        row = ROWS[tensor.dtype.newbyteorder("<")]
        self._vectors[row].append(tensor.reshape(-1))
        count = f"{tensor.size}{'h' if row == 'halves' else ''}"
        return count if name == f"{layer}.{part}" else f"{count}:{_checked(name)}"


class Reader:
    """Parses lines into operations; :attr:`tensors` then holds every tensor by name."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = {name: tensor for name, tensor in tensors.items() if name not in ROWS.values()}
        self._vectors: dict[str, Array] = {}
        for dtype, name in ROWS.items():
            row = self._vectors[name] = tensors.get(name, np.empty(0, dtype))
            if row.dtype != dtype or row.ndim != 1:
                raise ValueError(f"tensor {name!r} is {row.dtype} of shape {row.shape}: it must be a row of {dtype}")

    def operation(self, place: int, line: str) -> Operation:
        """Parse one line; raise ValueError for anything its kind does not know.

        >>> Reader({}).operation(4, "max_pool kernel=2 stride=2").inputs
        (4,)
        """
        kind, *words = line.split(" ")
        named: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            name, value = (name, value) if equals else ("", name)
            if name in named:
                raise ValueError(f"({kind[:40]}) has {name[:80]!r} twice")
            named[name] = value
        layer = named.pop("", "")
        names = _implied(kind, layer, self.tensors)
        names |= {part: self._tensor(part, named.pop(part), layer) for part in _parts(kind) if part in named}
        for part, name in names.items():
            if not _NAME.fullmatch(name) or (part not in VECTORS and _COUNT.fullmatch(name)):
                raise ValueError(
                    f"({kind[:40]}) calls its {part} {name[:80]!r}: a name has no space, = or :, and is not a length"
                )
        inputs = _value(named.pop("in")) if "in" in named else [place]
        inputs = inputs if isinstance(inputs, list) else [inputs]
        if not all(type(value) is int and value >= 0 for value in inputs):
            raise ValueError(f"({kind[:40]}) reads {str(inputs)[:80]}: it must list values from 0")
        settings = {name: _value(value) for name, value in named.items()}
        return make_operation(kind, tuple(inputs), names, settings)

    def finish(self) -> None:
        """Raise for vectors that no line took."""
        for name, row in self._vectors.items():
            if row.size:
                raise ValueError(f"{row.size} numbers of {name!r} belong to no operation: the file is damaged")

    def _tensor(self, part: str, word: str, layer: str) -> str:
        found = _COUNT.fullmatch(word)
        if found is None or part not in VECTORS:
            return word
        count, row = int(found[1]), "halves" if found[2] else "vectors"
        name = found[3][1:] if found[3] else f"{layer}.{part}" if layer else ""
        if not name:
            raise ValueError(f"takes {count} numbers as its {part}, but has no layer to name them by")
        if count > self._vectors[row].size:
            raise ValueError(f"takes {count} numbers as its {part}: {row!r} has {self._vectors[row].size} left")
        if name in self.tensors:
            raise ValueError(f"takes numbers as {name[:80]!r}, which exists already")
        taken, self._vectors[row] = self._vectors[row][:count], self._vectors[row][count:]
        if part == "gain_shift":
            if count % 2:
                raise ValueError(f"takes {count} numbers as its gain_shift: it needs two for each channel")
            taken = taken.reshape(2, -1)
        self.tensors[name] = taken
        return name


def _layer(operation: Operation) -> str:
    """Return the layer that prefixes all tensors of an operation; "" where there is none."""
    layers = {name.removesuffix(f".{part}") for part, name in operation.tensors.items()}
    whole = all(name.endswith(f".{part}") for part, name in operation.tensors.items())
    return layers.pop() if whole and len(layers) == 1 else ""


def _parts(kind: str) -> tuple[str, ...]:
    return OPS[kind].tensor_names if kind in OPS else ()


def _implied(kind: str, layer: str, tensors: Mapping[str, Array]) -> dict[str, str]:
    """Return the tensors that the name of a layer implies."""
    return {part: f"{layer}.{part}" for part in _parts(kind) if layer and f"{layer}.{part}" in tensors}


def _value(text: str) -> Any:
    """Parse a number, a bool or a list of numbers; return other text as it is, for the setting to refuse."""
    if "," in text:
        return [_value(item) for item in text.split(",")] if len(text) < _MAX_LIST else text
    if text in _WORDS:
        return _WORDS[text]
    return json.loads(text) if len(text) < 40 and _NUMBER.fullmatch(text) else text


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is empty or has a space, a colon or an equals sign: rename the layer")
    return name
