"""Layers whose weight is accessed directly stay real; layers called through a plain list become binary there."""

from collections import deque
from typing import NamedTuple

import pytest
import torch
from torch import nn

from equalbits.analysis import summarize
from equalbits.nn import BiHalf, all_layers, binarize_


class ReadsPast(nn.Module):
    """Calls one layer, reads the weight of another, and asks a third only for its type."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read, self.asked = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, inputs):
        outputs = nn.functional.linear(self.called(inputs), weight=self.read.weight)
        return self.asked(outputs.to(self.asked.weight.dtype).view(-1, self.asked.weight.size(1)))


def test_a_layer_whose_weight_is_accessed_directly_is_left_real():
    model = nn.Sequential(nn.Linear(6, 6), ReadsPast(), nn.Linear(6, 2))
    report = binarize_(model, BiHalf())
    assert report.replaced == ("1.called", "1.asked")
    assert dict(report.left_real)["1.read"] == "ReadsPast accesses its .weight directly instead of calling the layer"
    model(torch.randn(2, 6)).sum().backward()


class ReadsDeep(nn.Module):
    """Reads the weight of a layer within a part, and has a layer of that layer's name itself."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.read = ReadsPast(), nn.Linear(6, 6)

    def forward(self, inputs):
        return nn.functional.linear(self.read(self.part(inputs)), self.part.called.weight + self.part.read.weight)


def test_a_layer_accessed_from_an_outer_module_is_left_real_and_its_namesake_is_not():
    report = binarize_(nn.Sequential(nn.Linear(6, 6), ReadsDeep(), nn.Linear(6, 2)), BiHalf())
    assert report.replaced == ("1.part.asked", "1.read")
    assert (
        dict(report.left_real)["1.part.called"]
        == "ReadsDeep accesses its .weight directly instead of calling the layer"
    )


class ReadsByHelp(nn.Module):
    """Reads weights in a method and in a function of its own; what it does not call may read what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.helped, self.inner, self.called = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.start_anew()

    def start_anew(self):
        nn.init.ones_(self.called.weight)

    def help(self, inputs):
        return nn.functional.linear(inputs, self.helped.weight)

    def forward(self, inputs):
        def multiply(values):
            return values @ self.inner.weight

        return multiply(self.help(self.called(inputs)))


def test_a_layer_accessed_by_a_method_that_forward_calls_is_left_real():
    report = binarize_(nn.Sequential(nn.Linear(6, 6), ReadsByHelp(), nn.Linear(6, 2)), BiHalf())
    assert report.replaced == ("1.called",)


class OwnEncoderLayer(nn.TransformerEncoderLayer):
    def forward(self, src, **masks):
        return super().forward(src, **masks)


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, OwnEncoderLayer])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder_gives_the_same_output_in_eval_as_in_training(batch_first, kind):
    encoder = kind(8, 2, 16, dropout=0.0, batch_first=batch_first)
    model = nn.Sequential(nn.Linear(8, 8), encoder, nn.Linear(8, 8), nn.Linear(8, 3))
    binarize_(model, BiHalf())
    inputs = torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(inputs), model.train()(inputs))


class Lists(nn.Module):
    """Calls its layers through what it keeps beside them: a list, a dictionary, a tuple, what torch does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.four = (nn.Linear(6, 6) for _ in range(4))
        self.listed, self.by_key, self.fixed = [self.one], {"deep": (1, [self.two])}, ("three", self.three)
        vars(self)["hidden"] = self.four
        self.listed.append(self.listed)  # that holds itself
        self.untouched = (3, [4])

    def forward(self, inputs):
        return self.hidden(self.fixed[1](self.by_key["deep"][1][0](self.listed[0](inputs))))


def test_a_layer_called_through_a_plain_list_is_replaced_there_too():
    model = Lists()
    listed, untouched = model.listed, model.untouched
    report = binarize_(model, BiHalf(), where=["one", "two", "three", "four"])
    assert report.replaced == ("one", "two", "three", "four")
    inputs = torch.randn(3, 6)
    expected = inputs
    for layer in (model.one, model.two, model.three, model.four):
        expected = nn.functional.linear(expected, layer.scale * layer.symbols(), layer.bias)
    assert torch.equal(model(inputs), expected)
    assert model.listed is listed and listed[0] is model.one and listed[1] is listed
    assert model.untouched is untouched and untouched == (3, [4])


