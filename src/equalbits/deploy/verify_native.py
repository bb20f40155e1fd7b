"""Verify the native engine against numpy on a packed network."""

import logging

import numpy as np
from numpy.typing import NDArray

from equalbits.deploy.graph import Graph, PackError
from equalbits.runtime import Network, PackedModel, native
from equalbits.runtime.op_specs import Floats

#: Tolerance between engines, relative to the largest number: float32 sums in another order.
TOLERANCE = 1e-4


def verify_native(network: Network, graph: Graph, images: Floats, expected: tuple[Floats, ...]) -> Floats:
    """Raise where the native engine gives other logits, naming the first layer that differs.

    ``expected`` holds the logits that count as right: numpy's, and the model's own. Where the native ones equal none of
    them, the network is run up to each operation by both engines. A sign may differ where its input is 0 up to
    rounding, and a rounded input where it lies between two integers. Returns the logits of the engine that will run:
    numpy's where the native one is not built.
    """
    if native.BUILT is None:
        return expected[0]
    try:
        found = PackedModel(network, engine="native")(images)
    except ValueError as error:
        logging.getLogger("equalbits").warning("numpy will run this model, slowly: %s", error)
        return expected[0]
    if not any(same_answers(found, logits) for logits in expected):
        for i in np.flatnonzero(differing_images(found, expected[0])):
            _find_difference(network, graph, images[i : i + 1])
    return found


def _find_difference(network: Network, graph: Graph, image: Floats) -> None:
    """Raise at the first operation that differs by more than rounding; return at the first tie."""
    values = {0: image}
    for place, (operation, step) in enumerate(zip(network.operations, graph.steps, strict=True)):
        source = values[operation.inputs[0]]
        truth = values[place + 1] = network.run_operation(operation, values)
        found = PackedModel(_first_operations(network, place), engine="native")(image)
        if operation.kind == "sign":
            moved = np.abs(source[found != truth])
            if moved.size and moved.max() <= TOLERANCE * np.abs(source).max():
                return
        if operation.settings.get("input_bits") == 8 and not is_close(found, truth):
            scale = float(np.abs(network.arrays(operation).get("scale", np.ones(1, np.float32))).max())
            if (np.abs(found - truth) <= scale * _rounding_error(source) + TOLERANCE * np.abs(truth).max()).all():
                return
        if not is_close(found, truth):
            raise PackError(
                f"layer {step.layer!r} ({operation.kind}, operation {place}): the native engine differs from numpy by "
                f"up to {float(np.abs(found - truth).max()):.3g}: the model was not packed; please report this bug"
            )
    raise PackError("the native engine differs from numpy: the model was not packed; please report this bug")


def _rounding_error(value: Floats) -> Floats:
    """Return how far the sums of each row of rounded inputs may differ: one step per input between two integers."""
    largest = np.abs(value).max(axis=1, keepdims=True)
    scaled = value / np.where(largest > 0, largest, np.float32(1)) * np.float32(127)
    between = np.abs(scaled - np.floor(scaled) - np.float32(0.5)) <= 2 * 127 * TOLERANCE
    error: Floats = (between.sum(axis=1, keepdims=True) * largest / 127).astype(np.float32)
    return error


def _first_operations(network: Network, place: int) -> Network:
    """Return the network that ends with the operation at ``place``."""
    operations = network.operations[: place + 1]
    names = {name for operation in operations for name in operation.tensors.values()}
    return Network(network.input_shape, operations, {name: network.tensors[name] for name in names})


def same_answers(packed: Floats, logits: Floats) -> bool:
    """Return whether all logits are close and every image has the same class."""
    return packed.shape == logits.shape and not differing_images(packed, logits).any()


def differing_images(packed: Floats, logits: Floats) -> NDArray[np.bool_]:
    """Return which images have logits that are not close, or another class."""
    rows, theirs = packed.reshape(len(packed), -1), logits.reshape(len(logits), -1)
    close = np.abs(rows - theirs).max(axis=1, initial=0.0) <= TOLERANCE * np.abs(theirs).max(initial=0.0) + 1e-6
    far: NDArray[np.bool_] = ~close
    return far | other_class(packed, logits)


def other_class(packed: Floats, logits: Floats) -> NDArray[np.bool_]:
    """Return which images have another class; of logits that are equal up to rounding, either is right.

    >>> other_class(np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[3.0, 3.0], [3.0, 2.0]]))
    array([False,  True])
    """
    rows, theirs = packed.reshape(len(packed), -1), logits.reshape(len(logits), -1)
    gap = theirs.max(axis=1) - theirs[np.arange(len(rows)), rows.argmax(axis=1)]
    other: NDArray[np.bool_] = gap > 2 * TOLERANCE * np.abs(theirs).max()
    return other


def is_close(found: Floats, expected: Floats) -> bool:
    """Return whether all numbers lie within :data:`TOLERANCE` of the largest."""
    if found.shape != expected.shape:
        return False
    largest = float(np.abs(expected).max(initial=0.0))
    return bool(np.abs(found - expected).max(initial=0.0) <= TOLERANCE * largest + 1e-6)
