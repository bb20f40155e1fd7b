"""``audit`` counts every symbol, and reports exactly the filters that break a promise."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from equalbits.analysis import AuditError, EntropyWatcher, audit
from equalbits.nn import (
    MPT,
    BiHalf,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    Bits,
    IRNet,
    PrunedSign,
    Sign,
    WeightQuantizer,
)


class Broken(BiHalf):
    """Promises a share and breaks it in the filters named."""

    broken: tuple[int, ...] = ()
    forward = WeightQuantizer.forward

    def symbols(self, latents):
        symbols = super().symbols(latents)
        for index in self.broken:
            symbols[index].view(-1)[symbols[index].view(-1).argmin()] = 1.0
        return symbols


class WrongSigns(BiHalf):
    """Finds the right symbols and multiplies with others."""

    def forward(self, latents):
        return -super().forward(latents)


class Ternary(BiHalf):
    """Zeroes each filter's first weights, one more in each filter, and balances the rest."""

    forward = WeightQuantizer.forward

    def symbols(self, latents):
        from equalbits.functional import transport_symbols

        places = torch.arange(latents[0].numel()).expand(len(latents), -1)
        mask = (places >= torch.arange(len(latents))[:, None]).view(latents.shape)
        return transport_symbols(latents, self.p_pos, mask=mask)


def breaking(*filters: int) -> Broken:
    quantizer = Broken()
    quantizer.broken = filters
    return quantizer


