"""``pack``: from any torch module to a packed model, checked against it before it is returned."""

import logging
import operator
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from equalbits.deploy.fold_batch_norm import join
from equalbits.deploy.freeze import FROZEN, Frozen, freeze
from equalbits.deploy.graph import PackError, Steps, Value, alike, to_network
from equalbits.deploy.ops import RULES, elementwise
from equalbits.deploy.run_program import answer_of, constants
from equalbits.deploy.simplify import without_dead
from equalbits.deploy.tracer import Compare, Places, Stair, Walk
from equalbits.deploy.verify import check, check_inputs, check_rounded
from equalbits.deploy.weights import LINEAR_INPUTS, RESTS, round_inputs, store
from equalbits.runtime import PackedModel

#: torch.export keeps its state for the whole process: two at once leave it broken for all that come after.
_ONE_AT_A_TIME = threading.Lock()

_SIGN = "use equalbits.SignActivation, or torch.where(x >= 0, 1.0, -1.0)"
_BOUND = "use torch.clamp with plain numbers"
_EACH = "name the axes, all but the batch: a packed network answers each image by itself"
_HINTS = {
    "aten.sign": f"torch.sign gives 0 at 0; {_SIGN}",
    "aten.sgn": f"torch.sgn gives 0 at 0; {_SIGN}",
    "aten.heaviside": _SIGN,
    "aten.copysign": _SIGN,
    "aten.softmax": "pack the logits, before any softmax",
    "aten.log_softmax": "pack the logits, before any softmax",
    "aten.mul": "a packed network multiplies by constants alone",
    "aten.threshold": _BOUND,
    "aten.sum": _EACH,
    "aten.mean": _EACH,
    "aten.max": _EACH,
    "aten.min": _EACH,
}
_HINT = "use convolutions, linear layers, batch norm, (P)ReLU, hardtanh, sign, sums, concatenation and pooling"


def pack(
    model: nn.Module,
    example: Tensor,
    *,
    rest: str = "float32",
    linear_inputs: str = "float32",
    class_names: Iterable[str] | None = None,
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
    resize: int | None = None,
) -> PackedModel:
    """Pack ``model`` into operations and bits; ``.save(path)`` writes the file.

    ``example`` is a batch of images as the model takes them. The packed model's answer to it (to its first 8 images)
    is compared with the model's before this returns: the same class for each, and logits within 1e-4 of the largest, by
    numpy and by the native engine where it is built. :class:`PackError` names the layer that differs, or the first
    operation that a packed network does not know.

    One difference is let through, with a warning of the logger ``equalbits`` that says how many images get another
    class: where the model takes the sign of a sum that is 0 but for rounding. Its own answer then differs between two
    machines, or from that in float64. Untrained networks with sign inputs have many such sums, trained ones few.

    ``rest`` is how the numbers that are no bits are stored: ``"float32"``; ``"float16"``; or ``"int8"``, real weights
    as whole numbers with a scale for each filter and the other numbers as float16. The last two round, and move
    answers: how far is logged.

    ``linear_inputs="int8"`` has binary linear layers round what they read, where it is not signs, to 255 values for
    each image: several times as fast, and not exact. How far answers move is logged; where one changes its class,
    or logits move by more than 5 % of the largest, the model is refused.

    ``class_names`` go into the file, and so do ``mean`` and ``std``, one for each channel,
    which let it take images of bytes. ``resize`` is for pictures that ``equalbits run`` reads: it stretches each to a
    square of so many pixels a side and takes the middle of it; without, it scales a picture to cover the model's size.

    >>> from equalbits.nn import BinaryConv2d
    >>> net = nn.Sequential(BinaryConv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> packed = pack(net, torch.randn(2, 1, 4, 4))
    >>> [operation.kind for operation in packed.network.operations]
    ['conv', 'affine', 'relu', 'flatten', 'linear']
    """
    for name, value, known in (("rest", rest, RESTS), ("linear_inputs", linear_inputs, LINEAR_INPUTS)):
        if value not in known:
            raise PackError(f"{name}={value!r} is not known: choose one of {', '.join(map(repr, known))}")
    header: dict[str, Any] = {"classes": _class_names(class_names), "resize": resize}
    for name, numbers in (("mean", mean), ("std", std)):
        header[name] = None if numbers is None else _numbers(name, numbers)
    with _ONE_AT_A_TIME:
        frozen = freeze(model, example)
        steps = trace(frozen)
        network = _network(steps, header)
        check(network, steps, frozen)
        if frozen.alone is not None and not alike(trace(frozen.alone), steps):
            raise PackError(
                f"the model answers an image by itself otherwise than among {len(frozen.images)}, and not by rounding: "
                f"its forward hangs on how many images there are; make it a function of each image"
            )
        log = logging.getLogger("equalbits")
        if rest != "float32":
            for step in steps.rows:
                step.arrays = store(step, rest)
            exact, network = network, _network(steps, header)
            log.info("rest=%r: %s", rest, check_rounded(exact, network, steps, frozen.images))
        if linear_inputs != "float32":
            round_inputs(steps)
            exact, network = network, _network(steps, header)
            log.info("linear_inputs=%r: %s", linear_inputs, check_inputs(exact, network, steps, frozen.images))
        return PackedModel(network)


