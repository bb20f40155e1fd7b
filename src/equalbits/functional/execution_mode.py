"""Mode of execution: plain, compiled, traced, or transformed by ``torch.func``."""

import torch
from torch.autograd import forward_ad


def in_forward_mode() -> bool:
    """Return True while torch differentiates in forward mode, as ``torch.func.jvp`` does.

    Our autograd functions have no ``jvp``, since torch.compile rejects functions that have one.
    """
    return forward_ad._current_level >= 0


def is_plain_execution() -> bool:
    """Return whether operations run as written, not compiled, traced or transformed: tensors then stand for others."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or in_forward_mode()
    )
