"""Verify a packed network against the model it was made from, and the native engine against numpy."""

import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.deploy.compare import (
    TOLERANCE,
    as_array,
    differing_images,
    is_close,
    largest_change,
    other_class,
    same_answers,
)
from equalbits.deploy.graph import Graph, PackError
from equalbits.deploy.torch_export import Frozen
from equalbits.runtime import Floats, NativeEngine, Network, Operation, make_operation, native, run_numpy

_LOG = logging.getLogger("equalbits")

#: How much farther from the float64 logits than the model's own float32 logits rounding may take the packed ones.
_MAX_ROUNDING = 4
#: How far rounded inputs may change logits, relative to the largest.
MAX_CHANGE = 0.05
#: Widest image that single operations read their inputs from: the largest integer of a setting.
_WIDEST = 1 << 20


def verify(network: Network, graph: Graph, frozen: Frozen) -> None:
    """Raise where a packed network gives other logits than the model, naming the first layer that differs.

    The whole network runs first. Where its logits differ, each operation runs by itself on the traced model's own
    inputs; one that then differs is a bug. Where none does, rounding made the difference. It may change the class of an
    image only where the model's own class depends on rounding: its float64 logits equal the packed ones, or are about
    as far from the model's own float32 ones as from those, or the first sign that differs has an input that is 0 up to
    rounding (:func:`_check_ties`). A warning counts such images. The native engine, where it is built, must agree as
    well.
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
    traced = frozen.run()
    if not is_close(as_array(traced[output]), logits):
        raise PackError(
            "the traced model answers differently from the model: its forward depends on something that torch.export "
            "does not record, such as random numbers; make it a function of the image only"
        )
    exact = frozen.run(torch.float64)
    truth = as_array(exact[output])
    differing = differing_images(packed, logits) & differing_images(packed, truth)
    if differing.any():
        _check_steps(network, graph, images, exact)
        ours, theirs = (np.abs(found - truth).reshape(len(truth), -1).max(axis=1) for found in (packed, logits))
        rounding = ours <= _MAX_ROUNDING * theirs  # no sign differs, or as many as in the model's own float32
        _check_ties(network, graph, traced, images, differing & other_class(packed, logits) & ~rounding)


def _warn(frozen: Frozen, found: Floats, logits: Floats) -> None:
    """Log how many images get another class, and for how many the model itself gives another in float64."""
    exact = as_array(frozen.run(torch.float64)[frozen.output_node.name])
    _LOG.warning(
        "%d of %d example images get another class from the packed model, and logits differ by up to %.3g of the "
        "largest. Every operation agrees on the same inputs; rounding adds up, or decides the signs of sums near 0. In "
        "float64 the model itself gives %d of the %d another class. This is common before training; compare both on "
        "your own images",
        *(int(other_class(found, logits).sum()), len(logits), largest_change(found, logits)),
        *(int(other_class(exact, logits).sum()), len(logits)),
    )


def verify_rounding(option: str, exact: Network, rounded: Network, graph: Graph, images: Floats) -> None:
    """Log how far a rounding ``option`` of pack changes the logits; raise where rounded inputs change too much."""
    before, after = (_run_packed(network, images) for network in (exact, rounded))
    found = verify_native(rounded, graph, images, (after,))
    if not same_answers(found, after):
        _LOG.warning(
            "some values lie so near a rounding boundary that the engines round them differently: native logits differ "
            "from numpy's by up to %.3g",
            float(np.abs(found - after).max()),
        )
    lost, change = int(other_class(after, before).sum()), largest_change(after, before)
    if option.startswith("linear_inputs") and (lost or change > MAX_CHANGE):
        raise PackError(
            f"{option} gives {lost} of {len(images)} images another class, and changes logits by up to {change:.2%} of "
            f"the largest: no other class and {MAX_CHANGE:.0%} are allowed; pack with linear_inputs='float32'"
        )
    _LOG.info(
        "%s: %s of %s images keep their class; logits change by up to %.2f%% of the largest",
        *(option, len(images) - lost, len(images), 100 * change),
    )


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


def verify_native(network: Network, graph: Graph, images: Floats, expected: tuple[Floats, ...]) -> Floats:
    """Raise where the native engine gives other logits, naming the first layer that differs.

    ``expected`` holds the logits that count as right: numpy's, and the model's own. Where the native ones equal none of
    them, numpy runs each operation on the native engine's own values: rounding that adds up over a deep network is no
    fault. A sign may differ where its input is 0 up to rounding, and a rounded input where it lies between two
    integers. Returns the logits of the engine that will run: numpy's where the native one is not built.
    """
    if native.BUILT is None:
        return expected[0]
    try:
        found = NativeEngine(network)(images)
    except ValueError as error:
        _LOG.warning("numpy will run this model, slowly: %s", error)
        return expected[0]
    if not any(same_answers(found, logits) for logits in expected):
        differing = differing_images(found, expected[0])
        last = _find_difference(network, graph, images[differing])
        of_numpy = _run_packed(network, images[differing])
        if not is_close(last, found[differing]) or not same_answers(of_numpy, expected[0][differing]):
            raise PackError("the native engine differs from numpy: the model was not packed; please report this bug")
    return found


def _find_difference(network: Network, graph: Graph, images: Floats) -> Floats:
    """Raise at the first operation that differs by more than rounding on the native engine's own inputs.

    Returns the output of the native engine, run operation by operation.
    """
    values = {0: images}
    for place, (operation, step) in enumerate(zip(network.operations, graph.steps, strict=True)):
        source = values[operation.inputs[0]]
        truth = network.run_operation(operation, values)
        found = values[place + 1] = _run_alone(network, place, values)
        if operation.kind == "sign":
            moved = np.abs(source[found != truth])
            if moved.size and moved.max() <= TOLERANCE * np.abs(source).max():
                continue
        if operation.settings.get("input_bits") == 8 and not is_close(found, truth):
            scale = float(np.abs(network.arrays(operation).get("scale", np.ones(1, np.float32))).max())
            if (np.abs(found - truth) <= scale * _rounding_error(source) + TOLERANCE * np.abs(truth).max()).all():
                continue
        if not is_close(found, truth):
            raise PackError(
                f"layer {step.layer!r} ({operation.kind}, operation {place}): the native engine differs from numpy by "
                f"up to {float(np.abs(found - truth).max()):.3g}: the model was not packed; please report this bug"
            )
    return values[len(network.operations)]


def _rounding_error(value: Floats) -> Floats:
    """Return how far the sums of each row of rounded inputs may differ: one step per input between two integers."""
    largest = np.abs(value).max(axis=-1, keepdims=True)
    scaled = value / np.where(largest > 0, largest, np.float32(1)) * np.float32(127)
    between = np.abs(scaled - np.floor(scaled) - np.float32(0.5)) <= 2 * 127 * TOLERANCE
    error: Floats = (between.sum(axis=-1, keepdims=True) * largest / 127).astype(np.float32)
    return error


def _run_alone(network: Network, place: int, values: Mapping[int, Floats]) -> Floats:
    """Run one operation in the native engine: a network that slices its inputs, whole rows, out of an image."""
    operation = network.operations[place]
    tensors = {name: network.tensors[name] for name in operation.tensors.values()}
    if operation.inputs == (0,):  # the first layer reads the image itself
        return NativeEngine(Network(network.input_shape, (operation,), tensors))(values[0])
    sizes = [math.prod(network.shapes[value]) for value in operation.inputs]
    common = math.gcd(*sizes)
    width = next(common // parts for parts in itertools.count(1) if common % parts == 0 and common // parts <= _WIDEST)
    batch = len(values[0])
    rows = [values[value].reshape(batch, -1, width) for value in operation.inputs]
    ends = np.cumsum([row.shape[1] for row in rows]).tolist()
    operations, made = list[Operation](), []
    for value, row, end in zip(operation.inputs, rows, ends, strict=True):
        cut = {"start": [0, end - row.shape[1], 0], "stop": [1, end, width], "step": [1, 1, 1]}
        operations.append(make_operation("slice", (0,), {}, cut))
        operations.append(make_operation("reshape", (len(operations),), {}, {"shape": network.shapes[value]}))
        made.append(len(operations))
    alone = replace(operation, inputs=tuple(made))
    joined = np.concatenate(rows, axis=1)[:, None]
    return NativeEngine(Network((1, ends[-1], width), (*operations, alone), tensors))(joined)
