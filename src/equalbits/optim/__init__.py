"""Optimizers that hold bits, not latents."""

from equalbits.optim.bop import BalancedBop, Bop

__all__ = ["BalancedBop", "Bop"]
