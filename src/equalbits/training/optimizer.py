"""Optimizers: built from settings, with the learning rate set per step."""

from typing import Any

import torch
from torch import Tensor, nn

from equalbits.nn import Bits, bop_parameters
from equalbits.optim import BalancedBop, Bop, CombinedOptimizer
from equalbits.training.config import OptimizerConfig


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