def test_layers_left_real_stay_in_a_plain_list():
    model = Lists()
    one, two = model.one, model.two
    binarize_(model, BiHalf(), where="two")
    assert model.listed[0] is one and model.by_key["deep"][1][0] is model.two is not two


def test_a_layer_with_its_own_compile_is_binary_after_conversion():
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    model[1].compile(backend="eager")
    inputs = torch.randn(3, 6)
    model(inputs)
    binarize_(model, BiHalf())
    binary = nn.functional.linear(model[0](inputs), model[1].scale * model[1].symbols(), model[1].bias)
    assert torch.equal(model(inputs), model[2](binary))


def test_a_separately_compiled_layer_is_left_real_and_one_in_a_compiled_model_is_not():
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    model[1] = torch.compile(model[1], backend="eager")
    report = binarize_(model, BiHalf())
    assert report.replaced == ("2",)
    assert "compiled separately" in dict(report.left_real)["1._orig_mod"]
    assert binarize_(torch.compile(nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))), BiHalf()).replaced
    alone = nn.Sequential(nn.Linear(6, 6), torch.compile(nn.Linear(6, 6)), nn.Linear(6, 6))
    with pytest.raises(ValueError, match=r"where= selects none of 2 layers \('1._orig_mod' is left real: compiled sep"):
        binarize_(alone, BiHalf())


def test_a_layer_in_a_tuple_held_in_several_places_is_replaced_in_each():
    model = Lists()
    pair = (model.one, [model.two])
    model.paths, model.named = [pair] * 3, {"first": pair, "again": (pair, pair)}
    binarize_(model, BiHalf(), where=["one", "two"])
    for first, (second,) in (*model.paths, model.named["first"], *model.named["again"]):
        assert first is model.one and second is model.two


class Pair(NamedTuple):
    before: nn.Module
    after: nn.Module


def test_a_layer_in_a_namedtuple_is_replaced_there_too():
    model = Lists()
    model.pair = Pair(model.one, model.two)
    binarize_(model, BiHalf(), where=["one", "two"])
    assert type(model.pair) is Pair and model.pair.before is model.one and model.pair.after is model.two


@pytest.mark.parametrize("kind", [deque, set, frozenset, dict.fromkeys])
def test_a_layer_in_a_deque_a_set_or_a_key_is_replaced_there_too(kind):
    model = Lists()
    model.held = [kind([model.one, model.four])]
    binarize_(model, BiHalf(), where="one")
    assert set(model.held[0]) == {model.one, model.four}


def test_containers_without_a_replaced_layer_stay_the_same_object():
    model = Lists()
    pair = model.pair = Pair(model.three, model.four)
    binarize_(model, BiHalf(), where="one")
    assert model.pair is pair


def decode(layer, hidden):
    return nn.functional.linear(hidden, layer.weight.t())


class Tied(nn.Module):
    """Encodes by calling a layer, and decodes by a function that reads the weight of the same layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.encoder, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs):
        assert self.first.weight.dtype == inputs.dtype and self.first.weight.shape[1] == inputs.shape[1]
        return self.last(decode(self.encoder, self.encoder(self.first(inputs))))


def test_a_layer_that_a_function_reads_is_left_real_if_an_example_shows_it_and_named_by_summarize():
    inputs = torch.randn(2, 8)
    report = binarize_(Tied(), BiHalf(), where=all_layers, example=inputs)
    assert report.replaced == ("first", "last")
    assert dict(report.left_real) == {"encoder": "a function reads its .weight, past the layer"}
    model = Tied()
    binarize_(model, BiHalf())
    summary = summarize(model, inputs)
    assert [layer.name for layer in summary.layers if layer.weight_read] == ["encoder"]
    assert str(summary).endswith("\nbinary, but a function also reads the latents in .weight: encoder")


@pytest.mark.parametrize("example", [(torch.randn(2, 8),), {"inputs": torch.randn(2, 8)}])
def test_an_example_may_be_a_tuple_or_a_dict(example):
    assert "encoder" in dict(binarize_(Tied(), BiHalf(), where=all_layers, example=example).left_real)
