"""Operations as lines of text, the form they have in a file: ``conv stem kernel=3 padding=1 bias=64``.

A line is words between single spaces. The first is the kind. A word without ``=`` is the layer, which names what the
operation uses. Every other word is ``name=value``: ``in`` for the values it reads (the one made just before when it is
left out), a setting, or a tensor. Numbers are as in JSON, lists have commas between them.

A matrix of weights is a tensor of its own in the file: ``weight`` of layer ``stem`` is called ``stem.weight``. All
shorter tensors, the *vectors*, stand in a row in one tensor, or in two: float32 and float16. ``bias=64`` takes the next
64 numbers of the first and calls them ``stem.bias``; ``bias=64h`` takes them of the second. What has its name already
is used again without a word.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equalbits.runtime.network import Operation
from equalbits.runtime.op_specs import KINDS, VECTORS

Array = NDArray[Any]

#: The tensors that hold the vectors, by their type.
ROWS: dict[np.dtype[Any], str] = {np.dtype("<f4"): "vectors", np.dtype("<f2"): "halves"}

_NAME = re.compile(r"[^\s=:]+")
_COUNT = re.compile(r"([1-9][0-9]{0,8})(h?)(:.+)?")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False}
#: A list is shorter than this: 64 values to join, of five digits each.
_LONGEST = 64 * 6


class Writer:
    """Writes lines; what stands in :attr:`tensors` afterwards belongs beside them in the file."""

    def __init__(self, operations: Iterable[Operation], tensors: Mapping[str, Array]) -> None:
        parts = {(part, name) for operation in operations for part, name in operation.tensors.items()}
        self._given = tensors
        self._matrices = {name: tensors[name] for part, name in sorted(parts) if part not in VECTORS}
        self._named = dict(self._matrices)  # what a line can use by its name so far
        self._vectors: dict[str, list[Array]] = {name: [] for name in ROWS.values()}
        if clash := sorted(self._matrices.keys() & set(ROWS.values())):
            raise ValueError(f"a tensor is called {clash[0]!r}, as the file's own: call it otherwise")

    @property
    def tensors(self) -> dict[str, Array]:
        """The tensors of the file: matrices by their name, and the vectors in a row."""
        return self._matrices | {name: np.concatenate(parts) for name, parts in self._vectors.items() if parts}

    def line(self, place: int, operation: Operation) -> str:
        """An operation's line; what goes without saying is left out.

        >>> Writer((), {}).line(4, Operation.of("max_pool", (4,), {}, {"kernel": 2, "stride": 2}))
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
        for name, setting in KINDS[operation.kind].settings.items():
            value = operation.settings[name]
            if setting.required or value != setting.default:
                short = setting.shorten(value)
                words.append(f"{name}={','.join(map(str, short)) if isinstance(short, list) else json.dumps(short)}")
        return " ".join(words)

    def _tensor(self, part: str, name: str, layer: str) -> str:
        """The word for a tensor that the layer alone does not name: a vector's length, or a name in full."""
        if name in self._named:
            if _COUNT.fullmatch(name):
                raise ValueError(f"a tensor is called {name!r}, as a length would be: call it otherwise")
            return _checked(name)
        tensor = self._named[name] = self._given[name]
        row = ROWS[tensor.dtype.newbyteorder("<")]
        self._vectors[row].append(tensor.reshape(-1))
        count = f"{tensor.size}{'h' if row == 'halves' else ''}"
        return count if name == f"{layer}.{part}" else f"{count}:{_checked(name)}"


class Reader:
    """Reads lines; :attr:`tensors` then holds every tensor by its name."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = {name: tensor for name, tensor in tensors.items() if name not in ROWS.values()}
        self._vectors: dict[str, Array] = {}
        for dtype, name in ROWS.items():
            row = self._vectors[name] = tensors.get(name, np.empty(0, dtype))
            if row.dtype != dtype or row.ndim != 1:
                raise ValueError(f"tensor {name!r} is {row.dtype} of shape {row.shape}: it must be one row of {dtype}")

    def operation(self, place: int, line: str) -> Operation:
        """The operation of a line; refuses, in one line, what its kind does not know.

        >>> Reader({}).operation(4, "max_pool kernel=2 stride=2").inputs
        (4,)
        """
        kind, *words = line.split(" ")
        named: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            name, value = (name, value) if equals else ("", name)
            if name in named:
                raise ValueError(f"({kind[:40]}) says {name[:80]!r} twice")
            named[name] = value
        layer = named.pop("", "")
        names = _implied(kind, layer, self.tensors)
        names |= {part: self._tensor(part, named.pop(part), layer) for part in _parts(kind) if part in named}
        for part, name in names.items():
            if not _NAME.fullmatch(name) or (part not in VECTORS and _COUNT.fullmatch(name)):
                raise ValueError(
                    f"({kind[:40]}) calls its {part} {name[:80]!r}: a name has no space, = or :, and is no length"
                )
        inputs = _value(named.pop("in")) if "in" in named else [place]
        inputs = inputs if isinstance(inputs, list) else [inputs]
        if not all(type(value) is int and value >= 0 for value in inputs):
            raise ValueError(f"({kind[:40]}) reads {str(inputs)[:80]}: it must list values, from 0")
        settings = {name: _value(value) for name, value in named.items()}
        return Operation.of(kind, tuple(inputs), names, settings)

    def finish(self) -> None:
        """Refuse vectors that no line took."""
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
            raise ValueError(f"takes {count} numbers as its {part}, and no layer names them")
        if count > self._vectors[row].size:
            raise ValueError(f"takes {count} numbers as its {part}: {self._vectors[row].size} of {row!r} are left")
        if name in self.tensors:
            raise ValueError(f"takes numbers as {name[:80]!r}, which is there already")
        taken, self._vectors[row] = self._vectors[row][:count], self._vectors[row][count:]
        if part == "gain_shift":
            if count % 2:
                raise ValueError(f"takes {count} numbers as its gain_shift: it needs two for each channel")
            taken = taken.reshape(2, -1)
        self.tensors[name] = taken
        return name


def _layer(operation: Operation) -> str:
    """The layer all of an operation's tensors are called by; "" where there is none."""
    layers = {name.removesuffix(f".{part}") for part, name in operation.tensors.items()}
    whole = all(name.endswith(f".{part}") for part, name in operation.tensors.items())
    return layers.pop() if whole and len(layers) == 1 else ""


def _parts(kind: str) -> tuple[str, ...]:
    return (*KINDS[kind].tensors, *KINDS[kind].optional) if kind in KINDS else ()


def _implied(kind: str, layer: str, tensors: Mapping[str, Array]) -> dict[str, str]:
    """The tensors that a layer's name brings by itself."""
    return {part: f"{layer}.{part}" for part in _parts(kind) if layer and f"{layer}.{part}" in tensors}


def _value(text: str) -> Any:
    """A number, a truth value or a list of numbers; any other text is given back, for the setting to refuse."""
    if "," in text:
        return [_value(item) for item in text.split(",")] if len(text) < _LONGEST else text
    if text in _WORDS:
        return _WORDS[text]
    return json.loads(text) if len(text) < 40 and _NUMBER.fullmatch(text) else text


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} has a space, a colon or an equals sign, or is no name: call the layer otherwise")
    return name
