"""Precision of intermediate results: signs must not depend on autocast or on a half-precision mean."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast_disabled(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast on ``device``, if it is on; otherwise do nothing, also to a traced graph.

    Autocast rounds the operands of a product to bfloat16 or float16, whatever their dtype.

    >>> with torch.autocast("cpu", torch.bfloat16), autocast_disabled(torch.device("cpu")):
    ...     print((torch.eye(2) @ torch.eye(2)).dtype)
    torch.float32
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):  # meta has no autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype to which autocast casts an operand of a product."""
    device = tensor.device.type
    if device == "meta" or not torch.is_autocast_enabled(device) or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(device)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of intermediate results: float32 for half precision, else ``dtype`` itself.

    >>> at_least_float32(torch.bfloat16), at_least_float32(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
