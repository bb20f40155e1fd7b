"""Verify a packed network against the model it was made from, before it is returned."""

import logging
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import Node
from torch.fx.node import Argument, map_aggregate

from equalbits.deploy.freeze import Frozen
from equalbits.deploy.graph import Graph, PackError, as_array
from equalbits.deploy.verify_native import (
    TOLERANCE,
    differing_images,
    is_close,
    other_class,
    same_answers,
    verify_native,
)
from equalbits.runtime import Network, run_numpy
from equalbits.runtime.op_specs import Floats

#: How far rounded inputs may change logits, relative to the largest.
MAX_CHANGE = 0.05


def verify(network: Network, graph: Graph, frozen: Frozen) -> None:
    """Raise where a packed network gives other logits than the model, naming the first layer that differs.

    The whole network runs first. Where its logits differ, each operation runs by itself on the traced model's own
    inputs; one that then differs is a bug. Where none does, rounding made the difference. It may change the class of an
    image only where the model's own class depends on rounding: its float64 logits equal the packed ones, or the first
    sign that differs has an input that is 0 up to rounding (:func:`_check_ties`). A warning counts such images. The
    native engine, where it is built, must agree as well.
    """
    images, logits = as_array(frozen.images), as_array(frozen.logits)
    packed = _run_packed(network, images)
    if not same_answers(packed, logits):
        _explain(network, graph, frozen, packed)
    found = verify_native(network, graph, images, (packed, logits))
    if not same_answers(found, logits):
        _warn(frozen, found, logits)


def _explain(network: Network, graph: Graph, frozen: Frozen, packed: Floats) -> None:
    """Raise unless rounding in the model itself explains the difference."""
    images, logits, output = as_array(frozen.images), as_array(frozen.logits), frozen.output_node.name
    traced = run_traced(frozen)
    if not is_close(as_array(traced[output]), logits):
        raise PackError(
            "the traced model answers differently from the model: its forward depends on something that torch.export "
            "does not record, such as random numbers; make it a function of the image only"
        )
    exact = run_traced(frozen, torch.float64)
    differing = differing_images(packed, logits) & differing_images(packed, as_array(exact[output]))
    if differing.any():
        _check_steps(network, graph, images, exact)
        _check_ties(network, graph, traced, images, differing & other_class(packed, logits))


def _warn(frozen: Frozen, found: Floats, logits: Floats) -> None:
    """Log how many images get another class, and for how many the model itself gives another in float64."""
    exact = as_array(run_traced(frozen, torch.float64)[frozen.output_node.name])
    share = float(np.abs(found - logits).max() / max(float(np.abs(logits).max()), 1e-30))
    logging.getLogger("equalbits").warning(
        "%d of %d example images get another class from the packed model, and logits differ by up to %.3g of the "
        "largest. Every operation agrees; only signs of sums that are 0 up to rounding differ. In float64 the model "
        "itself gives %d of the %d another class. This is common before training; compare both on your own images",
        int(other_class(found, logits).sum()),
        len(logits),
        share,
        int(other_class(exact, logits).sum()),
        len(logits),
    )


def verify_rest(exact: Network, rounded: Network, graph: Graph, images: Tensor) -> str:
    """Describe how far storing non-binary tensors in fewer bits changes the logits of ``images``."""
    kept, change = _compare(exact, rounded, graph, as_array(images))
    return f"{kept} of {len(images)} images keep their class; logits change by up to {change:.2%} of the largest"


def verify_linear_inputs(exact: Network, rounded: Network, graph: Graph, images: Tensor) -> str:
    """Describe how far rounding the inputs of linear layers changes the logits; raise where it changes too much."""
    kept, change = _compare(exact, rounded, graph, as_array(images))
    if kept < len(images) or change > MAX_CHANGE:
        raise PackError(
            f"linear_inputs='int8' gives {len(images) - kept} of {len(images)} images another class, and changes "
            f"logits by up to {change:.2%} of the largest: no other class and {MAX_CHANGE:.0%} are allowed; pack with "
            f"linear_inputs='float32'"
        )
    return f"all {kept} images keep their class; logits change by up to {change:.2%} of the largest"


def _compare(exact: Network, rounded: Network, graph: Graph, images: Floats) -> tuple[int, float]:
    """Return how many images keep their class, and the largest relative change of a logit."""
    before, after = (_run_packed(network, images).reshape(len(images), -1) for network in (exact, rounded))
    found = verify_native(rounded, graph, images, (after.reshape(-1, *rounded.shapes[-1]),)).reshape(after.shape)
    if not same_answers(found, after):
        logging.getLogger("equalbits").warning(
            "some values lie so near a rounding boundary that the engines round them differently: native logits differ "
            "from numpy's by up to %.3g",
            float(np.abs(found - after).max()),
        )
    kept = int((~other_class(after, before)).sum())
    return kept, float(np.abs(after - before).max() / max(float(np.abs(before).max()), 1e-30))


