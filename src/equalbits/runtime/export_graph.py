"""Graph of another runtime under construction. Operations are exported once, in the operators of ONNX."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from equalbits.runtime.limits import LimitError, Limits
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, Operation, Shape

#: Output of a node: its name in ONNX, an object in OpenVINO.
Node: TypeAlias = Any
#: Code of the dtype float32 in ONNX.
FLOAT = 1


class ExportGraph:
    """Base of the graphs of ONNX and OpenVINO; ``values`` holds the node of each value of the network."""

    def __init__(self, network: Network, images: Node) -> None:
        self.network = network
        self.values: dict[int, Node] = {0: images}
        self._named: dict[str, Node] = {}
        self._bytes_left = Limits().budget(network)  # a small file may ask for large constants many times over

    def node(self, kind: str, *inputs: Node | float | Sequence[int], **attributes: Any) -> Node:
        """Add a node of an ONNX operator; numbers and lists of integers among its inputs become constants."""
        raise NotImplementedError

    def store(self, array: Array, name: str) -> Node:
        """Add a constant as it is; ``name`` may be empty."""
        raise NotImplementedError

    def bits(self, name: str, shape: Sequence[int]) -> Node:
        """Return a plane as float32 0 and 1; the file holds bits, which the graph unpacks."""
        raise NotImplementedError

    def multiply_signs(self, operation: Operation, full: Sequence[int]) -> Node | None:
        """Return a layer by an operator on bits, with weights of shape ``full``; None where there is none."""
        return None

    def add_operations(self) -> Node:
        """Add all operations; return the node of the last."""
        for place, operation in enumerate(self.network.operations):
            shape = self.network.shapes[place + 1]
            self.values[place + 1] = operation.spec.export(self, operation, shape)
        return self.values[len(self.network.operations)]

    def inputs(self, operation: Operation) -> list[Node]:
        """Return the nodes of the values an operation reads."""
        return [self.values[value] for value in operation.inputs]

    def check_room(self, count: int) -> None:
        """Raise :class:`LimitError` where constants of so many bytes are too much."""
        if count > self._bytes_left:
            raise LimitError("the exported graph takes too much memory for constants: run the packed file instead")

    def spend(self, count: int) -> None:
        """Count the bytes of a constant."""
        self.check_room(count)
        self._bytes_left -= count

    def constant(self, array: Array | np.generic, name: str = "") -> Node:
        """Return a constant; those of one name are stored once."""
        if name in self._named:
            return self._named[name]
        self.spend(array.nbytes)
        node = self.store(np.asarray(array, order="C"), name)
        if name:
            self._named[name] = node
        return node

    def as_node(self, given: Node | float | Sequence[int]) -> Node:
        """Return an input of a node: numbers become float32 constants, lists of integers int64 ones."""
        if isinstance(given, float):
            return self.constant(np.float32(given), f":{given}")
        if isinstance(given, tuple | list | range):
            return self.constant(np.array(given, np.int64), f":{','.join(map(str, given))}")
        return given

    def floats(self, operation: Operation, part: str, shape: Sequence[int], row: int | None = None) -> Node:
        """Return a stored tensor, or one row of it, as float32 in this shape; the graph widens narrow ones."""
        name, stored = operation.tensors[part], self.network.arrays(operation)[part]
        array = (stored if row is None else stored[row]).reshape(shape)
        if array.shape != stored.shape:
            name = f"{name}:{'' if row is None else row}:{'x'.join(map(str, array.shape))}"
        if array.dtype == np.float32:
            return self.constant(array, name)
        if (key := f"{name}:real") not in self._named:
            self._named[key] = self.node("Cast", self.constant(array, name), to=FLOAT)
        return self._named[key]

    def scale_and_shift(self, made: Node, operation: Operation, tail: Shape) -> Node:
        """Multiply by the ``scale`` and add the ``bias`` of an operation, where it has them."""
        for part, kind in (("scale", "Mul"), ("bias", "Add")):
            if part in operation.tensors:
                made = self.node(kind, made, self.floats(operation, part, (-1, *tail)))
        return made

    def weight(self, operation: Operation, shape: Sequence[int]) -> Node:
        """Return the weights as float32 in this shape, without their scale: stored floats, or −1, 0 and +1."""
        if self.network.arrays(operation)["weight"].dtype != np.uint8:
            return self.floats(operation, "weight", shape)
        name, kept = operation.tensors["weight"], operation.tensors.get("kept", "")
        if (key := f"{name}:{kept}:{'x'.join(map(str, shape))}:symbols") not in self._named:
            signs = self.node("Sub", self.node("Mul", self.bits(name, shape), 2.0), 1.0)
            self._named[key] = self.node("Mul", signs, self.bits(kept, shape)) if kept else signs
        return self._named[key]
