"""Models on tokens: packed, they take ids and return the model's logits, and generate text."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.runtime import NetworkBuilder, PackedModel, build_openvino, export_onnx, generate, load_packed

SPEC = importlib.util.spec_from_file_location("char_gpt", Path(__file__).parents[2] / "examples" / "char_gpt.py")
assert SPEC is not None and SPEC.loader is not None
_EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
char_gpt = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(char_gpt)


@pytest.fixture(scope="module")
def decoder() -> nn.Module:
    torch.manual_seed(0)
    model = char_gpt.CharGPT(alphabet=50, length=16, width=32, depth=2, heads=2)
    eb.binarize_(model.blocks, eb.BiHalf(), where=eb.all_layers)
    return model.eval()


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(50, (3, 16), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def file(decoder, tokens, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "gpt.ebits"
    eb.pack(decoder, tokens).save(path)
    return path


@pytest.mark.parametrize("engine", ["auto", "numpy"])
def test_a_packed_decoder_returns_the_logits_of_the_model(decoder, tokens, file, engine):
    packed = load_packed(file, engine=engine)
    expected = decoder(tokens).detach().numpy()
    np.testing.assert_allclose(packed(tokens.numpy()), expected, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_array_equal(packed(input_ids=tokens.numpy()), packed(tokens.numpy()))
    assert packed(tokens[0].numpy()).shape == (16, 50)
    assert packed.audit().exact


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        (np.full((1, 16), 50), "input_ids holds 50: ids are integers from 0 to 49"),
        (np.full((1, 16), -1), "input_ids holds -1: "),
        (np.full((1, 16), 0.5), r"input_ids holds 0\.5: "),
        (np.zeros((1, 15), int), r"shape \(1, 15\): the model takes \(batch, 16\)"),
    ],
)
def test_ids_that_name_no_row_are_refused(file, ids, fault):
    with pytest.raises(ValueError, match=fault):
        load_packed(file)(ids)


@pytest.mark.parametrize("engine", ["auto", "numpy"])
def test_an_id_that_names_no_row_becomes_nan_in_every_engine(engine):
    build = NetworkBuilder((1, 1, 4))
    build.add("embedding", build.image, table=np.arange(6, dtype=np.float32).reshape(3, 2))
    found = PackedModel(build.finish(), engine=engine)(np.array([[[2, 3, -1, 0.5]]], np.float32))
    np.testing.assert_array_equal(found.reshape(4, 2), [[4, 5], *[[np.nan, np.nan]] * 3])


def test_generate_continues_a_prompt_as_the_model_does(decoder, file):
    text = [7, 3, 9]
    for _ in range(20):  # past the length of the model
        text.append(int(decoder(torch.tensor([text[-16:]]))[0, -1].argmax()))
    assert list(generate(load_packed(file), text[:3], 20)) == text[3:]


def test_a_temperature_draws_the_same_tokens_for_the_same_seed(file):
    packed = load_packed(file)
    drawn = [list(generate(packed, [1], 8, temperature=2.0, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


class TwoInputs(nn.Module):
    """Takes ids and features by name; returns two tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(9, 8), eb.nn.BinaryLinear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.mix(self.embed(ids)) + features[:, None]
        return {"hidden": hidden, "logits": self.head(hidden.mean(dim=1))}


def test_a_model_of_several_inputs_and_outputs_takes_and_returns_them_by_name(tmp_path):
    model = TwoInputs().eval()
    example = {"ids": torch.randint(9, (4, 5)), "features": torch.randn(4, 8)}
    eb.pack(model, example).save(tmp_path / "two.ebits")
    packed = load_packed(tmp_path / "two.ebits")
    found = packed(features=example["features"].numpy(), ids=example["ids"].numpy())
    for name, expected in model(**example).items():
        np.testing.assert_allclose(found[name], expected.detach().numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="the model takes ids, features: give each once"):
        packed(example["ids"].numpy())


