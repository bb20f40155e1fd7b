"""Optimizers: built from settings, with the learning rate set per step; updates in the backward pass."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.functional import SGDSettings, sgd_step_
from equalbits.nn import BackwardUpdates, BinaryLayer, Bits, bop_parameters
from equalbits.optim import BalancedBop, Bop, CombinedOptimizer
from equalbits.training.config import OptimizerConfig, TrainConfig

#: Values of ``TrainConfig.memory`` with which captured steps update latents in the backward pass.
UPDATES_IN_BACKWARD = ("small",)


def make_optimizer(model: nn.Module, config: OptimizerConfig, *, capture: bool = False) -> torch.optim.Optimizer:
    """Build the optimizer of all trainable parameters; with ``capture`` its learning rate lives on the device."""
    if config.flips_bits:
        bits, reals = bop_parameters(model)
        kind = Bop if config.name == "bop" else BalancedBop
        lr = _learning_rate(bits[0]["params"][0], config, capture=capture)
        flipping = kind(bits, gamma=config.gamma, tau=config.tau, lr=lr)
        trainable = [parameter for parameter in reals if parameter.requires_grad]
        if not trainable:
            return flipping
        return CombinedOptimizer(flipping, _torch_optimizer(trainable, config.reals, config, capture=capture))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
    if any(isinstance(module, Bits) for module in model.modules()):
        raise ValueError(
            f"optimizer.name={config.name!r} would make bits real numbers: a net of bits needs 'bop' or 'balanced-bop'"
        )
    return _torch_optimizer(trainable, config.name, config, capture=capture)


def _torch_optimizer(
    trainable: list[nn.Parameter], name: str, config: OptimizerConfig, *, capture: bool
) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {
        "lr": _learning_rate(trainable[0], config, capture=capture),
        "weight_decay": config.weight_decay,
        "fused": trainable[0].device.type == "cuda" or None,
    }
    if name == "sgd":
        return torch.optim.SGD(trainable, momentum=config.momentum, nesterov=config.nesterov, **shared)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(trainable, betas=config.betas, capturable=capture, **shared)


def _learning_rate(parameter: nn.Parameter, config: OptimizerConfig, *, capture: bool) -> float | Tensor:
    return torch.tensor(config.lr, device=parameter.device) if capture else config.lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place if it lives on the device; Bop's ``gamma`` follows it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def backward_updates(
    layers: list[BinaryLayer], optimizer: torch.optim.Optimizer, config: TrainConfig
) -> BackwardUpdates | None:
    """Return updates of latents in the backward pass, of layers ranked ahead; None if they need all gradients at once.

    SGD has a kernel for them; Adam takes one launch per layer.
    """
    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    at_once = config.clip_norm > 0 or config.accumulate > 1 or type(optimizer) not in kinds
    if at_once or config.memory not in UPDATES_IN_BACKWARD:
        return None
    uses = [id(layer.weight) for layer in layers]
    single = [layer for layer in layers if layer.weight.requires_grad and uses.count(id(layer.weight)) == 1]
    return BackwardUpdates(single, partial(update_latents_, optimizer)) if single else None


@torch.no_grad()
def update_latents_(optimizer: torch.optim.Optimizer, layer: BinaryLayer, gradient: Tensor) -> None:
    """Step the latents of one layer, from the gradient of its symbols times the scale, as the optimizer would."""
    latents = layer.weight
    group = next(group for group in optimizer.param_groups if any(each is latents for each in group["params"]))
    if type(optimizer) is torch.optim.SGD:
        state = optimizer.state[latents]
        if group["momentum"] and state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(latents)
        settings = SGDSettings(group["lr"], group["momentum"], group["weight_decay"], group["nesterov"])
        sgd_step_(latents.detach(), state.get("momentum_buffer"), gradient, layer.scale, settings)
        return
    single = copy.copy(optimizer)  # shares the state
    single.param_groups = [{**group, "params": [latents]}]
    latents.grad = torch.empty_like(latents).copy_(gradient).mul_(layer.scale)
    single.step()
    latents.grad = None
