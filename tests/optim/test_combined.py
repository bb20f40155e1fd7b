"""Two optimizers as one: they step, clear gradients, save and load together."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from equalbits.nn import BinaryLinear, Bits, bop_parameters
from equalbits.optim import BalancedBop, CombinedOptimizer
from equalbits.training.checkpoint_file import load_optimizer, optimizer_tensors


def make(model: nn.Module) -> CombinedOptimizer:
    bits, reals = bop_parameters(model)
    return CombinedOptimizer(BalancedBop(bits, gamma=0.1, tau=0.0), torch.optim.SGD(reals, lr=0.1, momentum=0.9))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(BinaryLinear(8, 6, weight_quantizer=Bits(p_pos=0.5)), nn.Linear(6, 2))


def steps(model: nn.Module, optimizer: CombinedOptimizer, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()


def test_each_part_updates_its_own_parameters() -> None:
    model = net()
    before = copy.deepcopy(model)
    steps(model, make(model), 3)
    assert set(model[0].weight.abs().flatten().tolist()) == {1.0}
    assert not torch.equal(model[0].weight, before[0].weight)
    assert torch.equal(model[0].weight.sum(dim=1), torch.zeros(6))
    assert not torch.equal(model[1].weight, before[1].weight)


def test_a_loaded_state_resumes_to_the_bit() -> None:
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
            group["lr"] = 0.0
        before = copy.deepcopy(model)
        steps(model, both, 1)
        assert all(map(torch.equal, before.parameters(), model.parameters()))
        both = make(model)
        both.load_state_dict(both.state_dict())


def test_a_closure_is_called_once_with_gradients() -> None:
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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_resumes_to_the_bit_and_is_independent(copied: Callable) -> None:
    model = net()
    both = make(model)
    steps(model, both, 3)
    other, again = copied((model, both))
    assert [type(part) for part in again.parts] == [BalancedBop, torch.optim.SGD]
    before = copy.deepcopy(model)
    steps(other, again, 3, start=3)
    assert all(map(torch.equal, model.parameters(), before.parameters()))
    steps(model, both, 3, start=3)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_adding_a_group_raises_with_the_remedy() -> None:
    model = net()
    both = make(model)
    steps(model, both, 2)
    more = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"optimizer of a new group.*parts\[1\]\.add_param_group"):
        both.add_param_group({"params": [more]})
    momentum = both.state[model[1].weight]["momentum_buffer"].clone()
    both.parts[1].add_param_group({"params": [more]})
    both = CombinedOptimizer(*both.parts)
    assert torch.equal(both.state[model[1].weight]["momentum_buffer"], momentum)
    more.grad = torch.ones(2)
    both.step()
    assert more.tolist() == pytest.approx([-0.1, -0.1])


def test_one_scheduler_sets_the_learning_rates_of_all_parts() -> None:
    model = net()
    both = make(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(both, 2)
    steps(model, both, 1)
    scheduler.step()
    assert [group["lr"] for part in both.parts for group in part.param_groups] == pytest.approx([0.5, 0.05])
    scheduler.step()
    before = copy.deepcopy(model)
    momentum = both.state[model[0].weight]["momentum"].clone()
    steps(model, both, 1, start=1)
    assert torch.equal(both.state[model[0].weight]["momentum"], momentum)
    assert torch.equal(model[1].weight, before[1].weight)


def test_averages_of_half_precision_bits_keep_their_dtype_when_loaded() -> None:
    first, second = net().bfloat16(), net().bfloat16()
    both, again = make(first), make(second)
    for parameter in first.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    both.step()
    again.load_state_dict(both.state_dict())
    saved, found = both.state[first[0].weight]["momentum"], again.state[second[0].weight]["momentum"]
    assert found.dtype == torch.float32
    assert torch.equal(found, saved)
    assert again.state[second[1].weight]["momentum_buffer"].dtype == torch.bfloat16
