"""A file of several lengths: its table is validated, each length runs alike in both engines, and few plans are kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equalbits.runtime import FormatError, LimitError, Limits, NetworkBuilder, PackedModel, Port, at_length, native
from equalbits.runtime.container import decode, encode
from equalbits.runtime.engine import _KEPT_LENGTHS
from equalbits.runtime.format import _digest, from_bytes, read_network, to_chunks
from equalbits.runtime.lengths import Lengths

GOLDEN = Path(__file__).parents[1] / "golden"
WHOLE = (GOLDEN / "lengths.ebits").read_bytes()
needs_native = pytest.mark.skipif(native.BUILT is None, reason="the native engine is not built")

Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> bytes:
    """The golden file with another table of lengths, and a digest that matches."""
    found = decode(memoryview(WHOLE))
    header = json.loads(found.texts["equalbits"])
    change(header["lengths"])
    texts = {**found.texts, "equalbits": json.dumps(header)}
    texts.pop("sha256")
    _, data = encode(found.tensors, {})
    head, data = encode(found.tensors, {**texts, "sha256": _digest(texts, found.tensors, data)})
    return head + b"".join(data)


@needs_native
def test_numpy_and_native_agree_at_every_length() -> None:
    network = read_network(GOLDEN / "lengths.ebits")
    image = np.random.default_rng(0).integers(-8, 9, (2, *network.input_shape)).astype(np.float32) / 8
    numpy, other = (PackedModel(network, engine=engine) for engine in ("numpy", "native"))
    for length in range(2, 9):
        np.testing.assert_array_equal(numpy(image[..., :length]), other(image[..., :length]))


def test_a_shorter_network_sums_fewer_entries_and_reads_the_last() -> None:
    network = at_length(read_network(GOLDEN / "lengths.ebits"), 5)
    assert network.input_shape == (4, 1, 5) and network.lengths is None
    assert network.operations[17].settings["start"] == (4, 0)
    np.testing.assert_array_equal(network.tensors["below.gain_shift"][1].reshape(5, 5), np.tri(5))
    np.testing.assert_array_equal(network.tensors["count.gain_shift"], [[5] * 4, [0] * 4])


def test_a_table_that_is_not_changed_is_accepted() -> None:
    assert b"".join(to_chunks(from_bytes(changed(lambda table: None)))) == WHOLE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("most"), "give least, most, inputs"),
        (lambda t: t.update(more=1), "give least, most, inputs"),
        (lambda t: t.update(least=0), "two integers, from 1"),
        (lambda t: t.update(least=8), "two integers, from 1"),
        (lambda t: t.update(least=2.0), "two integers, from 1"),
        (lambda t: t.update(most=True), "two integers, from 1"),
        (lambda t: t.update(most=2**40), "two integers, from 1"),
        (lambda t: t.update(most=9), "needs 36 numbers of a vector of 32"),
        (lambda t: t.update(inputs=[[4, 1, 8]]), "an axis that varies is [0, 1]"),
        (lambda t: t.update(inputs=[[4, 1, [1, 1]]]), "an axis that varies is [0, 1]"),
        (lambda t: t.update(inputs=[]), "an axis that varies is [0, 1]"),
        (lambda t: t.update(inputs=[[4, 1, [0, 1]]] * 2), "a shape for each input"),
        (lambda t: t.update(inputs=[[4, [0, 1], [0, 1]]]), "needs 256 numbers"),
        (lambda t: t.update(inputs="x"), "must be objects"),
        (lambda t: t.update(inputs=[[4, 1, "L"]]), "lengths have sizes"),
        (lambda t: t.update(inputs=[[4, 1, True]]), "lengths have sizes"),
        (lambda t: t.update(inputs=[[4, 1, [0, 1, 2, 3]]]), "lengths have sizes"),
        (lambda t: t.update(inputs=[[4, 1, []]]), "lengths have sizes"),
        (lambda t: t.update(inputs=[[1] * 9]), "lengths have sizes"),
        (lambda t: t.update(inputs=[[4, 1, [0, 2**40]]]), "lengths have sizes"),
        (lambda t: t.update(outputs=[[4]]), "each named output"),
        (lambda t: t.update(settings=[]), "must be objects"),
        (lambda t: t["settings"].update({"99": {}}), "an operation that does not exist"),
        (lambda t: t["settings"].update({"-1": {}}), "lengths change operation '-1'"),
        (lambda t: t["settings"].update({"٣": {}}), "lengths change operation"),
        (lambda t: t["settings"].update({"9" * 4000: {}}), "lengths change operation"),
        (lambda t: t["settings"].update({"1": []}), "lengths change operation '1'"),
        (lambda t: t["settings"].update({"2": {"axes": [1, [0, 1]]}}), "permutes (4, 8) by (1, 8)"),
        (lambda t: t["settings"].update({"2": {"speed": [1]}}), "has a setting 'speed'"),
        (lambda t: t["settings"].update({"15": {"axis": [0]}}), "must be an integer"),
        (lambda t: t["settings"].update({"17": {"start": [7, 0]}}), "at length 2 operation 17 (slice)"),
        (lambda t: t["settings"]["17"].update(start=[-99, 0]), "has start that"),
        (lambda t: t["settings"]["17"].update(start=[-1, -1, -1, 0]), "depend on the axes of a value of shape"),
        (lambda t: t["settings"]["10"].update(shape=[[0, 1], [0, 0, 1]]), "both must hold as many"),
        (lambda t: t["settings"]["1"].update(shape=[-1, -1]), "operation 1 (reshape)"),
        (lambda t: t["settings"].pop("1"), "at length 2 operation 1 (reshape)"),
        (lambda t: t.update(cuts=[]), "must be objects"),
        (lambda t: t["cuts"].pop("below.gain_shift"), "at length 2 operation 9 (affine)"),
        (lambda t: t["cuts"].update({"nowhere": []}), "lengths change tensor 'nowhere'"),
        (lambda t: t["cuts"].update({"conv.weight": []}), "lengths change tensor 'conv.weight'"),
        (lambda t: t["cuts"].update({"below.gain_shift": [[9, -1]]}), "it can only become shorter"),
        (lambda t: t["cuts"].update({"below.gain_shift": [0]}), "it can only become shorter"),
        (lambda t: t["cuts"].update({"below.gain_shift": [-1]}), "it can only become shorter"),
        (lambda t: t["cuts"].update({"below.gain_shift": [3]}), "needs 64 numbers of a vector of 64, split by (3,)"),
        (lambda t: t["scaled"].update({"count.gain_shift": [[0, 0, 2**20]] * 8}), None),
        (lambda t: t["scaled"].update({"count.gain_shift": [0]}), "describe other tensors"),
        (lambda t: t["scaled"].update({"count.gain_shift": [[-8, 1]]}), "describe other tensors"),
        (lambda t: t["scaled"].update({"conv.weight": [[0, 1]]}), "lengths change tensor 'conv.weight'"),
        (lambda t: t["scaled"].update({"count.gain_shift": "x"}), "lengths have sizes"),
    ],
)
def test_a_table_of_lengths_that_does_not_fit_is_refused_in_one_line(change: Change, words: str | None) -> None:
    whole = changed(change)
    if words is None:  # unusual, and right
        assert from_bytes(whole).lengths is not None
        return
    with pytest.raises(FormatError) as caught:
        from_bytes(whole)
    message = str(caught.value)
    assert words in message and "\n" not in message and len(message) < 400


def sequence(most: int, settings: dict[str, tuple[int | tuple[int, ...], ...]]) -> PackedModel:
    """A padding of a sequence whose settings vary."""
    build = NetworkBuilder((1, 1, most))
    at = {name: tuple(_at(size, most) for size in sizes) for name, sizes in settings.items()}
    build.add("pad", build.image, before=(0, 0, 0), **at)
    lengths = Lengths(1, most, ((1, 1, (0, 1)),), (), {0: settings})
    return PackedModel(build.finish(lengths=lengths), limits=Limits(memory=1 << 20))


def _at(size: int | tuple[int, ...], length: int) -> int:
    return size if isinstance(size, int) else sum(factor * length**power for power, factor in enumerate(size))


def test_a_length_in_between_that_costs_more_than_the_longest_is_refused_as_a_file_of_its_own_is() -> None:
    model = sequence(16, {"after": (0, 0, (0, 16 * 65536 // 8, -65536 // 8))})  # a parabola: 0 at 16, 2¹⁹ at 8
    assert model(np.zeros((1, 1, 1, 16), np.float32)).shape == (1, 1, 1, 16)
    with pytest.raises(LimitError, match=r"values of \d+ bytes at a time, over 1048576"):
        model(np.zeros((1, 1, 1, 8), np.float32))


def test_a_length_in_between_that_is_no_network_is_refused_when_it_is_asked_for() -> None:
    model = sequence(16, {"after": (0, 0, (32, -34, 2))})  # 32 − 34 n + 2 n², below 0 between 1 and 16
    with pytest.raises(ValueError, match=r"at length 8 operation 0 \(pad\) has after that"):
        model(np.zeros((1, 1, 1, 8), np.float32))


def test_few_lengths_are_kept() -> None:
    model = sequence(40, {"after": (0, 0, (40, -1))})
    first = model.at_length(1)
    assert model.at_length(1) is first
    for length in range(2, 2 + _KEPT_LENGTHS):
        assert model(np.zeros((1, 1, 1, length), np.float32)).shape == (1, 1, 1, 40)
    assert model.at_length(1) is not first


def test_a_length_is_an_integer_of_any_kind() -> None:
    model = sequence(16, {"after": (0, 0, (16, -1))})
    assert model.at_length(np.int64(5)) is model.at_length(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        model.at_length(5.0)  # type: ignore[arg-type]


def test_a_missing_input_is_named_and_not_taken_for_an_empty_one() -> None:
    build = NetworkBuilder((1, 1, 3))
    build.add("relu", build.image)
    lengths = Lengths(1, 3, (((0, 1),),), ())
    model = PackedModel(build.finish(inputs=(Port("ids", (3,), 9),), lengths=lengths))
    for given in ({}, {"id": [[1]]}):
        with pytest.raises(ValueError, match="the model takes ids: give each once"):
            model(**given)


def test_named_inputs_and_outputs_vary_with_the_length() -> None:
    build = NetworkBuilder((1, 1, 6))
    build.add("relu", build.image)
    ports = (Port("ids", (3,), 9), Port("mask", (3,)))
    lengths = Lengths(1, 3, (((0, 1),), ((0, 1),)), (((0, 1),), (1, (0, 1))))
    network = build.finish(inputs=ports, outputs=(Port("a", (3,)), Port("b", (1, 3))), lengths=lengths)
    model = PackedModel(from_bytes(b"".join(to_chunks(network))))
    found = model([[7, 8]], mask=[[1, -1]])
    np.testing.assert_array_equal(found["a"], [[7, 8]])
    np.testing.assert_array_equal(found["b"], [[[1, 0]]])
    with pytest.raises(ValueError, match="ids holds 9"):
        model([[9]], [[1]])
