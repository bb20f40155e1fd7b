"""``freeze`` gives plain torch layers with the same outputs to the bit, which other tools export and rebuild."""

import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from equalbits.deploy import PackError, pack
from equalbits.models import create_model
from equalbits.nn import (
    BiHalf,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLayer,
    BinaryLinear,
    Sign,
    SignActivation,
    binarize_,
    freeze,
    input_quantizer_by_name,
    list_input_quantizers,
    list_quantizers,
    quantizer_by_name,
)
from equalbits.nn.freeze import FrozenInput

IMAGES = torch.randn(3, 4, 7, 6, generator=torch.Generator().manual_seed(1))
jit_is_deprecated = pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")


def every_kind(method: str = "bihalf", inputs: str | None = None) -> nn.Sequential:
    """Every binary layer class, and a batch norm whose statistics are not those of a new one."""
    torch.manual_seed(0)
    chosen = {
        "weight_quantizer": quantizer_by_name(method),
        "input_quantizer": input_quantizer_by_name(inputs) if inputs else None,
    }
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    return nn.Sequential(
        norm,
        BinaryConv2d(4, 6, 3, padding=1, stride=2, groups=2, **chosen),
        nn.Conv2d(6, 6, 1),
        BinaryConvTranspose2d(6, 4, 2, groups=2, **chosen),
        nn.Flatten(2),
        BinaryConv1d(4, 4, 3, padding="same", padding_mode="circular", **chosen),
        nn.Flatten(),
        BinaryLinear(80, 5, **chosen),
    )


@pytest.mark.parametrize("method", list_quantizers())
def test_every_method_freezes_to_torchs_layers_with_equal_outputs(method):
    model = every_kind(method).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = freeze(model)
    assert [type(part) for part in frozen] == [
        *(nn.BatchNorm2d, nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d),
        *(nn.Flatten, nn.Conv1d, nn.Flatten, nn.Linear),
    ]
    assert {module.training for module in frozen.modules()} == {False}
    assert not frozen[1].weight.requires_grad and frozen[2].weight.requires_grad
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(frozen(IMAGES), model.eval()(IMAGES))


@pytest.mark.parametrize("inputs", list_input_quantizers())
def test_every_input_quantizer_freezes_to_a_module_with_equal_outputs_that_fx_can_trace(inputs):
    model = every_kind(inputs=inputs).eval()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name in ("shift", "centre", "distance"):
                nn.init.uniform_(parameter, 0.5, 1.0)
    frozen, expected = freeze(model), model(IMAGES)
    assert type(frozen[1]) is nn.Sequential and type(frozen[1].input_quantizer) is FrozenInput
    assert torch.equal(frozen(IMAGES), expected)
    if inputs not in ("horq", "rbnn"):  # their mean is over all axes but the batch, whose number fx does not know
        assert torch.equal(torch.fx.symbolic_trace(frozen)(IMAGES), expected)


class Doubled(SignActivation):
    """A subclass that changes only ``forward``."""

    def forward(self, inputs):
        return 2 * super().forward(inputs)


def test_an_input_quantizer_with_its_own_forward_is_kept_as_it_is():
    model = nn.Sequential(BinaryLinear(6, 4, input_quantizer=Doubled())).eval()
    frozen = freeze(model)
    assert type(frozen[0].input_quantizer) is Doubled
    assert torch.equal(frozen(torch.ones(2, 6)), model(torch.ones(2, 6)))


def test_a_layer_used_twice_stays_one_layer_and_hooks_see_the_real_input():
    torch.manual_seed(0)
    layer, seen = BinaryLinear(6, 6, input_quantizer=SignActivation()), []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model = nn.Sequential(layer, nn.PReLU(), layer).eval()
    frozen, inputs = freeze(model), torch.randn(2, 6)
    assert frozen[0] is frozen[2]
    expected = model(inputs)
    seen.clear()
    assert torch.equal(frozen(inputs), expected)
    assert torch.equal(seen[0], inputs)


