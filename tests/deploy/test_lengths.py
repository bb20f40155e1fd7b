"""One file for inputs of many lengths gives at each length the logits of a file packed for it, to the bit."""

import importlib.util
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equalbits as eb
from equalbits.deploy import PackError
from equalbits.runtime import PackedModel, export_onnx, generate, load_packed, native

ENGINES = ["numpy"] if native.BUILT is None else ["numpy", "native"]
SPEC = importlib.util.spec_from_file_location("char_gpt", Path(__file__).parents[2] / "examples" / "char_gpt.py")
assert SPEC is not None and SPEC.loader is not None
char_gpt = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(char_gpt)


class Encoder(nn.Module):
    """A transformer with a class token, learned positions, sinusoids, and masked attention and mean."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.embed, self.first = nn.Embedding(20, 16), nn.Parameter(torch.randn(16))
        self.positions, self.norm = nn.Parameter(torch.randn(most + 1, 16)), nn.LayerNorm(16)
        self.qkv, self.mix = eb.nn.BinaryLinear(16, 48), eb.nn.BinaryLinear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        batch, length = ids.shape
        angles = torch.arange(length)[:, None] / 100 ** (torch.arange(16) / 16)
        x = torch.cat([self.first.expand(batch, 1, 16), self.embed(ids) + angles.sin()], dim=1)
        x = x + self.positions[: length + 1]
        seen = torch.cat([torch.ones(batch, 1), mask], dim=1)
        query, key, value = self.qkv(self.norm(x)).reshape(batch, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=(seen * 1e4 - 1e4)[:, None, None]
        )
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, -1, 16))
        seen = seen[:, :, None]
        mean = (x * seen).sum(dim=1) / seen.sum(dim=1).clamp(min=1e-9)
        return {"tokens": self.head(x[:, 1:]), "whole": self.head(mean), "first": x[:, 0]}


class Sound(nn.Module):
    """Strided 1-d convolutions and poolings, a gate, attention over what is left, and a mean: any length."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(2, 16, 5, stride=2, padding=2), nn.BatchNorm1d(16)
        self.conv, self.gate = eb.nn.BinaryConv1d(16, 16, 3, padding=1), eb.nn.BinaryConv1d(16, 32, 3, stride=2)
        self.qkv, self.head = eb.nn.BinaryLinear(16, 48), nn.Linear(32, 3)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool1d(self.norm(self.stem(sound)), 2)
        x = nn.functional.glu(self.gate(torch.relu(self.conv(x))), dim=1).transpose(1, 2)
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(torch.cat([x.mean(dim=1), x.amax(dim=1)], dim=-1))


LENGTHS = {"encoder": (1, 12), "sound": (20, 101)}


