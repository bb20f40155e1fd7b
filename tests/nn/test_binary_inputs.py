"""Layers whose binary input is constant are named, and a net whose ReLUs are replaced learns."""

from collections import UserDict
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.analysis import summarize
from equalbits.nn import (
    BiHalf,
    BinaryConv2d,
    BinaryLayer,
    BinaryLinear,
    Sign,
    SignActivation,
    adapt_for_binary_inputs_,
    binarize_,
)
from equalbits.nn.forward_checks import run_in_eval


def relu_net(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(16, 32), nn.BatchNorm1d(32), activation(), nn.Linear(32, 32), nn.BatchNorm1d(32), activation()),
        *(nn.Linear(32, 32), nn.BatchNorm1d(32), activation(), nn.Linear(32, 2)),
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two classes: equal or opposite signs of two values, which is not linearly separable."""
    inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def accuracy_after_training(model: nn.Module) -> float:
    inputs, labels = data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nnf.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == labels).float().mean())


@pytest.mark.filterwarnings("ignore:a binary layer's input is constant")
def test_a_relu_net_with_binary_inputs_learns_only_once_it_is_adapted():
    model = relu_net()
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    assert accuracy_after_training(model) < 0.65
    model = relu_net()
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    report = adapt_for_binary_inputs_(model, data()[0])
    assert report.replaced == ("2", "5") and report.constant == (), "the last ReLU feeds a real layer"
    assert isinstance(model[2], nn.PReLU) and isinstance(model[8], nn.ReLU)
    assert accuracy_after_training(model) > 0.9


def test_the_report_of_a_conversion_and_the_summary_name_layers_with_a_constant_input():
    model, inputs = relu_net(), data()[0]
    report = binarize_(model, BiHalf(), input_quantizer=SignActivation(), example=inputs)
    assert report.constant == report.replaced == ("3", "6")
    assert "2 have a constant binary input: call adapt_for_binary_inputs_\n  binary  3  (constant input)" in str(report)
    summary = summarize(model, inputs)
    assert [layer.name for layer in summary.layers if layer.constant_input] == ["3", "6"]
    assert str(summary).endswith("\nconstant binary input, no learning (see adapt_for_binary_inputs_): 3, 6")
    adapt_for_binary_inputs_(model, inputs)
    assert "constant" not in str(summarize(model, inputs))
    real_inputs = binarize_(relu_net(), BiHalf(), example=inputs)
    assert real_inputs.constant == (), "real inputs are not constant"


def test_the_first_training_step_warns_of_a_constant_input_once():
    model, inputs = relu_net(), data()[0]
    binarize_(model, Sign(), input_quantizer=SignActivation())
    model.eval()(inputs)
    with pytest.warns(UserWarning, match=r"input is constant, as the sign of a ReLU's output is.*adapt_for_binary_in"):
        model.train()(inputs)
    model(inputs)  # warnings are errors here
    torch.manual_seed(0)
    other = nn.Sequential(BinaryLinear(16, 4, input_quantizer=SignActivation()))
    other(inputs)
    other(torch.ones(8, 16))


class Residual(nn.Module):
    """A block as torchvision writes it: one ReLU module used twice, and a sum before the second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm1, self.norm2, self.relu = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, images):
        outputs = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(images)))))
        outputs += images
        return self.relu(outputs)


class Net(nn.Module):
    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.stem, self.act, self.blocks = nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Sequential(Residual(), Residual())
        self.gate, self.head = nn.ReLU(), nn.Linear(4, 5)
        self.functional = functional

    def forward(self, images):
        features = self.stem(images)
        features = nnf.relu(features) if self.functional else self.act(features)
        features = nnf.max_pool2d(nnf.dropout(features, training=self.training), 2)
        return self.head(self.gate(self.blocks(features).mean(dim=(2, 3))))


@pytest.mark.parametrize(
    "example",
    [
        UserDict(points=torch.randn(4, 16)),  # as the batches of a tokenizer
        (MappingProxyType({"points": torch.randn(4, 16)}),),
        (SimpleNamespace(points=torch.randn(4, 16)),),  # as a batch of graphs
        ["a text", "another"],
    ],
)
def test_an_example_may_be_any_batch_that_the_model_takes(example):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = relu_net()

        def forward(self, batch=None, *, points=None):
            if isinstance(batch, list):
                points = torch.tensor([[float(len(text))] * 16 for text in batch])
            elif batch is not None:
                points = batch["points"] if isinstance(batch, MappingProxyType) else batch.points
            return self.layers(points)

    report = binarize_(Net(), BiHalf(), example=example)
    assert report.replaced == ("layers.3", "layers.6")


@pytest.mark.parametrize("example", [(1, 3, 8, 8), torch.Size([1, 3, 8, 8]), [1, 3, 8, 8], 3, None, (), {}])
def test_an_example_without_inputs_raises_with_the_remedy(example):
    with pytest.raises(ValueError, match=r"give a batch of inputs, as in torch\.randn"):
        run_in_eval(relu_net(), example)


def binary_net(**settings: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Net(**settings)
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    return model


def test_an_activation_is_found_through_pooling_sums_and_dropout():
    model = binary_net().double()
    report = adapt_for_binary_inputs_(model, torch.randn(2, 3, 14, 14).double(), activation=nn.Hardtanh)
    assert report.replaced == ("act", "blocks.0.relu", "blocks.1.relu") and report.constant == ()
    assert str(report).startswith("3 activations replaced by Hardtanh\n  replaced  act\n")
    assert isinstance(model.gate, nn.ReLU) and model.training
    model = binary_net().double()
    adapt_for_binary_inputs_(model, torch.randn(2, 3, 14, 14).double())
    assert model.act.weight.dtype == torch.float64


def test_a_layer_behind_a_functional_relu_is_reported():
    report = adapt_for_binary_inputs_(binary_net(functional=True), torch.randn(2, 3, 14, 14))
    assert report.constant == ("blocks.0.conv1",)
    assert "  constant  blocks.0.conv1  its input has one sign, and no ReLU module makes it" in str(report)


def test_without_an_example_every_relu_is_replaced():
    model = binary_net()
    assert adapt_for_binary_inputs_(model).replaced == ("act", "blocks.0.relu", "blocks.1.relu", "gate")
    assert not any(isinstance(module, nn.ReLU | nn.ReLU6) for module in model.modules())
    with pytest.raises(ValueError, match="no layer has binary inputs: call binarize_"):
        adapt_for_binary_inputs_(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), BinaryLinear(4, 2)))


def test_watching_leaves_the_model_and_the_inputs_unchanged():
    model, images = binary_net(), torch.randn(2, 3, 14, 14)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    summarize(model, images)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(hasattr(tensor, "_rectified_by") for tensor in (images, *model.parameters(), *model.buffers()))


def test_a_compiled_step_does_not_check_its_input():
    layer = BinaryConv2d(4, 4, 3, input_quantizer=SignActivation())
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    compiled(torch.ones(2, 4, 8, 8))  # warnings are errors here
    assert isinstance(layer, BinaryLayer) and not layer.input_is_checked
