"""Initialization of binary layers: reset, on ``meta``, or from another layer or method."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from equalbits.nn import (
    MPT,
    RBNN,
    XNOR,
    AdaBinActivation,
    BiHalf,
    BiHalfActivation,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLinear,
    Bits,
    BNNPlus,
    IRNet,
    PrunedBiHalf,
    PrunedSign,
    RSign,
    Sign,
    SignActivation,
    all_layers,
    binarize_,
    list_quantizers,
    quantizer_by_name,
)

METHODS = [*list_quantizers(), "pruned-bihalf:by=score,scope=global", "pruned-sign:scope=global,ramp=0.1"]


def spoil(layer: nn.Module) -> None:
    """What fresh memory may hold."""
    for tensor in (*layer.parameters(), *layer.buffers()):
        tensor.data.fill_(False if tensor.dtype is torch.bool else float("nan"))


@pytest.mark.parametrize("name", METHODS)
def test_a_meta_layer_equals_a_new_one_after_reset_parameters(name):
    settings = {"weight_quantizer": quantizer_by_name(name), "input_quantizer": SignActivation("decaying")}
    with torch.device("meta"):
        layer = BinaryLinear(16, 6, **settings)
    layer.to_empty(device="cpu")
    spoil(layer)
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    new = BinaryLinear(16, 6, **settings)
    assert list(layer.state_dict()) == list(new.state_dict())
    for key, value in new.state_dict().items():
        assert torch.equal(layer.state_dict()[key], value), key


def test_reset_parameters_resets_a_learned_scale():
    layer = BinaryLinear(16, 6, weight_quantizer=PrunedBiHalf(0.8, by="score"))
    held = layer.scale = nn.Parameter(layer.scale.clone())
    spoil(layer)
    torch.manual_seed(3)
    layer.reset_parameters()
    torch.manual_seed(3)
    new = BinaryLinear(16, 6, weight_quantizer=PrunedBiHalf(0.8, by="score"))
    assert layer.scale is held and held.requires_grad
    for key, value in new.state_dict().items():
        assert torch.equal(layer.state_dict()[key], value), key


@pytest.mark.parametrize("quantizer", [RSign(), RSign(8), AdaBinActivation()], ids=["RSign", "RSign8", "AdaBin"])
def test_reset_parameters_resets_learned_input_quantizers(quantizer):
    new = BinaryConv2d(8, 4, 3, input_quantizer=quantizer)
    with torch.device("meta"):
        layer = BinaryConv2d(8, 4, 3, input_quantizer=quantizer)
    layer.to_empty(device="cpu")
    spoil(layer)
    layer.reset_parameters()
    for key, value in new.input_quantizer.state_dict().items():
        assert torch.equal(layer.input_quantizer.state_dict()[key], value)


def test_reset_parameters_keeps_the_tensors_an_optimizer_holds():
    layer = BinaryLinear(8, 3, weight_quantizer=RBNN())
    held = {name: tensor.data_ptr() for name, tensor in layer.state_dict().items()}
    gains = layer.weight_quantizer.gains
    layer.reset_parameters()
    assert layer.weight_quantizer.gains is gains
    assert {name: tensor.data_ptr() for name, tensor in layer.state_dict().items()} == held
    torch.testing.assert_close(gains.detach(), layer.weight.detach().abs().mean(dim=1))


@pytest.mark.parametrize("quantizer", [IRNet("fixed"), BNNPlus(), RBNN(), PrunedBiHalf(0.5, by="score"), Bits(0.5)])
def test_a_meta_model_loads_a_real_checkpoint(quantizer):
    real = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1))
    with torch.device("meta"):
        model = copy.deepcopy(real).to("meta")
        binarize_(model, quantizer, input_quantizer=RSign())
    weights = {name: tensor.clone() for name, tensor in real.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    assert not [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    assert all(torch.equal(weights[name], tensor) for name, tensor in real.state_dict().items())
    other = copy.deepcopy(real)
    binarize_(other, quantizer, input_quantizer=RSign())
    if isinstance(quantizer, IRNet | BNNPlus):  # the others draw numbers, or wait for bop_parameters
        torch.testing.assert_close(model(torch.ones(1, 3, 7, 7)), other(torch.ones(1, 3, 7, 7)))
    assert model(torch.ones(1, 3, 7, 7)).isfinite().all()


@pytest.mark.parametrize("groups", [1, 2])
def test_the_weights_of_a_transposed_convolution_become_bits(groups):
    real = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    latents = real.weight.detach().clone()
    net = nn.Sequential(real)
    binarize_(net, Bits(0.5), where=all_layers)
    assert net[0].weight.abs().unique().tolist() == [1.0]
    wanted = net[0].from_filters(BiHalf().symbols(net[0].to_filters(latents)))
    assert torch.equal(net[0].weight.detach(), wanted)
    untouched = BinaryConvTranspose2d(4, 6, 3, groups=groups)
    untouched.load_state_dict({"weight": latents, "bias": torch.zeros(6)})
    assert torch.equal(untouched.weight, latents)


def test_an_rsign_is_fitted_to_its_layers_channels_before_the_first_batch():
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 3))
    weights = copy.deepcopy(net.state_dict())
    binarize_(net, BiHalf(), input_quantizer=RSign())
    assert net[1].input_quantizer.shift.tolist() == [0.0] * 5
    assert net.state_dict()["1.input_quantizer.shift"].shape == (5,)
    net.load_state_dict(weights)
    assert any(net[1].input_quantizer.shift is parameter for parameter in net.parameters())
    with pytest.raises(ValueError, match=r"RSign\(channels=3\) does not fit a layer of 5 input channels: omit"):
        BinaryConv2d(5, 8, 3, input_quantizer=RSign(3))


@pytest.mark.parametrize("quantizer", [RSign(), RSign(4)])
def test_an_rsign_shifts_features_channels_and_images_without_a_batch_alike(quantizer):
    for layer, shape in (
        (BinaryLinear(4, 2, input_quantizer=quantizer), (2, 3, 4)),
        (BinaryLinear(4, 2, input_quantizer=quantizer), (3, 4)),
        (BinaryLinear(4, 2, input_quantizer=quantizer), (4,)),
        (BinaryConv1d(4, 2, 1, input_quantizer=quantizer), (2, 4, 3)),
        (BinaryConv2d(4, 2, 1, input_quantizer=quantizer), (2, 4, 3, 3)),
        (BinaryConv2d(4, 2, 1, input_quantizer=quantizer), (4, 3, 3)),
        (BinaryConvTranspose2d(4, 2, 1, input_quantizer=quantizer), (2, 4, 3, 3)),
    ):
        with torch.no_grad():
            layer.input_quantizer.shift.copy_(torch.tensor([-2.0, 0.0, 1.0, 2.0]))
        inputs = torch.full(shape, -0.5)
        axis = next(place for place, size in enumerate(shape) if size == 4)
        by_channel = layer.quantize_input(inputs).movedim(axis, 0).reshape(4, -1)
        assert by_channel.unique(dim=1).flatten().tolist() == [-1.0, -1.0, 1.0, 1.0], shape
        assert layer(inputs).isfinite().all()


def test_bihalf_inputs_of_tokens_are_balanced_in_each_feature():
    layer = BinaryLinear(5, 2, input_quantizer=BiHalfActivation())
    inputs = torch.randn(4, 6, 5, requires_grad=True)
    signs = layer.quantize_input(inputs)
    assert signs.shape == inputs.shape
    assert (signs == 1).sum(dim=(0, 1)).tolist() == [12] * 5
    signs.sum().backward()
    torch.testing.assert_close(inputs.grad, 1 + 6 * (inputs.detach() - signs.detach()) / 120)


@pytest.mark.parametrize(
    ("before", "after"),
    [(Sign(), XNOR()), (BiHalf(), PrunedBiHalf(0.9)), (BiHalf(), PrunedSign(0.9)), (XNOR(), Sign()), (XNOR(), MPT())],
    ids=lambda quantizer: type(quantizer).__name__,
)
@pytest.mark.parametrize("on_meta", [False, True], ids=["", "on-meta"])
def test_a_checkpoint_of_another_method_does_not_change_the_scale(before, after, on_meta):
    dense = BinaryLinear(256, 8, weight_quantizer=before)
    pruned = BinaryLinear(256, 8, weight_quantizer=after)
    scale, checkpoint = pruned.scale.clone(), dense.state_dict()
    if isinstance(after, MPT):
        checkpoint["weight_quantizer.scores"] = torch.ones(8, 256)
    if on_meta:
        pruned = BinaryLinear(256, 8, weight_quantizer=after, device="meta")
    same = math.isclose(dense.scale, scale)
    with nullcontext() if same else pytest.warns(UserWarning, match="another method's, so the layer keeps its own"):
        pruned.load_state_dict(checkpoint, assign=on_meta)
    assert torch.equal(pruned.weight, dense.weight)
    assert torch.equal(pruned.scale, scale)
    assert float(checkpoint["scale"]) == float(dense.scale)


def test_a_custom_scale_is_loaded():
    given, untouched, by_hand, learned = (BinaryLinear(256, 8) for _ in range(4))
    given.scale.fill_(0.7)
    with pytest.warns(UserWarning, match="not the initial one of BiHalf: it is loaded nevertheless"):
        untouched.load_state_dict(given.state_dict())
    given.scale.fill_(1.0)
    by_hand.scale.fill_(3.0)
    by_hand.load_state_dict(given.state_dict())
    start = float(learned.scale)
    del learned.scale
    learned.scale = nn.Parameter(torch.tensor(start))
    learned.load_state_dict(given.state_dict())
    assert [float(layer.scale.detach()) for layer in (untouched, by_hand, learned)] == [pytest.approx(0.7), 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_same_method_in_another_dtype_loads_without_a_warning(dtype):
    layer, wide = BinaryLinear(27, 8), BinaryLinear(27, 8, dtype=dtype)
    for target, source in ((layer, wide), (wide, layer)):
        target.load_state_dict(source.state_dict())
        assert torch.equal(target.scale, source.scale.to(target.scale.dtype))


@pytest.mark.parametrize("quantizer", [Sign, BiHalf])
def test_larger_latents_train_the_same_bits_at_a_larger_learning_rate_and_less_weight_decay(quantizer):
    """So Kaiming's latents, √6 times torch's, only take smaller steps."""

    def bits(factor):
        torch.manual_seed(0)
        layers = [BinaryLinear(12, 16, weight_quantizer=quantizer()), BinaryLinear(16, 4, weight_quantizer=quantizer())]
        model = nn.Sequential(layers[0], nn.ReLU(), layers[1]).double()
        images, labels = torch.randn(64, 12, dtype=torch.float64), torch.randint(0, 4, (64,))
        for layer in layers:
            layer.bias = None
            layer.weight.data.mul_(factor)
        rule = torch.optim.SGD(model.parameters(), lr=0.1 * factor, momentum=0.9, weight_decay=1e-3 / factor)
        for _ in range(50):
            rule.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            rule.step()
            yield torch.cat([layer.symbols().flatten() for layer in layers])

    every = torch.stack(list(bits(1.0)))
    assert torch.equal(every, torch.stack(list(bits(4.0)))) and (every[1:] != every[:-1]).sum() > 100  # bits flip
