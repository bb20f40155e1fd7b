"""Forward-mode derivatives, by ``torch.func.jvp`` and dual numbers, equal those of backward."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vjp

from equalbits import functional as F
from equalbits.nn import BiHalf, BinaryLinear, SignActivation, list_quantizers, quantizer_by_name

# torch loads its own rules for forward derivatives by what it has deprecated itself
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

INPUTS = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
Named = dict[str, Tensor]


def net(quantizer: str) -> tuple[nn.Module, Named, Named]:
    """A small net, its parameters, and a direction to move them in."""
    torch.manual_seed(7)
    binary = BinaryLinear(8, 6, weight_quantizer=quantizer_by_name(quantizer), input_quantizer=SignActivation())
    model = nn.Sequential(binary, nn.Tanh(), nn.Linear(6, 3)).double()
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    return model, parameters, {name: torch.randn_like(tensor) for name, tensor in parameters.items()}


def inner(left: Named, right: Named) -> Tensor:
    return torch.stack([(left[name] * right[name]).sum() for name in left]).sum()


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("quantizer", list_quantizers())
def test_forward_mode_derivatives_equal_backward_ones_for_every_method(quantizer, training):
    model, parameters, direction = net(quantizer)
    model.train(training)

    def answer(given: Named) -> Tensor:
        return functional_call(model, given, (INPUTS,))

    outputs, tangents = jvp(answer, (parameters,), (direction,))
    expected, back = vjp(answer, parameters)
    assert torch.equal(outputs, expected) and torch.equal(outputs, model(INPUTS))
    weights = torch.randn_like(outputs)
    torch.testing.assert_close((tangents * weights).sum(), inner(back(weights)[0], direction))
    with forward_ad.dual_level(), torch.no_grad():  # symbols that were kept in eval know no direction
        dual = {name: forward_ad.make_dual(parameters[name], direction[name]) for name in parameters}
        found = forward_ad.unpack_dual(answer(dual))
    assert torch.equal(found.primal, outputs)
    torch.testing.assert_close(found.tangent, tangents)


def test_a_forward_over_reverse_hessian_equals_the_reverse_over_reverse_one():
    model, parameters, direction = net("bihalf")

    def loss(given: Named) -> Tensor:
        return functional_call(model, given, (INPUTS,)).square().sum()

    forward = jvp(grad(loss), (parameters,), (direction,))[1]
    backward = grad(lambda given: inner(grad(loss)(given), direction))(parameters)
    rows = hessian(loss)(parameters)["0.weight"]
    assert forward["0.weight"].any()
    for name in forward:
        torch.testing.assert_close(forward[name], backward[name])
    summed = sum((rows[name] * direction[name]).flatten(2).sum(dim=2) for name in rows)
    torch.testing.assert_close(summed, forward["0.weight"])


def test_a_compiled_jvp_is_one_graph():
    latents, direction = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(
        lambda at, along: jvp(lambda w: BiHalf()(w) ** 2, (at,), (along,)), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(latents, direction)[1], 2 * F.bihalf(latents) * direction)


def test_scaled_symbols_keep_their_precision_in_forward_mode():
    latents, direction = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(2))
    symbols, slope = F.sign_symbols(latents).bfloat16() * 0.3, torch.tensor(0.3)
    found, tangent = jvp(lambda w: F.surrogate(w, symbols, slope), (latents,), (direction,))
    assert torch.equal(found, symbols) and tangent.dtype == torch.bfloat16
    assert torch.equal(tangent, (direction * slope).bfloat16())


@pytest.mark.parametrize("estimator", ["clipped", "straight", "polynomial", "decaying"])
def test_symbols_of_non_finite_latents_stay_the_same_in_forward_mode(estimator):
    inputs, sign = torch.tensor([0.5, torch.inf, -torch.inf, torch.nan]), SignActivation(estimator)
    found, tangent = jvp(sign, (inputs,), (torch.ones(4),))
    assert torch.equal(found, sign(inputs)) and torch.equal(found, torch.tensor([1.0, 1.0, -1.0, -1.0]))
    assert tangent[0] > 0
