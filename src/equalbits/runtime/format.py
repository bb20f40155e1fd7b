"""Read and write the ``.ebits`` file: a network in a safetensors container.

``docs/format.md`` specifies it byte by byte. The metadata holds three texts: ``equalbits``, a JSON header with the bit
order and the expected input; ``operations``, one line each; and ``sha256``, a checksum of both texts and of the name,
dtype, shape and bytes of every tensor.
"""

import hashlib
import json
import os
import secrets
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from equalbits._files import errors_name, lock_while_open, remove_dead_partial_files
from equalbits.runtime import bits, container
from equalbits.runtime.container import FormatError, is_counts, parse_json
from equalbits.runtime.lengths import Lengths
from equalbits.runtime.network import MAX_MEAN, MAX_OPERATIONS, Network
from equalbits.runtime.op_specs import Array
from equalbits.runtime.op_text import Reader, Writer
from equalbits.runtime.ports import Port
from equalbits.runtime.zoo import find_packed

#: Format version written, and the only one read.
VERSION = 1

_HEADER = {"version": VERSION, "bit_order": bits.BIT_ORDER, "bit_one": 1, "padding": "zero"}


def write_network(network: Network, path: str | os.PathLike[str]) -> None:
    """Write a network to a file atomically; equal networks give equal bytes."""
    chunks, target = to_chunks(network), Path(os.path.realpath(path))  # write through a symbolic link
    with errors_name(Path(path)):
        if target.exists() and not target.is_file() and not target.is_dir():  # a device or a pipe
            with target.open("wb") as file:
                file.writelines(chunks)
            return
        remove_dead_partial_files(target.parent, r"\.[0-9a-f]{16}\.partial")
        partial = target.with_name(f".{secrets.token_hex(8)}.partial")  # threads may write one path at once
        try:
            with partial.open("xb") as file:
                lock_while_open(file)
                file.writelines(chunks)
            partial.replace(target)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


def to_chunks(network: Network) -> list[bytes | memoryview]:
    """Return the bytes of a file in chunks: the head, then views of the tensors."""
    writer = Writer(network.operations, network.tensors)
    lines = "\n".join(writer.line(place, operation) for place, operation in enumerate(network.operations))
    tensors = writer.tensors
    fit = None if network.fit == "stretch" else network.fit  # as in files of before there was another
    facts: dict[str, object] = {
        "resize": network.resize,
        "fit": fit,
        "mean": network.mean,
        "std": network.std,
        "classes": network.classes,
    }
    facts |= {"inputs": _listed(network.inputs), "outputs": _listed(network.outputs)}
    facts["lengths"] = network.lengths.as_json() if network.lengths else None
    given = {name: fact for name, fact in {**facts, "notes": dict(network.notes)}.items() if fact}
    texts = {"equalbits": to_json({**_HEADER, "input": network.input_shape, **given}), "operations": lines}
    _, data = container.encode(tensors, {})
    head, data = container.encode(tensors, {**texts, "sha256": _digest(texts, tensors, data)})
    return [head, *data]


def to_json(header: Mapping[str, object]) -> str:
    """Return the text of a header."""
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def read_network(path: str | os.PathLike[str]) -> Network:
    """Read and validate the network of a file; :class:`FormatError` names the file and the fault.

    >>> read_network("nope.ebits")
    Traceback (most recent call last):
    FileNotFoundError: nope.ebits does not exist: give a packed file, made by equalbits pack
    """
    name = os.fspath(path)
    try:
        return _interpret(container.read(find_packed(path)))
    except FileNotFoundError:
        raise FileNotFoundError(f"{name} does not exist: give a packed file, made by equalbits pack") from None
    except IsADirectoryError:
        is_run = Path(path, "recipe.toml").exists()
        way_out = f"pack it first: equalbits pack {shlex.quote(name)} net.ebits" if is_run else "give a file"
        raise FormatError(f"{name} is a directory: {way_out}") from None
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None


def from_bytes(whole: bytes) -> Network:
    """Parse a network from bytes, validated as by :func:`read_network`."""
    return _interpret(container.decode(whole))


