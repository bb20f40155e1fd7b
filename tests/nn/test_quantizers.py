"""Quantizers: symbols, gradients, errors, and the progress of training."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from equalbits.analysis import audit
from equalbits.nn import (
    BiHalf,
    BinaryConv2d,
    BinaryLinear,
    IRNet,
    Sign,
    SignActivation,
    WeightQuantizer,
    binarize_,
    rank_ahead,
    set_progress,
)
from equalbits.nn.methods.irnet import irnet, irnet_stable

LATENTS = torch.tensor([[-0.9, -0.1, 0.0, 0.2, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5]])


def gradient_of(quantizer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    inputs = inputs.clone().requires_grad_()
    quantizer(inputs).backward(torch.arange(1.0, 1.0 + inputs.numel()).view(inputs.shape))
    return inputs.grad


@pytest.mark.parametrize(
    ("quantizer", "expected"),
    [
        (Sign(), [[-1, -1, 1, 1, 1], [1, 1, 1, 1, 1]]),
        (BiHalf(), [[-1, -1, 1, 1, 1], [-1, -1, 1, 1, 1]]),
        (BiHalf(0.2), [[-1, -1, -1, -1, 1], [-1, -1, -1, -1, 1]]),
        (IRNet(), [[-1, -1, 1, 1, 1], [-1, -1, 1, 1, 1]]),
    ],
)
def test_symbols_follow_the_rule_of_the_method(quantizer, expected):
    assert quantizer.symbols(LATENTS).tolist() == expected
    assert torch.equal(quantizer(LATENTS).sign(), torch.tensor(expected).float())


@pytest.mark.parametrize("quantizer", [Sign(), BiHalf(0.2)])
def test_the_gradient_of_sign_and_bihalf_is_unchanged(quantizer):
    assert torch.equal(gradient_of(quantizer, LATENTS), torch.arange(1.0, 11.0).view(2, 5))


@pytest.mark.parametrize("quantizer", [Sign(estimator="clipped"), BiHalf(0.2, estimator="clipped")])
def test_a_clipped_estimator_passes_the_gradient_up_to_and_including_one(quantizer):
    latents = torch.tensor([[-1.5, -1.0, 0.0, 0.5, 1.0], [-0.9, 1.01, 2.0, -1.01, 0.3]])
    expected = [[0, 2, 3, 4, 5], [6, 0, 0, 0, 10]]
    plain = type(quantizer)() if type(quantizer) is Sign else BiHalf(0.2)
    assert torch.equal(quantizer(latents), plain(latents))
    assert gradient_of(quantizer, latents).tolist() == expected
    layer = BinaryLinear(5, 2, bias=False, weight_quantizer=quantizer)
    with torch.no_grad():
        layer.weight.copy_(latents)
    layer.binary_weight().backward(torch.arange(1.0, 11.0).view(2, 5))
    assert torch.equal(layer.weight.grad, torch.tensor(expected) * layer.scale)


def test_layers_with_a_clipped_gradient_are_not_ranked_ahead():
    layers = [BinaryLinear(4, 2, weight_quantizer=BiHalf(estimator=word)) for word in ("straight", "clipped")]
    assert [rank_ahead._can_rank_ahead(layer) for layer in layers] == [True, False]


def test_layers_with_a_learned_scale_or_parametrized_latents_are_not_ranked_ahead():
    plain, learns, per_filter, precise, computed = (BinaryLinear(4, 2) for _ in range(5))
    learns.scale = nn.Parameter(learns.scale.clone())
    per_filter.scale = torch.ones(2, 1)
    precise.scale = precise.scale.double()
    prune.identity(computed, "weight")  # a hook recomputes the weight before each forward
    layers = [plain, learns, per_filter, precise, computed]
    assert [rank_ahead._can_rank_ahead(layer) for layer in layers] == [True, False, False, False, False]


def test_repr_shows_a_changed_estimator_and_an_unknown_one_raises():
    assert [repr(Sign()), repr(Sign(estimator="clipped"))] == ["Sign()", "Sign(estimator='clipped')"]
    assert repr(BiHalf(estimator="clipped")) == "BiHalf(p_pos=0.5, estimator='clipped')"
    with pytest.raises(ValueError, match="estimator='clip' is not known: choose one of 'straight', 'clipped'"):
        BiHalf(estimator="clip")


def test_only_methods_with_an_exact_share_have_p_pos():
    assert BiHalf(0.3).p_pos == 0.3
    assert Sign().p_pos is None
    assert IRNet().p_pos is None


@pytest.mark.parametrize(
    ("statistics", "scale"), [("learned", 1.0), ("fixed", math.sqrt(2 / 50)), ("through", math.sqrt(2 / 50))]
)
def test_published_irnet_has_its_own_scale_and_its_variants_use_that_of_the_layer(statistics, scale):
    layer = BinaryLinear(50, 8, weight_quantizer=IRNet(statistics))
    assert layer.scale.item() == pytest.approx(scale)
    expected = irnet(layer.weight, torch.tensor(0.1)).abs() if statistics == "learned" else scale
    assert torch.allclose(layer.binary_weight().abs(), torch.as_tensor(expected).expand(8, 50))


@pytest.mark.parametrize(
    ("statistics", "function"),
    [
        ("learned", irnet),
        ("fixed", irnet_stable),
        ("through", lambda latents, t: irnet_stable(latents, t, through_statistics=True)),
    ],
)
def test_each_variant_of_irnet_equals_its_function_in_values_and_gradients(statistics, function):
    latents = torch.randn(4, 200).pow(9).requires_grad_()  # heavy tails: the published scale is not 1
    quantizer, gradient = IRNet(statistics), torch.randn(4, 200)
    set_progress(quantizer, 0.5)
    values, expected = quantizer(latents), function(latents, torch.tensor(1.0))
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, latents, gradient)[0] for each in (values, expected)))


class Following(nn.Module):
    """Custom module with a progress buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("progress", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def test_set_progress_reaches_a_custom_input_quantizer_and_its_parts():
    alone, parts = (BinaryLinear(4, 2, input_quantizer=each) for each in (Following(), nn.Sequential(Following())))
    model = nn.Sequential(alone, parts, Following())
    set_progress(model, 0.75)
    modules = alone.input_quantizer, parts.input_quantizer[0], model[2]
    assert [float(each.progress) for each in modules] == [0.75, 0.75, 0.0], "only modules held by a layer"


def test_set_progress_reaches_every_quantizer_with_a_progress_buffer():
    layers = [
        BinaryConv2d(2, 4, 3, weight_quantizer=IRNet(), input_quantizer=SignActivation("decaying")),
        BinaryLinear(4, 2, weight_quantizer=BiHalf(), input_quantizer=SignActivation()),
    ]
    model = nn.Sequential(*layers, nn.BatchNorm1d(2))
    model[-1].register_buffer("progress", torch.zeros(()))  # must not change
    for progress in (0.25, 1, 0.0):
        set_progress(model, progress)
        assert layers[0].weight_quantizer.progress == progress
        assert layers[0].input_quantizer.progress == progress
    set_progress(model, 0.5)
    assert model[-1].progress == 0
    assert layers[1].input_quantizer.progress is None


@pytest.mark.parametrize("quantizer", [IRNet("fixed"), SignActivation("decaying")])
def test_the_gradient_sharpens_with_the_progress(quantizer):
    inputs = torch.tensor([[-1.0, -0.05, 0.05, 1.0]])
    set_progress(quantizer, 0.0)
    assert torch.allclose(gradient_of(quantizer, inputs), torch.arange(1.0, 5.0)[None], rtol=0.05)
    set_progress(quantizer, 1.0)
    late = gradient_of(quantizer, inputs)[0] / torch.arange(1.0, 5.0)
    assert late[1] > 5, "steep near the step"
    assert late[0] < 0.01, "flat far from it"
    set_progress(quantizer, 0.0)


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_outside_zero_and_one_raises(progress):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        set_progress(IRNet(), progress)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("clipped", [0, 2, 3, 4, 0]),
        ("polynomial", [0, 2, 6, 4, 0]),
        ("straight", [1, 2, 3, 4, 5]),
    ],
)
def test_activations_are_signs_with_the_estimators_gradient(estimator, expected):
    inputs, quantizer = torch.tensor([-2.0, -0.5, 0.0, 0.5, 1.0]), SignActivation(estimator)
    assert quantizer(inputs).tolist() == [-1, -1, 1, 1, 1]
    assert gradient_of(quantizer, inputs).tolist() == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BiHalf(1.5), r"p_pos=1\.5 is not a share"),
        (lambda: BiHalf(float("nan")), "p_pos=nan is not a share"),
        (lambda: BiHalf("half"), "p_pos='half' is not a share"),
        (lambda: BiHalf(True), "p_pos=True is not a share"),
        (lambda: binarize_("hello", BiHalf()), "the model is a str: load it with eb.load_run"),
        (lambda: IRNet("median"), "statistics='median' is not known: choose one of 'learned', 'fixed', 'through'"),
        (lambda: IRNet(t_min=0), "the sharpness must grow from a value above 0"),
        (lambda: SignActivation("tanh"), "estimator='tanh' is not known"),
        (lambda: SignActivation("decaying", t_min=2, t_max=1), "the sharpness must grow"),
    ],
)
def test_invalid_settings_raise_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_custom_method_needs_only_symbols():
    class Positive(WeightQuantizer):
        def symbols(self, latents):
            return torch.ones_like(latents)

    layer = BinaryLinear(6, 3, bias=False, weight_quantizer=Positive())
    assert torch.equal(layer.binary_weight(), layer.scale.expand(3, 6))
    layer(torch.ones(1, 6)).sum().backward()
    assert torch.equal(layer.weight.grad, layer.scale.expand(3, 6))


def test_a_custom_method_without_symbols_is_not_audited_as_sign():
    class Opposite(WeightQuantizer):
        def forward(self, latents):
            return -latents.sign()

    model = torch.nn.Sequential(BinaryLinear(6, 3, weight_quantizer=Opposite()))
    model(torch.ones(1, 6)).sum().backward()
    with pytest.raises(NotImplementedError, match="Opposite has no symbols method"):
        audit(model)


def test_irnet_without_its_estimator_passes_the_gradient_unchanged() -> None:
    latents = torch.tensor([[1.0, 2.0, 6.0], [-1.0, 0.0, 4.0]], requires_grad=True)
    upstream = torch.tensor([[5.0, 7.0, -1.0], [0.5, 2.0, 3.0]])
    symbols = IRNet("identity")(latents)
    assert symbols.tolist() == [[-1, -1, 1], [-1, -1, 1]]
    assert torch.autograd.grad(symbols, latents, upstream)[0].equal(upstream)
    assert IRNet("identity").initial_scale(8) == 0.5