def _class_names(names: Iterable[str] | None) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable | None):  # a word is letters, each a name
        raise PackError(f"class_names={names!r}: give a name for each class, as in ['cat', 'dog']")
    return () if names is None else tuple(names)


def _numbers(name: str, numbers: Iterable[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, numbers))
    except (TypeError, ValueError):
        raise PackError(f"{name}={numbers!r}: give a number for each channel, as in [0.5, 0.5, 0.5]") from None


def _network(steps: Steps, header: dict[str, Any]) -> Any:
    try:
        return to_network(steps, **header)
    except ValueError as error:
        raise PackError(str(error)) from None


def trace(frozen: Frozen) -> Steps:
    """Walk the traced graph into steps, in order, and drop what the answer does not hang on."""
    program = frozen.program
    walk = Walk(Steps(tuple(frozen.images.shape[1:])), len(frozen.images))
    known = _constants(frozen, walk)
    needed = _needed(answer_of(program))
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = known.get(node, walk.steps.image)
        elif node.op == "call_function" and node in needed:
            known[node] = _translate(walk, node, known)
    answer = walk.value(known[answer_of(program)])
    read = {name for node, (name, _) in constants(program).items() if node in needed}
    for name, weights in frozen.binary.items():
        if (name in read and weights.name not in walk.used) or name.replace(FROZEN, "weight") in read:
            raise PackError(
                f"layer {weights.name!r} is binary, but the model changes its weights before it multiplies by them, or "
                f"reads its latents: have a convolution or linear layer take binary_weight() as it is"
            )
    norms = {node.name for node in program.graph.nodes if plain_name(node) == "aten.batch_norm.default"}
    steps = without_dead(walk.steps, answer)
    answer = Value(len(steps.rows), answer.shape)
    join(steps, answer, norms)
    return without_dead(steps, answer)


def _constants(frozen: Frozen, walk: Walk) -> dict[Node, Any]:
    """Parameters, buffers and constants by their node; the walk learns which of them are bits."""
    known = dict[Node, Any]()
    for node, (name, tensor) in constants(frozen.program).items():
        known[node] = tensor
        walk.names[tensor.data_ptr()] = name
        if name in frozen.binary:
            walk.binary[tensor.data_ptr()] = frozen.binary[name]
    return known


def _needed(answer: Node) -> set[Node]:
    """The nodes that the answer hangs on: what only serves a gradient is not among them."""
    needed, wanted = set[Node](), [answer]
    while wanted:
        node = wanted.pop()
        if node not in needed:
            needed.add(node)
            wanted.extend(node.all_input_nodes)
    return needed


