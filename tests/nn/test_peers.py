"""Models of transformers and PEFT, where they import: what stays real is named, and adapters merge after ``freeze``."""

import warnings

import pytest
import torch
from torch import nn

from equalbits.nn import BiHalf, BinaryLinear, all_layers, binarize_, freeze


def import_peers(*names: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their own
        try:
            import transformers

            found = [getattr(transformers, name) for name in names]
            import peft
        except ImportError as error:
            pytest.skip(f"transformers or peft does not import: {error}")
    return peft, *found


SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def test_gpt2_has_only_its_tied_head_as_a_torch_layer_and_the_error_names_conv1d():
    _, config, kind = import_peers("GPT2Config", "GPT2LMHeadModel")
    model = kind(config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, bos_token_id=0, eos_token_id=0))
    with pytest.raises(
        ValueError, match=r"h\.0\.attn\.c_attn' is left real: of class transformers\S+Conv1D, which is no"
    ):
        binarize_(model, BiHalf(), where=all_layers)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_adapters_stay_real_and_merge_into_the_frozen_weights():
    peft, config, kind = import_peers("BertConfig", "BertModel")
    torch.manual_seed(0)
    model = peft.get_peft_model(kind(config(**SIZES)), peft.LoraConfig(target_modules=["query"], r=4)).eval()
    report = binarize_(model, BiHalf(), where=all_layers)
    assert sum("lora_" in name for name, _ in report.left_real) == 2
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    tokens = torch.arange(10)[None]
    expected = model(tokens)[0]
    torch.testing.assert_close(freeze(model).merge_and_unload()(tokens)[0], expected)


def test_quantized_weights_of_torchao_raise_on_a_binary_layer():
    made = type("Int8Tensor", (nn.Parameter,), {"__module__": "torchao.quantization"})(torch.zeros(4, 4))
    layer = BinaryLinear(4, 4)
    with pytest.raises(
        ValueError, match=r"Int8Tensor would quantize the latents.*call equalbits.freeze\(model\) first"
    ):
        layer.weight = made
    freeze(layer).weight = made


@pytest.mark.filterwarnings("ignore")  # torchao's
def test_torchao_quantizes_a_frozen_model_and_raises_on_a_binary_one():
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        pytest.skip(f"torchao does not import: {error}")
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(64, 64), nn.GELU(), BinaryLinear(64, 64)).eval(), torch.randn(4, 64)
    with torch.no_grad():
        expected, frozen = model(inputs), freeze(model)
        quantize_(frozen, Int8WeightOnlyConfig())
        torch.testing.assert_close(frozen(inputs), expected, rtol=0.05, atol=0.05)
    with pytest.raises(ValueError, match=r"quantize the latents.*call equalbits.freeze\(model\) first"):
        quantize_(model, Int8WeightOnlyConfig())
