"""Named inputs and outputs of a network beside images: token ids, masks, features; and several outputs.

Value 0 of such a network holds all its inputs end to end, as float32 of shape (1, 1, numbers). Float32 holds every
integer up to 2²⁴, and so every token id.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equalbits.runtime.op_specs import EXACT, Array, Floats, Shape


@dataclass(frozen=True)
class Port:
    """One input or output: its name and its shape without the batch axis; ids lie ``below`` a number, 0 for none."""

    name: str
    shape: Shape
    below: int = 0


def check_ports(what: str, ports: tuple[Port, ...], count: int) -> None:
    """Raise unless names differ, and all shapes together hold ``count`` numbers."""
    for port in ports:
        sizes = all(type(size) is int and size > 0 for size in port.shape) and len(port.shape) <= 8
        if not isinstance(port.name, str) or not sizes or type(port.below) is not int or not 0 <= port.below <= EXACT:
            raise ValueError(f"{what} has {str(port)[:120]}: give a name, sizes from 1, and a bound up to {EXACT}")
    if len({port.name for port in ports}) != len(ports):
        raise ValueError(f"{what} have a name twice: {', '.join(port.name for port in ports)[:120]}")
    total = sum(math.prod(port.shape) for port in ports)
    if ports and total != count:
        raise ValueError(f"{what} hold {total} numbers, and the network {count}: they must be the same")


def join_inputs(ports: Sequence[Port], given: Sequence[object], named: Mapping[str, object]) -> tuple[Floats, bool]:
    """Return the inputs of a batch end to end, and whether they had a batch axis."""
    names = [port.name for port in ports]
    both = dict(zip(names, given, strict=False)) | dict(named)
    if len(given) > len(names) or set(both) != set(names) or len(both) < len(given) + len(named):
        raise ValueError(f"the model takes {', '.join(names)}: give each once, in this order or by name")
    arrays = [_as_floats(port, np.asarray(both[port.name])) for port in ports]
    batched = {array.ndim > len(port.shape) for port, array in zip(ports, arrays, strict=True)}
    if len(batched) > 1:
        raise ValueError("some inputs have a batch axis and some have none: give all or none of them one")
    has_batch = batched.pop()
    arrays = arrays if has_batch else [array[None] for array in arrays]
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"inputs hold {[len(array) for array in arrays]} rows: give the same batch for each")
    rows = np.concatenate([array.reshape(len(array), math.prod(array.shape[1:])) for array in arrays], axis=1)
    return np.ascontiguousarray(rows[:, None, None]), has_batch


def _as_floats(port: Port, array: Array) -> Floats:
    """Return an input as float32, checked."""
    if array.dtype.kind not in "biuf" or port.shape not in (array.shape, array.shape[1:]):
        sizes = ", ".join(map(str, port.shape))
        raise ValueError(f"{port.name} is {array.dtype} of shape {array.shape}: the model takes (batch, {sizes})")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{port.name} holds numbers that are not finite (NaN or infinity)")
    if port.below:
        wrong = (array < 0) | (array >= port.below) | (array != np.floor(array))
        if wrong.any():
            raise ValueError(f"{port.name} holds {array[wrong].flat[0]}: ids are integers from 0 to {port.below - 1}")
    return array.astype(np.float32)


def split_outputs(ports: Sequence[Port], rows: Floats) -> dict[str, Floats]:
    """Return the outputs of a batch by name."""
    ends = np.cumsum([math.prod(port.shape) for port in ports])[:-1].tolist()
    parts = np.split(rows.reshape(len(rows), -1), ends, axis=1)
    return {port.name: part.reshape(len(rows), *port.shape) for port, part in zip(ports, parts, strict=True)}