def _translate(walk: Walk, node: Node, known: dict[Node, Any]) -> Any:
    """One node: a constant when all it reads are; else by its rule."""
    if any(read.op == "get_attr" for read in node.all_input_nodes):
        raise PackError(
            f"layer {where(node)} runs a part of its forward by {node.target}: leave that out in eval, packed numbers "
            f"are float32 throughout"
        )
    if all(is_constant(known[read]) for read in node.all_input_nodes):
        arguments, settings = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        return node.target(*arguments, **settings)  # type: ignore[operator]
    if node.target is operator.getitem:
        return known[node.args[0]][node.args[1]]  # type: ignore[index]
    walk.layer, walk.shape, walk.dtype = layer_of(node), _shape(node), _dtype(node)
    if any(isinstance(known[read], Places) for read in node.all_input_nodes):
        raise walk.refuse("reads where the largest numbers stood: a packed network knows these alone, not their places")
    name = plain_name(node)
    rule: Callable[..., Any] | None = RULES.get(name)
    if rule is None:
        raise PackError(f"layer {where(node)} does {name}, which a packed network cannot: {_hint(name)}")

    def read(argument: Node) -> Any:
        found = known[argument]
        if name.startswith("aten.where."):
            return found
        if isinstance(found, Compare) and rule is not elementwise.same and walk.dtype is not torch.bool:
            found = elementwise.where(walk, found, 1.0, 0.0)  # torch calculates with 0 and 1
        return walk.value(found) if isinstance(found, Stair) else found

    arguments, settings = torch.fx.node.map_arg((node.args, node.kwargs), read)
    made = rule(walk, *arguments, **settings)
    if isinstance(made, Value):
        _check_shape(node, made)
        _name(walk.steps, made, node.name)
    return made


def _name(steps: Steps, made: Value, node: str) -> None:
    """Say which node a value stands for; what a reshape of its own reads are the same numbers."""
    step = steps.maker(made)
    while step is not None and step.node is None:
        step.node = node
        step = steps.maker(steps.source(step)) if step.kind in ("flatten", "reshape") else None


def is_constant(known: Any) -> bool:
    """Whether something is known before any image comes."""
    if isinstance(known, list | tuple):
        return all(map(is_constant, known))
    return known is None or isinstance(known, Tensor | int | float | bool | str)


def plain_name(node: Node) -> str:
    """The operator's name; one that works in place goes by the name of the one that does not.

    The trace reads the result of an operation in place wherever the model reads what was changed.
    """
    parts = str(node.target).split(".")
    if len(parts) == 3 and parts[1].endswith("_") and not parts[1].startswith("_"):
        parts[1] = parts[1].rstrip("_")
    return ".".join(parts)


def layer_of(node: Node) -> str:
    """The path of the module that a node belongs to, and the node's own name."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return path or node.name


def where(node: Node) -> str:
    """A layer's path and class, for people."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "model")
    kind = kind if isinstance(kind, str) else kind.__name__
    return f"{path!r} ({kind.rpartition('.')[2]})" if path else f"of the model itself ({kind.rpartition('.')[2]})"


def _hint(name: str) -> str:
    return _HINTS.get(name.rpartition(".")[0], _HINT)


def _shape(node: Node) -> tuple[int, ...] | None:
    found = node.meta.get("val")
    return tuple(found.shape) if isinstance(found, Tensor) else None


def _dtype(node: Node) -> torch.dtype | None:
    found = node.meta.get("val")
    return found.dtype if isinstance(found, Tensor) else None


def _check_shape(node: Node, made: Value) -> None:
    expected = _shape(node)
    if expected is not None and expected[1:] != made.shape:
        raise PackError(f"layer {where(node)} gives {expected[1:]} in torch and {made.shape} packed: please report it")