def _interpret(found: container.Container) -> Network:
    texts = {name: text for name, text in found.texts.items() if name != "sha256"}
    if found.texts["sha256"] != _digest(texts, found.tensors, [found.data]):
        raise FormatError("the sha256 does not match the content: the file was damaged or changed; fetch it again")
    header = parse_json(texts["equalbits"].encode(errors="replace"), "the header")
    version = header.get("version")
    if type(version) is not int or version != VERSION:
        raise FormatError(f"the header says version {repr(version)[:80]}: this reader knows {VERSION}; update it")
    allowed = {*_HEADER, "input", "resize", "fit", "mean", "std", "classes", "notes", "inputs", "outputs", "lengths"}
    for name in header:
        if name not in allowed:
            raise FormatError(f"the header says {name[:80]!r}, which this version does not know: update equalbits")
    for name, expected in _HEADER.items():
        found_value = header.get(name)
        if type(found_value) is not type(expected) or found_value != expected:
            raise FormatError(f"the header says {name}={repr(found_value)[:80]}: version {VERSION} has {expected!r}")
    try:
        return _network(header, found)
    except ValueError as error:
        raise FormatError(str(error)) from None


def _network(header: Mapping[str, Any], found: container.Container) -> Network:
    shape, lines = header.get("input"), found.texts["operations"].split("\n")
    if not is_counts(shape):
        raise FormatError(f"the header says input={str(shape)[:80]!r}: it must be channels, rows and columns")
    if len(lines) > MAX_OPERATIONS:
        raise FormatError(f"the file lists {len(lines)} operations: 1 to {MAX_OPERATIONS} are allowed")
    reader = Reader(found.tensors)
    operations = []
    for place, line in enumerate(lines):
        try:
            operations.append(reader.operation(place, line))
        except ValueError as error:
            raise FormatError(f"operation {place} {error}") from None
    notes = header.get("notes", {})
    note_texts = _texts(list(notes.values()) if isinstance(notes, dict) else None, "notes")
    network = Network(
        tuple(shape),
        tuple(operations),
        reader.tensors,
        mean=_numbers(header, "mean"),
        std=_numbers(header, "std"),
        classes=tuple(_texts(header.get("classes", []), "classes")),
        resize=header.get("resize"),
        fit=header.get("fit", "stretch"),
        notes=dict(zip(notes, note_texts, strict=True)),
        inputs=_ports(header, "inputs"),
        outputs=_ports(header, "outputs"),
        lengths=Lengths.from_json(header["lengths"]) if "lengths" in header else None,
    )
    reader.finish()
    return network


def _numbers(header: Mapping[str, Any], name: str) -> tuple[float, ...] | None:
    found = header.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(item) in (int, float) and abs(item) < MAX_MEAN for item in found):
        raise FormatError(f"the header says {name}={str(found)[:80]}: it must be a list of numbers")
    return tuple(map(float, found))


def _listed(ports: tuple[Port, ...]) -> list[dict[str, object]]:
    return [{"name": port.name, "shape": port.shape, **({"below": port.below} if port.below else {})} for port in ports]


def _ports(header: Mapping[str, Any], name: str) -> tuple[Port, ...]:
    found = header.get(name, [])
    for port in found if isinstance(found, list) else [None]:
        if (
            not isinstance(port, dict)
            or {*port} | {"below"} != {"name", "shape", "below"}
            or not is_counts(port["shape"])
        ):
            raise FormatError(f"the header says {name}={str(found)[:80]}: each must have a name and a shape")
    return tuple(Port(port["name"], tuple(port["shape"]), port.get("below", 0)) for port in found)


def _texts(found: object, name: str) -> Iterable[str]:
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise FormatError(f"{name} of the header must hold strings: the file is damaged")
    return found


def _digest(texts: Mapping[str, str], tensors: Mapping[str, Array], data: Iterable[bytes | memoryview]) -> str:
    """Return the ``sha256`` of both texts, one line per tensor, and the bytes of the tensors."""
    named = ((name, tensors[name]) for name in container.in_file_order(tensors))
    rows = (f"{name} {container.NAMES[tensor.dtype]} {list(tensor.shape)}" for name, tensor in named)
    lines = "\n".join([texts["equalbits"], texts["operations"], *rows])
    digest = hashlib.sha256(lines.encode(errors="replace"))
    for chunk in data:
        digest.update(chunk)
    return digest.hexdigest()
