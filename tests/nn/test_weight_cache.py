"""In eval mode symbols are found once, and anew as soon as anything they were found from has changed."""

import copy

import pytest
import torch
from torch import Tensor, nn

from equalbits.nn import BiHalf, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear, IRNet, Sign, WeightQuantizer

INPUTS = torch.linspace(-1, 1, 24).reshape(3, 8)


class Counting(BiHalf):
    """Bi-half that counts how often it quantizes. The list is shared by copies of the quantizer."""

    calls: list[int] = []  # noqa: RUF012

    def forward(self, latents: Tensor) -> Tensor:
        self.calls.append(1)
        return super().forward(latents)


@pytest.fixture
def layer() -> BinaryLinear:
    torch.manual_seed(0)
    made = BinaryLinear(8, 4, weight_quantizer=Counting(0.5)).eval()
    with torch.no_grad():
        made(INPUTS)
    Counting.calls.clear()
    return made


def searches(layer: BinaryLinear) -> int:
    """How often the next pass looks for symbols; its answer must be what a layer without memory gives."""
    Counting.calls.clear()
    with torch.no_grad():
        answer = layer(INPUTS)
    found = len(Counting.calls)
    assert torch.equal(answer, copy.deepcopy(layer).train()(INPUTS))
    return found


def test_symbols_are_found_once_in_eval_mode_and_each_time_in_training(layer):
    assert [searches(layer) for _ in range(3)] == [0, 0, 0]
    layer.train()
    assert [searches(layer) for _ in range(3)] == [1, 1, 1]
    layer.eval()
    assert [searches(layer) for _ in range(3)] == [1, 0, 0]


def step_of_an_optimizer(layer: BinaryLinear) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), lr=10.0)
    layer(INPUTS).square().sum().backward()
    optimizer.step()


def loading_a_checkpoint(layer: BinaryLinear) -> None:
    layer.load_state_dict(BinaryLinear(8, 4).state_dict())


def loading_by_assignment(layer: BinaryLinear) -> None:
    layer.load_state_dict(BinaryLinear(8, 4).state_dict(), assign=True)


def writing_without_grad(layer: BinaryLinear) -> None:
    with torch.no_grad():
        layer.weight.neg_()


def writing_through_data(layer: BinaryLinear) -> None:
    layer.weight.data.neg_()


def writing_one_value_through_data(layer: BinaryLinear) -> None:
    layer.weight.data[2, 3] = 5.0


def writing_through_numpy(layer: BinaryLinear) -> None:
    layer.weight.detach().numpy()[:] *= -1


def giving_other_data(layer: BinaryLinear) -> None:
    layer.weight.data = -layer.weight.data


def giving_another_parameter(layer: BinaryLinear) -> None:
    layer.weight = nn.Parameter(-layer.weight.detach())


def another_p_pos(layer: BinaryLinear) -> None:
    layer.weight_quantizer.p_pos = 0.25


def another_quantizer(layer: BinaryLinear) -> None:
    class Opposite(Counting):
        def forward(self, latents: Tensor) -> Tensor:
            return -super().forward(latents)

    layer.weight_quantizer = Opposite(0.5)


@pytest.mark.parametrize(
    "change",
    [
        step_of_an_optimizer,
        loading_a_checkpoint,
        loading_by_assignment,
        writing_without_grad,
        writing_through_data,
        writing_one_value_through_data,
        writing_through_numpy,
        giving_other_data,
        giving_another_parameter,
        another_p_pos,
        another_quantizer,
    ],
)
def test_a_change_is_noticed(layer, change):
    before = layer(INPUTS)
    change(layer)
    assert searches(layer) == 1
    assert not torch.equal(layer(INPUTS), before)
    assert searches(layer) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cast_is_noticed(layer, dtype):
    layer.to(dtype)
    assert layer(INPUTS.to(dtype)).dtype == dtype
    assert layer.binary_weight().dtype == dtype


def test_the_bias_and_the_scale_have_no_say_in_the_symbols(layer):
    before = layer(INPUTS)
    with torch.no_grad():
        layer.bias.add_(1)
        layer.scale.mul_(2)
    assert searches(layer) == 0
    assert not torch.equal(layer(INPUTS), before)


