"""Optimizers: built from settings, with the learning rate set per step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.nn import Bits, bop_parameters
from equalbits.optim import BalancedBop, Bop, CombinedOptimizer
from equalbits.training.config import OptimizerConfig
from equalbits.training.divergence import NonFiniteError


def make_optimizer(model: nn.Module, config: OptimizerConfig, *, capture: bool = False) -> torch.optim.Optimizer:
    """Build the optimizer of all trainable parameters; with ``capture`` its learning rate lives on the device."""
    if config.flips_bits:
        return _latent_free(model, config, capture=capture)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
    if any(isinstance(module, Bits) for module in model.modules()):
        raise ValueError(
            f"optimizer.name={config.name!r} would make bits real numbers: a net of bits needs 'bop' or 'balanced-bop'"
        )
    return _torch_optimizer(trainable, config, capture=capture)


def _torch_optimizer(trainable: list[nn.Parameter], config: OptimizerConfig, *, capture: bool) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {
        "lr": _learning_rate(trainable[0], config, capture=capture),
        "weight_decay": config.weight_decay,
        "fused": trainable[0].device.type == "cuda" or None,
    }
    name = config.reals if config.flips_bits else config.name
    if name == "sgd":
        return torch.optim.SGD(trainable, momentum=config.momentum, nesterov=config.nesterov, **shared)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(trainable, betas=config.betas, capturable=capture, **shared)


def _latent_free(model: nn.Module, config: OptimizerConfig, *, capture: bool) -> torch.optim.Optimizer:
    """Build Bop for the bits, combined with a torch optimizer if there are trainable real parameters."""
    bits, reals = bop_parameters(model)
    kind = Bop if config.name == "bop" else BalancedBop
    lr = _learning_rate(bits[0]["params"][0], config, capture=capture)
    flipping = kind(bits, gamma=config.gamma, tau=config.tau, lr=lr)
    trainable = [parameter for parameter in reals if parameter.requires_grad]
    return CombinedOptimizer(flipping, _torch_optimizer(trainable, config, capture=capture)) if trainable else flipping


def _learning_rate(parameter: nn.Parameter, config: OptimizerConfig, *, capture: bool) -> float | Tensor:
    return torch.tensor(config.lr, device=parameter.device) if capture else config.lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place if it lives on the device; Bop's ``gamma`` follows it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


@contextmanager
def overflow_as_divergence(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Turn torch's RuntimeError on a learning rate or weight decay beyond float32 into a NonFiniteError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        group = optimizer.param_groups[-1]
        lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
        if max(lr, decay) < 1e30:
            raise
        raise NonFiniteError(
            f"the learning rate {lr} or optimizer.weight_decay={decay} overflows float32: lower it, or schedule.factor "
            "if that raises it"
        ) from error
