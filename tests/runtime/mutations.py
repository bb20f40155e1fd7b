"""Mutated packed files: bytes, the table, the header, operations, numbers.

``mutated(seed)`` is always the same file for the same seed. Most of them are *sealed*: their sha256 is right, so that
the reader has to find what is wrong by itself, and what it lets pass reaches the engines.
"""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equalbits.runtime import NetworkBuilder, Port
from equalbits.runtime.container import DTYPES, decode, encode
from equalbits.runtime.format import _digest, to_chunks
from equalbits.runtime.ops import OPS

GOLDEN = Path(__file__).parents[1] / "golden"


def _decoder() -> bytes:
    """A decoder with named inputs and outputs, of the operations that the golden files lack."""
    r, build = np.random.default_rng(0), NetworkBuilder((1, 1, 8))
    ids = build.add("reshape", build.image, shape=(8,))
    x = build.add("embedding", ids, table=r.standard_normal((6, 16)).astype(np.float16), name="words")
    x = build.add("affine", x, gain_shift=r.standard_normal((2, 16)).astype(np.float32), axis=1, name="norm")
    scores = build.add("matmul", x, build.add("permute", x, axes=(1, 0)))
    x = build.add("matmul", build.add("softmax", scores, axis=1, causal=True), x)
    x = build.add("flatten", build.add("rms_norm", x, axis=1))
    symbols = np.where(r.random((12, 128)) < 0.5, 1, -1)
    x = build.add_binary("linear", x, symbols, input_bits=8, name="head")
    outputs = (Port("logits", (2, 4)), Port("rest", (4,)))
    network = build.finish(inputs=(Port("ids", (8,), 6),), outputs=outputs)
    return b"".join(to_chunks(network))


WHOLE = [*(path.read_bytes() for path in sorted(GOLDEN.glob("*.ebits"))), _decoder()]

NUMBERS = ["0", "-1", "1", "2", "3", "5", "7", "8", "15", "16", "31", "32", "33", "64", "100", "255", "256", "1000"]
SILLY = ["4096", "65536", "1048576", "1048577", "2147483648", "4294967296", "9223372036854775807", "1e3", "1e308"]
SILLY += ["1e400", "0.5", "-0.0", "nan", "true", "null", "", "1,1", "2,3", "1,2,3,4", "0,0,0,0", "9,9,9,9", "4h", "8h"]
SETTINGS = sorted({name for kind in OPS.values() for name in kind.settings} | {"in"})

Parts = tuple[dict[str, Any], list[str], dict[str, np.ndarray]]


def mutated(seed: int) -> bytes:
    """The file of this seed."""
    r = random.Random(seed)
    whole = WHOLE[r.randrange(len(WHOLE))]
    way = r.choice([_cut, _flip, _put_in, _table, *[_sealed] * 12])
    return way(r, whole)


def _cut(r: random.Random, whole: bytes) -> bytes:
    return whole[: r.randrange(len(whole))]


def _flip(r: random.Random, whole: bytes) -> bytes:
    changed = bytearray(whole)
    for _ in range(r.choice([1, 1, 2, 8])):
        changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
    return bytes(changed)


def _put_in(r: random.Random, whole: bytes) -> bytes:
    place = r.randrange(len(whole))
    return whole[:place] + r.randbytes(r.randrange(1, 20)) + whole[place + r.randrange(3) :]


def _table(r: random.Random, whole: bytes) -> bytes:
    """False offsets, shapes and types, or a table with too many or too few entries."""
    length = int.from_bytes(whole[:8], "little")
    table = json.loads(whole[8 : 8 + length])
    names = [name for name in table if name != "__metadata__"]
    for _ in range(r.randrange(1, 3)):
        entry = table[r.choice(names)]
        part = r.choice(["dtype", "shape", "data_offsets", "data_offsets"])
        if part == "dtype":
            entry[part] = r.choice([*DTYPES, "F64", "BOOL", 7])
        else:
            numbers = entry[part]
            numbers[r.randrange(len(numbers))] = r.choice([0, 1, -1, 2**31, 2**62, 2**70, 3.5, None, [], 72])
    text = json.dumps(table).encode()
    claimed = r.choice([len(text), len(text), len(text) + 8, 0, 2**40])
    return claimed.to_bytes(8, "little") + text + whole[8 + length :]


