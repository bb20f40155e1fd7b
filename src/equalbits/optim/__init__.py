"""Latent-free optimizers: their parameters are bits."""

from equalbits.optim.bop import BalancedBop as BalancedBop
from equalbits.optim.bop import Bop as Bop
from equalbits.optim.combined import CombinedOptimizer as CombinedOptimizer
