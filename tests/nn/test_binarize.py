"""``binarize_`` on plain torch models: layers replaced, layers left real with the reason, state kept."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import nn

from equalbits.nn import (
    BiHalf,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLayer,
    BinaryLinear,
    Candidate,
    Sign,
    SignActivation,
    all_layers,
    binarize_,
    inner_layers,
)


def mlp(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


class Block(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride, padding=1)
        self.branches = nn.ModuleList([nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 3, padding=1)])
        self.shortcut = nn.Sequential(nn.Conv2d(channels, channels, 3, stride, padding=1))

    def forward(self, inputs):
        outputs = self.conv(inputs)
        return sum(branch(outputs) for branch in self.branches) + self.shortcut(inputs)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleDict({"a": Block(4), "b": Block(4, stride=2)})
        self.reduce = nn.Conv2d(4, 4, 1, stride=2)
        self.fc = nn.Linear(16, 10)

    def forward(self, inputs):
        outputs = self.stem(inputs)
        for block in self.blocks.values():
            outputs = block(outputs)
        return self.fc(self.reduce(outputs).flatten(1))


def reasons(report) -> dict[str, str]:
    return dict(report.left_real)


def test_a_nested_model_keeps_its_first_last_and_downsampling_layers():
    model = Net()
    report = binarize_(model, BiHalf())
    assert report.replaced == tuple(f"blocks.{b}.{n}" for b in "ab" for n in ("conv", "branches.0", "branches.1"))
    assert reasons(report) == {
        "stem": "the first layer",
        "blocks.a.shortcut.0": "a downsampling layer (by its name)",
        "blocks.b.shortcut.0": "a downsampling layer (by its name)",
        "reduce": "a downsampling layer (its stride is no smaller than its kernel)",
        "fc": "the last layer",
    }
    assert all(isinstance(model.get_submodule(name), BinaryConv2d) for name in report.replaced)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_report_lists_every_decision():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)), nn.Flatten(), nn.Linear(16, 2))
    assert str(binarize_(model, BiHalf())) == (
        "1 layer made binary, 2 left real\n  binary  1.0\n  real    0  the first layer\n  real    3  the last layer"
    )
    assert str(binarize_(model, BiHalf(), where=all_layers)) == (
        "2 layers made binary, 0 left real, 1 binary before\n  binary  0\n  binary  3\n  before  1.0"
    )


@pytest.mark.parametrize(
    ("layer", "binary", "shape"),
    [
        (nn.Linear(6, 4, bias=False), BinaryLinear, (2, 6)),
        (nn.Conv1d(4, 6, 3, padding="same", groups=2, padding_mode="circular"), BinaryConv1d, (2, 4, 7)),
        (nn.Conv2d(4, 8, (3, 2), stride=(2, 1), dilation=2, groups=4), BinaryConv2d, (2, 4, 9, 9)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), BinaryConvTranspose2d, (2, 4, 5, 5)),
    ],
)
def test_every_layer_class_becomes_its_binary_class_with_all_settings(layer, binary, shape):
    model, inputs = nn.Sequential(copy.deepcopy(layer)), torch.randn(shape)
    binarize_(model, BiHalf(0.3), input_quantizer=SignActivation(), where=all_layers)
    made = model[0]
    assert type(made) is binary
    assert made.extra_repr() == layer.extra_repr()
    layer.weight.data = made.binary_weight().detach()
    assert torch.equal(made(inputs), layer(torch.where(inputs >= 0, 1.0, -1.0)))


def test_latents_are_the_original_parameters_so_existing_optimizers_update_them():
    model = mlp(4, 8, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weight, before = model[1].weight, model[1].weight.detach().clone()
    binarize_(model, BiHalf())
    assert model[1].weight is weight
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    assert torch.equal(weight, before - weight.grad)
    assert not torch.equal(weight, before)


def test_state_dict_keys_stay_and_the_real_checkpoint_loads():
    model = Net()
    checkpoint = copy.deepcopy(model.state_dict())
    binarize_(model, Sign())
    added = set(model.state_dict()) - set(checkpoint)
    assert added == {f"blocks.{b}.{n}.scale" for b in "ab" for n in ("conv", "branches.0", "branches.1")}
    model.load_state_dict(checkpoint, strict=True)


def test_a_layer_used_in_two_places_stays_one_layer():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(shared), nn.Sequential(shared, nn.ReLU()), nn.Linear(6, 2))
    report = binarize_(model, BiHalf())
    assert report.replaced == ("1.0",)
    assert isinstance(model[1][0], BinaryLinear)
    assert model[1][0] is model[2][0]
    assert len(list(model.parameters())) == 6


def test_a_shared_layer_may_be_named_by_either_of_its_names():
    shared = nn.Linear(6, 6)
    model = nn.ModuleDict({"encoder": shared, "decoder": shared})
    assert binarize_(model, BiHalf(), where="decoder").replaced == ("encoder",)
    assert model["encoder"] is model["decoder"]


def test_parameters_tied_between_layers_stay_tied():
    model = mlp(6, 6, 6, 6, 6)
    model[2].weight = model[1].weight
    model[3].weight = model[1].weight  # tied to a layer that stays real
    binarize_(model, BiHalf())
    assert model[1].weight is model[2].weight is model[3].weight
    assert torch.equal(model[1].symbols(), model[2].symbols())
    model(torch.randn(2, 6)).sum().backward()
    assert model[1].weight.grad is model[3].weight.grad


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("0", ["0"]),
        (["0", "3"], ["0", "3"]),
        ("[12]", ["1", "2"]),
        (("*",), ["0", "1", "2", "3"]),
        (lambda candidate: candidate.layer.in_features == 7, ["2"]),
        (lambda candidate: candidate.position % 2 == 1, ["1", "3"]),
        (all_layers, ["0", "1", "2", "3"]),
        (inner_layers, ["1", "2"]),
    ],
)
def test_layers_are_chosen_by_name_pattern_or_rule(where, expected):
    model = mlp(4, 6, 7, 5, 2)
    report = binarize_(model, BiHalf(), where=where)
    assert list(report.replaced) == expected
    assert [name for name, module in model.named_children() if isinstance(module, BinaryLayer)] == expected


def test_a_rule_sees_the_name_the_place_and_the_surroundings_of_each_layer():
    seen: list[Candidate] = []

    def watch(candidate: Candidate) -> bool | str:
        seen.append(candidate)
        return "too small" if candidate.layer.out_features < 6 else True

    model = nn.Sequential(nn.Embedding(9, 4), nn.Sequential(nn.Linear(4, 6)), nn.Linear(6, 2))
    report = binarize_(model, BiHalf(), where=watch)
    assert [(c.name, c.position, c.count, c.within) for c in seen] == [
        ("1.0", 1, 3, ("Sequential", "Sequential")),
        ("2", 2, 3, ("Sequential",)),
    ]
    assert reasons(report)["2"] == "too small"


def test_quantizers_are_copied_into_each_layer():
    quantizer, activation = BiHalf(0.3), SignActivation("decaying")
    model = mlp(4, 6, 6, 6, 2)
    binarize_(model, quantizer, input_quantizer=activation)
    model[1].weight_quantizer.p_pos = 0.7
    model[1].input_quantizer.progress.fill_(0.5)
    assert quantizer.p_pos == model[2].weight_quantizer.p_pos == 0.3
    assert activation.progress == model[2].input_quantizer.progress == 0


def test_hooks_stay_and_their_handles_still_remove_them():
    model, calls = mlp(4, 6, 6, 2), []
    handles = [
        model[1].register_forward_hook(lambda *_: calls.append("forward")),
        model[1].register_forward_pre_hook(lambda *_: calls.append("before")),
        model[1].weight.register_hook(lambda gradient: calls.append("gradient")),
    ]
    binarize_(model, BiHalf())
    model(torch.randn(2, 4)).sum().backward()
    assert calls == ["before", "forward", "gradient"]
    for handle in handles:
        handle.remove()
    model(torch.randn(2, 4)).sum().backward()
    assert len(calls) == 3


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_the_precision_and_frozen_latents_are_kept(training):
    model = mlp(4, 6, 6, 2).double().train(training)
    model[1].weight.requires_grad_(False)
    binarize_(model, BiHalf(), input_quantizer=SignActivation("decaying"))
    assert {module.training for module in model.modules()} == {training}
    assert {value.dtype for value in model.state_dict().values()} == {torch.float64}
    assert not model[1].weight.requires_grad


def test_the_replaced_layer_is_unchanged():
    model = mlp(4, 6, 6, 2)
    old = model[1]
    expected = old(torch.ones(1, 6))
    binarize_(model, BiHalf())
    assert type(old) is nn.Linear
    assert set(old.state_dict()) == {"weight", "bias"}
    assert torch.equal(old(torch.ones(1, 6)), expected)


def test_a_converted_model_can_be_copied_and_pickled():
    model, inputs = Net(), torch.randn(2, 3, 8, 8)
    binarize_(model, BiHalf(0.3), input_quantizer=SignActivation())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(inputs), model(inputs))
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}


class MyConv(nn.Conv2d):
    def forward(self, input):
        return super().forward(input * 2)


def test_layers_that_cannot_be_binary_are_left_real_with_the_reason():
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(10, 8),
            "mine": MyConv(3, 4, 3),
            "deep": nn.Conv3d(2, 2, 3),
            "hidden": nn.Linear(8, 8),
            "attention": nn.MultiheadAttention(8, 2),
            "memory": nn.LSTM(8, 8),
            "encoder": nn.TransformerEncoderLayer(8, 2, 16),
            "decoder": nn.TransformerDecoderLayer(8, 2, 16),
            "out": nn.Linear(8, 2),
        }
    )
    report = binarize_(model, BiHalf(), where=all_layers)
    assert report.replaced == ("hidden", "decoder.linear1", "decoder.linear2", "out")
    left = reasons(report)
    assert left["mine"] == f"of class {__name__}.MyConv, which may override forward"
    assert left["attention.out_proj"] == "MultiheadAttention accesses its .weight directly instead of calling the layer"
    assert (
        left["encoder.linear1"] == "TransformerEncoderLayer accesses its .weight directly instead of calling the layer"
    )
    for name in ("words", "deep", "memory", "attention"):
        assert "has no binary version" in left[name]


def test_a_layer_whose_forward_was_replaced_is_left_real():
    model = mlp(4, 6, 6, 6, 2)
    model[1].forward = model[1].forward
    report = binarize_(model, BiHalf())
    assert report.replaced == ("2",)
    assert reasons(report)["1"] == "its forward was replaced"


def test_a_first_layer_that_cannot_be_binary_is_still_the_first():
    model = nn.Sequential(MyConv(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), MyConv(4, 4, 3))
    assert binarize_(model, BiHalf()).replaced == ("1", "2")