@cache
def model_of(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    if name == "sound":
        return Sound().eval(), {"sound": torch.randn(3, 2, 101)}
    mask = torch.ones(3, 12)
    mask[1, 5:] = mask[2, 1:] = 0
    return Encoder(12).eval(), {"ids": torch.randint(20, (3, 12)), "mask": mask}


@cache
def packed_of(name: str) -> PackedModel:
    return eb.pack(*model_of(name), lengths=LENGTHS[name])


def first(name: str, length: int) -> dict[str, torch.Tensor]:
    return {key: tensor[..., :length] for key, tensor in model_of(name)[1].items()}


def answers(model: PackedModel, inputs: dict[str, torch.Tensor]) -> list[np.ndarray]:
    found = model(**{name: tensor.numpy() for name, tensor in inputs.items()})
    return list(found.values()) if isinstance(found, dict) else [found]


@pytest.mark.parametrize(("name", "length"), [("encoder", 2), ("sound", 86)])
def test_each_length_gives_the_bits_of_a_file_packed_for_it(name, length):
    inputs = first(name, length)
    fixed = eb.pack(model_of(name)[0], inputs)
    for found, expected in zip(answers(packed_of(name), inputs), answers(fixed, inputs), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", LENGTHS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_length_gives_the_numbers_of_the_model_in_both_engines(name, data):
    model, packed = model_of(name)[0], packed_of(name)
    inputs = first(name, data.draw(st.integers(*LENGTHS[name])))
    with torch.no_grad():
        made = model(**inputs)
    expected = list(made.values()) if isinstance(made, dict) else [made]
    for engine in ENGINES:
        found = answers(PackedModel(packed.network, engine=engine), inputs)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("name", LENGTHS)
def test_a_saved_and_a_copied_model_take_all_lengths(name, tmp_path):
    packed = packed_of(name)
    packed.save(tmp_path / "net.ebits")
    for model in (load_packed(tmp_path / "net.ebits"), pickle.loads(pickle.dumps(packed))):
        assert model.network.lengths == packed.network.lengths
        for length in LENGTHS[name]:
            inputs = first(name, length)
            for found, expected in zip(answers(model, inputs), answers(packed, inputs), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_a_rounded_file_of_several_lengths_is_that_of_one():
    (model, example), inputs = model_of("sound"), first("sound", 50)
    options = {"rest": "int8", "linear_inputs": "int8"}
    packed, fixed = eb.pack(model, example, lengths=(20, 101), **options), eb.pack(model, inputs, **options)
    np.testing.assert_array_equal(answers(packed, inputs), answers(fixed, inputs))


def test_a_length_outside_the_range_is_refused():
    with pytest.raises(ValueError, match="sound has length 19: the model takes 20 to 101"):
        packed_of("sound")(sound=np.zeros((1, 2, 19), np.float32))
    with pytest.raises(ValueError, match="length 102 is not in the file: the model takes lengths 20 to 101"):
        packed_of("sound").at_length(102)
    with pytest.raises(ValueError, match=r"mask is float64 of shape \(1, 5\): the model takes \(batch, 6\)"):
        packed_of("encoder")(np.zeros((1, 6), int), np.ones((1, 5)))


@pytest.mark.parametrize("lengths", [(0, 12), (12, 12), (1,), (1.0, 12), (1, 2, 12)])
def test_lengths_that_are_no_range_are_refused(lengths):
    with pytest.raises(PackError, match="give the least and the largest length"):
        eb.pack(*model_of("encoder"), lengths=lengths)


def test_an_example_of_another_length_than_the_largest_is_refused():
    with pytest.raises(
        PackError, match=r"example has shapes \[\(3, 12\), \(3, 12\)\]: give one of the largest length, 9"
    ):
        eb.pack(*model_of("encoder"), lengths=(1, 9))


class Odd(nn.Module):
    """Depends on the length in a way that a file cannot hold."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.embed, self.mix = way, nn.Embedding(9, 8), eb.nn.BinaryLinear(8, 8)
        self.register_buffer("positions", torch.randn(12, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, length = self.embed(ids), ids.shape[1]
        if self.way == "positions from the end":
            x = x + self.positions[-length:]
        if self.way == "every third":
            x = torch.cat([x[:, : length // 3], x[:, length // 3 :] * 2], dim=1)
        if self.way == "long texts":
            x = torch.tanh(x) if length > 8 else x
        if self.way == "as many turned as the least has":
            x = x.roll(3, 1)
        if self.way == "a fixed size":
            x = x.reshape(len(x), 12, 8)
        return self.mix(x)


@pytest.mark.parametrize(
    ("way", "fault"),
    [
        (
            "positions from the end",
            r"layer 'add' \(affine\) depends on the length by no rule .* its gain_shift changes",
        ),
        ("every third", r"layer 'slice_\d' \(slice\) depends on the length .* its stop is 12: \(4, 8\), 11: \(3, 8\)"),
        ("long texts", r"layer 'tanh' \(tanh\) is another operation at length 7 than at 12: pack one length"),
        ("as many turned as the least has", r"at length 3 operation .* pack one length, or give a larger least than 3"),
        ("a fixed size", "with inputs of length 11 in place of 12: shape '.2, 12, 8.' is invalid"),
    ],
)
def test_what_no_rule_describes_is_refused_by_its_layer(way, fault):
    with pytest.raises(PackError, match=fault):
        eb.pack(Odd(way).eval(), torch.randint(9, (2, 12)), lengths=(3, 12))


def test_ranges_of_activations_are_those_of_one_length():
    with pytest.raises(PackError, match="activations='int8' takes one range for all inputs: pack one length"):
        eb.pack(*model_of("sound"), lengths=(20, 101), activations="int8")


@pytest.fixture(scope="module")
def decoder() -> PackedModel:
    torch.manual_seed(0)
    model = char_gpt.CharGPT(alphabet=50, length=16, width=32, depth=2, heads=2)
    eb.binarize_(model.blocks, eb.BiHalf(), where=eb.all_layers)
    return eb.pack(model.eval(), torch.randint(50, (3, 16)), lengths=(1, 16))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_decoder_of_several_lengths_generates_the_text_of_one(decoder, engine):
    model = PackedModel(decoder.network, engine=engine)
    expected = list(generate(model.at_length(16), [7, 3, 9], 20))
    assert list(generate(model, [7, 3, 9], 20)) == expected


def test_a_decoder_without_a_cache_reads_no_more_than_the_next_power_of_two(decoder, monkeypatch):
    model, seen = PackedModel(decoder.network, engine="numpy"), []
    monkeypatch.setattr(PackedModel, "__call__", lambda self, ids: seen.append(len(ids)) or np.zeros((len(ids), 50)))
    list(generate(model, [1, 2, 3], 15))
    assert seen == [4, 4, *[8] * 4, *[16] * 9]


def test_an_export_has_the_longest_length_or_a_chosen_one(tmp_path, caplog):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    packed = packed_of("sound")
    export_onnx(packed, tmp_path / "long.onnx")
    assert "takes the length 101 alone" in caplog.text
    export_onnx(packed.at_length(40), tmp_path / "short.onnx")
    for name, length in (("long", 101), ("short", 40)):
        inputs = first("sound", length)
        rows = inputs["sound"].reshape(3, 1, 1, -1).numpy()
        found = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx").run(None, {"images": rows})[0]
        np.testing.assert_allclose(found, *answers(packed, inputs), atol=1e-4)
