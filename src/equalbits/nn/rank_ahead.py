"""Rank the latents of all bi-half layers of a model before a training step, in parallel with making the batch.

A layer in training usually ranks its latents where it multiplies with them. On a GPU it is faster to rank a whole model
at once: one launch for all rows of a size, on separate streams, while the device prepares the batch.
"""

import threading
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from equalbits.functional import positive_count
from equalbits.nn.binary_layer import BinaryLayer, layers_by_name
from equalbits.nn.layers import BinaryConv1d, BinaryConv2d, BinaryLinear
from equalbits.nn.methods.bihalf import BiHalf


class ActiveRankers(threading.local):
    """Per-thread stack of functions that return ranked symbols by layer number; the innermost is called."""

    def __init__(self) -> None:
        self.stack: list[Callable[[int], Tensor]] = []


ACTIVE_RANKERS = ActiveRankers()


@torch.library.custom_op("equalbits::symbols_ahead", mutates_args=())
def symbols_ahead(latents: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """Return the scaled symbols of these latents, ranked ahead; the current stream waits for them.

    An opaque operator keeps the compiler from reordering the stream synchronization. The caller may overwrite the
    result: every step ranks anew. :class:`~equalbits.nn.BinaryLayer` calls it by its registered name.
    """
    return ACTIVE_RANKERS.stack[-1](number)


@symbols_ahead.register_fake
def _(latents: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(latents, dtype=dtype)


class AheadRanker:
    """Ranks the latents of bi-half layers on request, to scaled symbols in ``dtype``.

    Call :meth:`rank` as soon as the latents have changed. Inside ``with``, layers in training multiply with these
    symbols, and each waits for its own; outside, they rank their latents themselves. Symbols have new memory in each
    step, which is free once the backward pass has used those of all layers of one launch. The latents must keep their
    memory address, and the quantizers their ``p_pos``.
    """

    def __init__(self, layers: Sequence[BinaryLayer], dtype: torch.dtype) -> None:
        from equalbits.functional.kernels.rank_model import ModelRanking, RankedLayer  # Triton loads when first needed

        self.layers, self.dtype = layers, dtype
        self.symbols: list[Tensor] = []  # of the current step
        ranked = []
        for layer in layers:
            connections = layer.weight[0].numel()
            positives = positive_count(connections, cast("BiHalf", layer.weight_quantizer).p_pos)
            ranked.append(RankedLayer(layer.weight.detach(), dtype, layer.scale, connections - positives))
        self.ranking = ModelRanking(ranked)
        self.device = layers[0].weight.device
        self.streams = [torch.cuda.Stream(self.device) for _ in range(len(self.ranking))]  # type: ignore[no-untyped-call]
        self.started = False

    def rank(self) -> None:
        """Start ranking after all work queued on the current stream."""
        buffers = self.ranking.allocate()
        for number, (stream, buffer) in enumerate(zip(self.streams, buffers, strict=True)):
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                self.ranking.launch(number, buffer)
        self.symbols, self.started = self.ranking.symbols(buffers), True

    def forget(self) -> None:
        """Discard a ranking that was started: the next ``with`` ranks anew. The device must have finished it."""
        self.symbols, self.started = [], False

    def __enter__(self) -> None:
        if not self.started:
            self.rank()
        ACTIVE_RANKERS.stack.append(self._wait_for)
        for number, layer in enumerate(self.layers):
            layer.ranked_ahead = number, self.dtype

    def __exit__(self, *_: object) -> None:
        for layer in self.layers:
            layer.ranked_ahead = None
        ACTIVE_RANKERS.stack.remove(self._wait_for)
        for stream in self.streams:  # even if some layers were not called
            torch.cuda.current_stream(self.device).wait_stream(stream)
        self.forget()

    def _wait_for(self, number: int) -> Tensor:
        stream = self.streams[self.ranking.launch_of[number]]
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return self.symbols[number]


def ahead_ranker(model: nn.Module, dtype: torch.dtype) -> AheadRanker | None:
    """Return a ranker for the bi-half layers of ``model``, or None if no layer can be ranked ahead.

    Ranking ahead needs a GPU, Triton and float32 latents. Other layers rank their latents in their forward.
    """
    layers = [layer for layer in layers_by_name(model).values() if _can_rank_ahead(layer)]
    if len({layer.weight.device for layer in layers}) != 1 or layers[0].weight.device.type != "cuda":
        return None
    try:
        from equalbits.functional.kernels.rank_model import can_rank
    except ImportError:
        return None
    layers = [layer for layer in layers if can_rank(layer.weight)]
    return AheadRanker(layers, dtype) if layers else None


def _can_rank_ahead(layer: BinaryLayer) -> bool:
    """Return whether a layer has filters first, plain ranking, the straight-through gradient and a constant scale.

    Subclasses may override any of these, so exact types are required. The latents must be a parameter, not the
    output of a parametrization. The kernel reads the scale as a number and passes no gradient to it.
    """
    ours, quantizer = type(layer) in (BinaryLinear, BinaryConv1d, BinaryConv2d), layer.weight_quantizer
    constant = layer.scale.shape == () and layer.scale.dtype == torch.float32 and not layer.scale.requires_grad
    kept = constant and isinstance(layer.weight, nn.Parameter)
    return ours and kept and type(quantizer) is BiHalf and quantizer.estimator == "straight"