class MaskedDecoder(nn.Module):
    """Attention that looks back only, and never at masked tokens; ``way`` is how the mask is applied."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.embed, self.qkv = way, nn.Embedding(9, 8), eb.nn.BinaryLinear(8, 24)
        self.register_buffer("back", torch.ones(6, 6, dtype=torch.bool).tril())

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.embed(ids)).chunk(3, dim=-1)
        seen = mask.bool()[:, None] & self.back
        if self.way == "where":
            seen = torch.where(seen, 0.0, -1e9)
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)


@pytest.mark.parametrize("way", ["bool", "where"])
def test_a_mask_that_is_an_input_hides_tokens_in_the_packed_model(way):
    torch.manual_seed(0)
    model = MaskedDecoder(way).eval()
    ids, mask = torch.randint(9, (3, 6)), torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 1], [2, 0, 0, 0, 0, 0]])
    packed = eb.pack(model, (ids, mask))
    np.testing.assert_allclose(packed(ids.numpy(), mask.numpy()), model(ids, mask).detach().numpy(), atol=1e-6)
    other = ids.clone()
    other[1, 2:5] = (other[1, 2:5] + 1) % 9
    found = [packed(each.numpy(), mask.numpy())[1, [0, 1, 5]] for each in (ids, other)]
    np.testing.assert_array_equal(found[0], found[1])


MASKED = {
    "times": lambda hidden, seen: hidden * seen,
    "from the left": lambda hidden, seen: seen * hidden,
    "plus": lambda hidden, seen: hidden + seen,
    "of both": lambda hidden, seen: hidden * (seen * (hidden > 0)),
    "negated": lambda hidden, seen: hidden * ~seen,
    "filled": lambda hidden, seen: hidden + torch.where(~seen, -3.0, 0.0),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("way", MASKED)
def test_a_mask_that_is_an_input_counts_as_0_and_1(way, dtype):
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 8)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return MASKED[way](self.embed(ids), mask.bool()[:, :, None].expand(-1, -1, 8)).mean(dim=1)

    torch.manual_seed(0)
    model, ids, mask = Masked().eval(), torch.randint(9, (3, 6)), torch.randint(3, (3, 6)).to(dtype)
    expected = model(ids, mask).detach().numpy()
    np.testing.assert_allclose(eb.pack(model, (ids, mask))(ids.numpy(), mask.numpy()), expected, atol=1e-6)


def test_an_input_of_bools_is_one_in_the_packed_model_as_well():
    class Either(nn.Module):
        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return torch.where(~first, 5.0, 2.0) + (first + second)

    first, second = torch.tensor([[True, True, False, False]]), torch.tensor([[True, False, True, False]])
    packed = eb.pack(Either().eval(), (first, second))
    np.testing.assert_array_equal(packed(first.numpy(), second.numpy()), [[3.0, 3.0, 6.0, 5.0]])


def test_a_value_that_is_no_input_cannot_be_cast_to_bool():
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = eb.nn.BinaryLinear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1)).bool().float()

    with pytest.raises(ValueError, match=r"casts to torch\.bool, which rounds"):
        eb.pack(Rounded(), torch.randn(2, 8, 1, 1))


@pytest.mark.parametrize("tool", ["onnx", "openvino"])
def test_an_embedding_is_exported_to_other_runtimes(file, tokens, tool, tmp_path):
    packed = load_packed(file)
    row = tokens.numpy().astype(np.float32)[:, None, None]
    if tool == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
        export_onnx(packed, tmp_path / "gpt.onnx")
        found = onnxruntime.InferenceSession(tmp_path / "gpt.onnx").run(None, {"images": row})[0]
    else:
        openvino = pytest.importorskip("openvino")
        found = openvino.compile_model(build_openvino(packed.network, batch=3), "CPU", _EXACT)(row)[0]
    np.testing.assert_allclose(found, packed(tokens.numpy()), atol=1e-4)
