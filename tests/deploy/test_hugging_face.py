"""Tiny models of transformers: converted, trained a step, frozen, packed and compared; and text generated."""

import numpy as np
import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.deploy import PackError
from equalbits.runtime import generate, load_packed

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 60, "max_position_embeddings": 16}
TOKENS = torch.randint(60, (2, 16), generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 16, dtype=torch.int64)
MASK[1, 10:] = 0


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **TEXT, **TINY))


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **TINY))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(num_key_value_heads=1, use_cache=False, **TEXT, **TINY)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, transformers.pytorch_utils.Conv1D):  # a linear layer with its weight transposed
                linear = nn.Linear(*child.weight.shape)
                linear.weight.data, linear.bias.data = child.weight.data.T.contiguous(), child.bias.data
                setattr(module, name, linear)
    return model


CASES = {
    "bert": (bert, {"input_ids": TOKENS}),
    "bert with a mask": (bert, {"input_ids": TOKENS, "attention_mask": MASK}),
    "vit": (vit, {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}),
    "gpt2": (gpt2, {"input_ids": TOKENS}),
    "llama": (llama, {"input_ids": TOKENS}),
    "llama with a mask": (llama, {"input_ids": TOKENS, "attention_mask": MASK}),
}


def trained(build, inputs: dict[str, torch.Tensor]) -> nn.Module:
    """Return a binary model after one step of training, in eval mode."""
    torch.manual_seed(0)
    model = build()
    assert eb.binarize_(model, eb.BiHalf()).replaced
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()(**inputs).logits.square().mean().backward()
    optimizer.step()
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_a_tiny_model_gives_its_logits_frozen_and_packed(case, tmp_path):
    build, inputs = CASES[case]
    model = trained(build, inputs)
    with torch.no_grad():
        expected = model(**inputs).logits
        assert torch.equal(eb.freeze(model)(**inputs).logits, expected)
    eb.pack(model, inputs).save(tmp_path / "model.ebits")
    packed = load_packed(tmp_path / "model.ebits")
    found = packed(**{name: tensor.numpy() for name, tensor in inputs.items()})
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4 * float(expected.abs().max()))
    assert packed.audit().exact


@pytest.mark.parametrize("case", ["bert", "bert with a mask", "gpt2", "llama"])
def test_one_file_gives_the_logits_of_a_tiny_model_at_every_length(case, tmp_path):
    build, inputs = CASES[case]
    model = trained(build, inputs)
    eb.pack(model, inputs, lengths=(1, 16)).save(tmp_path / "model.ebits")
    packed = load_packed(tmp_path / "model.ebits")
    for length in range(1, 17):
        given = {name: tensor[:, :length] for name, tensor in inputs.items()}
        with torch.no_grad():
            expected = model(**given).logits.numpy()
        found = packed(**{name: tensor.numpy() for name, tensor in given.items()})
        np.testing.assert_allclose(found, expected, atol=1e-4 * float(np.abs(expected).max()))


def test_a_vision_transformer_takes_one_size_of_image():
    build, inputs = CASES["vit"]
    with pytest.raises(PackError, match=r"with inputs of length 15 in place of 16: Input image size \(15\*15\)"):
        eb.pack(build().eval(), inputs, lengths=(8, 16))


@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_packed_decoder_generates_the_tokens_of_transformers(build):
    model = trained(build, {"input_ids": TOKENS})
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(TOKENS[:1, :4], attention_mask=MASK[:1, :4], **options)
    packed = eb.pack(model, {"input_ids": TOKENS})
    assert list(generate(packed, TOKENS[0, :4].tolist(), 10)) == expected[0, 4:].tolist()


def test_a_masked_token_changes_no_logit_of_the_packed_model():
    packed = eb.pack(trained(bert, CASES["bert with a mask"][1]), CASES["bert with a mask"][1])
    tokens = TOKENS.numpy().copy()
    before = packed(tokens, MASK.numpy())
    tokens[1, 10:] = (tokens[1, 10:] + 1) % 60
    np.testing.assert_array_equal(packed(tokens, MASK.numpy()), before)
    tokens[1, 9] = (tokens[1, 9] + 1) % 60
    assert not np.array_equal(packed(tokens, MASK.numpy()), before)