@settings(max_examples=30, deadline=None)
@given(p_pos=st.floats(0, 1), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_bihalf_always_passes(p_pos, groups, seed):
    torch.manual_seed(seed)
    quantizer = BiHalf(p_pos)
    model = nn.Sequential(
        BinaryConv2d(3 * groups, 2 * groups, 3, groups=groups, weight_quantizer=quantizer),
        BinaryConvTranspose2d(2 * groups, 3 * groups, 3, groups=groups, weight_quantizer=quantizer),
        BinaryLinear(5, 7, weight_quantizer=quantizer),
    )
    report = audit(model)
    assert report.exact
    for layer in report.layers:
        assert layer.exact
        assert not layer.excess.any()
        assert (layer.negative + layer.positive == layer.connections).all()


def test_counts_are_those_of_the_symbols():
    layer = BinaryLinear(4, 2, weight_quantizer=Sign())
    layer.weight.data = torch.tensor([[1.0, -1.0, -2.0, 0.0], [3.0, 1.0, 1.0, 1.0]])
    (found,) = audit(nn.Sequential(layer)).layers
    assert found.negative.tolist() == [2, 0]
    assert found.positive.tolist() == [2, 4]
    assert found.zero.tolist() == [0, 0]
    assert found.entropy.tolist() == [1.0, 0.0]
    assert (found.filters, found.connections) == (2, 4)


@pytest.mark.parametrize("quantizer", [Sign(), IRNet()])
def test_a_method_that_promises_no_share_is_only_counted(quantizer):
    layer = BinaryLinear(6, 3, weight_quantizer=quantizer)
    layer.weight.data = torch.rand(3, 6) + torch.tensor([[0.0], [1.0], [2.0]])
    report = audit(nn.Sequential(layer))
    assert report.exact
    assert report.layers[0].exact is None
    assert report.layers[0].expected is None
    assert report.layers[0].excess is None
    assert "0 of 1 layers promise a share of +1" in str(report)


def test_the_error_names_the_first_inexact_filter_and_their_number():
    model = nn.Sequential(
        BinaryLinear(8, 4, weight_quantizer=BiHalf()),
        nn.Sequential(BinaryLinear(8, 6, weight_quantizer=breaking(2, 5))),
        BinaryLinear(8, 3, weight_quantizer=breaking(0)),
    )
    message = (
        r"layer '1\.0', filter 2 has 5 of \+1 among 8 weights, but p_pos=0\.5 requires 4; "
        r"3 filters in 2 layers are not exact"
    )
    with pytest.raises(AuditError, match=message):
        audit(model)
    report = audit(model, strict=False)
    assert not report.exact
    assert [layer.exact for layer in report.layers] == [True, False, False]
    assert report.layers[1].inexact.tolist() == [2, 5]
    assert report.layers[1].excess.tolist() == [0, 0, 1, 0, 0, 1]
    assert "3 of 13 filters are not exact" in str(report)
    assert issubclass(AuditError, ValueError)


def test_a_weight_whose_signs_differ_from_its_symbols_raises():
    model = nn.Sequential(BinaryLinear(8, 4, weight_quantizer=WrongSigns()))
    with pytest.raises(
        AuditError, match="filter 0 has a weight whose signs differ from its symbols; 4 filters in 1 layers"
    ):
        audit(model)


def test_a_scale_of_zero_raises():
    layer = BinaryLinear(8, 4)
    layer.scale.zero_()
    with pytest.raises(
        AuditError, match=r"whose signs differ from its symbols.*, or a layer scale that is not positive"
    ):
        audit(nn.Sequential(layer))


@pytest.mark.parametrize("value", [6e-10, -0.19, 2.5e29, float("nan")])
def test_a_constant_scale_that_no_method_starts_with_raises(value):
    model = nn.Sequential(BinaryLinear(8, 4, weight_quantizer=Sign()).bfloat16())
    audit(model)  # rounding to half precision is no difference
    model[0].scale.fill_(value)
    message = (
        r"layer '0' has scale .*, but Sign starts at 0\.5: a loader left it uninitialized; repair it by scale.fill_"
    )
    with pytest.raises(AuditError, match=message):
        audit(model)
    with pytest.warns(UserWarning, match=message):
        audit(model, strict=False)
    model[0].scale = nn.Parameter(model[0].scale)
    audit(model)  # a learned scale may be anything


def test_nan_latents_raise_with_the_name_of_their_layer():
    model = nn.Sequential(BinaryLinear(4, 2), BinaryLinear(2, 2))
    model[1].weight.data[0, 0] = float("nan")
    with pytest.raises(AuditError, match="layer '1': latents hold"):
        audit(model)


def test_in_pruned_filters_the_share_is_taken_among_the_kept_weights():
    layer = BinaryLinear(6, 7, weight_quantizer=Ternary(0.5))
    (found,) = audit(nn.Sequential(layer)).layers
    assert found.zero.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.positive.tolist() == found.expected.tolist() == [3, 3, 2, 2, 1, 1, 0]
    assert math.isnan(found.entropy[-1]), "nothing is left of it"
    assert found.as_dict()["entropy"][-1] is None


def test_the_report_counts_pruned_weights_and_filters_of_zeros():
    layers = [BinaryLinear(6, 7, weight_quantizer=Ternary(0.5)), BinaryLinear(4, 3)]
    assert str(audit(nn.Sequential(*layers))).endswith(
        "\n21 of 54 weights are 0 (38.89%); 1 of 10 filters are all zeros"
    )
    layers[0].weight_quantizer = PrunedSign(0.5, scope="global")
    layers[0].weight_quantizer.sieve.register_buffer("kept", torch.zeros(7, 6, dtype=torch.bool))
    shown = str(audit(nn.Sequential(layers[0]))).splitlines()
    assert shown[1].split() == ["0", "7×6", "0", "6", "0", "–", "–", "–"], "no entropy where nothing is left"
    assert shown[-1] == "42 of 42 weights are 0 (100.00%); 7 of 7 filters are all zeros"


def test_the_report_prints_a_table_and_converts_to_json():
    torch.manual_seed(0)
    model = nn.Sequential(BinaryConv2d(3, 16, 3), nn.Sequential(BinaryLinear(16, 4, weight_quantizer=BiHalf(0.25))))
    report = audit(model)
    assert str(report) == (
        "layer  filters×weights  of −1  of 0  of +1  expected  entropy  exact\n"
        "0                16×27     13     0     14        14   0.9990  yes\n"
        "1.0               4×16     12     0      4         4   0.8113  yes\n"
        "2 of 2 layers promise a share of +1; all 20 filters are exact"
    )
    read = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert read["exact"] is True
    assert read["layers"][1]["positive"] == read["layers"][1]["expected"] == [4] * 4
    assert read["layers"][0]["quantizer"] == "BiHalf(p_pos=0.5)"


def test_numbers_in_the_table_have_thousands_separators():
    shown = str(audit(nn.Sequential(BinaryLinear(2000, 1001)))).splitlines()
    assert shown[1].split()[:4] == ["0", "1,001×2,000", "1,000", "0"] and "all 1,001 filters" in shown[2]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_unchanged(training):
    model = nn.Sequential(BinaryLinear(8, 4)).train(training)
    model(torch.randn(2, 8)).sum().backward()
    before, gradient = model[0].weight.detach().clone(), model[0].weight.grad.clone()
    audit(model)
    assert model.training is training
    assert torch.equal(model[0].weight, before)
    assert torch.equal(model[0].weight.grad, gradient)


def test_a_model_without_binary_layers_raises():
    with pytest.raises(ValueError, match=r"Sequential has no binary layer: make some with equalbits\.binarize_"):
        audit(nn.Sequential(nn.Linear(3, 3)))


def test_a_single_layer_is_a_model():
    assert "(model)" in str(audit(BinaryLinear(4, 2)))


@pytest.mark.parametrize(
    "quantizer", [Sign(), IRNet("fixed"), MPT(), Bits(), BiHalf()], ids=lambda it: type(it).__name__
)
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_latents_that_are_not_finite_raise_with_the_name_of_their_layer(quantizer, value):
    model = nn.Sequential(BinaryLinear(8, 6), BinaryLinear(6, 4, weight_quantizer=quantizer))
    assert audit(model).exact
    model[1].weight.data[2] = value
    for strict in (True, False):
        with pytest.raises(AuditError, match=f"layer '1': latents hold {value}: only finite weights have symbols"):
            audit(model, strict=strict)


@pytest.fixture
def two_processes():
    """A fake process group of two; this process is rank 0 and nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("quantizer", [BiHalf(), Sign()], ids=["bihalf", "sign"])
def test_sharded_latents_raise_with_a_remedy(two_processes, quantizer):
    model = nn.Sequential(BinaryLinear(8, 6, weight_quantizer=quantizer))
    fully_shard(model[0], mesh=two_processes)
    with pytest.raises(AuditError, match=r"layer '0': the latents are sharded: call unshard\(\)"):
        audit(model)
    with pytest.raises(ValueError, match="latents are sharded"):
        EntropyWatcher()(model, 0)
