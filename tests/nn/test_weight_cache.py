"""In eval mode a layer quantizes once, and again as soon as anything its binary weight depends on has changed."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from equalbits.nn import (
    BiHalf,
    BinaryConvTranspose2d,
    BinaryLinear,
    PrunedSign,
    WeightQuantizer,
    list_quantizers,
    quantizer_by_name,
    set_global_masks_,
    set_progress,
)

INPUTS = torch.linspace(-1, 1, 24).reshape(3, 8)


class Counting(BiHalf):
    """Bi-half that counts how often it quantizes. The list is shared by copies of the quantizer."""

    calls: list[int] = []  # noqa: RUF012

    def forward(self, latents: Tensor) -> Tensor:
        self.calls.append(1)
        return super().forward(latents)


def make_layer(quantizer: WeightQuantizer) -> BinaryLinear:
    torch.manual_seed(0)
    return BinaryLinear(8, 4, weight_quantizer=quantizer).eval()


@pytest.fixture
def layer() -> BinaryLinear:
    made = make_layer(Counting(0.5))
    made(INPUTS)
    Counting.calls.clear()
    return made


def assert_fresh(layer: BinaryLinear) -> None:
    """The next pass must equal that of a copy, which has no cache, to the bit."""
    assert torch.equal(layer(INPUTS), copy.deepcopy(layer)(INPUTS))


def count_calls(layer: BinaryLinear) -> int:
    """Return how often the next pass quantizes, and check its output."""
    Counting.calls.clear()
    layer(INPUTS)
    count = len(Counting.calls)
    assert_fresh(layer)
    return count


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_many_passes_in_eval_mode_quantize_once(mode):
    layer = make_layer(Counting(0.5))
    Counting.calls.clear()
    with mode():
        outputs = [layer(INPUTS) for _ in range(5)]
    assert len(Counting.calls) == 1
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_in_training_every_pass_quantizes(layer):
    layer.train()
    assert [count_calls(layer) for _ in range(3)] == [1, 1, 1]
    layer.eval()
    assert [count_calls(layer) for _ in range(3)] == [1, 0, 0]


def test_the_cache_is_one_tensor_of_the_size_of_the_weight(layer):
    own = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    cached = layer.cached_weight
    held = [cached.value, *cached.aliases, *cached.sources.tensors.values()]
    extra = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in held)}
    assert sum(size for address, size in extra.items() if address not in own) == layer.weight.nbytes


def test_the_cache_is_in_no_state_dict_copy_or_pickle(layer):
    assert layer.state_dict().keys() == {"weight", "bias", "scale"}
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(make_layer(BiHalf())))):
        assert other.cached_weight is None


@torch.no_grad()
def negate(layer: BinaryLinear) -> None:
    layer.weight.neg_()


@torch.no_grad()
def write_one_weight(layer: BinaryLinear) -> None:
    layer.weight[2, 3] = -5 * layer.weight[2, 3]


@torch.no_grad()
def copy_into(layer: BinaryLinear) -> None:
    layer.weight.copy_(torch.randn(4, 8))


def write_a_detached_alias(layer: BinaryLinear) -> None:
    layer.weight.detach().mul_(-1)


def initialize(layer: BinaryLinear) -> None:
    nn.init.normal_(layer.weight)


def reset(layer: BinaryLinear) -> None:
    layer.reset_parameters()


def load(layer: BinaryLinear) -> None:
    layer.load_state_dict(BinaryLinear(8, 4, weight_quantizer=copy.deepcopy(layer.weight_quantizer)).state_dict())


def load_by_assignment(layer: BinaryLinear) -> None:
    other = BinaryLinear(8, 4, weight_quantizer=copy.deepcopy(layer.weight_quantizer))
    layer.load_state_dict(other.state_dict(), assign=True)


def assign_data_once(layer: BinaryLinear) -> None:
    layer.weight.data = -layer.weight.data


def assign_data_many_times(layer: BinaryLinear) -> None:
    for _ in range(5):  # the allocator may return an address that the weight had before
        layer.weight.data = -layer.weight.data


def assign_a_view(layer: BinaryLinear) -> None:
    layer.weight.data = layer.weight.data.as_strided((4, 8), (1, 4))


def replace_the_parameter(layer: BinaryLinear) -> None:
    layer.weight = nn.Parameter(-layer.weight.detach())


def write_to_a_parameter_in_the_same_memory(layer: BinaryLinear) -> None:
    layer.weight = nn.Parameter(layer.weight.data)  # with a version counter of its own, which starts again
    while layer.weight._version < 3:
        negate(layer)


def vector_to_parameters(layer: BinaryLinear) -> None:
    nn.utils.vector_to_parameters(torch.randn(36), [layer.weight, layer.bias])


def swap(layer: BinaryLinear) -> None:
    torch.utils.swap_tensors(layer.weight, nn.Parameter(-layer.weight.detach()))


def step(layer: BinaryLinear) -> None:
    layer(INPUTS).square().sum().backward()
    torch.optim.Adam(layer.parameters(), lr=1.0).step()


def step_fused(layer: BinaryLinear) -> None:
    layer(INPUTS).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=10.0, fused=True).step()  # which leaves version counters as they are


def write_to_the_result(layer: BinaryLinear) -> None:
    with torch.no_grad():
        layer.binary_weight().zero_()


def scale_in_place(layer: BinaryLinear) -> None:
    layer.scale.mul_(2)


def replace_the_scale(layer: BinaryLinear) -> None:
    layer.scale = layer.scale * 3


def cast_back_and_forth(layer: BinaryLinear) -> None:
    layer.bfloat16().float()


def clear_by_eval(layer: BinaryLinear) -> None:
    layer.weight.data.neg_()
    layer.eval()


CHANGES = [negate, write_one_weight, copy_into, write_a_detached_alias, initialize, reset, load, load_by_assignment]
CHANGES += [assign_data_once, assign_data_many_times, assign_a_view, replace_the_parameter]
CHANGES += [write_to_a_parameter_in_the_same_memory, vector_to_parameters, swap, step, step_fused]
CHANGES += [scale_in_place, replace_the_scale, cast_back_and_forth, clear_by_eval]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_layer_is_noticed(layer, change):
    before = layer(INPUTS).detach()
    change(layer)
    assert count_calls(layer) == 1
    assert change is cast_back_and_forth or not torch.equal(layer(INPUTS), before)
    assert count_calls(layer) == 0


def test_a_write_to_the_returned_weight_does_not_reach_the_next_pass(layer):
    before = layer(INPUTS)
    write_to_the_result(layer)
    assert torch.equal(layer(INPUTS), before)


def test_a_change_of_the_bias_needs_no_new_weight(layer):
    with torch.no_grad():
        layer.bias.add_(1)
    assert count_calls(layer) == 0


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")  # after assign_a_view
@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(list_quantizers()), changes=st.lists(st.sampled_from([*CHANGES, None]), max_size=6))
def test_after_any_changes_a_pass_equals_that_of_a_freshly_quantized_layer(name, changes):
    layer = make_layer(quantizer_by_name(name))
    for change in changes:
        layer(INPUTS)
        if change is None:
            set_progress(layer, 0.5)
        elif not (name.startswith("bits") and change in (step, step_fused)):
            change(layer)
        assert_fresh(layer)


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.neg_(),
        lambda weight: weight.data[2].neg_(),
        lambda weight: weight.detach().numpy().__imul__(-1),
    ],
    ids=["data", "index of data", "numpy"],
)
@pytest.mark.parametrize("set_mode", [nn.Module.eval, nn.Module.train])
def test_a_write_that_torch_does_not_count_is_noticed_after_eval_or_train(layer, write, set_mode):
    before = layer(INPUTS)
    write(layer.weight)
    set_mode(layer)
    assert not torch.equal(layer(INPUTS), before)
    assert_fresh(layer)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_steps_of_an_optimizer_in_eval_mode_are_noticed(layer, name, kind):
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=1.0, **{kind: True})
    for _ in range(3):
        optimizer.zero_grad()
        layer(INPUTS).square().sum().backward()
        optimizer.step()
        assert_fresh(layer)


def test_a_setting_and_a_replaced_quantizer_are_noticed(layer):
    layer.weight_quantizer.p_pos = 0.25
    assert [count_calls(layer), count_calls(layer)] == [1, 0]
    layer.weight_quantizer = Counting(0.75)
    assert [count_calls(layer), count_calls(layer)] == [1, 0]


def test_progress_and_global_masks_are_noticed():
    model = nn.Sequential(make_layer(PrunedSign(0.75, scope="global", ramp=1.0)))
    outputs = [model(INPUTS)]
    for progress in (0.0, 1.0):
        set_progress(model, progress)
        set_global_masks_(model)
        assert_fresh(model)
        outputs.append(model(INPUTS))
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cast_is_noticed(layer, dtype):
    layer.to(dtype)
    assert layer(INPUTS.to(dtype)).dtype == dtype
    assert layer.binary_weight().dtype == dtype


def test_autocast_is_noticed_for_a_quantizer_that_depends_on_it():
    class Products(WeightQuantizer):
        def symbols(self, latents: Tensor) -> Tensor:
            return torch.where(latents @ torch.eye(8) > 0.001, 1.0, -1.0)

    layer = make_layer(Products())
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.00099, 0.00101, 32).view(4, 8))
        outside = layer.binary_weight()
        with torch.autocast("cpu", torch.bfloat16):
            inside = layer.binary_weight()
            assert torch.equal(inside, copy.deepcopy(layer).binary_weight())
    assert not torch.equal(outside, inside)
    assert torch.equal(layer.binary_weight(), outside)


def test_symbols_belong_to_the_caller(layer):
    before = layer(INPUTS)
    layer.symbols().zero_()
    assert torch.equal(layer(INPUTS), before)


def test_a_transposed_layer_has_a_cache_too():
    layer = BinaryConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=Counting()).eval()
    Counting.calls.clear()
    inputs = torch.randn(1, 4, 3, 3)
    first, second = layer(inputs), layer(inputs)
    assert len(Counting.calls) == 1
    assert torch.equal(first, second)
    negate(layer)
    assert not torch.equal(layer(inputs), first)
