"""No user sees a gradient of signs that a backward pass on a GPU has overwritten; a CPU overwrites it alike here."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from equalbits.functional.fused_norm import FusedNorm
from equalbits.models import create_model
from equalbits.models import residual_blocks as blocks
from equalbits.nn import recompute_convolutions_

#: All gradients that hooks of a user received.
Seen = list[Tensor]


@pytest.fixture
def overwritten(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Fuse blocks on a CPU, and let kernels of the references overwrite what those of a GPU do; list the gradients."""
    found: list[Tensor] = []

    def kernels(self: FusedNorm, c: Tensor) -> Any:
        def backward(g_y: Tensor, g_s: Tensor, c: Tensor, *others: object, overwrite: tuple[str, ...] = ()) -> Any:
            total, g_c, *rest = self.reference_backward(g_y, g_s, c, *others)
            if g_s is not None and "g_s" in overwrite:
                found.append(g_s)
                total = g_s.data.copy_(total)
            return total, c.data.copy_(g_c) if "c" in overwrite else g_c, *rest

        return SimpleNamespace(DTYPES=(c.dtype,), forward=self.reference_forward, backward=backward)

    monkeypatch.setattr(FusedNorm, "kernels", kernels)
    monkeypatch.setattr(blocks, "can_fuse", lambda *_: torch.is_grad_enabled())
    return found


def once(net: nn.Module, images: Tensor) -> Seen:
    net(images).square().sum().backward()
    return []


def twice(net: nn.Module, images: Tensor) -> Seen:
    loss = net(images).square().sum()
    loss.backward(retain_graph=True)
    net.zero_grad()
    images.grad = None
    loss.backward()
    return []


def with_hooks(net: nn.Module, images: Tensor) -> Seen:
    seen: list[Tensor] = []
    for tensor in (images, *net.parameters()):
        tensor.register_hook(seen.append)
    logits = net(images)
    logits.retain_grad()
    logits.square().sum().backward()
    assert logits.grad is not None
    return [*seen, logits.grad]


def with_a_graph_of_gradients(net: nn.Module, images: Tensor) -> Seen:
    wanted = [images, *net.parameters()]
    for tensor, grad in zip(
        wanted, torch.autograd.grad(net(images).square().sum(), wanted, create_graph=True), strict=True
    ):
        tensor.grad = grad.detach()
    return []


def with_a_checkpoint(net: nn.Module, images: Tensor) -> Seen:
    checkpoint(net, images, use_reentrant=False).square().sum().backward()
    return []


def with_a_reentrant_checkpoint(net: nn.Module, images: Tensor) -> Seen:
    checkpoint(net, images, use_reentrant=True).square().sum().backward()
    return []


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("rprelu", [False, True])
@pytest.mark.parametrize(
    "step", [once, twice, with_hooks, with_a_graph_of_gradients, with_a_checkpoint, with_a_reentrant_checkpoint]
)
def test_gradients_are_those_of_a_pass_that_overwrites_nothing(
    step: Any, rprelu: bool, recompute: bool, overwritten: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    inputs = "rsign" if rprelu else "sign"
    net = create_model("resnet18", width=0.125, num_classes=3, image_size=16, input_quantizer=inputs, rprelu=rprelu)
    recompute_convolutions_(net, recompute)
    images = torch.randn(4, 3, 16, 16)
    found = []
    for model in (net, copy.deepcopy(net)):
        own = images.clone().requires_grad_()
        seen = step(model, own)
        found.append([*seen, own.grad, *(parameter.grad for parameter in model.parameters())])
        assert len(overwritten) == 15 * (2 if step is twice else 1)  # one less than the convolutions that read signs
        monkeypatch.setattr(FusedNorm, "kernels", lambda self, c: None)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
