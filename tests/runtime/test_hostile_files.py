"""A false, truncated or damaged file is refused in one line, before memory is allocated for it."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equalbits.runtime import FormatError
from equalbits.runtime.container import MAX_TABLE_BYTES, decode, encode
from equalbits.runtime.format import _digest, from_bytes, read_network

WHOLE = (Path(__file__).parents[1] / "golden" / "residual.ebits").read_bytes()
TABLE = json.loads(WHOLE[8 : 8 + int.from_bytes(WHOLE[:8], "little")])
HEADER = json.loads(TABLE["__metadata__"]["equalbits"])
LINES = TABLE["__metadata__"]["operations"].split("\n")
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
    """The file with another header, and a digest that matches."""
    header = json.loads(json.dumps(HEADER))
    change(header)
    return with_header_text(json.dumps(header))


def with_header_text(text: str, lines: str = "\n".join(LINES)) -> bytes:
    tensors = decode(memoryview(WHOLE)).tensors
    texts = {"equalbits": text, "operations": lines}
    head, data = encode(tensors, {**texts, "sha256": _digest(texts, tensors, [DATA])})
    return head + b"".join(data)


def with_lines(lines: list[str]) -> bytes:
    return with_header_text(json.dumps(HEADER), "\n".join(lines))


def operation(place: int, line: str) -> bytes:
    return with_lines([*LINES[:place], line, *LINES[place + 1 :]])


def test_a_refitted_file_differs_from_the_original_in_the_mutation_alone() -> None:
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
def test_inserted_bytes_and_gaps_between_tensors_are_refused(noise: bytes, place: int) -> None:
    refusal(noise)
    refusal(WHOLE[:place] + noise + b"x" + WHOLE[place:])


FIRST = min((name for name in TABLE if name != "__metadata__"), key=lambda name: TABLE[name]["data_offsets"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[FIRST].update(shape=[2**40, 2**40]), "does not fill"),
        (lambda t: t[FIRST].update(shape=[-1, -8]), "integers from 1"),
        (lambda t: t[FIRST].update(shape=[True]), "integers from 1"),
        (lambda t: t[FIRST].update(shape=[1] * 99), "up to eight"),
        (lambda t: t[FIRST].update(shape="8"), "integers from 1"),
        (lambda t: t.update(e={"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}), "integers from 1"),
        (lambda t: t[FIRST].update(data_offsets=[0, 10**30]), "cut or damaged"),
        (lambda t: t[FIRST].update(data_offsets=[8, 4]), "cut or damaged"),
        (lambda t: t[FIRST].update(data_offsets=[0.0, 64.0]), "cut or damaged"),
        (lambda t: t[FIRST].update(dtype="BF16"), "dtype 'BF16'"),
        (lambda t: t[FIRST].update(dtype=["F32"]), "has dtype"),
        (lambda t: t[FIRST].update(more=1), "must have exactly dtype"),
        (lambda t: t.pop(FIRST), "leaves a gap"),
        (lambda t: t.update(again=t[FIRST]), "overlaps"),
        (lambda t: t.update({FIRST: 7}), "must have exactly dtype"),
        (lambda t: t.pop("__metadata__"), "not a packed model"),
        (lambda t: t["__metadata__"].update(x=1), "names to strings"),
        (lambda t: t["__metadata__"].update(x="y"), "which a packed model does not have"),
        (lambda t: t["__metadata__"].pop("operations"), "no 'operations'"),
        (lambda t: t.update(__metadata__=[]), "names to strings"),
        (lambda t: t["__metadata__"].pop("sha256"), "no 'sha256'"),
        (lambda t: t["__metadata__"].update(sha256="0" * 64), "sha256 does not match"),
        (lambda t: t["__metadata__"].update(equalbits="\ud800"), "sha256 does not match"),
    ],
)
def test_a_table_with_false_entries_is_refused(change: Change, words: str) -> None:
    assert words in refusal(with_table(change))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":-Infinity}', "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a":' + DEEP.encode(), "not JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_an_invalid_table_of_tensors_is_refused(text: bytes, words: str) -> None:
    assert words in refusal(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("length", [0, 1, MAX_TABLE_BYTES, MAX_TABLE_BYTES + 1, 2**63, 2**64 - 1])
def test_a_table_of_the_wrong_length_is_refused(length: int) -> None:
    refusal(length.to_bytes(8, "little") + WHOLE[8:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(version=2), "version 2"),
        (lambda h: h.update(version=True), "version True"),
        (lambda h: h.update(bit_one=1.0), "bit_one=1.0"),
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
        (lambda h: h.update(resize=1), "resize is 1: it must be an integer from"),
        (lambda h: h.update(resize=1 << 40), "resize is 1099511627776: it must be"),
        (lambda h: h.update(resize=True), "resize is True: it must be"),
        (lambda h: h.update(resize=[64]), "resize is [64]: it must be"),
        (lambda h: h.update(std=[0.0, 1.0, 1.0]), "above 0"),
        (lambda h: h.update(classes=["a"]), "class names"),
        (lambda h: h.update(classes=[1, 2, 3, 4]), "hold strings"),
        (lambda h: h.update(notes={"a": 1}), "hold strings"),
        (lambda h: h.update(notes=[]), "hold strings"),
    ],
)
def test_a_header_with_false_facts_is_refused(change: Change, words: str) -> None:
    assert words in refusal(with_header(change))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "is of kind ''"),
        (["relu"] * 20_000, "20000 operations"),
        (LINES[:-1], "'head.weight' belongs to no operation"),
        (["flatten"], "belongs to no operation"),
        ([*LINES[:-1], "linear head"], "4 numbers of 'vectors' belong to no operation"),
        ([*LINES, ""], "is of kind ''"),
        ([*LINES, "linear head bias=4"], "4 numbers as its bias: 'vectors' has 0 left"),
    ],
)
def test_a_list_of_operations_that_does_not_fit_is_refused(lines: list[str], words: str) -> None:
    assert words in refusal(with_lines(lines))


@pytest.mark.parametrize(
    ("place", "line", "words"),
    [
        (0, "conv stem kernel=5", "its input and kernel make it"),
        (0, "conv stem", "has no setting 'kernel'"),
        (0, "conv stem kernel=0", "integer from 1"),
        (0, "conv stem kernel=3,3,3", "2 integers"),
        (0, "conv stem kernel=3,three", "integer from 1"),
        (0, "conv stem kernel=", "2 integers"),
        (0, "conv stem kernel=3 kernel=3", "has 'kernel' twice"),
        (0, "conv stem stem kernel=3", "has '' twice"),
        (0, "conv stem =stem kernel=3", "has '' twice"),
        (0, f"conv stem kernel={'3,' * 10_000}3", "2 integers"),
        (0, f"conv stem kernel=3 padding={2**13}", "the padded image may have"),
        (0, f"conv stem kernel=3 padding={2**40}", "integer from 0"),
        (0, f"conv stem kernel=3 padding={'9' * 5000}", "4 integers"),
        (0, "conv stem kernel=3 padding=1e999", "integer"),
        (0, "conv stem kernel=3 stride=0", "integer from 1"),
        (0, f"conv stem kernel=3 dilation={2**20}", "does not fit"),
        (0, "conv stem kernel=3 groups=2", "cannot be divided"),
        (0, "conv stem kernel=3 groups=1.0", "integer"),
        (0, "conv stem kernel=3 kept=block.conv2.kept", "only bits can be pruned"),
        (0, "conv nowhere kernel=3", "no tensor 'weight'"),
        (0, "conv kernel=3 bias=8", "has no layer to name them"),
        (0, "conv stem kernel=3 bias=8h", "8 numbers as its bias: 'halves' has 0 left"),
        (0, "conv stem kernel=3 bias=999999999", "'vectors' has 22 left"),
        (0, "conv stem kernel=3 bias=9999999999", "does not exist"),
        (0, "conv stem kernel=3 bias=8:stem.weight", "which exists already"),
        (0, "conv weight=27 kernel=3", "calls its weight '27'"),
        (0, "conv weight=nowhere kernel=3", "does not exist"),
        (0, "conv weight=block.bn1.gain_shift kernel=3", "make it"),
        (0, "conv stem bias=head.bias kernel=3", "bias of float32"),
        (0, " conv stem kernel=3", "has '' twice"),
        (0, "", "not known"),
        (0, "conv  stem kernel=3", "has '' twice"),
        (3, "conv block.conv1 scale=1 kernel=5", "has a plane of uint8"),
        (3, "conv block.conv1 scale=1 kernel=3 p_pos=1.5", "must lie in [0, 1]"),
        (3, "conv block.conv1 scale=1 kernel=3 p_pos=half", "finite number"),
        (3, "conv block.conv1 scale=block.conv1.weight kernel=3", "must be float"),
        (4, "affine gain_shift=stem.act.slope", "gain_shift of float32"),
        (4, "affine block.bn1 gain_shift=15", "two for each channel"),
        (4, "affine block.bn1 gain_shift=14", "gain_shift of float32"),
        (4, "affine block.bn1", "has no tensor 'gain_shift'"),
        (5, "add in=4,0", "must be the same"),
        (5, "add in=4", "reads 1 values"),
        (5, "relu in=6", "reads value 6"),
        (5, "relu in=99", "reads value 99"),
        (5, "relu in=-1", "list values"),
        (5, "relu in=1.0", "list values"),
        (5, "relu in=five", "list values"),
        (5, "relu in=", "list values"),
        (5, "relu in=1,2", "reads 2 values"),
        (5, "relu speed=9", "a setting 'speed'"),
        (5, "exec", "not known"),
        (8, "avg_pool in=6 kernel=2 stride=2 padding=2", "pad by less"),
        (8, "max_pool in=6 kernel=1025 padding=1024", "1048576 numbers at most"),
        (8, "adaptive_avg_pool in=6 size=1025", "1048576 windows at most"),
        (8, "max_pool in=6 kernel=1048576,1 padding=1048575,1048575,0,0", "products per image"),
        (0, f"conv stem kernel=3 padding={2**20} stride={2**20}", "the padded image may have"),
        (8, "avg_pool in=6 kernel=2 stride=2 count_padding=1", "true or false"),
        (13, "reshape shape=1048576,1048576", "as many numbers"),
        (13, "reshape shape=1,1,1,1,1,1,1,1,16", "up to eight"),
        (13, "pad before=1048576 after=1048577", "integer from 0"),
        (13, "pad before=1,1 after=1,1", "one number per axis"),
        (13, "clamp min=2 max=1", "above max"),
        (13, "clamp min=low", "finite number"),
        (13, "clamp min=1e400", "finite number"),
        (13, "clamp min=1e39", "finite number"),
        (13, "clamp min=true", "finite number"),
        (13, "permute axes=1,0", "name each axis once"),
        (13, "slice start=4,0 stop=4,0 step=1,1", "one number per axis"),
        (13, "max_pool kernel=2", "channels, rows and columns"),
    ],
)
def test_an_operation_that_does_not_fit_is_refused(place: int, line: str, words: str) -> None:
    message = refusal(operation(place, line))
    assert words in message
    assert f"operation {place} " in message


@pytest.mark.parametrize("text", [DEEP, '{"version":1,"version":1}', "7", '{"version":1e999}', ""])
def test_an_invalid_header_is_refused(text: str) -> None:
    refusal(with_header_text(text))


def test_a_real_number_that_is_not_finite_is_refused() -> None:
    tensors = dict(decode(memoryview(WHOLE)).tensors)
    tensors["vectors"] = np.full_like(tensors["vectors"], np.inf)
    texts = {name: TABLE["__metadata__"][name] for name in ("equalbits", "operations")}
    _, data = encode(tensors, {})
    head, data = encode(tensors, {**texts, "sha256": _digest(texts, tensors, data)})
    assert "not finite" in refusal(head + b"".join(data))


def test_a_missing_or_truncated_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_network(tmp_path / "no.ebits")
    (tmp_path / "short.ebits").write_bytes(b"123")
    with pytest.raises(FormatError, match=r"short\.ebits: 3 bytes"):
        read_network(tmp_path / "short.ebits")
