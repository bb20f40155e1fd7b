"""Interfaces through which operations write themselves as ONNX and OpenVINO nodes.

:mod:`equalbits.deploy.export` implements both. The runtime imports neither package: rules are handed the graph.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from equalbits.runtime.network import Network, Operation
from equalbits.runtime.op_specs import Array, Shape

#: A node of an OpenVINO graph.
OpenvinoNode = Any


class OnnxGraph(Protocol):
    """An ONNX graph under construction. The output of the last node added is the output of the operation."""

    network: Network

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node; return the name of its output."""

    def constant(self, array: Array | np.generic, name: str = "") -> str:
        """Add a constant; return its name. Constants of one name are stored once."""

    def int_list(self, *numbers: int) -> str:
        """Add a constant list of integers; return its name."""

    def inputs(self, operation: Operation) -> list[str]:
        """Return the names of the values an operation reads."""

    def floats(self, operation: Operation, part: str, shape: Sequence[int]) -> str:
        """Return the name of a stored tensor as float32 in this shape; the graph widens narrow ones."""

    def symbols(self, operation: Operation, shape: Sequence[int]) -> str:
        """Return the name of the weights −1, 0 and +1 in this shape; the graph unpacks the bits."""


class OpenvinoGraph(Protocol):
    """An OpenVINO graph under construction. ``op`` holds the operators of opset 13, ``op1`` those of opset 1."""

    network: Network
    op: Any
    op1: Any
    values: dict[int, OpenvinoNode]
    #: Signs as 0 and 1, by value: the input of BinaryConvolution.
    sign_bits: dict[int, OpenvinoNode]

    def reshape(self, value: OpenvinoNode, shape: Shape) -> OpenvinoNode:
        """Return a value in another shape; the batch axis stays."""

    def number(self, value: float) -> OpenvinoNode:
        """Return a float32 constant."""

    def int_list(self, *numbers: int) -> OpenvinoNode:
        """Return a constant list of integers."""

    def stored(self, array: Array) -> OpenvinoNode:
        """Return a constant as it is stored, widened to float32 in the graph."""

    def packed_bits(self, ones: Array, shape: Shape, *, lowest_first: bool) -> OpenvinoNode:
        """Return a constant of one bit per number, without gaps between rows."""

    def as_image(self, value: OpenvinoNode, shape: Shape) -> OpenvinoNode:
        """Return a value as (batch, channel, row, column)."""
