"""Switches of fast paths that no GPU has timed yet: private, and off until ``benchmarks/training_cost.py`` decides."""

from dataclasses import dataclass


@dataclass
class Switches:
    """Paths of training a binary ResNet on a GPU. Set them before a model is compiled."""

    #: Eager steps also run batch norm, PReLU, shortcut and sign as one operation, if no module inside has a hook.
    fuse_plain: bool = False
    #: The backward pass computes outputs of binary convolutions again that have at least so many values per weight.
    recompute_from: float | None = None


SWITCHES = Switches()
