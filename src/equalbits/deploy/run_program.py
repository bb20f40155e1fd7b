"""The traced model run operation by operation, in float32 as the model runs, or in float64 to see past rounding."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_aggregate


def constants(program: ExportedProgram) -> dict[Node, tuple[str, Tensor]]:
    """The parameters, buffers and constants of a traced model, by their node: name and numbers."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    named |= signature.inputs_to_lifted_tensor_constants
    found = {}
    for node in program.graph.find_nodes(op="placeholder"):
        if (name := named.get(node.name)) is not None:
            held = program.state_dict if name in program.state_dict else program.constants
            found[node] = (name, held[name].detach())
    return found


def answer_of(program: ExportedProgram) -> Node:
    """The node that is the answer."""
    answers: Any = program.graph.find_nodes(op="output")[0].args[0]
    node: Node = answers[0]
    return node


@torch.no_grad()
def run(program: ExportedProgram, images: Tensor, dtype: torch.dtype = torch.float32) -> Mapping[str, Any]:
    """Every number of the traced model, by the name of its node. What works in place works on a copy.

    In float64 sums of equal weights are exact, so that a sum that is 0 is 0: in float32 the order of adding decides
    whether ``s + s + s − s − s − s`` is, and so on which side of a sign it falls.
    """
    known: dict[Node, Any] = {node: _as(tensor, dtype) for node, (_, tensor) in constants(program).items()}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known.setdefault(node, images.to(dtype))
        elif node.op == "call_function":
            known[node] = _call(node, known, dtype)
    return {node.name: value for node, value in known.items()}


def _call(node: Node, known: dict[Node, Any], dtype: torch.dtype) -> Any:
    def read(argument: Any) -> Any:
        if isinstance(argument, Node):
            return known[argument]
        return dtype if argument is torch.float32 else argument

    arguments, settings = map_aggregate(node.args, read), map_aggregate(node.kwargs, read)
    target: Any = node.target
    if target is not operator.getitem and str(target).split(".")[1].endswith("_"):
        arguments = (arguments[0].clone(), *arguments[1:])  # type: ignore[union-attr]
    made = target(*arguments, **settings)
    # Where numbers are made of none, as by where(x >= 0, 1.0, -1.0), torch's default type is float32.
    return made.to(dtype) if isinstance(made, Tensor) and made.dtype == torch.float32 else made


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
