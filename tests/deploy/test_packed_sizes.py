"""A summary predicts the bytes of a packed file exactly, for every method and every input quantizer."""

import pytest
import torch
from torch import nn

from equalbits.analysis import audit, summarize
from equalbits.deploy import pack
from equalbits.nn import (
    BinaryConv2d,
    BinaryLinear,
    RSign,
    input_quantizer_by_name,
    list_input_quantizers,
    list_quantizers,
    quantizer_by_name,
)

_METHODS = [*list_quantizers(), *(f"abc-net:bases={n}" for n in (2, 3, 5)), "pruned-bihalf:sparsity=0.9"]
_INPUTS = [None, *sorted({*list_input_quantizers()} - {"rbnn", "horq"}), "hwgq:bits=2"]  # those two cannot be packed


def predicted_and_stored(model, *shape):
    images = torch.randn(2, *shape)
    packed = pack(model.eval(), images)
    return summarize(model, images).total["packed_bytes"], packed.summary().total("stored_bytes")


def net(weights="bihalf", inputs=None):
    """A binary convolution after a real one that could fold a batch norm, and a binary linear layer."""
    torch.manual_seed(0)
    chosen = {
        "weight_quantizer": quantizer_by_name(weights),
        "input_quantizer": None if inputs is None else input_quantizer_by_name(inputs),
    }
    return nn.Sequential(
        nn.Conv2d(3, 10, 3),
        BinaryConv2d(10, 7, 3, bias=False, **chosen),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Flatten(),
        BinaryLinear(7 * 16, 5, **chosen),
    )


#: One method of each form in which weights are stored: one scale, one per filter, shifted, several bases, with zeros.
_FORMS = ["bihalf", "xnor", "adabin", "abc-net:bases=3", "pruned-bihalf:sparsity=0.9"]


@pytest.mark.parametrize(
    ("weights", "inputs"),
    [*((name, None) for name in _METHODS), *((name, inputs) for name in _FORMS for inputs in ("sign", "rsign"))],
)
def test_of_every_method(weights, inputs):
    predicted, stored = predicted_and_stored(net(weights, inputs), 3, 8, 8)
    assert predicted == stored


_LEARNED = [name for name in _INPUTS if name and any(True for _ in input_quantizer_by_name(name).parameters())]


@pytest.mark.parametrize(
    ("inputs", "values"),
    [
        *((name, "as they start") for name in _INPUTS),
        *((name, values) for name in _LEARNED for values in ("as they are learned", "one of them learned")),
    ],
)
def test_of_every_input_quantizer(inputs, values):
    model = net(inputs=inputs)
    with torch.no_grad():
        for layer in (model[1], model[5]):
            learned = [] if layer.input_quantizer is None else list(layer.input_quantizer.parameters())
            for parameter in learned[: {"as they start": 0, "one of them learned": 1}.get(values)]:
                parameter.add_(torch.rand_like(parameter) + 0.1)
    predicted, stored = predicted_and_stored(model, 3, 8, 8)
    assert predicted == stored


def test_a_learned_shift_outside_a_layer_packs():
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), RSign(4), BinaryConv2d(4, 4, 3, padding=1), nn.Flatten()]
    predicted, stored = predicted_and_stored(nn.Sequential(*layers), 3, 8, 8)
    assert predicted == stored


@pytest.mark.parametrize("weights", ["bihalf", "sign", "irnet", "pruned-bihalf:sparsity=0.9"])
def test_the_audit_of_a_packed_model_is_the_models_to_the_letter(weights):
    model, images = net(weights), torch.randn(2, 3, 8, 8)
    packed = pack(model, images)
    assert str(packed.audit()) == str(audit(model))
    ours, theirs = (str(found).split("\n")[0].split() for found in (packed.summary(), summarize(model, images)))
    assert theirs[: len(ours)] == ours  # and what a file does not know, the inputs' bits
