"""Translate a traced model, node by node, into a graph of packed operations."""

import operator
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from equalbits.deploy.batch_axis import apply_rule
from equalbits.deploy.fold_batch_norm import fold_batch_norms
from equalbits.deploy.graph import Graph, PackError, drop_unused
from equalbits.deploy.ops import RULES, comparison
from equalbits.deploy.torch_export import FROZEN, Frozen
from equalbits.deploy.traced_values import BatchView, Indices, Known, Mask, StepFunction, Value
from equalbits.deploy.tracer import Tracer

_MULTIPLIES = ("aten.linear.default", "aten.convolution.default", "aten.conv2d.default", "aten.conv1d.default")
_ARITHMETIC = ("add.Tensor", "sub.Tensor", "rsub.Scalar", "mul.Tensor", "neg.default")
_BATCH_NORM = "aten.batch_norm.default"
_DECOMPOSED_BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"  # returns a tuple
_SIGN = "use equalbits.SignActivation, or torch.where(x >= 0, 1.0, -1.0)"
_AXES = "name all axes but the batch: a packed network treats each image by itself"
_HINTS = {
    "aten.sign": f"torch.sign gives 0 at 0; {_SIGN}",
    "aten.sgn": f"torch.sgn gives 0 at 0; {_SIGN}",
    "aten.heaviside": _SIGN,
    "aten.copysign": _SIGN,
    "aten.log_softmax": "pack the logits, before the logarithm",
    "aten.threshold": "use torch.clamp with numbers",
    "aten.max": _AXES,
    "aten.min": _AXES,
}
_HINT = "replace it, or export plain torch layers: torch.onnx.export(eb.freeze(model), ...)"


