"""Global pruning: one exact count over all layers, and the output variance of each layer kept."""

import pytest
import torch
from torch import nn

from equalbits import functional as F
from equalbits.nn import (
    MPT,
    BinaryLinear,
    PrunedBiHalf,
    PrunedSign,
    binarize_,
    freeze_latents_,
    set_global_masks_,
    set_progress,
)

#: Nets this small are left a layer without a weight now and then.
pytestmark = pytest.mark.filterwarnings("ignore:the global ranking leaves")


def global_net(quantizer):
    net = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Flatten(), nn.Linear(24, 5), nn.Linear(5, 3)).double()
    binarize_(net, quantizer, where=["0", "2", "3"])
    return net


@pytest.mark.parametrize(
    "quantizer",
    [
        PrunedBiHalf(0.8, by="magnitude", scope="global"),
        PrunedBiHalf(0.8, by="score", scope="global", p_pos=0.25),
        PrunedSign(0.8, scope="global"),
        MPT(0.8, scope="global"),
    ],
)
def test_a_global_ranking_keeps_an_exact_count_over_the_net(quantizer):
    net = global_net(quantizer)
    layers = [net[i] for i in (0, 2, 3)]
    total = sum(layer.weight.numel() for layer in layers)
    kept = set_global_masks_(net)
    assert list(kept) == ["0", "2", "3"]
    assert sum(kept.values()) == total - int(0.8 * total)
    assert [int((layer.symbols() != 0).sum()) for layer in layers] == list(kept.values())
    everything = torch.cat([layer.weight_quantizer.importance(layer.weight).flatten() for layer in layers])
    mask = torch.cat([(layer.symbols() != 0).flatten() for layer in layers])
    assert everything[mask].min() >= everything[~mask].max()
    if quantizer.p_pos is not None:
        for layer in layers:
            rows = layer.symbols().flatten(1)
            wanted = [F.positive_count(int(n), quantizer.p_pos) for n in (rows != 0).sum(dim=1)]
            assert (rows == 1).sum(dim=1).tolist() == wanted
    assert sum(set_global_masks_(net, sparsity=0.5).values()) == total - total // 2


def test_global_masks_are_in_the_state_dict():
    net, other = (global_net(PrunedSign(0.8, scope="global")) for _ in "ab")
    set_global_masks_(net)
    other.load_state_dict(net.state_dict())
    assert torch.equal(net[2].symbols(), other[2].symbols())


def test_models_without_global_pruning_or_with_different_sparsities_raise():
    with pytest.raises(ValueError, match="no layer is pruned globally"):
        set_global_masks_(global_net(PrunedSign(0.8)))
    net = nn.Sequential(*(BinaryLinear(4, 4, weight_quantizer=PrunedSign(k, scope="global")) for k in (0.5, 0.6)))
    with pytest.raises(ValueError, match=r"0 0.5, 1 0.6.*pass one"):
        set_global_masks_(net)
    assert freeze_latents_(net) == []


def test_a_ramped_global_ranking_follows_the_training():
    net = global_net(PrunedSign(0.9, scope="global", ramp=0.2))
    total = sum(net[i].weight.numel() for i in (0, 2, 3))
    assert sum(set_global_masks_(net).values()) == total - total // 2
    set_progress(net, 0.5)
    assert sum(set_global_masks_(net).values()) == total - int(0.9 * total)


@pytest.mark.parametrize("quantizer", [PrunedSign(0.9, scope="global"), PrunedBiHalf(0.9, by="score", scope="global")])
def test_globally_pruned_layers_keep_their_output_variance(quantizer):
    net = global_net(quantizer)
    layers = [net[i] for i in (0, 2, 3)]
    for sparsity in (None, 0.9, 0.5):
        if sparsity is not None:
            set_global_masks_(net, sparsity=sparsity)
        for layer in layers:
            power = layer.binary_weight().detach().flatten(1).square().sum(dim=1).mean()
            assert float(power) == pytest.approx(2.0 if (layer.symbols() != 0).any() else 0.0)
    with torch.no_grad():
        layers[0].weight_quantizer.sieve.kept.fill_(False)
    assert not layers[0].binary_weight().any()


def test_a_layer_emptied_by_a_global_ranking_is_named_in_a_warning():
    net = global_net(PrunedSign(0.5, scope="global"))
    with torch.no_grad():
        net[3].weight.mul_(1e-3)
    with pytest.warns(UserWarning, match="leaves no weight in '3', so earlier layers get no gradient: lower the"):
        counts = set_global_masks_(net)
    assert counts["3"] == 0 < min(counts["0"], counts["2"])
    assert not net[3].symbols().any()