def test_a_single_layer_a_wrapped_model_and_parametrized_latents_freeze():
    layer, inputs = parametrizations.weight_norm(BinaryLinear(6, 4, weight_quantizer=Sign())), torch.randn(2, 6)
    frozen = freeze(layer)
    assert type(frozen) is nn.Linear and torch.equal(frozen(inputs), layer.eval()(inputs))
    assert type(freeze(nn.DataParallel(nn.Sequential(BinaryLinear(6, 4))))[0]) is nn.Linear


@pytest.mark.parametrize(("name", "inputs"), [("conv2", None), ("resnet20", "rsign")])
def test_networks_of_this_package_freeze(name, inputs):
    torch.manual_seed(0)
    model = create_model(name, weight_quantizer="bihalf", input_quantizer=inputs).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        frozen = freeze(model)
        assert not any(isinstance(module, BinaryLayer) for module in frozen.modules())
        assert torch.equal(frozen(images), model(images))


class Own(BinaryLinear):
    def forward(self, input):
        return super().forward(input) + 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(Own(4, 2)), "layer '0' is of class Own, which has no plain torch layer"),
        (nn.Sequential(nn.Linear(4, 2)), "Sequential has no binary layer to freeze"),
        ("conv2", "the model is a str"),
        (BinaryLinear(4, 2, device="meta"), "is on the meta device"),
    ],
)
def test_a_model_that_cannot_be_frozen_raises(model, message):
    with pytest.raises(ValueError, match=message):
        freeze(model)


def test_latents_that_are_not_finite_raise_with_the_name_of_their_layer():
    model = nn.Sequential(BinaryLinear(4, 2, weight_quantizer=Sign()))
    model[0].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="layer '0': latents hold nan"):
        freeze(model)


class Cumulative(nn.Module):
    """Cumulative sums over channels, which packed networks lack."""

    def forward(self, images):
        return images.cumsum(dim=1)


def refused() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), Cumulative()),
        *(nn.Flatten(), nn.Linear(48, 5)),
    )
    binarize_(model, BiHalf(), input_quantizer=SignActivation())
    return model.eval()


@pytest.mark.filterwarnings("ignore:You are using the legacy", "ignore:The feature will be removed")
@jit_is_deprecated
def test_a_model_that_pack_refuses_reaches_onnx_through_freeze(tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, path = refused(), tmp_path / "net.onnx"
    with pytest.raises(PackError, match="cumsum"):
        pack(model, IMAGES)
    torch.onnx.export(freeze(model), (IMAGES,), path, dynamo=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(IMAGES).detach(), rtol=1e-4, atol=1e-5)


@jit_is_deprecated
def test_a_frozen_model_reaches_openvino_and_a_torchscript_file():
    model = refused()
    frozen, expected = freeze(model), model(IMAGES).detach()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(frozen, IMAGES), buffer)
    buffer.seek(0)
    assert torch.equal(torch.jit.load(buffer)(IMAGES), expected)
    openvino = pytest.importorskip("openvino")
    compiled = openvino.compile_model(
        openvino.convert_model(frozen, example_input=IMAGES), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    torch.testing.assert_close(torch.from_numpy(compiled(IMAGES.numpy())[0]), expected, rtol=1e-4, atol=1e-5)


def test_torchs_own_batch_norm_folding_is_right_on_a_frozen_model_and_wrong_on_latents():
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    torch.manual_seed(0)
    model = nn.Sequential(BinaryConv2d(4, 6, 3), nn.BatchNorm2d(6)).eval()
    model[1].running_var.uniform_(0.5, 2)
    model[1].weight.data.neg_()
    expected = model(IMAGES)
    assert not torch.allclose(fuse_conv_bn_eval(*model)(IMAGES), expected, atol=1e-2)
    torch.testing.assert_close(fuse_conv_bn_eval(*freeze(model))(IMAGES), expected)
