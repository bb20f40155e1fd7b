"""Layers that ``inner_layers`` leaves real, with the reason."""

import pytest
from torch import nn

from equalbits.nn import BiHalf, Candidate, binarize_, inner_layers


def squeeze_excite(channels: int, kind: str) -> nn.Module:
    made = type(kind, (nn.Module,), {})()
    made.fc = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.ReLU(), nn.Conv2d(channels, channels, 1))
    return made


@pytest.mark.parametrize(
    "kind",
    [
        "SqueezeExcite",
        "SqueezeExcitation",
        "SEModule",
        "SELayer",
        "EffectiveSEModule",
        "se_layer",
        "SeModule",
        "EseModule",
    ],
)
def test_the_gates_of_squeeze_and_excite_stay_real(kind):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), squeeze_excite(4, kind), nn.Conv2d(4, 2, 1))
    report = binarize_(model, BiHalf())
    assert report.replaced == ("1",)
    assert dict(report.left_real)["2.fc.0"] == dict(report.left_real)["2.fc.2"] == "a squeeze-and-excite gate"


@pytest.mark.parametrize("kind", ["DenseLayer", "_DenseLayer", "BaseModule", "PhaseLayer", "dense_layer"])
def test_a_class_name_that_only_contains_the_letters_se_is_no_gate(kind):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), squeeze_excite(4, kind), nn.Conv2d(4, 2, 1))
    assert binarize_(model, BiHalf()).replaced == ("1.fc.0", "1.fc.2")


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(4, 4, 2, stride=2), "a downsampling layer"),
        (nn.Conv2d(4, 4, 16, stride=16), "a downsampling layer"),
        (nn.Conv2d(4, 4, (1, 3), stride=(1, 2)), True),
        (nn.Conv2d(4, 4, 3, stride=2), True),
        (nn.Conv2d(4, 4, 1), True),
        (nn.Conv1d(4, 4, 1, stride=2), "a downsampling layer"),
        (nn.ConvTranspose2d(4, 4, 2, stride=2), True),
        (nn.Linear(4, 4), True),
    ],
)
def test_a_convolution_with_a_stride_no_smaller_than_its_kernel_downsamples(layer, expected):
    verdict = inner_layers(Candidate("layer", layer, position=1, count=3))
    assert verdict is True if expected is True else verdict.startswith(expected)


@pytest.mark.parametrize("name", ["head", "head_dist", "classifier"])
def test_a_second_head_stays_real_too(name):
    assert inner_layers(Candidate(name, nn.Linear(4, 4), position=1, count=3)) == "an output layer (by its name)"
    for wrapped in (f"module.{name}", f"_orig_mod.{name}", f"_orig_mod.module.{name}"):
        assert inner_layers(Candidate(wrapped, nn.Linear(4, 4), 1, 3)) == "an output layer (by its name)"
    assert inner_layers(Candidate(f"{name}.0", nn.Linear(4, 4), position=1, count=3)) is True


def test_twin_heads_with_a_norm_before_the_layer_are_treated_alike():
    def head() -> nn.Module:
        return nn.ModuleDict({"bn": nn.BatchNorm1d(4), "linear": nn.Linear(4, 2)})

    model = nn.ModuleDict({"stem": nn.Linear(4, 4), "inner": nn.Linear(4, 4), "head": head(), "head_dist": head()})
    report = binarize_(model, BiHalf())
    assert report.replaced == ("inner",)
    assert {name for name, _ in report.left_real} == {"stem", "head.linear", "head_dist.linear"}
