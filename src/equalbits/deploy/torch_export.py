"""Copy a model, fix its binary weights, and trace it to core ATen operations with torch.export."""

import copy
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import Argument, map_aggregate

from equalbits.deploy.compare import as_array, is_close
from equalbits.deploy.graph import PackError
from equalbits.deploy.ops import RULES
from equalbits.deploy.pack_weights import BinaryWeights, binary_weights
from equalbits.deploy.ports import Example, PortedForward
from equalbits.nn import BinaryLayer, check_module, copy_model

#: Number of example images that the packed model is verified on.
MAX_IMAGES = 8

#: Name of the buffer with the weights of a binary layer.
FROZEN = "frozen_binary_weight"


@dataclass(frozen=True)
class Frozen:
    """A traced model, its binary weights by buffer name, and the logits of the original model for ``images``.

    Where the first image alone gets other logits than in the batch, also in float64, ``single`` is the model traced on
    it alone.
    """

    program: ExportedProgram
    binary: dict[str, BinaryWeights]
    images: Tensor
    logits: Tensor
    single: "Frozen | None" = None
    ports: PortedForward | None = None

    @property
    def output_node(self) -> Node:
        """The node that computes the logits."""
        name = self.program.graph_signature.user_outputs[0]  # inputs changed in place are outputs of the graph as well
        node: Node = next(node for node in self.program.graph.nodes if node.name == name)
        return node

    @torch.no_grad()
    def run(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Run the traced model node by node on its images; return all values by node name.

        In float64 sums of equal weights are exact. In float32 the order of addition decides whether
        ``s + s + s − s − s − s`` is 0, and so which sign it gets.
        """

        def read(argument: Argument) -> Argument:
            if isinstance(argument, Node):
                return values[argument]
            return dtype if argument is torch.float32 else argument

        values: dict[Node, Tensor] = {}
        for node, (_, tensor) in self.constants().items():
            values[node] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                values.setdefault(node, self.images.to(dtype))
            elif node.op == "call_function":
                arguments, options = map_aggregate(node.args, read), map_aggregate(node.kwargs, read)
                made = node.target(*arguments, **options)
                # Constants made from numbers, such as where(x >= 0, 1.0, -1.0), have torch's default dtype, float32.
                values[node] = made.to(dtype) if isinstance(made, Tensor) and made.dtype == torch.float32 else made
        return {node.name: value for node, value in values.items()}

    def constants(self) -> dict[Node, tuple[str, Tensor]]:
        """Return parameters, buffers and constants by node: name and tensor."""
        program, signature = self.program, self.program.graph_signature
        named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        named |= signature.inputs_to_lifted_tensor_constants
        found = {}
        for node in program.graph.find_nodes(op="placeholder"):
            if (name := named.get(node.name)) is not None:
                held = program.state_dict if name in program.state_dict else program.constants
                found[node] = (name, held[name].detach())
        return found


def trace_program(model: nn.Module, example: Example) -> Frozen:
    """Trace a copy of ``model`` in eval and float32 on the CPU; the model itself is unchanged.

    The weights of each binary layer are computed once and become a buffer, so that the trace has a plain convolution in
    its place, whatever the method. The layer's forward still handles its padding and its input.
    """
    try:
        check_module(model)
        if isinstance(model, torch.jit.ScriptModule):
            raise PackError("model is a ScriptModule, which cannot be traced: give the nn.Module it was made from")
        frozen, ports = copy_model(model).cpu().eval(), None
    except ValueError as error:
        raise PackError(str(error)) from error
    holds_ids = isinstance(example, Tensor) and example.dtype in (torch.int64, torch.int32) and example.dim() < 4
    if holds_ids or isinstance(example, Mapping | list | tuple):
        ports = PortedForward(frozen, example)
        frozen.forward, example = ports.forward, ports.example
    images = _check_example(example)  # type: ignore[arg-type]
    for name, layer in frozen.named_modules():  # of the copy: computing a weight may change the layer
        if isinstance(layer, BinaryLayer) and bool(layer.weight.isnan().any()):
            raise PackError(f"layer {name!r} has NaN latents: training diverged")
    dtypes = {p.dtype for p in frozen.parameters() if p.is_floating_point()}
    if not dtypes <= {torch.float32, torch.float64}:
        frozen, dtypes = frozen.float(), set()  # the same weights: float32 holds every half
    dtype = torch.float64 if dtypes == {torch.float64} else torch.float32
    with torch.no_grad():
        logits = first = _run(frozen, images, dtype)
        try:
            first = _run(frozen, images[:1], dtype)
        except Exception as error:  # a forward may raise anything, such as where it squeezes the batch axis
            logging.getLogger("equalbits").debug("the model fails on a single image: %s", _one_line(error, 300))
        binary = _freeze_weights(frozen)
        program = _export(frozen.float(), images)
        single = None
        if not is_close(as_array(first[:1]), as_array(logits[:1])) and not _agree_in_float64(frozen, images):
            single = Frozen(_export(frozen, images[:1]), binary, images[:1], first[:1])
    return Frozen(program, binary, images, logits, single, ports)


def _agree_in_float64(model: nn.Module, images: Tensor) -> bool:
    """Tell whether only the rounding of sums near 0, and so their signs, gave the first image other logits alone."""
    try:
        wide = copy.deepcopy(model).double()
        first, batch = (_run(wide, given, torch.float64) for given in (images[:1], images))
        return is_close(as_array(first), as_array(batch[:1]))
    except Exception as error:  # a forward may raise anything, such as where it makes float32 constants
        logging.getLogger("equalbits").debug("the model fails in float64: %s", _one_line(error, 300))
        return False


def _freeze_weights(model: nn.Module) -> dict[str, BinaryWeights]:
    """Replace the ``binary_weight`` of every binary layer by a buffer; return the bits by name of the buffer."""
    frozen: dict[int, BinaryWeights] = {}
    found = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        if not isinstance(layer, BinaryLayer):
            continue
        if id(layer) not in frozen:
            frozen[id(layer)] = binary_weights(layer, name)
            weight = layer.binary_weight().detach().clone(memory_format=torch.contiguous_format)
            layer.register_buffer(FROZEN, weight)
            layer.cached_weight = None  # of the copy: as large as the weight
            layer.binary_weight = partial(getattr, layer, FROZEN)  # type: ignore[method-assign]
        found[f"{name}.{FROZEN}" if name else FROZEN] = frozen[id(layer)]
    return found


def _export(model: nn.Module, images: Tensor) -> ExportedProgram:
    """Trace a model; operations without a rule are decomposed to core ATen."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from inside torch.export
            program = torch.export.export(model, (images.clone(),), strict=False)
            called = [node for node in program.graph.nodes if node.op == "call_function" and node.all_input_nodes]
            if not all(str(node.target) in RULES for node in called):
                program = program.run_decompositions(_decompositions())  # traces again: half a second
            return program
    except GuardOnDataDependentSymNode as error:
        raise PackError(
            f"torch.export cannot trace the model: its forward branches on values of the image; do the same for every "
            f"image ({_one_line(error, 300)})"
        ) from error
    except Exception as error:  # a forward may raise anything while it is traced
        raise PackError(f"torch.export cannot trace the model: {_one_line(error, 300)}") from error


@cache
def _decompositions() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """Return torch's decompositions to core ATen, without the operations that have a rule."""
    table = torch.export.default_decompositions()
    return {operation: table[operation] for operation in table if str(operation) not in RULES}


def _one_line(error: Exception, most: int) -> str:
    return " ".join(str(error).split())[:most]


def _check_example(example: Tensor) -> Tensor:
    is_plain = isinstance(example, Tensor) and example.layout == torch.strided and not example.is_meta
    if not is_plain or example.dim() != 4 or not example.numel() or not example.is_floating_point():
        what = f"{example.dtype} of {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        what += "" if is_plain or not isinstance(example, Tensor) else f", {example.layout} on {example.device}"
        raise PackError(
            f"example is {what}: give a batch of images as the model takes them, float of (batch, channel, row, "
            f"column); for a model of features put nn.Flatten() first and give (batch, features, 1, 1), for one of "
            f"sequences nn.Flatten(2) and (batch, channel, 1, length)"
        )
    images = example.detach().to("cpu", torch.float32)[:MAX_IMAGES]
    if not bool(images.isfinite().all()):
        raise PackError("example holds numbers that are not finite, which signs would hide: give real images")
    # At least two images: with one, the batch axis could not be distinguished from other axes of size 1.
    return images if len(images) > 1 else images.repeat(2, 1, 1, 1)


def _run(model: nn.Module, images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the logits of a copy of the images, which a forward may modify."""
    output = model(images.to(dtype, copy=True))
    if not isinstance(output, Tensor) or output.dim() < 2 or len(output) != len(images):
        what = f"a tensor of {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise PackError(
            f"the model returns {what} for {len(images)} images: a packed model returns one row of logits per image; "
            f"pack a module whose forward returns only that"
        )
    if not bool(output.isfinite().all()):
        raise PackError("the model returns numbers that are not finite: training diverged")
    return output.float()
