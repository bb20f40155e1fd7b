"""Layers whose weight is read past them stay real."""

import pytest
import torch
from torch import nn

from equalbits.nn import BiHalf, binarize_


class ReadsPast(nn.Module):
    """Calls one layer, reads the weight of another, and asks a third only for its type."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read, self.asked = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, inputs):
        outputs = nn.functional.linear(self.called(inputs), weight=self.read.weight)
        return self.asked(outputs.to(self.asked.weight.dtype).view(-1, self.asked.weight.size(1)))


def test_a_layer_whose_weight_is_read_past_it_is_left_real():
    model = nn.Sequential(nn.Linear(6, 6), ReadsPast(), nn.Linear(6, 2))
    report = binarize_(model, BiHalf())
    assert report.replaced == ("1.called", "1.asked")
    assert dict(report.left_real)["1.read"] == "ReadsPast reads its weight past it"
    model(torch.randn(2, 6)).sum().backward()


class ReadsDeep(nn.Module):
    """Reads the weight of a layer within a part, and has a layer of that layer's name itself."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.read = ReadsPast(), nn.Linear(6, 6)

    def forward(self, inputs):
        return nn.functional.linear(self.read(self.part(inputs)), self.part.called.weight + self.part.read.weight)


def test_a_layer_read_from_further_out_is_left_real_and_its_namesake_is_not():
    report = binarize_(nn.Sequential(nn.Linear(6, 6), ReadsDeep(), nn.Linear(6, 2)), BiHalf())
    assert report.replaced == ("1.part.asked", "1.read")
    assert dict(report.left_real)["1.part.called"] == "ReadsDeep reads its weight past it"


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


def test_a_layer_read_by_what_the_forward_calls_is_left_real():
    report = binarize_(nn.Sequential(nn.Linear(6, 6), ReadsByHelp(), nn.Linear(6, 2)), BiHalf())
    assert report.replaced == ("1.called",)


class OwnEncoderLayer(nn.TransformerEncoderLayer):
    def forward(self, src, **masks):
        return super().forward(src, **masks)


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, OwnEncoderLayer])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder_answers_in_eval_as_in_training(batch_first, kind):
    encoder = kind(8, 2, 16, dropout=0.0, batch_first=batch_first)
    model = nn.Sequential(nn.Linear(8, 8), encoder, nn.Linear(8, 8), nn.Linear(8, 3))
    binarize_(model, BiHalf())
    inputs = torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(inputs), model.train()(inputs))
