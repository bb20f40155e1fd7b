"""Two optimizers as one: they step, forget, save and load together."""

import copy

import torch
from torch import nn

from equalbits.nn import BinaryLinear, Bits, bop_parameters
from equalbits.optim import BalancedBop, Together
from equalbits.training.checkpoint import load_optimizer, optimizer_tensors


def make(model: nn.Module) -> Together:
    bits, reals = bop_parameters(model)
    return Together(BalancedBop(bits, gamma=0.1, tau=0.0), torch.optim.SGD(reals, lr=0.1, momentum=0.9))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(BinaryLinear(8, 6, weight_quantizer=Bits(p_pos=0.5)), nn.Linear(6, 2))


def steps(model: nn.Module, optimizer: Together, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()


def test_each_part_moves_what_is_its_own() -> None:
    model = net()
    before = copy.deepcopy(model)
    steps(model, make(model), 3)
    assert set(model[0].weight.abs().flatten().tolist()) == {1.0}
    assert not torch.equal(model[0].weight, before[0].weight)
    assert torch.equal(model[0].weight.sum(dim=1), torch.zeros(6))
    assert not torch.equal(model[1].weight, before[1].weight)


def test_a_saved_state_goes_on_to_the_bit() -> None:
    whole = net()
    steps(whole, make(whole), 6)
    first = net()
    optimizer = make(first)
    steps(first, optimizer, 3)
    second = copy.deepcopy(first)
    again = make(second)
    load_optimizer(again, *optimizer_tensors(optimizer))
    steps(second, again, 3, start=3)
    assert all(map(torch.equal, whole.parameters(), second.parameters()))


def test_a_setting_changed_in_a_group_reaches_the_part_before_and_after_loading() -> None:
    model = net()
    both = make(model)
    for _ in range(2):
        for group in both.param_groups:
            group["lr" if "lr" in group else "gamma"] = 0.0
        before = copy.deepcopy(model)
        steps(model, both, 1)
        assert all(map(torch.equal, before.parameters(), model.parameters()))
        both = make(model)
        both.load_state_dict(both.state_dict())


def test_a_closure_is_asked_once_with_gradients() -> None:
    model = net()
    asked = []

    def closure() -> torch.Tensor:
        asked.append(torch.is_grad_enabled())
        loss = model(torch.ones(1, 8)).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = make(model).step(closure)
    assert asked == [True] and loss.requires_grad
