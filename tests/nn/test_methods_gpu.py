"""Every method on a GPU: the symbols of the CPU, and steps that a CUDA graph can capture."""

import copy

import pytest
import torch
from torch import nn

from equalbits.nn import (
    BinaryConv2d,
    Bits,
    PrunedBiHalf,
    PrunedSign,
    bop_parameters,
    list_quantizers,
    quantizer_by_name,
    set_global_masks_,
    set_progress,
)
from equalbits.optim import BalancedBop, Bop

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
RULES = ["by=rank", "by=magnitude", "by=magnitude,scope=filter", "by=score", "by=rank,ramp=0.1", "by=score,ramp=0.1"]


@pytest.mark.parametrize("name", [*list_quantizers(), *(f"pruned-bihalf:sparsity=0.8,{rule}" for rule in RULES)])
def test_symbols_and_gradients_on_the_gpu_equal_those_on_the_cpu(name):
    torch.manual_seed(0)
    here = BinaryConv2d(16, 32, 3, bias=False, weight_quantizer=quantizer_by_name(name))
    there = copy.deepcopy(here).cuda()
    assert torch.equal(there.symbols().cpu(), here.symbols())
    gradient = torch.randn_like(here.weight)
    here.binary_weight().backward(gradient)
    there.binary_weight().backward(gradient.cuda())
    torch.testing.assert_close(there.binary_weight().cpu(), here.binary_weight())
    for ours, theirs in zip(here.parameters(), there.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(theirs.grad.cpu(), ours.grad, rtol=1e-4, atol=1e-5)


def captured(work):
    """Capture a CUDA graph of ``work``, after the required warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


@pytest.mark.parametrize("by", ["rank", "score"])
def test_a_captured_graph_follows_the_ramp(by):
    layer = BinaryConv2d(16, 8, 3, weight_quantizer=PrunedBiHalf(0.9, by=by, ramp=0.5)).cuda()
    graph, symbols = captured(layer.symbols)
    for progress in (0.0, 0.2, 0.7):
        set_progress(layer, progress)
        graph.replay()
        assert torch.equal(symbols, layer.symbols())


def test_a_captured_graph_applies_the_scale_correction_of_a_ramp_and_a_global_ranking():
    for settings in ("ramp=0.5", "scope=global"):
        layer = BinaryConv2d(
            16, 8, 3, weight_quantizer=quantizer_by_name(f"pruned-sign:sparsity=0.9,{settings}")
        ).cuda()
        with torch.no_grad():
            graph, weight = captured(layer.binary_weight)
        for progress in (0.0, 0.2, 0.7):
            set_progress(layer, progress)
            if settings == "scope=global":
                set_global_masks_(nn.Sequential(layer), sparsity=0.5 + progress / 2)
            graph.replay()
            torch.testing.assert_close(weight, layer.binary_weight().detach())
            assert float(weight.square().sum()) == pytest.approx(2 * 8, rel=1e-2)


def test_a_captured_graph_follows_global_masks():
    layer = BinaryConv2d(16, 8, 3, weight_quantizer=PrunedSign(0.9, scope="global")).cuda()
    graph, symbols = captured(layer.symbols)
    set_global_masks_(nn.Sequential(layer))
    graph.replay()
    assert int((symbols != 0).sum()) == 8 * 144 - int(0.9 * 8 * 144)


@pytest.mark.parametrize(("kind", "p_pos"), [(Bop, None), (BalancedBop, 0.25)])
def test_a_captured_step_flips_the_same_bits_as_an_eager_one(kind, p_pos):
    torch.manual_seed(0)
    eager, replayed = (BinaryConv2d(16, 8, 3, weight_quantizer=Bits(p_pos=p_pos)).cuda() for _ in range(2))
    replayed.load_state_dict(eager.state_dict())
    optimizers = [kind(bop_parameters(nn.Sequential(layer)).bits, gamma=0.1, tau=0.01) for layer in (eager, replayed)]
    for layer in (eager, replayed):
        layer.weight.grad = torch.zeros_like(layer.weight)  # flips nothing while the graph warms up
    graph, _ = captured(optimizers[1].step)
    for _ in range(10):
        gradient = torch.randn_like(eager.weight)
        for layer in (eager, replayed):
            layer.weight.grad.copy_(gradient)
        optimizers[0].step()
        graph.replay()
        assert torch.equal(eager.weight, replayed.weight)
    if p_pos is not None:
        assert (replayed.symbols() == 1).flatten(1).sum(dim=1).tolist() == [36] * 8