def _run_packed(network: Network, images: Floats) -> Floats:
    """Run the network in numpy one image at a time, to save memory."""
    return np.concatenate([run_numpy(network, images[i : i + 1]) for i in range(len(images))])


def _check_steps(network: Network, graph: Graph, images: Floats, traced: Mapping[str, Tensor]) -> None:
    """Run each operation on the traced model's inputs; raise at the first that gives other numbers."""
    values = {0: images}
    for place, (operation, step) in enumerate(zip(network.operations, graph.steps, strict=True)):
        found = network.run_operation(operation, values)
        expected = found if step.node is None else as_array(traced[step.node]).reshape(found.shape)
        if not is_close(found, expected):
            largest = float(np.abs(found - expected).max())
            raise PackError(
                f"layer {step.layer!r} ({operation.kind}, operation {place}) differs from the model's by up to "
                f"{largest:.3g} on the model's own input: the model was not packed; please report this bug"
            )
        values[place + 1] = expected


def _check_ties(
    network: Network, graph: Graph, traced: Mapping[str, Tensor], images: Floats, differing: NDArray[np.bool_]
) -> None:
    """Raise unless the first sign that differs of each image in ``differing`` has an input that is 0 up to rounding.

    The packed network and the model run side by side, each on its own values. Only a sign can turn rounding into a
    large difference; up to the first that differs, the two agree up to rounding.
    """
    unexplained = differing.copy()
    ours, theirs = {0: images}, {0: images}
    for place, (operation, step) in enumerate(zip(network.operations, graph.steps, strict=True)):
        for values in (ours, theirs):
            values[place + 1] = network.run_operation(operation, values)
        if step.node is not None:
            theirs[place + 1] = as_array(traced[step.node]).reshape(ours[place + 1].shape)
        if operation.kind != "sign":
            continue
        flipped = (ours[place + 1] != theirs[place + 1]).reshape(len(images), -1)
        for i in np.flatnonzero(flipped.any(axis=1) & unexplained):
            packed, model = (values[operation.inputs[0]][i].reshape(-1) for values in (ours, theirs))
            distance = float(np.maximum(np.abs(packed), np.abs(model))[flipped[i]].max())
            if distance > TOLERANCE * np.abs(model).max():
                raise PackError(
                    f"layer {step.layer!r} (operation {place}) takes the sign of a number {distance:.3g} away from 0, "
                    f"and the model takes the other sign: the model was not packed; please report this bug"
                )
            unexplained[i] = False
    if unexplained.any():
        raise PackError(
            f"{int(unexplained.sum())} of {len(images)} example images get another class from the packed model, though "
            f"none of their signs differs: rounding errors add up, as where large numbers cancel; keep values between "
            f"layers at one scale, as batch norm does"
        )


@torch.no_grad()
def run_traced(frozen: Frozen, dtype: torch.dtype = torch.float32) -> Mapping[str, Tensor]:
    """Run the traced model node by node on its images; return all values by node name.

    In float64 sums of equal weights are exact. In float32 the order of addition decides whether
    ``s + s + s − s − s − s`` is 0, and so which sign it gets.
    """
    values: dict[Node, Tensor] = {node: _cast(tensor, dtype) for node, (_, tensor) in frozen.constants().items()}
    for node in frozen.program.graph.nodes:
        if node.op == "placeholder":
            values.setdefault(node, frozen.images.to(dtype))
        elif node.op == "call_function":
            values[node] = _run_node(node, values, dtype)
    return {node.name: value for node, value in values.items()}


def _run_node(node: Node, values: dict[Node, Tensor], dtype: torch.dtype) -> Tensor:
    def read(argument: Argument) -> object:
        if isinstance(argument, Node):
            return values[argument]
        return dtype if argument is torch.float32 else argument

    arguments, options = map_aggregate(node.args, read), map_aggregate(node.kwargs, read)  # type: ignore[arg-type]
    made: Tensor = node.target(*arguments, **options)  # type: ignore[operator]
    # Constants made from numbers, such as where(x >= 0, 1.0, -1.0), have torch's default dtype, float32.
    return _cast(made, dtype) if isinstance(made, Tensor) and made.dtype == torch.float32 else made


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
