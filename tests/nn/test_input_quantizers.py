"""Input quantizers and output layers equal their formulas."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from equalbits.nn import (
    HWGQ,
    AdaBinActivation,
    BiHalfActivation,
    BinaryConnect,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    GatedScale,
    LearnedScale,
    Maxout,
    RBNNActivation,
    RPReLU,
    RSign,
    SwishSignActivation,
    binarize_,
    input_quantizer_by_name,
    list_input_quantizers,
    set_progress,
)


def approx_sign_slope(x):
    return np.maximum(0, 2 - 2 * np.abs(x))


def test_rsign_shifts_each_channel_and_learns_the_shift():
    random = np.random.default_rng(0)
    reals, gradient, shift = random.normal(size=(4, 3, 5)), random.normal(size=(4, 3, 5)), random.normal(size=3)
    module = RSign(3).double()
    with torch.no_grad():
        module.shift.copy_(torch.tensor(shift))
    inputs = torch.tensor(reals, requires_grad=True)
    outputs = module(inputs)
    outputs.backward(torch.tensor(gradient))
    moved = reals + shift[:, None]
    assert np.array_equal(outputs.detach().numpy(), np.where(moved >= 0, 1.0, -1.0))
    np.testing.assert_allclose(inputs.grad.numpy(), gradient * approx_sign_slope(moved))
    np.testing.assert_allclose(module.shift.grad.numpy(), (gradient * approx_sign_slope(moved)).sum(axis=(0, 2)))


def test_rsign_and_rprelu_keep_the_dtype_of_their_inputs_and_half_the_memory_under_autocast():
    inputs = torch.randn(4, 8, 6, 6, dtype=torch.bfloat16, requires_grad=True)
    kept = []
    keep = lambda x: kept.append(x) or x  # noqa: E731
    shifts = torch.linspace(-0.3, 0.2, 8)
    for module in (RSign(8), RPReLU(8)):
        for parameter in module.parameters():
            nn.init.constant_(parameter, 0.25).data += shifts
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16):
            outputs = module(inputs)
        assert outputs.dtype == torch.bfloat16
        wide = copy.deepcopy(module)
        expected = wide(inputs.detach().float().requires_grad_())
        torch.testing.assert_close(outputs.float(), expected, rtol=0.02, atol=0.01)
        seed = torch.randn(4, 8, 6, 6)
        outputs.backward(seed.bfloat16())
        expected.backward(seed.bfloat16().float())
        for mine, theirs in zip(module.parameters(), wide.parameters(), strict=True):
            assert mine.grad.dtype == torch.float32
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0.05, atol=0.3)
    assert all(x.dtype == torch.bfloat16 for x in kept if x.numel() == inputs.numel())


def test_rsign_without_channels_is_fitted_by_its_layer():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 3), nn.Conv2d(4, 2, 1))
    binarize_(net, BinaryConnect(), input_quantizer=RSign())
    fresh = copy.deepcopy(net)
    inputs = torch.randn(2, 1, 9, 9)
    outputs = net(inputs)
    assert [len(net[i].input_quantizer.shift) for i in (1, 2)] == [3, 5]
    fresh.load_state_dict(net.state_dict())
    torch.testing.assert_close(fresh(inputs), outputs)
    assert repr(RSign()) == "RSign()"
    with pytest.raises(ValueError, match="no parameters yet: a layer makes them"):
        RSign()(inputs)
    assert repr(fresh[1].input_quantizer) == "RSign(channels=3)"


def test_adabin_inputs_take_two_learned_values():
    random = np.random.default_rng(1)
    reals, gradient, a, b = random.normal(size=(4, 3)), random.normal(size=(4, 3)), 0.7, -0.2
    module = AdaBinActivation().double()
    assert (float(module.distance.detach()), float(module.centre.detach())) == (1.0, 0.0)
    with torch.no_grad():
        module.distance.fill_(a)
        module.centre.fill_(b)
    inputs = torch.tensor(reals, requires_grad=True)
    outputs = module(inputs)
    outputs.backward(torch.tensor(gradient))
    h = (reals - b) / a
    signs, slope = np.where(h >= 0, 1.0, -1.0), approx_sign_slope(h)
    np.testing.assert_allclose(outputs.detach().numpy(), a * signs + b)
    np.testing.assert_allclose(inputs.grad.numpy(), gradient * slope)
    assert module.distance.grad.item() == pytest.approx((gradient * (signs - slope * h)).sum())
    assert module.centre.grad.item() == pytest.approx((gradient * (1 - slope)).sum())


def test_bihalf_inputs_are_balanced_in_training_and_take_their_sign_in_eval():
    module, inputs = BiHalfActivation(0.25), torch.randn(8, 3, 4, 4) + 2
    assert (module(inputs) == 1).sum(dim=(0, 2, 3)).tolist() == [32] * 3
    assert torch.equal(module.eval()(inputs - 2), torch.where(inputs >= 2, 1.0, -1.0))
    assert repr(module) == "BiHalfActivation(p_pos=0.25)"


@pytest.mark.parametrize("name", list_input_quantizers())
@pytest.mark.parametrize(
    ("make", "shape"),
    [(BinaryConv1d, (3, 9)), (BinaryConv2d, (3, 4, 5)), (BinaryConvTranspose2d, (3, 4, 5))],
)
def test_an_unbatched_input_equals_a_batch_of_one(name, make, shape):
    layer, inputs = make(3, 2, 1, input_quantizer=input_quantizer_by_name(name)), torch.randn(shape) + 0.5
    for training in (True, False):
        layer.train(training)
        assert torch.equal(layer.quantize_input(inputs), layer.quantize_input(inputs[None])[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", list_input_quantizers())
def test_outputs_in_eval_are_the_same_with_and_without_gradient(name, dtype):
    quantizer = input_quantizer_by_name(name).eval()
    quantizer = BinaryConv2d(3, 2, 3, input_quantizer=quantizer).input_quantizer.to(dtype).eval()
    inputs = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    inputs[0, 0, 0, :2] = torch.tensor([0.0, -0.0])
    with_gradient = quantizer(inputs.requires_grad_())
    with torch.no_grad():
        without = quantizer(inputs)
    assert without.dtype == with_gradient.dtype and torch.equal(without, with_gradient)


@pytest.mark.parametrize(("progress", "t"), [(0.0, 1.0), (0.5, 1.0), (5 / 6, 10**0.5), (1.0, 10.0)])  # from 0.01 to 10
def test_rbnn_inputs_are_standardized_per_sample_with_a_triangle_slope(progress, t):
    random = np.random.default_rng(2)
    reals, gradient = random.normal(0.3, 2.0, (4, 3, 5, 2)), random.normal(size=(4, 3, 5, 2))
    module = RBNNActivation().double()
    set_progress(module, progress)
    inputs = torch.tensor(reals, requires_grad=True)
    outputs = module(inputs)
    outputs.backward(torch.tensor(gradient))
    for x, g, found, slopes in zip(reals, gradient, outputs.detach().numpy(), inputs.grad.numpy(), strict=True):
        spread = x.std(ddof=1)
        h = (x - x.mean()) / spread
        assert np.array_equal(found, np.where(h >= 0, 1.0, -1.0))
        back = g * np.maximum(0, 2 * np.sqrt(t**2 / 2) - t**2 * np.abs(h))
        expected = (back - back.mean() - h * (back * h).sum() / (x.size - 1)) / spread
        np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-12)


def test_rbnn_inputs_in_half_precision_use_a_float32_mean():
    inputs = (torch.randn(2, 3, 8, 8) + 100).bfloat16().requires_grad_()
    outputs = RBNNActivation()(inputs)
    exact = inputs.detach().double()
    assert torch.equal(outputs.double(), torch.where(exact >= exact.mean(dim=(1, 2, 3), keepdim=True), 1.0, -1.0))
    outputs.sum().backward()
    assert (outputs.dtype, inputs.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    assert repr(RBNNActivation(t_max=5.0)) == "RBNNActivation(t_max=5.0)"


def test_swish_sign_and_hwgq_use_their_settings():
    inputs = torch.tensor([0.0, 0.5], requires_grad=True)
    SwishSignActivation(3.0)(inputs).sum().backward()
    assert float(inputs.grad[0]) == pytest.approx(3.0)
    assert HWGQ(2)(torch.tensor([-1.0, 5.0])).tolist() == [0.0, pytest.approx(1.614)]
    assert [repr(SwishSignActivation(3.0)), repr(HWGQ(2))] == ["SwishSignActivation(beta=3.0)", "HWGQ(bits=2)"]
    with pytest.raises(ValueError, match="above 0"):
        SwishSignActivation(-1.0)
    with pytest.raises(ValueError, match="has 1 or 2"):
        HWGQ(4)


@pytest.mark.parametrize("name", sorted({*list_input_quantizers(), "horq:order=1"} - {"horq"}))
def test_every_input_quantizer_works_in_a_binary_layer(name):
    layer = BinaryConv2d(3, 4, 3, input_quantizer=input_quantizer_by_name(name))
    inputs = torch.randn(1 if name.startswith("horq") else 4, 3, 6, 6, requires_grad=True)  # its values are per image
    layer(inputs).square().sum().backward()
    assert inputs.grad.isfinite().all()
    assert inputs.grad.abs().sum() > 0
    assert len(layer.quantize_input(inputs).unique()) == 2


@pytest.mark.parametrize(
    ("form", "count"), [("channel", 4), ("dense", 4 * 15), ("channel-map", 4 + 15), ("rank-1", 4 + 3 + 5)]
)
def test_a_learned_scale_multiplies_by_the_product_of_its_factors(form, count):
    torch.manual_seed(0)
    scale = LearnedScale(4, None if form == "channel" else (3, 5), form=form)
    assert sum(p.numel() for p in scale.parameters()) == count
    outputs = torch.randn(2, 4, 3, 5)
    assert torch.equal(scale(outputs), outputs)  # all factors start at 1
    with torch.no_grad():
        for factor in scale.factors:
            factor.normal_()
    expected = outputs.clone()
    for c, h, w in np.ndindex(4, 3, 5):
        for factor in scale.factors:
            expected[:, c, h, w] *= factor[min(c, factor.shape[0] - 1), min(h, factor.shape[1] - 1), min(w, factor.shape[2] - 1)].detach()  # fmt: skip # noqa: E501
    torch.testing.assert_close(scale(outputs).detach(), expected)


def test_a_learned_scale_checks_the_output_size():
    assert LearnedScale(4).form == "channel"
    assert LearnedScale(4, (3, 5)).form == "rank-1"
    assert LearnedScale(4)(torch.randn(2, 4)).shape == (2, 4)
    with pytest.raises(ValueError, match=r"built for \(3, 5\)"):
        LearnedScale(4, (3, 5))(torch.randn(2, 4, 4, 4))
    with pytest.raises(ValueError, match="need size="):
        LearnedScale(4, form="dense")
    with pytest.raises(ValueError, match="choose one of"):
        LearnedScale(4, form="rows")


def test_a_gate_scales_each_output_channel_by_its_real_inputs():
    torch.manual_seed(0)
    gate = GatedScale(16, 5).double()
    inputs, outputs = (torch.randn(2, c, 4, 3, dtype=torch.float64) for c in (16, 5))
    assert gate.reduce.weight.shape == (2, 16)
    pooled = inputs.numpy().mean(axis=(2, 3))
    hidden = np.maximum(0, pooled @ gate.reduce.weight.detach().numpy().T)
    factor = 1 / (1 + np.exp(-hidden @ gate.expand.weight.detach().numpy().T))
    np.testing.assert_allclose(gate(outputs, inputs).detach().numpy(), outputs.numpy() * factor[:, :, None, None])
    assert gate(torch.ones(2, 5).double(), inputs[..., 0, 0]).shape == (2, 5)
    assert GatedScale(4, 5).reduce.weight.shape == (1, 4)


def test_rprelu_and_maxout_are_their_formulas():
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 4, dtype=torch.float64)
    x = inputs.numpy()
    moved, maxout = RPReLU(3).double(), Maxout(3).double()
    np.testing.assert_allclose(moved(inputs).detach().numpy(), np.where(x > 0, x, 0.25 * x))
    np.testing.assert_allclose(maxout(inputs).detach().numpy(), np.where(x > 0, x, 0.25 * x))
    with torch.no_grad():
        for parameter in (*moved.parameters(), *maxout.parameters()):
            parameter.normal_()
    before, after, slope, positive, negative = (
        p.detach().numpy()[:, None] for p in (moved.before, moved.after, moved.slope, maxout.positive, maxout.negative)
    )
    expected = np.where(x + before > 0, x + before, slope * (x + before)) + after
    np.testing.assert_allclose(moved(inputs).detach().numpy(), expected)
    np.testing.assert_allclose(maxout(inputs).detach().numpy(), np.where(x > 0, positive * x, negative * x))
    assert [repr(moved), repr(maxout)] == ["RPReLU(3)", "Maxout(3)"]


@pytest.mark.parametrize(
    "make", [lambda: LearnedScale(4, (3, 5)), lambda: GatedScale(16, 5), lambda: RPReLU(3), lambda: Maxout(3)]
)
def test_output_layers_are_initialized_again_after_to_empty(make):
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        parameter.data.fill_(float("nan"))
    torch.manual_seed(4)
    module.reset_parameters()
    torch.manual_seed(4)
    for ours, new in zip(module.parameters(), make().parameters(), strict=True):
        assert ours.isfinite().all()
        assert isinstance(module, GatedScale) or torch.equal(ours, new)  # its linear layers draw twice
