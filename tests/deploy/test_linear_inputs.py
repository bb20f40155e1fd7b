"""Binary linear layers with rounded inputs: pack reports the change of the logits, or refuses it."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.deploy import PackError, pack
from equalbits.deploy.graph import to_network
from equalbits.deploy.pack_weights import round_linear_inputs
from equalbits.deploy.torch_export import trace_program
from equalbits.deploy.translate import translate
from equalbits.deploy.verify import _rounding_error, verify_native
from equalbits.nn import BinaryLinear, Sign, SignActivation
from equalbits.runtime import load_packed, native
from equalbits.runtime.engine import run_numpy


def mixed(seed=0):
    """A linear layer of bits on reals, one on signs, and a real one."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        BinaryLinear(8 * 36, 64),
        nn.BatchNorm1d(64),
        BinaryLinear(64, 32, input_quantizer=SignActivation()),
        nn.Linear(32, 5),
    ).eval()


def test_only_binary_layers_that_read_reals_are_rounded():
    model = nn.Sequential(*list(mixed())[:5], nn.Linear(64, 5)).eval()
    packed = pack(model, torch.randn(4, 3, 6, 6), linear_inputs="int8")
    linear = [operation for operation in packed.network.operations if operation.kind == "linear"]
    assert [operation.settings["input_bits"] for operation in linear] == [8, 32]
    graph = translate(trace_program(mixed(), torch.randn(2, 3, 6, 6)))
    round_linear_inputs(graph)
    assert [step.settings["input_bits"] for step in graph.steps if step.kind == "linear"] == [8, 32, 32]


def test_pack_reports_how_much_the_logits_change(tmp_path, caplog):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), BinaryLinear(300, 3)).eval()
    images = torch.randn(4, 3, 10, 10)
    with caplog.at_level(logging.INFO, "equalbits"):
        packed = pack(model, images, linear_inputs="int8")
    assert "linear_inputs='int8': 4 of 4 images keep their class; logits change by up to" in caplog.text
    answer = model(images).detach().numpy()
    moved = np.abs(packed(images.numpy()) - answer).max() / np.abs(answer).max()
    assert 1e-5 < moved < 0.02
    packed.save(tmp_path / "net.ebits")
    np.testing.assert_array_equal(load_packed(tmp_path / "net.ebits")(images.numpy()), packed(images.numpy()))


def test_the_default_stays_exact():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), BinaryLinear(300, 10)).eval()
    packed = pack(model, torch.randn(4, 3, 10, 10))
    assert packed.network.operations[-1].settings["input_bits"] == 32


def test_it_goes_together_with_a_rounded_rest(caplog):
    model = nn.Sequential(*list(mixed())[:5], nn.Linear(64, 5)).eval()
    with caplog.at_level(logging.INFO, "equalbits"):
        packed = pack(model, torch.randn(4, 3, 6, 6), rest="float16", linear_inputs="int8")
    assert "rest='float16'" in caplog.text
    assert "linear_inputs='int8'" in caplog.text
    assert packed.network.tensors["0.weight"].dtype == np.float16


def test_a_model_without_such_a_layer_is_refused():
    model = nn.Sequential(nn.Flatten(), BinaryLinear(12, 3, input_quantizer=SignActivation()))
    with pytest.raises(PackError, match="the model has no such layer: leave it at 'float32'"):
        pack(model, torch.randn(2, 3, 2, 2), linear_inputs="int8")
    with pytest.raises(PackError, match="linear_inputs='int4' is not known: choose one of 'float32', 'int8'"):
        pack(model, torch.randn(2, 3, 2, 2), linear_inputs="int4")


def test_logits_that_change_too_much_are_refused():
    """Two huge inputs that cancel leave no steps for the others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), BinaryLinear(12, 3, bias=False, weight_quantizer=Sign())).eval()
    images = torch.randint(-16, 17, (2, 3, 2, 2)) / 8  # sums are exact in any order
    images[:, 0, 0] = 1e4
    model[1].weight.data[:, 1] = -model[1].weight.data[:, 0]
    with pytest.raises(
        PackError, match=r"linear_inputs='int8' gives \d of 2 images another class, and changes logits by"
    ):
        pack(model, images, linear_inputs="int8")


@pytest.mark.skipif(native.BUILT is None, reason=native.REASON)
@pytest.mark.parametrize("seed", range(5))
def test_engines_that_round_a_tie_differently_are_accepted(seed):
    """Sums of a real convolution differ in their last bits, and sometimes round to either side of a tie."""
    model = mixed(seed)
    frozen = trace_program(nn.Sequential(*list(model)[:4]).eval(), torch.randn(8, 3, 6, 6))
    graph = translate(frozen)
    round_linear_inputs(graph)
    network, images = to_network(graph), frozen.images.numpy()
    verify_native(network, graph, images, (run_numpy(network, images),))


def test_a_sum_rounding_error_by_a_step_for_each_input_between_two_quantize_int8():
    found = _rounding_error(np.array([[127, 2.5, 7.51, 3], [0, 0, 0, 0], [254, 3, 5, 6]], np.float32))
    np.testing.assert_allclose(found, [[2], [0], [4]])


@pytest.mark.skipif(native.BUILT is None, reason=native.REASON)
def test_a_native_result_beyond_the_rounding_bound_is_refused():
    frozen = trace_program(nn.Sequential(nn.Flatten(), BinaryLinear(12, 3)).eval(), torch.randn(2, 3, 2, 2))
    graph = translate(frozen)
    round_linear_inputs(graph)
    network, images = to_network(graph), frozen.images.numpy()
    with pytest.raises(PackError, match="the native engine differs from numpy"):
        verify_native(network, graph, images, (run_numpy(network, images) + 1,))
