"""Read and write the safetensors container without its library: a table of tensors, then their bytes.

The file starts with the length of the table (8 bytes, little-endian); the table as JSON and the tensors follow without
gaps. The reader returns views of the bytes. It validates everything and raises a one-line :class:`FormatError`.
"""

import io
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from equalbits._text import bounded
from equalbits.runtime.op_specs import Array

#: Stored dtypes by safetensors' names. All are little-endian in the file.
DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: Names of the metadata texts of every packed model.
TEXTS = ("equalbits", "operations", "sha256")

MAX_TABLE_BYTES = 1 << 24
_METADATA = "__metadata__"


class FormatError(ValueError):
    """A file that is not a valid packed model. The message names the part, the rule it breaks and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


#: A row of the table: dtype, shape, first byte, end and name.
_Entry = tuple[np.dtype[Any], tuple[int, ...], int, int, str]


class Container(NamedTuple):
    """Tensors of a file by name, its metadata texts, and the bytes behind the table."""

    tensors: dict[str, Array]
    texts: dict[str, str]
    data: memoryview


def encode(tensors: Mapping[str, Array], texts: Mapping[str, str]) -> tuple[bytes, list[memoryview]]:
    """Return the head of a container, and the bytes of its tensors in file order, without a copy of them."""
    table: dict[str, object] = {_METADATA: dict(texts)}
    start, chunks = 0, list[memoryview]()
    for name in in_file_order(tensors):
        tensor = tensors[name]
        stored = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
        chunks.append(stored.reshape(-1).view(np.uint8).data)
        end = start + len(chunks[-1])
        table[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # align the tensors to eight bytes
    if len(text) > MAX_TABLE_BYTES:
        raise ValueError(
            f"the table of tensors takes {len(text)} bytes, over {MAX_TABLE_BYTES}: shorten names and notes"
        )
    return len(text).to_bytes(8, "little") + text, chunks


def in_file_order(tensors: Mapping[str, Array]) -> list[str]:
    """Return tensor names in file order, widest dtype first, then by name: each tensor is aligned to its width."""
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}: a file holds only uint8, int8, float16 and float32")
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def read(path: str | os.PathLike[str]) -> Container:
    """Read a file and validate it: every byte belongs to exactly one tensor.

    The bytes are read, not memory-mapped, so overwriting the file does not change a loaded model. The table is
    validated before the tensors are read, so a large file of another kind is refused at once.

    >>> read(os.devnull)
    Traceback (most recent call last):
    equalbits.runtime.container.FormatError: 0 bytes are too few for a packed model
    """
    if Path(path).is_fifo():  # opening it would wait for a writer
        raise FormatError("it is a pipe: give a file")
    with Path(path).open("rb") as file:
        return _read(file, os.fstat(file.fileno()).st_size)


def decode(whole: bytes) -> Container:
    """Parse and validate a container from bytes."""
    return _read(io.BytesIO(whole), len(whole))


def _read(file: io.BufferedIOBase, size: int) -> Container:
    if size < 10:
        raise FormatError(f"{size} bytes are too few for a packed model")
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_TABLE_BYTES:
        raise FormatError(
            f"not a packed model, or a damaged one: its first 8 bytes claim a table of {length} bytes, "
            f"and {MAX_TABLE_BYTES} are the most"
        )
    if 8 + length > size:
        raise FormatError(f"the table claims {length} bytes of a file of {size}: the file is cut short or damaged")
    entries, texts = _table(file.read(length), size - 8 - length)
    buffer = bytearray(size - 8 - length)  # read() would hold two copies for a moment
    if file.readinto(buffer) != len(buffer) or file.read(1):
        raise FormatError("the file was changed while it was read: read it again once it is written")
    data = memoryview(buffer).toreadonly()
    return Container(_views(entries, data), texts, data)


def _table(text: bytes, available: int) -> tuple[list[_Entry], dict[str, str]]:
    """Return the rows of the table in the order of their bytes, and the metadata texts."""
    table = parse_json(text, "the table")
    texts = table.pop(_METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise FormatError(f"{_METADATA} of the table must map names to strings: the file is damaged")
    for name in TEXTS:
        if name not in texts:
            raise FormatError(f"the metadata has no {name!r}: these are tensors, but not a packed model")
    if len(texts) > len(TEXTS):
        more = sorted(name[:80] for name in texts if name not in TEXTS)
        raise FormatError(f"the metadata holds {more[:3]}, which a packed model does not have")
    return sorted((_entry(name, entry, available) for name, entry in table.items()), key=lambda e: e[2:4]), texts


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object; refuse duplicate names, and NaN and infinity."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(items)
        if len(names) < len(items):
            counts = Counter(name for name, _ in items)
            raise FormatError(f"{where} names {counts.most_common(1)[0][0][:80]!r} twice: the file is damaged")
        return names

    def constant(name: str) -> None:
        raise FormatError(f"{where} holds {name}, which is not valid JSON: the file is damaged")

    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON ({str(error)[:80]}): not a packed model, or damaged") from None
    if not isinstance(found, dict):
        raise FormatError(f"{where} is not a JSON object: not a packed model, or damaged")
    return found


def _views(entries: list[_Entry], data: memoryview) -> dict[str, Array]:
    """Return each tensor as a view; refuse overlaps, gaps and bytes beyond the end."""
    at, tensors = 0, {}
    for dtype, shape, start, end, name in entries:
        if start != at:
            word = "overlaps the tensor before it" if start < at else "leaves a gap before it"
            raise FormatError(f"tensor {name[:80]!r} starts at byte {start} and {word} (at {at}): the file is damaged")
        tensors[name] = np.frombuffer(data[start:end], dtype).reshape(shape)
        at = end
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes behind the last tensor belong to none: the file is damaged")
    return tensors


def _entry(name: str, entry: object, available: int) -> _Entry:
    """Validate one row of the table against the available bytes before allocating anything of that size."""
    tensor = f"tensor {name[:80]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{tensor} must have exactly dtype, shape and data_offsets: the file is damaged")
    if entry["dtype"] not in list(DTYPES):
        raise FormatError(f"{tensor} has dtype {str(entry['dtype'])[:80]!r}: a packed model holds {', '.join(DTYPES)}")
    dtype, shape, offsets = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if not is_counts(shape) or len(shape) > 8 or 0 in shape:  # with a 0, another size could exceed any file
        raise FormatError(f"{tensor} has shape {str(shape)[:80]}: up to eight integers from 1 are allowed")
    if not is_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= available:
        raise FormatError(f"{tensor} claims bytes {str(offsets)[:80]} of {available}: the file is cut or damaged")
    if math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        length = offsets[1] - offsets[0]
        raise FormatError(f"{tensor} of shape {str(shape)[:80]} does not fill its {length} bytes exactly")
    return dtype, tuple(shape), offsets[0], offsets[1], name


def is_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether a JSON value is a list of integers from 0."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
