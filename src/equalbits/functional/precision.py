"""Products that autocast leaves alone: a sign must not hang on whether a step runs in half precision."""

from contextlib import AbstractContextManager, nullcontext

import torch


def outside_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Where autocast is on for ``device``, it is off inside; elsewhere nothing changes, nor does a traced graph.

    Autocast rounds what goes into a product to bfloat16 or float16, whatever the tensors' own precision is.

    >>> with torch.autocast("cpu", torch.bfloat16), outside_autocast(torch.device("cpu")):
    ...     print((torch.eye(2) @ torch.eye(2)).dtype)
    torch.float32
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):  # meta has no autocast to ask for
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The precision that products are taken in: the tensors' own, float32 for halves.

    >>> at_least_float32(torch.bfloat16), at_least_float32(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)
