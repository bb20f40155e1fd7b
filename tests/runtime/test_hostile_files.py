"""A file that lies, is cut, or is damaged is refused with one line, soon, and before any memory is claimed for it."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.runtime import FormatError
from equalbits.runtime.container import MAX_TABLE_BYTES, decode, encode
from equalbits.runtime.format import _digest, from_bytes, read_network

WHOLE = (Path(__file__).parents[1] / "golden" / "residual.ebits").read_bytes()
TABLE = json.loads(WHOLE[8 : 8 + int.from_bytes(WHOLE[:8], "little")])
HEADER = json.loads(TABLE["__metadata__"]["equalbits"])
DATA = WHOLE[8 + int.from_bytes(WHOLE[:8], "little") :]
DEEP = "[" * 100_000

Change = Callable[[dict[str, Any]], object]


def refusal(whole: bytes) -> str:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            from_bytes(whole)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000 + 20 * len(whole)
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return message


def with_table(change: Change) -> bytes:
    table = json.loads(json.dumps(TABLE))
    change(table)
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + DATA


def with_header(change: Change) -> bytes:
    """The file with another header, and a digest that matches it: a lie told well."""
    header = json.loads(json.dumps(HEADER))
    change(header)
    return with_header_text(json.dumps(header))


def with_header_text(text: str) -> bytes:
    tensors = decode(memoryview(WHOLE)).tensors
    head, data = encode(tensors, {"equalbits": text, "sha256": _digest(text, tensors, [DATA])})
    return head + b"".join(data)


def operation(place: int, **changes: Any) -> bytes:
    return with_header(lambda header: header["operations"][place].update(changes))


def test_a_lie_told_well_differs_from_the_truth_in_the_lie_alone() -> None:
    assert from_bytes(with_header(lambda header: None)).shapes[-1] == (4,)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_short_anywhere_is_refused(length: int) -> None:
    refusal(WHOLE[:length])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 8 * len(WHOLE) - 1))
def test_any_one_flipped_bit_is_refused(place: int) -> None:
    changed = bytearray(WHOLE)
    changed[place // 8] ^= 1 << place % 8
    refusal(bytes(changed))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_bytes_put_in_or_found_lying_about_are_refused(noise: bytes, place: int) -> None:
    refusal(noise)
    refusal(WHOLE[:place] + noise + b"x" + WHOLE[place:])


FIRST = min((name for name in TABLE if name != "__metadata__"), key=lambda name: TABLE[name]["data_offsets"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[FIRST].update(shape=[2**40, 2**40]), "does not fill"),
        (lambda t: t[FIRST].update(shape=[-1, -8]), "whole numbers from 0"),
        (lambda t: t[FIRST].update(shape=[True]), "whole numbers from 0"),
        (lambda t: t[FIRST].update(shape=[1] * 99), "up to eight"),
        (lambda t: t[FIRST].update(shape="8"), "whole numbers from 0"),
        (lambda t: t[FIRST].update(data_offsets=[0, 10**30]), "cut or damaged"),
        (lambda t: t[FIRST].update(data_offsets=[8, 4]), "cut or damaged"),
        (lambda t: t[FIRST].update(data_offsets=[0.0, 64.0]), "cut or damaged"),
        (lambda t: t[FIRST].update(dtype="BF16"), "dtype 'BF16'"),
        (lambda t: t[FIRST].update(dtype=["F32"]), "has dtype"),
        (lambda t: t[FIRST].update(more=1), "no more"),
        (lambda t: t.pop(FIRST), "leaves a hole"),
        (lambda t: t.update(again=t[FIRST]), "overlaps"),
        (lambda t: t.update({FIRST: 7}), "must say dtype"),
        (lambda t: t.pop("__metadata__"), "not a packed model"),
        (lambda t: t["__metadata__"].update(x=1), "names to texts"),
        (lambda t: t.update(__metadata__=[]), "names to texts"),
        (lambda t: t["__metadata__"].pop("sha256"), "no 'sha256'"),
        (lambda t: t["__metadata__"].update(sha256="0" * 64), "sha256 does not match"),
        (lambda t: t["__metadata__"].update(equalbits="\ud800"), "sha256 does not match"),
    ],
)
def test_a_table_that_lies_is_refused(change: Change, words: str) -> None:
    assert words in refusal(with_table(change))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":NaN}', "no JSON number"),
        (b'{"a":-Infinity}', "no JSON number"),
        (b"[]", "not a JSON object"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a":' + DEEP.encode(), "not JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_a_table_that_is_no_table_is_refused(text: bytes, words: str) -> None:
    assert words in refusal(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("length", [0, 1, MAX_TABLE_BYTES, MAX_TABLE_BYTES + 1, 2**63, 2**64 - 1])
def test_a_table_of_the_wrong_length_is_refused(length: int) -> None:
    refusal(length.to_bytes(8, "little") + WHOLE[8:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(version=2), "version 2"),
        (lambda h: h.pop("version"), "version None"),
        (lambda h: h.update(bit_order="big"), "bit_order='big'"),
        (lambda h: h.update(padding="one"), "padding='one'"),
        (lambda h: h.update(extra=1), "'extra'"),
        (lambda h: h.update(input=[3, 8]), "channels, rows and columns"),
        (lambda h: h.update(input=[3, 2**40, 2**40]), "channels, rows and columns"),
        (lambda h: h.update(input=[3, 0, 8]), "channels, rows and columns"),
        (lambda h: h.update(input="3"), "channels, rows and columns"),
        (lambda h: h.update(mean=[0.5]), "one per channel"),
        (lambda h: h.update(mean=[1e308, 0, 0]), "list of numbers"),
        (lambda h: h.update(mean="x"), "list of numbers"),
        (lambda h: h.pop("mean"), "belong together"),
        (lambda h: h.update(std=[0.0, 1.0, 1.0]), "above 0"),
        (lambda h: h.update(classes=["a"]), "class names"),
        (lambda h: h.update(classes=[1, 2, 3, 4]), "hold texts"),
        (lambda h: h.update(notes={"a": 1}), "hold texts"),
        (lambda h: h.update(notes=[]), "hold texts"),
        (lambda h: h.update(operations=[]), "0 operations"),
        (lambda h: h.update(operations={}), "lists no operations"),
        (lambda h: h.update(operations=[{"op": "relu"}] * 20_000), "20000 operations"),
        (lambda h: h["operations"].pop(), "belongs to no operation"),
        (lambda h: h["operations"].append(7), "by 'op'"),
        (lambda h: h["operations"].append({"op": 7}), "by 'op'"),
        (lambda h: h["operations"].append({"op": "exec"}), "not known"),
        (lambda h: h["operations"].append({"op": "relu", "in": [99]}), "reads value 99"),
        (lambda h: h["operations"].append({"op": "relu", "in": [15]}), "reads value 15"),
        (lambda h: h["operations"].append({"op": "relu", "in": [-1]}), "list values"),
        (lambda h: h["operations"].append({"op": "relu", "in": 3}), "list values"),
        (lambda h: h["operations"].append({"op": "relu", "in": [1, 2]}), "reads 2 values"),
        (lambda h: h["operations"].append({"op": "relu", "speed": 9}), "a setting 'speed'"),
        (lambda h: h["operations"].append({"op": "reshape", "shape": [2**20, 2**20]}), "as many numbers"),
        (lambda h: h["operations"].append({"op": "reshape", "shape": [1] * 9}), "up to eight"),
        (lambda h: h["operations"].append({"op": "pad", "before": [2**20], "after": [2**30]}), "whole number from 0"),
        (lambda h: h["operations"].append({"op": "clamp", "min": 2, "max": 1}), "above max"),
        (lambda h: h["operations"].append({"op": "clamp", "min": "low"}), "finite number"),
        (lambda h: h["operations"].append({"op": "clamp", "min": 10**400}), "finite number"),
        (lambda h: h["operations"].append({"op": "permute", "axes": [1]}), "named once"),
        (lambda h: h["operations"].append({"op": "slice", "start": [4], "stop": [4], "step": [1]}), "something"),
        (lambda h: h["operations"].append({"op": "max_pool", "kernel": 2}), "channels, rows and columns"),
    ],
)
def test_a_header_that_lies_is_refused(change: Change, words: str) -> None:
    assert words in refusal(with_header(change))


@pytest.mark.parametrize(
    ("place", "changes", "words"),
    [
        (0, {"kernel": 5}, "its input and kernel make it"),
        (0, {"kernel": 0}, "whole number from 1"),
        (0, {"kernel": [3, 3, 3]}, "2 whole numbers"),
        (0, {"padding": 2**20}, "numbers are allowed"),
        (0, {"padding": 2**40}, "whole number from 0"),
        (0, {"stride": 0}, "whole number from 1"),
        (0, {"dilation": 2**20}, "does not fit"),
        (0, {"groups": 2}, "shared out"),
        (0, {"groups": 1.0}, "whole number"),
        (0, {"kept": "block.conv2.kept"}, "only bits can be pruned"),
        (0, {"weight": "no"}, "not there"),
        (0, {"weight": ["stem.weight"]}, "must be a text"),
        (0, {"weight": "block.bn1.gain_shift"}, "make it"),
        (0, {"bias": "head.bias"}, "bias of float32"),
        (3, {"kernel": 5}, "has a plane of uint8"),
        (3, {"p_pos": 1.5}, "share"),
        (3, {"scale": "block.conv1.weight"}, "must be real"),
        (4, {"gain_shift": "stem.act.slope"}, "gain_shift of float32"),
        (5, {"in": [4, 0]}, "must be the same"),
        (8, {"padding": 2}, "less than the window"),
        (8, {"count_padding": 1}, "true or false"),
    ],
)
def test_an_operation_that_lies_is_refused(place: int, changes: dict[str, Any], words: str) -> None:
    message = refusal(operation(place, **changes))
    assert words in message
    assert f"operation {place} " in message


@pytest.mark.parametrize("text", [DEEP, '{"version":1,"version":1}', "7", '{"version":1e999}', ""])
def test_a_header_that_is_no_header_is_refused(text: str) -> None:
    refusal(with_header_text(text))


def test_a_real_number_that_is_not_finite_is_refused() -> None:
    tensors = dict(decode(memoryview(WHOLE)).tensors)
    tensors["head.bias"] = tensors["head.bias"] * float("inf")
    text = TABLE["__metadata__"]["equalbits"]
    _, data = encode(tensors, {})
    head, data = encode(tensors, {"equalbits": text, "sha256": _digest(text, tensors, data)})
    assert "not finite" in refusal(head + b"".join(data))


def test_a_file_that_is_not_there_or_too_short_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_network(tmp_path / "no.ebits")
    (tmp_path / "short.ebits").write_bytes(b"123")
    with pytest.raises(FormatError, match=r"short\.ebits has 3 bytes"):
        read_network(tmp_path / "short.ebits")