def _sealed(r: random.Random, whole: bytes) -> bytes:
    """Change a file in one to three ways, with a sha256 that matches."""
    found = decode(memoryview(whole))
    header, lines = json.loads(found.texts["equalbits"]), found.texts["operations"].split("\n")
    parts: Parts = header, lines, {name: tensor.copy() for name, tensor in found.tensors.items()}
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        ways = [*_WAYS, *[_lengths] * 6] if "lengths" in header else _WAYS
        r.choice(ways)(r, parts)
    header, lines, tensors = parts
    text = r.choice(_DEEP) if r.random() < 0.01 else json.dumps(header)
    texts = {"equalbits": text, "operations": "\n".join(lines)}
    _, data = encode(tensors, {})
    head, data = encode(tensors, {**texts, "sha256": _digest(texts, tensors, data)})
    return head + b"".join(data)


def _number(r: random.Random, parts: Parts) -> None:
    """Another number in an operation."""
    lines = parts[1]
    places = [i for i, line in enumerate(lines) if re.search(r"\d", line)]
    if places:
        place = r.choice(places)
        found = r.choice(list(re.finditer(r"(?<=[=,])-?[\d.]+h?|(?<=in=)\d+", lines[place])) or [None])
        if found is not None:
            new = r.choice(NUMBERS * 3 + SILLY)
            lines[place] = lines[place][: found.start()] + new + lines[place][found.end() :]


def _word(r: random.Random, parts: Parts) -> None:
    """Remove, repeat, add or exchange a word of an operation."""
    lines = parts[1]
    place = r.randrange(len(lines))
    words = lines[place].split(" ")
    way = r.randrange(5)
    if way == 0:
        words.pop(r.randrange(len(words)))
    elif way == 1:
        words.append(r.choice(words))
    elif way == 2:
        words.append(f"{r.choice(SETTINGS)}={r.choice(NUMBERS + SILLY)}")
    elif way == 3:
        words[r.randrange(len(words))] = r.choice(r.choice(lines).split(" "))
    else:
        words[0] = r.choice(list(OPS))
    lines[place] = " ".join(words)


def _line(r: random.Random, parts: Parts) -> None:
    """Remove, repeat, move or add operations, up to very many."""
    lines = parts[1]
    place, way = r.randrange(len(lines)), r.randrange(5)
    if way == 0 and len(lines) > 1:
        lines.pop(place)
    elif way == 1:
        lines.insert(place, r.choice(lines))
    elif way == 2:
        lines[place], lines[place - 1] = lines[place - 1], lines[place]
    elif way == 3:
        lines.insert(place, r.choice(_NEW).format(*r.choices(NUMBERS, k=3)))
    elif r.random() < 0.05:
        lines.extend([r.choice(["relu", "sign", "flatten"])] * r.choice([100, 20_000]))


def _head(r: random.Random, parts: Parts) -> None:
    """Another header."""
    header = parts[0]
    name = r.choice(
        [
            *["input", "input", "input", "inputs", "inputs", "outputs", "mean", "std", "resize", "fit", "lengths"],
            *["version", "classes", "notes", "padding", "bit_one", "x"],
        ]
    )
    shape = header["input"]
    if name == "input" and r.random() < 0.8 and isinstance(shape, list) and shape:  # it may have been changed before
        shape[r.randrange(len(shape))] = r.choice(
            [1, 2, 3, 4, 6, 7, 8, 9, 16, 33, 64, 1000, 2**20, 2**28, 2**40, 0, -1]
        )
    elif name in ("inputs", "outputs") and r.random() < 0.8 and isinstance(shape, list):
        header[name] = _ports(r, shape if name == "inputs" else [r.choice([2, 3, 4, 5, 8, 10])])
    else:
        header[name] = r.choice([None, 0, 1, -1, 1e308, "x", [], [1], [0.5] * 3, [0, 0, 0], {}, {"a": "b"}, [[]], True])


