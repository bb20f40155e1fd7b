"""Models that take token ids, several inputs, or return several outputs: traced as functions of one row of numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from equalbits.deploy.graph import PackError
from equalbits.deploy.traced_values import Known, Value
from equalbits.deploy.tracer import RULES, Tracer, TraceRule
from equalbits.runtime import Port

#: Examples of a model: images, token ids, several tensors in order, or several by name.
Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@torch.library.custom_op("equalbits::integers", mutates_args=())
def integers(numbers: Tensor, number: int) -> Tensor:
    """Return floats that hold integers as int64; ``number`` is that of the input."""
    return numbers.to(torch.int64)


@integers.register_fake
def _(numbers: Tensor, number: int) -> Tensor:
    return torch.empty_like(numbers, dtype=torch.int64)


def _integers(tracer: Tracer, value: Known, number: int) -> Value:
    """Note which input a value is; a packed network has floats only."""
    made = tracer.value(value)
    tracer.graph.input_of[made.number] = number
    return made


RULES["equalbits.integers.default"] = TraceRule(_integers)


class PortedForward:
    """Forward of a model as a function of one row of numbers, all inputs end to end; it replaces ``model.forward``.

    Several outputs are joined the same way; ``outputs`` names them after the first call.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        named = example if isinstance(example, Mapping) else {}
        given: list[Tensor] = [example] if isinstance(example, Tensor) else list(named.values() if named else example)  # type: ignore[arg-type]
        if not given or not all(isinstance(tensor, Tensor) and tensor.dim() and tensor.numel() for tensor in given):
            raise PackError(
                "example holds something other than tensors with a batch axis: give a tensor per input, such as "
                "torch.randn(1, 3, 32, 32)"
            )
        if len({len(tensor) for tensor in given}) != 1:
            raise PackError(f"example has batches of {[len(tensor) for tensor in given]}: give the same for each input")
        names = list(named) or (["input_ids"] if len(given) == 1 else [f"input_{i}" for i in range(len(given))])
        self.model, self.by_name, self.dtypes = model, bool(named), [tensor.dtype for tensor in given]
        self.inputs = tuple(Port(name, tuple(tensor.shape[1:])) for name, tensor in zip(names, given, strict=True))
        self.outputs: tuple[Port, ...] = ()
        rows = [tensor.detach().to("cpu", torch.float32).reshape(len(tensor), -1) for tensor in given]
        self.example = torch.cat(rows, dim=1)[:, None, None]

    def forward(self, rows: Tensor) -> Tensor:
        """Split the row, call the model, and join its outputs."""
        rows, start, given = rows.flatten(1), 0, []
        for number, (port, dtype) in enumerate(zip(self.inputs, self.dtypes, strict=True)):
            stop = start + math.prod(port.shape)
            part = rows[:, start:stop].reshape(len(rows), *port.shape)
            part = part if dtype.is_floating_point else integers(part, number)
            given.append(part.bool() if dtype is torch.bool else part)
            start = stop
        named = {port.name: part for port, part in zip(self.inputs, given, strict=True)} if self.by_name else {}
        made = type(self.model).forward(self.model, *(() if named else given), **named)
        return made if isinstance(made, Tensor) else self._join(made, len(rows))

    def _join(self, made: object, batch: int) -> Tensor:
        items = made.items() if isinstance(made, Mapping) else enumerate(made) if isinstance(made, list | tuple) else ()
        found = {str(name): part for name, part in items if isinstance(part, Tensor) and part.dim()}
        if not found or not all(len(part) == batch and part.is_floating_point() for part in found.values()):
            raise PackError(f"the model returns a {type(made).__name__} without tensors of one row per image")
        if len(found) == 1:
            return next(iter(found.values()))
        self.outputs = tuple(Port(name, tuple(part.shape[1:]) or (1,)) for name, part in found.items())
        return torch.cat([part.reshape(batch, -1) for part in found.values()], dim=1)

    def bounded_inputs(self, below: Mapping[int, int]) -> tuple[Port, ...]:
        """Return the inputs with the bounds of their ids."""
        return tuple(replace(port, below=below.get(number, 0)) for number, port in enumerate(self.inputs))
