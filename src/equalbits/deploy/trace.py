"""Translate a traced model, node by node, into a graph of packed operations."""

import operator
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from equalbits.deploy.fold_batch_norm import fold_batch_norms
from equalbits.deploy.freeze import FROZEN, Frozen
from equalbits.deploy.graph import Graph, PackError, Value, drop_unused
from equalbits.deploy.ops import RULES, comparison, elementwise
from equalbits.deploy.tracer import Indices, Known, StepFunction, ThresholdComparison, Tracer

_BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"
_SIGN = "use equalbits.SignActivation, or torch.where(x >= 0, 1.0, -1.0)"
_AXES = "name all axes but the batch: a packed network treats each image by itself"
_HINTS = {
    "aten.sign": f"torch.sign gives 0 at 0; {_SIGN}",
    "aten.sgn": f"torch.sgn gives 0 at 0; {_SIGN}",
    "aten.heaviside": _SIGN,
    "aten.copysign": _SIGN,
    "aten.softmax": "pack the logits, before any softmax",
    "aten.log_softmax": "pack the logits, before any softmax",
    "aten.threshold": "use torch.clamp with numbers",
    "aten.max": _AXES,
    "aten.min": _AXES,
}
_HINT = "use convolutions, linear layers, batch norm, (P)ReLU, hardtanh, sign, sums, concatenation and pooling"


def trace(frozen: Frozen) -> Graph:
    """Return the graph of a frozen model, simplified, with only the steps that its output depends on."""
    tracer = Tracer(Graph(tuple(frozen.images.shape[1:])), len(frozen.images))
    known = _constants(frozen, tracer)
    needed = _ancestors(frozen.output_node)
    for node in frozen.program.graph.nodes:
        if node.op == "placeholder":
            known[node] = known.get(node, tracer.graph.image)
        elif node.op == "call_function" and node in needed:
            known[node] = _translate(tracer, node, known)
    output = tracer.value(known[frozen.output_node])
    _check_binary_layers(frozen, tracer, needed)
    norms = {user.name for node in needed if str(node.target) == _BATCH_NORM for user in node.users}
    graph = drop_unused(tracer.graph, output)
    output = Value(len(graph.steps), output.shape)
    fold_batch_norms(graph, output, norms)
    return drop_unused(graph, output)


def _constants(frozen: Frozen, tracer: Tracer) -> dict[Node, Known]:
    """Return parameters, buffers and constants by node; tell the tracer their names and which are binary weights."""
    known = dict[Node, Known]()
    for node, (name, tensor) in frozen.constants().items():
        known[node] = tensor
        tracer.names[tensor.data_ptr()] = name
        if name in frozen.binary:
            tracer.binary[tensor.data_ptr()] = frozen.binary[name]
    return known


def _ancestors(output: Node) -> set[Node]:
    """Return the nodes that the output depends on."""
    found, wanted = set[Node](), [output]
    while wanted:
        node = wanted.pop()
        if node not in found:
            found.add(node)
            wanted.extend(node.all_input_nodes)
    return found


def _check_binary_layers(frozen: Frozen, tracer: Tracer, needed: set[Node]) -> None:
    """Raise where the model reads binary weights other than as the weights of a convolution or linear layer."""
    read = {name for node, (name, _) in frozen.constants().items() if node in needed}
    for name, weights in frozen.binary.items():
        if (name in read and weights.name not in tracer.used) or name.replace(FROZEN, "weight") in read:
            raise PackError(
                f"layer {weights.name!r} is binary, but the model changes its weights before it multiplies by them, or "
                f"reads its latents: pass binary_weight() unchanged to a convolution or linear layer"
            )


def _translate(tracer: Tracer, node: Node, known: dict[Node, Known]) -> Known:
    """Translate one node: compute it where all its inputs are constants, else apply its rule."""
    if any(read.op == "get_attr" for read in node.all_input_nodes):
        raise PackError(
            f"layer {_describe_layer(node)} runs a part of its forward in {node.target}: disable that in eval, packed "
            f"values are float32 throughout"
        )
    if all(_is_constant(known[read]) for read in node.all_input_nodes):
        arguments, options = map_arg((node.args, node.kwargs), known.__getitem__)  # type: ignore[arg-type]
        return node.target(*arguments, **options)  # type: ignore[operator, no-any-return]
    made = _select(node, known) if node.target is operator.getitem else _apply_rule(tracer, node, known)
    if isinstance(made, Value):
        _check_shape(node, made)
        _set_node(tracer.graph, made, node.name)
    return made


def _select(node: Node, known: dict[Node, Known]) -> Known:
    """Return one result of an operation with several."""
    several: Known = known[node.args[0]]  # type: ignore[index]
    return several[node.args[1]]  # type: ignore[index]


def _apply_rule(tracer: Tracer, node: Node, known: dict[Node, Known]) -> Known:
    value = node.meta.get("val")
    tensor = value[0] if isinstance(value, list | tuple) and value else value
    tracer.shape, tracer.dtype = (tuple(tensor.shape), tensor.dtype) if isinstance(tensor, Tensor) else (None, None)
    tracer.layer = _layer_path(node)
    if any(isinstance(known[read], Indices) for read in node.all_input_nodes):
        raise tracer.refuse("reads the indices of maxima: a packed network has only the maxima")
    name = str(node.target)
    rule = RULES.get(name)
    if rule is None:
        original = str(node.meta.get("original_aten", name))
        hint = _HINTS.get(original.rpartition(".")[0].replace("._", "."), _HINT)
        raise PackError(f"layer {_describe_layer(node)} does {original}, which a packed network cannot: {hint}")

    def read(argument: Node) -> Known:
        found = known[argument]
        if rule is comparison.where:
            return found
        if isinstance(found, ThresholdComparison) and rule is not elementwise.copy and tracer.dtype is not torch.bool:
            found = comparison.where(tracer, found, 1.0, 0.0)  # torch computes with 0 and 1
        return tracer.value(found) if isinstance(found, StepFunction) else found

    arguments, options = map_arg((node.args, node.kwargs), read)  # type: ignore[arg-type]
    made: Known = rule(tracer, *arguments, **options)
    return made


def _set_node(graph: Graph, made: Value, node: str) -> None:
    """Record the node that a value stands for, also for the steps behind a reshape, which have the same numbers."""
    step = graph.maker(made)
    while step is not None and step.node is None:
        step.node = node
        step = graph.maker(graph.source(step)) if step.kind in ("flatten", "reshape") else None


def _is_constant(known: Known | Iterable[Known]) -> bool:
    if isinstance(known, list | tuple):
        return all(map(_is_constant, known))
    return known is None or isinstance(known, Tensor | int | float | str)


def _layer_path(node: Node) -> str:
    """Return the path of the module that a node belongs to, or the name of the node before decomposition."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return (stack[-1][0] if stack else "") or _original_name(node)


def _original_name(node: Node) -> str:
    sources = node.meta.get("from_node", [])
    name = node.name
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return str(name)


def _describe_layer(node: Node) -> str:
    """Return the path and class of a node's layer, for messages."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "model")
    kind = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    return f"{path!r} ({kind})" if path else f"of the model itself ({kind})"


def _check_shape(node: Node, made: Value) -> None:
    value = node.meta.get("val")
    if isinstance(value, Tensor) and tuple(value.shape[1:]) != made.shape:
        raise PackError(
            f"layer {_describe_layer(node)} gives {tuple(value.shape[1:])} in torch and {made.shape} packed: please "
            f"report this bug"
        )
