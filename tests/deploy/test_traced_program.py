"""A model is packed from a copy and stays unchanged; one without numbers is refused by name."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from equalbits.deploy import PackError, pack
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear

IMAGES = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(0))


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), BinaryConv2d(4, 4, 3), nn.Flatten(), BinaryLinear(4, 3))


def answers_as(model):
    packed = pack(model, IMAGES)
    expected = model.eval()(IMAGES).detach().numpy()
    assert np.abs(packed(IMAGES.numpy()) - expected).max() <= 1e-4 * np.abs(expected).max()


class Remembers(nn.Module):
    """Stores its last input, as code that inspects features does."""

    def __init__(self):
        super().__init__()
        self.inner = small()

    def forward(self, images):
        if self.training:  # older versions of torch trace no forward that keeps something
            self.seen = self.inner[0](images)
        return self.inner(images)


@pytest.mark.parametrize("place", [0, 2])
def test_weights_that_torch_prunes_before_every_forward_pack(place):
    model = small()
    prune.random_unstructured(model[place], "weight", 0.5)
    answers_as(model)
    assert not model[place].weight.is_leaf and prune.is_pruned(model)


def test_the_tensors_a_weight_is_computed_from_are_unchanged():
    model = small()
    nn.utils.parametrizations.spectral_norm(model[2]).train()  # which moves two buffers whenever it is asked
    before = {name: numbers.clone() for name, numbers in model.state_dict().items()}
    pack(model, IMAGES)
    assert model[2].training and all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_a_model_that_stores_its_activations_packs():
    model = Remembers()
    model(IMAGES).sum().backward()
    seen = model.seen
    answers_as(model)
    assert seen.requires_grad


class Features:
    """Container in which a library may store features."""


KEEPERS = {
    "a list": lambda seen: [seen, [seen]],
    "a tuple": lambda seen: (seen,),
    "a dictionary": lambda seen: {"first": seen, "all": {"again": seen}},
    "an object": lambda seen: vars(kept := Features()).update(seen=seen) or kept,
}


@pytest.mark.parametrize("name", KEEPERS)
def test_features_may_be_stored_in_any_container(name):
    model = small()
    model.kept = KEEPERS[name](model[0](IMAGES))
    model[1].kept = model.kept
    answers_as(model)
    assert model.kept is model[1].kept


@pytest.mark.parametrize("kept", [[], {}], ids=["list", "dict"])
def test_a_model_with_a_hook_that_stores_an_output_packs(kept):
    model = small()
    model.kept = kept
    keep = kept.append if isinstance(kept, list) else lambda seen: kept.update(seen=seen)
    handle = model[2].register_forward_hook(lambda layer, inputs, output: keep(output))
    model(IMAGES).sum().backward()
    handle.remove()  # older versions of torch trace no forward that keeps something
    answers_as(model)
    assert [seen.requires_grad for seen in (kept if isinstance(kept, list) else kept.values())] == [True]


class Normalises(nn.Module):
    """Changes the images that it is given, and reads them again."""

    def __init__(self):
        super().__init__()
        self.inner = small()

    def forward(self, images):
        images.sub_(0.5).div_(0.25)
        return self.inner(images.relu_()) + images.mean((1, 2, 3), keepdim=True).flatten(1)


def test_a_forward_that_changes_its_images_packs_and_the_example_stays_as_it_was():
    model, example = Normalises().eval(), IMAGES.clone()
    packed = pack(model, example)
    assert torch.equal(example, IMAGES)
    expected = model(IMAGES.clone()).detach().numpy()
    np.testing.assert_allclose(packed(IMAGES.numpy()), expected, atol=1e-5 * np.abs(expected).max())


def lazy():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(3))


def on_meta():
    model = small()
    model[2].to("meta")
    return model


def with_nan():
    model = small()
    model[2] = BinaryConv2d(4, 4, 3, weight_quantizer=BiHalf())
    model[2].weight.data[0, 0] = float("nan")
    return model


def locked():
    model = small()
    model.lock = threading.Lock()
    return model


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (lazy, "'0.weight' is uninitialized: call the model on a batch first"),
        (on_meta, "'2.weight' is on the meta device, without data: load the model's state_dict first"),
        (with_nan, "layer '2' has NaN latents: training diverged"),
        (locked, "the model cannot be copied: .*lock.* object; remove attributes that its forward does not need"),
        (
            lambda: torch.jit.script(nn.Flatten()),
            "model is a ScriptModule, .*: give the nn.Module it was made from",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of scripting
def test_a_model_without_all_its_numbers_or_that_cannot_be_copied_is_refused(model, line):
    with pytest.raises(PackError, match=f"^{line}$"):
        pack(model(), IMAGES)


@pytest.mark.parametrize("example", [IMAGES.to("meta"), IMAGES.to_sparse()], ids=["meta", "sparse"])
def test_an_example_without_numbers_in_a_row_is_refused(example):
    with pytest.raises(PackError, match=r"^example is torch.float32 of \(3, 2, 5, 5\), torch\..* on .*: give a batch"):
        pack(small(), example)
