"""The ``.ebits`` file: a network in a safetensors container, readable by anything that reads safetensors.

``docs/format.md`` describes it byte by byte. Two texts stand in the container's metadata: ``equalbits``, a JSON object
that says what the tensors mean, and ``sha256``, which covers that JSON, every tensor's name, type and shape, and their
bytes.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equalbits.runtime import bits, container
from equalbits.runtime.container import FormatError, is_counts, parse_json
from equalbits.runtime.network import Network, Operation
from equalbits.runtime.operations import KINDS

#: The version written, and the only one read.
VERSION = 1

_HEADER = {
    "version": VERSION,
    "bit_order": bits.BIT_ORDER,
    "bit_one": 1,
    "padding": "zero",
}


def write_network(network: Network, path: str | os.PathLike[str]) -> None:
    """Write a network to a file; the same network always gives the same bytes, and a reader never sees half of them."""
    chunks = to_chunks(network)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.writelines(chunks)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def to_chunks(network: Network) -> list[bytes]:
    """A file's bytes, in pieces."""
    text = json.dumps(_describe(network), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    _, data = container.encode(network.tensors, {})
    head, data = container.encode(network.tensors, {"equalbits": text, "sha256": _digest(text, network.tensors, data)})
    return [head, *data]


def read_network(path: str | os.PathLike[str]) -> Network:
    """The network in a file, its tensors mapped, everything checked; :class:`FormatError` says what is wrong."""
    return _interpret(container.read(path))


def from_bytes(whole: bytes) -> Network:
    """The network in these bytes, checked as :func:`read_network` does."""
    return _interpret(container.decode(memoryview(whole)))


def _interpret(found: container.Container) -> Network:
    for name in ("equalbits", "sha256"):
        if name not in found.texts:
            raise FormatError(f"the metadata has no {name!r}: these are tensors, but not a packed model")
    text = found.texts["equalbits"]
    if found.texts["sha256"] != _digest(text, found.tensors, [found.data]):
        raise FormatError("the sha256 does not match what the file holds: it was damaged or changed; fetch it again")
    header = parse_json(text.encode(errors="replace"), "the header")
    if header.get("version") != VERSION:
        raise FormatError(f"the header says version {header.get('version')!r}: this reader knows {VERSION}; update it")
    allowed = {*_HEADER, "input", "mean", "std", "classes", "notes", "operations"}
    for name in header:
        if name not in allowed:
            raise FormatError(f"the header says {name[:80]!r}, which version {VERSION} does not know")
    for name, expected in _HEADER.items():
        if header.get(name) != expected:
            raise FormatError(f"the header says {name}={header.get(name)!r}: version {VERSION} has {expected!r}")
    try:
        return _network(header, found)
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(str(error)) from None


def _network(header: Mapping[str, Any], found: container.Container) -> Network:
    shape, listed = header.get("input"), header.get("operations")
    if not is_counts(shape):
        raise FormatError(f"the header says input={str(shape)[:80]!r}: it must be channels, rows and columns")
    if not isinstance(listed, list):
        raise FormatError("the header lists no operations: the file is damaged")
    return Network(
        tuple(header["input"]),
        tuple(_operation(place, entry) for place, entry in enumerate(listed)),
        found.tensors,
        mean=_numbers(header, "mean"),
        std=_numbers(header, "std"),
        classes=tuple(_texts(header.get("classes", []), "classes")),
        notes=dict(zip(notes := header.get("notes", {}), _texts(_values(notes), "notes"), strict=True)),
    )


def _operation(place: int, entry: Any) -> Operation:
    where = f"operation {place}"
    if not isinstance(entry, dict) or not isinstance(entry.get("op"), str):
        raise FormatError(f"{where} does not say what it is by 'op': the file is damaged")
    kind, inputs = entry["op"], entry.get("in", [place])
    if not is_counts(inputs):
        raise FormatError(f"{where} ({kind[:80]}) reads {str(inputs)[:80]}: it must list values, from 0")
    names = KINDS[kind].tensors + KINDS[kind].optional if kind in KINDS else ()
    tensors = {part: name for part, name in entry.items() if part in names}
    for part, name in tensors.items():
        if not isinstance(name, str):
            raise FormatError(f"{where} ({kind}) names its {part} {str(name)[:80]}: it must be a text")
    settings = {part: value for part, value in entry.items() if part not in (*names, "op", "in")}
    try:
        return Operation.of(kind, tuple(inputs), tensors, settings)
    except ValueError as error:
        raise FormatError(f"{where} {error}") from None


def _describe(network: Network) -> dict[str, Any]:
    header: dict[str, Any] = {**_HEADER, "input": list(network.input_shape)}
    if network.mean is not None and network.std is not None:
        header |= {"mean": list(network.mean), "std": list(network.std)}
    if network.classes:
        header["classes"] = list(network.classes)
    if network.notes:
        header["notes"] = dict(network.notes)
    header["operations"] = [_entry(place, operation) for place, operation in enumerate(network.operations)]
    return header


def _entry(place: int, operation: Operation) -> dict[str, Any]:
    """An operation as the file has it: what goes without saying is left out."""
    entry: dict[str, Any] = {"op": operation.kind}
    if operation.inputs != (place,):
        entry["in"] = list(operation.inputs)
    entry |= operation.tensors
    for name, setting in KINDS[operation.kind].settings.items():
        value = operation.settings[name]
        if setting.required or value != setting.default:
            entry[name] = setting.shorten(value)
    return entry


def _numbers(header: Mapping[str, Any], name: str) -> tuple[float, ...] | None:
    found = header.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(item) in (int, float) and abs(item) < 1e9 for item in found):
        raise FormatError(f"the header says {name}={str(found)[:80]}: it must be a list of numbers")
    return tuple(map(float, found))


def _values(notes: Any) -> Any:
    return list(notes.values()) if isinstance(notes, dict) else None


def _texts(found: Any, name: str) -> Iterable[str]:
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise FormatError(f"{name} of the header must hold texts: the file is damaged")
    return found


def _digest(text: str, tensors: Mapping[str, container.Array], data: Iterable[bytes | memoryview]) -> str:
    """What the file's ``sha256`` must be: of the JSON, a line for each tensor, and the tensors' bytes."""
    digest = hashlib.sha256(text.encode(errors="replace"))
    for name in container.in_file_order(tensors):
        line = f"\n{name} {container.NAMES[tensors[name].dtype]} {list(tensors[name].shape)}"
        digest.update(line.encode(errors="replace"))
    for chunk in data:
        digest.update(chunk)
    return digest.hexdigest()