def translate(frozen: Frozen) -> Graph:
    """Return the graph of a frozen model, simplified, with only the steps that its output depends on."""
    tracer = Tracer(Graph(tuple(frozen.images.shape[1:])), len(frozen.images))
    constants = frozen.constants()
    known: dict[Node, Known] = {}
    for node, (name, tensor) in constants.items():
        known[node] = tensor
        tracer.names[tensor.data_ptr()] = name
        if name in frozen.binary:
            tracer.binary[tensor.data_ptr()] = frozen.binary[name]
    needed = {frozen.output_node}
    for node in reversed(frozen.program.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    for node in frozen.program.graph.nodes:
        if node.op == "placeholder":
            known.setdefault(node, tracer.graph.value(0))
        elif node.op == "call_function" and node in needed:
            known[node] = _translate_node(tracer, node, known)
    output = tracer.value(known[frozen.output_node])
    _check_binary_weights(frozen, tracer, {name for node, (name, _) in constants.items() if node in needed})
    norms = {node.name for node in needed if str(node.target) == _BATCH_NORM}
    norms |= {user.name for node in needed if str(node.target) == _DECOMPOSED_BATCH_NORM for user in node.users}
    graph = drop_unused(tracer.graph, output)
    output = Value(len(graph.steps), output.shape)
    fold_batch_norms(graph, output, norms)
    return drop_unused(graph, output)


def _check_binary_weights(frozen: Frozen, tracer: Tracer, read: set[str]) -> None:
    """Raise where the model reads the weights of a binary layer without multiplying by them, or its latents."""
    for name, weights in frozen.binary.items():
        if (name in read and weights.name not in tracer.used) or name.replace(FROZEN, "weight") in read:
            raise PackError(
                f"layer {weights.name!r} is binary, but the model changes its weights before it multiplies by them, or "
                f"reads its latents: pass binary_weight() unchanged to a convolution or linear layer"
            )


def _translate_node(tracer: Tracer, node: Node, known: dict[Node, Known]) -> Known:
    """Translate one node: compute it where all its inputs are constants, else apply its rule."""
    if any(read.op == "get_attr" for read in node.all_input_nodes):
        raise PackError(
            f"layer {_describe_layer(node)} runs a part of its forward in {node.target}: disable that in eval, packed "
            f"values are float32 throughout"
        )
    if all(_is_constant(known[read]) for read in node.all_input_nodes):
        if str(node.target) in _MULTIPLIES:  # a layer whose input is the same for every image gives a constant
            weights = [tracer.binary_weights(known[read]) for read in node.all_input_nodes]
            tracer.used |= {found.name for found in weights if found is not None}
        arguments, options = map_arg((node.args, node.kwargs), known.__getitem__)  # type: ignore[arg-type]
        return node.target(*arguments, **options)  # type: ignore[operator, no-any-return]
    if node.target is operator.getitem:  # one result of an operation with several
        several, index = known[node.args[0]], node.args[1]  # type: ignore[index]
        made: Known = several[index]  # type: ignore[index]
    else:
        made = _apply_rule(tracer, node, known)
    if isinstance(made, BatchView) and made.folded and not made.axis:
        _name_node(tracer, made.value, node)
    if isinstance(made, Value):
        value = node.meta.get("val")
        if isinstance(value, Tensor) and tuple(value.shape[1:]) != made.shape:
            raise PackError(
                f"layer {_describe_layer(node)} gives {tuple(value.shape[1:])} in torch and {made.shape} packed: "
                f"please report this bug"
            )
        _name_node(tracer, made, node)
    return made


def _name_node(tracer: Tracer, made: Value, node: Node) -> None:
    """Note the node whose numbers a step computes; also before a reshape, which has the same numbers."""
    step = tracer.maker(made)
    while step is not None and step.node is None:
        step.node = node.name
        step = tracer.maker(tracer.source(step)) if step.kind in ("flatten", "reshape") else None


def _apply_rule(tracer: Tracer, node: Node, known: dict[Node, Known]) -> Known:
    value = node.meta.get("val")
    tensor = value[0] if isinstance(value, list | tuple) and value else value
    tracer.shape, tracer.dtype = (tuple(tensor.shape), tensor.dtype) if isinstance(tensor, Tensor) else ((), None)
    tracer.layer, name = _module(node)[0] or _original_name(node), str(node.target)
    tracer.operation = name.removeprefix("aten.")
    if any(isinstance(known[read], Indices) for read in node.all_input_nodes):
        raise tracer.refuse("reads the indices of maxima: a packed network has only the maxima")
    if tracer.dtype is torch.uint8 and tracer.operation in _ARITHMETIC:
        raise tracer.refuse("computes in torch.uint8, where numbers wrap at 256: cast to float before")
    rule = RULES.get(name)
    if rule is None:
        original = str(node.meta.get("original_aten", name))
        hint = _HINTS.get(original.rpartition(".")[0].replace("._", "."), _HINT)
        raise PackError(f"layer {_describe_layer(node)} does {original}, which a packed network cannot: {hint}")

    def read(argument: Node) -> Known:
        found = known[argument]
        if not isinstance(found, StepFunction) or rule.function in (comparison.where, comparison.logical_not):
            return found
        if name == "aten._to_copy.default" and {*found.levels} != {0.0, 1.0}:  # torch 2.6 casts between two choices
            return found
        return BatchView(tracer.value(found), found.axis, found.folded) if found.axis or found.folded else found

    arguments, options = map_arg((node.args, node.kwargs), read)  # type: ignore[arg-type]
    made = apply_rule(tracer, rule, arguments, options)
    from_bools = any(isinstance(known[read], Mask | StepFunction) for read in node.all_input_nodes)
    return Mask(made) if from_bools and tracer.dtype is torch.bool and isinstance(made, Value) else made


def _is_constant(known: Known | Iterable[Known]) -> bool:
    if isinstance(known, list | tuple):
        return all(map(_is_constant, known))
    return known is None or isinstance(known, Tensor | int | float | str)


def _module(node: Node) -> tuple[str, str]:
    """Return the path and class of the module that a node belongs to."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "model")
    return path, (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def _describe_layer(node: Node) -> str:
    path, kind = _module(node)
    return f"{path!r} ({kind})" if path else f"of the model itself ({kind})"


def _original_name(node: Node) -> str:
    """Return the name of a node before decomposition."""
    name, sources = node.name, node.meta.get("from_node", [])
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return str(name)
