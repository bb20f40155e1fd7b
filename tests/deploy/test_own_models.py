import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as nnf

from equalbits.deploy import PackError, pack
from equalbits.nn import (
    ABCNet,
    AdaBin,
    BiHalf,
    BinaryConv1d,
    BinaryConv2d,
    BinaryLinear,
    LearnedScale,
    Maxout,
    PrunedBiHalf,
    PrunedSign,
    RPReLU,
    SignActivation,
    all_layers,
    binarize_,
    input_quantizer_by_name,
    list_input_quantizers,
    list_quantizers,
    quantizer_by_name,
)
from equalbits.runtime import PackedModel


def packs(model, shape=(3, 4, 9, 11)):
    """The packed model, with its outputs compared with torch's."""
    torch.manual_seed(3)
    images = torch.randn(shape)
    packed = pack(model, images)
    with torch.no_grad():
        answer = model.eval()(images).numpy()
    found = PackedModel(packed.network, engine="numpy")(images.numpy())
    assert np.abs(found - answer).max() <= 1e-4 * np.abs(answer).max()
    return packed


def kinds(packed):
    return [operation.kind for operation in packed.network.operations]


class Residual(nn.Module):
    """Idioms of users: functional calls, in-place additions, branches, transposes, a shared PReLU."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, padding="same", bias=True)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.Conv2d(4, 8, (1, 3), padding=(0, 1))
        self.norm = nn.BatchNorm2d(8)
        self.prelu = nn.PReLU(8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        x = nnf.relu6(self.stem(images))
        first, second = x.chunk(2, dim=1)
        y = self.prelu(self.norm(self.left(x)))
        y += self.prelu(self.right(torch.cat([second, -first], dim=1)[:, ::2]))
        y = nnf.leaky_relu(y, 0.1) * 0.5 - x / 3 + 1
        y = nnf.max_pool2d(nnf.pad(y, (1, 0, 2, 1)), 3, stride=2, ceil_mode=True)
        y = nnf.avg_pool2d(y, 2, stride=2, padding=1, count_include_pad=False)
        tokens = y.flatten(2).transpose(1, 2)
        y = self.mix(tokens).transpose(1, 2).reshape(y.shape)
        return self.head(nnf.dropout(y, 0.5, self.training).mean((2, 3)))


@pytest.mark.parametrize("inputs", [None, SignActivation()])
def test_a_users_converted_model_packs(inputs):
    model = Residual()
    torch.manual_seed(1)
    model.norm.running_mean.normal_()
    binarize_(model, BiHalf(), input_quantizer=inputs, where=all_layers)
    packed = packs(model)
    assert len(packed.audit().layers) == 5
    assert packed.audit().exact


def test_the_model_is_unchanged():
    model = Residual()
    binarize_(model, BiHalf())
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pack(model, torch.randn(2, 4, 9, 11))
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert set(model.state_dict()) == set(before)


def test_batch_norms_of_either_sign_and_of_none_pack():
    model = nn.Sequential(BinaryConv2d(4, 8, 3, input_quantizer=SignActivation()), nn.BatchNorm2d(8), nn.Flatten())
    norm = model[1]
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2), norm.bias.data.normal_()
    norm.weight.data = torch.tensor([1.0, -1.0, 0.0, -0.0, 2.0, -2.0, 1e-3, -1e3])
    model.append(nn.Sequential(BinaryLinear(8 * 7 * 9, 5, input_quantizer=SignActivation())))
    assert kinds(packs(model)) == ["sign", "conv", "affine", "flatten", "sign", "linear"]


def _convertible(name):
    settings = {"pruned-bihalf": "sparsity=0.5", "pruned-sign": "sparsity=0.5", "mpt": "sparsity=0.5"}
    return quantizer_by_name(f"{name}:{settings[name]}" if name in settings else name)


@pytest.mark.parametrize("name", list_quantizers())
def test_every_method_packs_exactly(name):
    torch.manual_seed(0)
    quantizer = _convertible(name)
    layers = [BinaryConv2d(4, 6, 3, weight_quantizer=quantizer), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, BinaryLinear(6 * 7 * 9, 5, bias=True, weight_quantizer=quantizer))
    packed = packs(model)
    assert packed.audit().exact
    counted = {layer.name: layer.positive for layer in packed.audit().layers}
    for place in ("0", "4"):
        assert (counted[place] == (model[int(place)].symbols() == 1).flatten(1).sum(1).numpy()).all()


@pytest.mark.parametrize("name", sorted({*list_input_quantizers()} - {"rbnn", "horq"}))
def test_every_input_quantizer_packs(name):
    torch.manual_seed(0)
    conv = BinaryConv2d(4, 6, 3, padding=1, input_quantizer=input_quantizer_by_name(name))
    with torch.no_grad():
        for number, parameter in enumerate(conv.input_quantizer.parameters()):
            if not isinstance(parameter, nn.parameter.UninitializedParameter):
                parameter.fill_(0.3 + number)
    packs(nn.Sequential(conv, nn.Flatten(), nn.Linear(6 * 9 * 11, 3)))


def test_inputs_scaled_by_their_own_magnitude_pack():
    conv = BinaryConv2d(4, 6, 3, input_quantizer=input_quantizer_by_name("horq"))
    packs(nn.Sequential(conv, nn.Flatten()))


def test_inputs_divided_by_a_conditional_deviation_are_refused():
    conv = BinaryConv2d(4, 6, 3, input_quantizer=input_quantizer_by_name("rbnn"))
    with pytest.raises(PackError, match=r"layer '0\.input_quantizer' compares with a value computed from the image"):
        packs(nn.Sequential(conv, nn.Flatten()))


def test_a_half_wave_of_two_bits_is_a_stair():
    conv = BinaryConv2d(4, 6, 3, input_quantizer=input_quantizer_by_name("hwgq:bits=2"))
    assert kinds(packs(nn.Sequential(conv))).count("sign") == 3


@pytest.mark.parametrize("quantizer", [PrunedBiHalf(0.7), PrunedSign(0.4), PrunedBiHalf(0.5, by="magnitude")])
def test_pruned_layers_pack_into_two_planes(quantizer):
    model = nn.Sequential(BinaryConv2d(4, 6, 3, weight_quantizer=quantizer, input_quantizer=SignActivation()))
    packed = packs(model)
    assert "conv" in kinds(packed)
    assert (packed.audit().layers[0].zero == (model[0].symbols() == 0).flatten(1).sum(1).numpy()).all()
    assert packed.audit().exact


@pytest.mark.parametrize(("quantizer", "planes"), [(AdaBin(), 2), (ABCNet(3), 3), (ABCNet(1), 1)])
def test_weights_of_several_planes_are_summed(quantizer, planes):
    packed = packs(nn.Sequential(BinaryConv2d(4, 6, 3, weight_quantizer=quantizer)))
    assert kinds(packed).count("conv") == planes
    assert kinds(packed).count("add") == planes - 1


def test_output_layers_of_methods_pack():
    conv = BinaryConv2d(4, 6, 3, weight_quantizer=BiHalf())
    scale = LearnedScale(6, (7, 9), form="dense")
    nn.init.uniform_(scale.factors[0])
    maxout, rprelu = Maxout(6), RPReLU(6)
    for parameter in (*maxout.parameters(), *rprelu.parameters()):
        nn.init.normal_(parameter)
    packs(nn.Sequential(conv, scale, maxout, rprelu))


def test_binary_layers_along_one_axis_and_over_tokens_pack():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = BinaryConv1d(4, 6, 3, stride=2, padding=1, input_quantizer=SignActivation())
            self.mix = BinaryLinear(6, 8, bias=True)

        def forward(self, images):
            return self.mix(self.conv(images.flatten(2)).transpose(1, 2)).flatten(1)

    assert len(packs(Tokens()).audit().layers) == 2


def test_a_layer_used_twice_is_stored_once():
    shared = BinaryConv2d(4, 4, 3, padding=1)
    packed = packs(nn.Sequential(shared, nn.ReLU(), shared, nn.Flatten()))
    assert sorted(packed.network.tensors) == ["0.bias", "0.scale", "0.weight"]


def test_a_shuffle_and_slices_along_two_axes_are_one_operation_each():
    class Moves(nn.Module):
        def forward(self, images):
            batch, channels, height, width = images.shape
            shuffled = images.view(batch, 2, channels // 2, height, width).transpose(1, 2).flatten(1, 2)
            return shuffled[:, :, ::2, 1:-1]

    assert kinds(packs(Moves())) == ["channel_shuffle", "slice"]


def test_models_in_half_and_double_precision_and_channels_last_pack():
    for change in (nn.Module.double, nn.Module.bfloat16):
        model = change(nn.Sequential(BinaryConv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), BinaryLinear(378, 5)))
        packed = pack(model, torch.randn(2, 4, 9, 11))
        assert (packed.network.symbols(0) == model[0].symbols().flatten(1).float().numpy()).all()
    last = nn.Sequential(BinaryConv2d(4, 6, 3), nn.ReLU(), nn.Flatten()).to(memory_format=torch.channels_last)
    assert len(packs(last).audit().layers) == 1


class Sin(nn.Module):
    def forward(self, images):
        return images.sin()


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.ModuleDict({"act": Sin()})

    def forward(self, images):
        return self.block["act"](images)


class Pair(nn.Module):
    def forward(self, images):
        return images, images


class Noise(nn.Module):
    def forward(self, images):
        return images + torch.randn_like(images)


class Batch(nn.Module):
    def forward(self, images):
        return images - images.mean(0, keepdim=True)


class Changed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(396, 3)

    def forward(self, images):
        return images.flatten(1) @ (self.layer.binary_weight() + 1).T


class Latents(Changed):
    def forward(self, images):
        return self.layer(images.flatten(1)) + nnf.linear(images.flatten(1), self.layer.weight)


class Helped(Changed):
    """A layer used in training only."""

    def forward(self, images):
        return self.layer(images.flatten(1)) if self.training else images.relu()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Sine(), r"layer 'block.act' \(Sin\) does aten.sin.default, which a packed network cannot: .*eb.freeze"),
        (
            nn.Sequential(nn.ReLU(), nn.LogSoftmax(1)),
            r"layer '1' \(LogSoftmax\) does aten._log_softmax.*pack the logits",
        ),
        (Pair(), "returns a tuple for 3 images: .*; pack a module whose forward returns only that$"),
        (Noise(), "randn_like"),
        (Batch(), "takes the mean over axes"),
        (Changed(), "layer 'layer' is binary, but the model changes its weights"),
        (Latents(), "layer 'layer' is binary, but the model .* reads its latents"),
        (nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)), "layer '0' computes mean and variance"),
    ],
)
def test_unsupported_operations_are_refused_by_name_and_layer(model, words):
    with pytest.raises(PackError, match=words):
        pack(model, torch.randn(3, 4, 9, 11))


def test_a_layer_that_the_output_does_not_depend_on_is_dropped():
    assert kinds(packs(Helped())) == ["relu"]


class Odd(BiHalf):
    def forward(self, latents):
        return latents


def test_a_method_whose_weights_are_no_bits_is_refused_by_name():
    with pytest.raises(PackError, match=r"layer '0' \(Odd\) multiplies by numbers that are not a scale times"):
        pack(nn.Sequential(BinaryLinear(4, 4, weight_quantizer=Odd())), torch.randn(2, 4, 1, 4))


@pytest.mark.parametrize("example", [torch.randn(3, 12), torch.zeros(0, 3, 4, 4), torch.zeros(2, 3, 4, 4).long(), None])
def test_an_example_that_is_no_batch_of_images_is_refused(example):
    with pytest.raises(
        PackError,
        match=r"give a batch of images as the model takes them.*\(batch, channel, 1, length\)$",
    ):
        pack(nn.Flatten(), example)
