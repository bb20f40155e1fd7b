"""The scale is right whatever loader fills a model that was built on ``meta`` and binarized in its ``__init__``."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from equalbits.nn import BiHalf, BinaryLayer, ReCU, RSign, binarize_


class Real(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 3))

    def forward(self, inputs):
        return self.layers(inputs)


class Binary(Real):
    """Calls ``binarize_`` in ``__init__``, as a class of Hugging Face does, with quantizers that have state."""

    def __init__(self, quantizer: nn.Module | None = None) -> None:
        super().__init__()
        binarize_(self, quantizer or ReCU(), input_quantizer=RSign())


def on_meta(quantizer: nn.Module | None = None) -> Binary:
    with torch.device("meta"):
        return Binary(quantizer)


def garbage(tensor: torch.Tensor) -> torch.Tensor:
    """Uninitialized memory with arbitrary values."""
    return torch.full_like(tensor, -0.19, device="cpu")


def assert_equals_a_direct_load(model: nn.Module, checkpoint: dict[str, torch.Tensor]) -> None:
    layer = model.layers[2]
    assert isinstance(layer, BinaryLayer)
    assert math.isclose(layer.scale, layer.initial_scale(), rel_tol=1e-6)
    assert torch.equal(layer.weight, checkpoint["layers.2.weight"])
    assert not layer.input_quantizer.shift.any()
    torch.testing.assert_close(layer.weight_quantizer.gains, layer.weight.abs().mean(dim=1))
    assert model(torch.randn(2, 6)).isfinite().all()


def fill_with_garbage(model: nn.Module) -> None:
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor is not model.layers[2].scale and tensor is not model.layers[2].input_quantizer.shift:
            tensor.detach().fill_(float("nan"))


@pytest.mark.parametrize("assign", [True, False])
def test_a_real_checkpoint_loads_into_a_meta_model_by_assignment_or_after_to_empty(assign):
    checkpoint, model = Real().state_dict(), on_meta()
    if not assign:
        fill_with_garbage(model)
        model.train()
    model.load_state_dict(checkpoint, assign=assign)
    assert_equals_a_direct_load(model, checkpoint)


def load_like_hugging_face(model: nn.Module, checkpoint: dict[str, torch.Tensor]) -> None:
    """Set each tensor by its name: marked if the checkpoint has it, else uninitialized; then ``eval``."""
    for name, old in model.state_dict(keep_vars=True).items():
        parent, _, own = name.rpartition(".")
        value = checkpoint[name].clone() if name in checkpoint else garbage(old)
        if isinstance(old, nn.Parameter):
            value = nn.Parameter(value)
        if name in checkpoint:
            value._is_hf_initialized = True
        setattr(model.get_submodule(parent), own, value)
    model.eval()


def test_a_loader_that_sets_missing_tensors_to_uninitialized_memory_leaves_initial_ones():
    checkpoint, model = Real().state_dict(), on_meta()
    load_like_hugging_face(model, checkpoint)
    assert_equals_a_direct_load(model, checkpoint)
    model.layers[2].scale = torch.tensor(0.3)  # yours, after loading
    assert model.layers[2].scale == torch.tensor(0.3)


def test_a_loader_for_meta_models_loads_scale_and_quantizers():
    trained, model = Binary(), on_meta()
    trained.layers[2].scale.fill_(0.7)
    nn.init.normal_(trained.layers[2].input_quantizer.shift)
    nn.init.normal_(trained.layers[2].weight_quantizer.gains)
    load_like_hugging_face(model, trained.state_dict())
    inputs = torch.randn(2, 6)
    assert torch.equal(model(inputs), trained.eval()(inputs))


def test_weights_alone_on_meta_leave_a_scale_with_data():
    model = on_meta(BiHalf())
    layer = model.layers[2]
    assert layer.weight.is_meta and math.isclose(layer.scale, layer.initial_scale(), rel_tol=1e-6)
    assert layer(torch.empty(2, 8, device="meta")).is_meta
    assert copy.deepcopy(model).layers[2].scale == layer.scale


def test_a_real_model_moved_to_meta_and_back_has_its_initial_scale():
    model = Binary(BiHalf()).to("meta")
    model.to_empty(device="cpu")
    layer = model.layers[2]
    assert math.isclose(layer.scale, layer.initial_scale(), rel_tol=1e-6) and not layer.input_quantizer.shift.any()


def test_transformers_and_accelerate_load_a_real_checkpoint(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their own
        try:
            import accelerate
            from transformers import BertConfig, BertForSequenceClassification
        except ImportError as error:
            pytest.skip(f"transformers or accelerate does not import: {error}")

    class BinaryBert(BertForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            binarize_(self, BiHalf())

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=20, **sizes)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    loaded = BinaryBert.from_pretrained(tmp_path)
    with accelerate.init_empty_weights():
        empty = BinaryBert(config)
    dispatched = accelerate.load_checkpoint_and_dispatch(empty, str(tmp_path), device_map={"": "cpu"})
    for model in (loaded, dispatched):
        layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
        assert len(layers) == 7
        assert all(math.isclose(layer.scale, layer.initial_scale(), rel_tol=1e-6) for layer in layers)
    tokens = torch.arange(10)[None]
    assert torch.equal(loaded(tokens).logits, dispatched.eval()(tokens).logits)
