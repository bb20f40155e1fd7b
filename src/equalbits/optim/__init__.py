"""Latent-free optimizers: their parameters are bits."""

from equalbits.optim.bop import BalancedBop, Bop
from equalbits.optim.combined import CombinedOptimizer

__all__ = ["BalancedBop", "Bop", "CombinedOptimizer"]