@pytest.mark.parametrize(
    "quantizer", [BiHalf(0.3), Sign(), IRNet(), IRNet("fixed"), IRNet("identity"), IRNet("through")]
)
def test_both_modes_give_one_answer_and_one_gradient(quantizer):
    torch.manual_seed(1)
    layer = BinaryConv2d(3, 4, 3, weight_quantizer=quantizer)
    inputs, seen = torch.randn(2, 3, 6, 6), []
    for training in (True, False, False):
        layer.train(training)
        layer.weight.grad = None
        answer = layer(inputs)
        answer.square().sum().backward()
        seen.append((answer.detach(), layer.weight.grad))
    for answer, gradient in seen[1:]:
        assert torch.equal(answer, seen[0][0])
        assert torch.equal(gradient, seen[0][1])
    assert seen[0][1].abs().sum() > 0


def test_gradients_flow_in_eval_mode_after_a_pass_without_them(layer):
    for context in (torch.no_grad, torch.inference_mode):
        layer.weight.data.neg_()
        with context():
            layer(INPUTS)
        layer.weight.grad = None
        assert searches(layer) == 0
        layer(INPUTS).square().sum().backward()
        assert layer.weight.grad.abs().sum() > 0


def test_latents_that_need_no_gradient_get_none(layer):
    layer.weight.requires_grad_(False)
    inputs = INPUTS.clone().requires_grad_()
    for training in (True, False):
        layer.train(training)
        layer(inputs).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert inputs.grad is not None
    layer.requires_grad_(False)
    assert not layer(INPUTS).requires_grad


def test_symbols_asked_for_are_the_callers_own(layer):
    before = layer(INPUTS)
    layer.symbols().zero_()
    assert torch.equal(layer(INPUTS), before)


def test_a_transposed_layer_keeps_its_symbols_too():
    layer = BinaryConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=Counting()).eval()
    Counting.calls.clear()
    inputs = torch.randn(1, 4, 3, 3)
    with torch.no_grad():
        first, second = layer(inputs), layer(inputs)
    assert len(Counting.calls) == 1
    assert torch.equal(first, second)
    layer.weight.data.neg_()
    assert not torch.equal(layer(inputs), first)


class Threshold(WeightQuantizer):
    """+1 from a threshold on, which may be kept in any way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("buffer", "none yet"):
            self.register_buffer("at", torch.zeros(()) if kind == "buffer" else None)
        elif kind == "parameter":
            self.at = nn.Parameter(torch.zeros(()))
        elif kind == "within":
            self.inner = Threshold("number")
        else:
            self.at = {"number": 0.0, "list": [0.0], "tensor": torch.zeros(())}[kind]

    def threshold(self) -> float | Tensor:
        if self.kind == "within":
            return self.inner.at
        if self.at is None:
            return 0.0
        return self.at[0] if self.kind == "list" else self.at

    def move(self, value: float) -> None:
        if self.kind == "number":
            self.at = value
        elif self.kind == "within":
            self.inner.at = value
        elif self.kind == "list":
            self.at[0] = value
        elif self.kind == "none yet":
            self.at = torch.tensor(value)
        else:
            self.at.data.fill_(value)

    def symbols(self, latents: Tensor) -> Tensor:
        return torch.where(latents.detach() >= self.threshold(), 1.0, -1.0)


@pytest.mark.parametrize("kind", ["number", "list", "tensor", "buffer", "none yet", "parameter", "within"])
def test_a_setting_of_ones_own_quantizer_is_noticed_however_it_is_kept(kind):
    layer = BinaryLinear(8, 4, weight_quantizer=Threshold(kind)).eval()
    before = layer(INPUTS)
    assert torch.equal(layer(INPUTS), before)
    layer.weight_quantizer.move(0.1)
    assert not torch.equal(layer(INPUTS), before)
    assert torch.equal(layer(INPUTS), copy.deepcopy(layer).train()(INPUTS))


def test_without_gradients_no_method_estimates_twice():
    class Estimating(Sign):
        calls: list[int] = []  # noqa: RUF012

        def forward(self, latents: Tensor) -> Tensor:
            self.calls.append(1)
            return super().forward(latents)

    layer = BinaryLinear(8, 4, weight_quantizer=Estimating()).eval()
    with torch.no_grad():
        answers = [layer(INPUTS) for _ in range(3)]
        assert Estimating.calls == [1]
        layer.weight.data.neg_()
        turned = layer(INPUTS)
    assert Estimating.calls == [1, 1]
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    assert torch.equal(turned, copy.deepcopy(layer).train()(INPUTS))
