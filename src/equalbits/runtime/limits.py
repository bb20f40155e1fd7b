"""Bounds on what a packed file may cost beyond its own size: memory of its values and plan, and work per image."""

import math
from dataclasses import dataclass

from equalbits.runtime.container import FormatError
from equalbits.runtime.network import MAX_WORK, Network

#: Bytes of an engine for each byte of a file's tensors: weights are laid out again for the instruction set.
_PER_TENSOR_BYTE = 4


class LimitError(FormatError):
    """A packed file that would cost more than the caller allows."""


@dataclass(frozen=True)
class Limits:
    """Most bytes a model may take beyond four times its tensors, and most products per image.

    Memory counts the values that are alive at a time for one image and, of the native engine, laid out weights,
    constants and buffers for one thread. Each further thread has buffers of its own.
    """

    memory: int = 1 << 30
    work: int = MAX_WORK

    def budget(self, network: Network) -> int:
        """Return the bytes that a model of this network may take."""
        return self.memory + _PER_TENSOR_BYTE * sum(tensor.nbytes for tensor in network.tensors.values())

    def check(self, network: Network, *, numpy: bool = False) -> None:
        """Raise :class:`LimitError` where values or work of a network exceed the limits.

        With ``numpy`` the values include what that engine takes beside them while it runs an operation.
        """
        shapes, work = network.shapes, 0
        sizes = [4 * math.prod(shape) for shape in shapes]
        last_read = {value: place for place, operation in enumerate(network.operations) for value in operation.inputs}
        alive, most = sizes[0], sizes[0]
        for place, operation in enumerate(network.operations):
            facts = shapes[place + 1], network.input_shapes(operation), operation.settings, network.arrays(operation)
            work += operation.spec.work(*facts)
            alive += sizes[place + 1]
            most = max(most, alive + (operation.spec.numpy_bytes(*facts) if numpy else 0))
            alive -= sum(sizes[value] for value in set(operation.inputs) if last_read[value] == place)
            if place + 1 not in last_read:  # the output, or a value that nothing reads
                alive -= sizes[place + 1]
        if most > self.budget(network):
            raise LimitError(self.refusal(f"values of {most} bytes at a time", network))
        if work > self.work:
            raise LimitError(f"the network takes {work} products per image, over {self.work}: raise Limits(work=…)")

    def refusal(self, what: str, network: Network) -> str:
        """Return the line for a network that would take too much memory."""
        return f"the network takes {what}, over {self.budget(network)}: raise Limits(memory=…) if you trust the file"