def _lengths(r: random.Random, parts: Parts) -> None:
    """Another number in the table of lengths, one more entry, or one less."""
    table = parts[0].get("lengths")
    place, way = table, r.randrange(8)
    while way and isinstance(place, dict | list) and place:
        key = r.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        if isinstance(place[key], int | str):
            place[key] = r.choice(
                [0, 1, 2, 3, 4, 7, 8, -1, -2, -3, 5, 2**20, 2**40, "x", [0, 1], [2, -1], [0, 0, 1], []]
            )
        elif r.random() < 0.1:
            place[key] = r.choice(
                [
                    [],
                    {},
                    None,
                    [[0, 1]],
                    [-1],
                    {"shape": [-1, 4]},
                    place[key] * 2 if isinstance(place[key], list) else 7,
                ]
            )
        place = place[key]
    if not way and isinstance(table, dict):
        name = r.choice(["settings", "cuts", "scaled", "outputs"])
        table.pop(name, None) if r.random() < 0.5 else table.update({name: {r.choice(NUMBERS): {"shape": [-1]}}})


def _ports(r: random.Random, shape: list[Any]) -> list[Any]:
    """Named inputs or outputs: one that fits the input, several, or ones that lie about name, shape or bound."""
    fits = {"name": "ids", "shape": [math.prod(size for size in shape if type(size) is int)]}
    port = r.choice(
        [fits, fits, {**fits, "shape": shape}, {**fits, "below": r.choice([1, 2, 2**24, 2**24 + 1, -1, "x"])}]
    )
    other = {"name": r.choice(["ids", "mask", "", 7]), "shape": r.choice([[], [1], [0], [2**40], [1] * 9, "x"])}
    return r.choice([[port], [port], [port, other], [other], [port] * 3])


def _numbers(r: random.Random, parts: Parts) -> None:
    """Other bits in a tensor: large, tiny, not finite, or unused bits set."""
    tensor = parts[2][r.choice(sorted(parts[2]))]
    flat = tensor.reshape(-1).view(np.uint8)
    for _ in range(r.choice([1, 1, 4]) if len(flat) else 0):
        flat[r.randrange(len(flat))] ^= 1 << r.randrange(8)


def _tensor(r: random.Random, parts: Parts) -> None:
    """A tensor with another shape, type or name, removed, or added."""
    tensors = parts[2]
    name, way = r.choice(sorted(tensors)), r.randrange(6)
    tensor = tensors[name]
    if way == 0:
        tensors[name] = tensor.reshape(tensor.shape[::-1])
    elif way == 1:
        tensors[name] = tensor.reshape(-1)
    elif way == 2:
        tensors[name] = tensor.view(np.uint8 if tensor.dtype != np.uint8 else np.int8)
    elif way == 3:
        tensors[name] = tensor[: r.randrange(len(tensor) + 1)]
    elif way == 4:
        tensors[r.choice(["vectors", "halves", "x.weight", r.choice(sorted(tensors))])] = tensor
    elif len(tensors) > 1:
        tensors.pop(name)


_NEW = [
    *("relu", "sign", "flatten", "add in={0},{1}", "concat in={0},{1},{2}", "clamp min={0}", "relu in={0}"),
    *("max_pool kernel={0} stride={1}", "avg_pool kernel={0} padding={1} stride={2}", "adaptive_avg_pool size={0},{1}"),
    *("channel_shuffle groups={0}", "permute axes={0},{1},{2}", "reshape shape={0},{1},{2}", "reshape shape={0}"),
    *(
        "pad before=0,{0},{1} after={2},0,0",
        "slice start=0,0,0 stop={0},{1},{2} step=1,1,1",
        "max_pool kernel=2 padding=1",
    ),
    *("gelu", "silu in={0}", "softmax axis={0}", "softmax axis={0} causal=true", "layer_norm axis={0} eps={1}"),
    *("mul in={0},{1}", "matmul in={0},{1}", "rms_norm gate.norm axis={0}", "elu alpha={0}", "reciprocal", "sqrt"),
    *("quantize gain={0}", "quantize gain=0.5 min=-{0} max={1}", "quantize in={0} gain={1} max=15"),
    *("embedding stem", "embedding in={0} table=stem.weight"),
    *("conv stem kernel={0}", "conv own groups={0} kernel=3", "conv block.conv1 kernel=3 padding={0} stride={1}"),
]
_DEEP = ["[" * 50_000, '{"a":' * 50_000, '{"version":1,"version":1}', "", "7", '{"version":' + "9" * 5000 + "}"]
_WAYS: list[Callable[[random.Random, Parts], None]] = [
    *[_number] * 5,
    *[_word] * 3,
    *[_line] * 3,
    *[_numbers] * 2,
    _head,
    _tensor,
]
