"""``binarize_`` refuses in one line what it cannot do, and then changes nothing."""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from equalbits.nn import BiHalf, BinaryLayer, BinaryLinear, Bits, SignActivation, all_layers, binarize_


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.LazyLinear(6), "layer '1' is lazy and not initialized: run one batch"),
        (lambda: parametrizations.weight_norm(nn.Linear(6, 6)), "remove_parametrizations"),
        (lambda: parametrizations.orthogonal(nn.Linear(6, 6)), "layer '1' computes its weight from other parameters"),
        (lambda: old_weight_norm(nn.Linear(6, 6)), "remove_weight_norm"),
        (lambda: nn.utils.spectral_norm(nn.Linear(6, 6)), "remove_spectral_norm"),
        (lambda: prune.l1_unstructured(nn.Linear(6, 6), "weight", 0.5), r"prune\.remove"),
    ],
)
def test_a_parametrized_or_lazy_layer_raises_and_nothing_changes(layer, message):
    model = nn.Sequential(nn.Linear(6, 6), layer(), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    before = list(model.modules())
    with pytest.raises(ValueError, match=message):
        binarize_(model, BiHalf())
    assert list(model.modules()) == before
    assert binarize_(model, BiHalf(), where=["2", "3"]).replaced == ("2", "3"), "left out, it does no harm"


def test_the_error_for_a_model_without_candidates_names_every_reason_once():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(ValueError, match="nothing to make binary") as caught:
        binarize_(model, BiHalf(), where=all_layers)
    line = str(caught.value)
    assert "where=" not in line
    assert line.count("TransformerEncoderLayer accesses its .weight directly instead of calling the layer") == 1
    assert "'layers.0.self_attn' is left real: " in line


def test_nothing_changes_when_a_quantizer_raises_for_a_later_layer():
    class Picky(BiHalf):
        def fit_(self, latents):
            if latents.shape[0] == 7:
                raise ValueError("seven filters")

    model = mlp(4, 6, 7, 2)
    with pytest.raises(ValueError, match="seven filters"):
        binarize_(model, Picky(), where=all_layers)
    assert not any(isinstance(module, BinaryLayer) for module in model.modules())


def test_weights_changed_by_fit_are_restored_when_a_later_layer_raises():
    model = mlp(4, 6, 7, 2)
    nn.init.constant_(model[1].weight, float("nan"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match="only finite weights have symbols"):
        binarize_(model, Bits(p_pos=0.5), where=all_layers)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True) if not b.isnan().any())


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (nn.Sequential(nn.ReLU()), {}, "nothing to make binary: no layer can be binary"),
        (nn.Sequential(nn.ReLU()), {"where": "0"}, "no layer can be binary; the model needs nn.Linear"),
        (
            nn.Sequential(nn.Bilinear(2, 2, 2)),
            {"where": all_layers},
            "'0' is left real: of class Bilinear, which has no",
        ),
        (mlp(4, 6, 2), {}, "where= selects none of 2 layers; pass where=all_layers"),
        (mlp(4, 6, 2), {"where": lambda candidate: False}, "where= selects none"),
        (mlp(4, 6, 2), {"where": []}, "where= selects none"),
        (mlp(4, 6, 2), {"where": "conv*"}, r"where='conv\*' matches no layer that can be binary; there are: 0, 1"),
        (mlp(4, 6, 2), {"where": ["0", "O"]}, "where='O' matches no layer"),
        (nn.Linear(4, 2), {}, "the model is a single Linear, .* wrap it in nn.Sequential"),
        (nn.Sequential(BinaryLinear(4, 2)), {}, "no layer can be binary; 1 are binary already"),
    ],
)
def test_converting_nothing_raises(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        binarize_(model, BiHalf(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_quantizer": BiHalf}, "weight_quantizer is the class BiHalf"),
        ({"weight_quantizer": "byhalf"}, "weight quantizer 'byhalf' is not known: did you mean 'bihalf'"),
        ({"weight_quantizer": None}, "weight_quantizer is a NoneType: pass a WeightQuantizer"),
        ({"weight_quantizer": BiHalf(), "input_quantizer": SignActivation}, "input_quantizer is the class"),
    ],
)
def test_an_object_that_is_no_quantizer_raises(arguments, message):
    model = mlp(4, 6, 6, 2)
    with pytest.raises(ValueError, match=message):
        binarize_(model, **arguments)
    assert type(model[1]) is nn.Linear


class Conv1D(nn.Module):
    """A linear layer with its weight transposed, as GPT-2 has it; no subclass of a layer of torch."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs):
        return inputs @ self.weight + self.bias


def language_model() -> nn.ModuleDict:
    model = nn.ModuleDict({"words": nn.Embedding(9, 8), "attn": Conv1D(8, 8), "norm": nn.LayerNorm((2, 8))})
    model["lm_head"] = nn.Linear(8, 9, bias=False)
    model["lm_head"].weight = model["words"].weight
    return model


@pytest.mark.parametrize("where", [{}, {"where": all_layers}])
def test_a_foreign_layer_and_a_tied_head_are_named_with_the_remedy(where):
    with pytest.raises(ValueError, match="nothing to make binary: no layer can be binary") as caught:
        binarize_(language_model(), BiHalf(), **where)
    line = str(caught.value)
    assert f"'attn' is left real: of class {__name__}.Conv1D, which is no layer of torch" in line
    assert "'lm_head' is left real: tied to the embedding 'words', which reads the weight as it is" in line
    assert line.endswith("; replace layers such as 'attn' by nn.Linear or a convolution first")
    assert "norm" not in line


class StandardizedConv(nn.Conv2d):
    """A convolution that standardizes its weight, as timm's ScaledStdConv2d does."""

    def forward(self, inputs):
        weight = (self.weight - self.weight.mean((1, 2, 3), keepdim=True)) / self.weight.std((1, 2, 3), keepdim=True)
        return self._conv_forward(inputs, weight, self.bias)


def test_a_model_whose_convolutions_all_override_forward_is_told_to_replace_them():
    model = nn.Sequential(StandardizedConv(3, 4, 3), StandardizedConv(4, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(ValueError, match="which may override forward") as caught:
        binarize_(model, BiHalf())
    assert str(caught.value).endswith("; replace layers such as '0' by nn.Linear or a convolution first")
    plain = nn.Conv2d(4, 4, 3)
    plain.load_state_dict(model[1].state_dict())
    model[1] = plain
    assert binarize_(model, BiHalf()).replaced == ("1",)


def test_complex_weights_are_left_real():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 4), nn.Linear(4, 4))
    report = binarize_(model, BiHalf())
    assert report.replaced == ("2",)
    assert dict(report.left_real)["1"] == "its weights are torch.complex64: only real numbers have a sign"


@pytest.mark.parametrize("where", [{}, {"where": all_layers}])
def test_lora_adapters_are_left_real(where):
    adapters = nn.ModuleDict({"base_layer": nn.Linear(4, 4)})
    adapters.update({name: nn.ModuleDict({"default": nn.Linear(4, 4)}) for name in ("lora_A", "lora_B")})
    report = binarize_(
        nn.ModuleDict({"first": nn.Linear(4, 4), "query": adapters, "last": nn.Linear(4, 4)}), BiHalf(), **where
    )
    assert "query.base_layer" in report.replaced
    left = dict(report.left_real)
    assert left["query.lora_A.default"] == left["query.lora_B.default"] == "a LoRA adapter"
