import json

import pytest
import torch

from equalbits.analysis import summarize
from equalbits.deploy import pack
from equalbits.models import create_model, list_models
from equalbits.runtime import load_packed

_NO_WIDTH = ("inception_v3", "shufflenet")
# Twins in all but depth, or in all but the input's sign, of one that is packed each time.
_LONG = {(name, "sign") for name in (*_NO_WIDTH, "resnet34", "imagenet_resnet34")} | {
    (name, None) for name in ("resnet34", "imagenet_resnet34")
}


def _make(name, inputs):
    size = 32 if name.startswith("imagenet") else 16
    options = {} if name in _NO_WIDTH else {"width": 0.125}
    torch.manual_seed(0)
    model = create_model(
        name, num_classes=7, weight_quantizer="bihalf", input_quantizer=inputs, image_size=size, **options
    )
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):  # as after some training
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                module.weight.data.normal_(0, 1)  # of either sign
                module.bias.data.normal_(0, 0.5)
    return model.eval(), torch.randn(3, 3, size, size)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        pytest.param(name, inputs, marks=pytest.mark.slow if (name, inputs) in _LONG else ())
        for name in list_models()
        for inputs in (None, "sign")
    ],
)
def test_every_network_packs_with_equal_logits_exact_shares_and_the_predicted_size(name, inputs, tmp_path):
    model, images = _make(name, inputs)
    packed = pack(model, images)
    with torch.no_grad():
        answer = model(images).numpy()
    packed.save(tmp_path / "net.ebits")
    reread = load_packed(tmp_path / "net.ebits", engine="numpy")
    if inputs is None:  # with signs, a value within rounding of 0 may tip; `pack` has compared operation by operation
        assert abs(reread(images.numpy()) - answer).max() <= 1e-4 * abs(answer).max()
    assert reread.audit().exact
    binary = [layer for layer in model.modules() if hasattr(layer, "weight_quantizer")]
    assert len(reread.audit().layers) == len(binary)
    written = (tmp_path / "net.ebits").read_bytes()
    table = int.from_bytes(written[:8], "little")
    assert json.loads(written[8 : 8 + table])
    assert summarize(model, images[:1]).total["packed_bytes"] == len(written) - 8 - table
    assert packed.summary().file_bytes == len(written)


@pytest.mark.parametrize(("rest", "most"), [("float32", 4_200_000), ("float16", 2_800_000), ("int8", 2_100_000)])
def test_imagenets_resnet18_is_as_small_as_promised(rest, most, tmp_path):
    torch.manual_seed(0)
    model = create_model("imagenet_resnet18", num_classes=1000, weight_quantizer="bihalf", input_quantizer="sign")
    packed = pack(model, torch.randn(1, 3, 64, 64), rest=rest)
    packed.save(tmp_path / "net.ebits")
    size = (tmp_path / "net.ebits").stat().st_size
    assert packed.summary().file_bytes == size <= most
    if rest == "float32":
        assert summarize(model, (1, 3, 64, 64)).total["packed_bytes"] == packed.summary().total("stored_bytes")
