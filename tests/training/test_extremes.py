"""Extreme trainings end with finite weights and a packed net, or are refused in one line."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import equalbits as eb
from equalbits.data import Loader, load_dataset
from equalbits.nn import BiHalf, BinaryConv2d, BinaryLinear
from equalbits.training import train


@pytest.mark.parametrize("p_pos", [0.0, 1.0])
def test_a_net_whose_symbols_are_all_alike_trains_and_packs(p_pos: float, make_loader, make_config) -> None:
    binary = BinaryLinear(64, 8, weight_quantizer=BiHalf(p_pos=p_pos), bias=False)
    net = nn.Sequential(nn.Flatten(), binary, nn.ReLU(), nn.Linear(8, 4)).eval()
    before = binary.weight.detach().clone()
    history = train(net, make_loader(), make_config(epochs=1))
    assert history.epochs[0].train.total == 44
    assert not torch.equal(binary.weight, before), "the latent weights are trained although no symbol can flip"
    outputs = binary(torch.eye(64))
    assert bool((outputs > 0).all() if p_pos else (outputs < 0).all())
    assert eb.pack(net.eval(), torch.randn(8, 1, 8, 8)).audit().exact


def test_one_connection_per_filter_trains_and_packs(make_loader, make_config) -> None:
    depthwise = BinaryConv2d(4, 4, 1, groups=4, weight_quantizer=BiHalf())
    net = nn.Sequential(nn.Conv2d(1, 4, 3), depthwise, nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    train(net, make_loader(), make_config(epochs=1))
    assert all(bool(tensor.isfinite().all()) for tensor in net.state_dict().values())
    assert eb.pack(net.eval(), torch.randn(8, 1, 8, 8)).audit().exact


@pytest.mark.parametrize(("count", "batch_size"), [(1, 1), (1, 64), (5, 64)])
def test_one_image_and_a_batch_larger_than_the_data_count_every_image_once(
    count: int, batch_size: int, make_net, make_loader, make_config
) -> None:
    history = train(make_net(norm=True), make_loader(count=count, batch_size=batch_size), make_config(epochs=2))
    assert [record.train.total for record in history.epochs] == [count, count]


def test_an_empty_data_set_is_refused_in_one_line(make_net, make_config) -> None:
    full = load_dataset("synthetic:1x8x8:4:44", split="train")
    with pytest.raises(ValueError, match=r"image|batch") as caught:
        train(
            make_net(),
            Loader(replace(full, images=full.images[:0], labels=full.labels[:0]), batch_size=8),
            make_config(),
        )
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"image|batch") as caught:
        train(make_net(), [], make_config())
    assert "\n" not in str(caught.value)
