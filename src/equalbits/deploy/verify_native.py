"""Hold the native engine against numpy on a network that was just packed: two engines, one answer."""

import logging

import numpy as np
from numpy.typing import NDArray

from equalbits.deploy.graph import PackError, Steps
from equalbits.runtime import Network, PackedModel, native

Reals = NDArray[np.float32]

#: How far two engines may lie apart, as a share of the largest number around: float32 in another order.
TOLERANCE = 1e-4


def check_native(network: Network, steps: Steps, images: Reals, known: tuple[Reals, ...]) -> Reals:
    """Refuse a network that the native engine answers otherwise, and name the first layer where it does.

    ``known`` are the answers that count as right: numpy's, and the model's own. Where the native one is none of them,
    the network is run up to each operation, by both. A sign that differs where its number is 0 but for rounding is no
    fault, nor is an input that lies between two whole numbers and is rounded to either. Anything else is a fault.
    Returns the answers of the engine that will run: numpy's where the native one is not built.
    """
    if native.BUILT is None:
        return known[0]
    try:
        found = PackedModel(network, engine="native")(images)
    except ValueError as error:
        logging.getLogger("equalbits").warning("numpy will run this model, slowly: %s", error)
        return known[0]
    if not any(agree(found, answer) for answer in known):
        for i in np.flatnonzero(differing(found, known[0])):
            _find(network, steps, images[i : i + 1])
    return found


def _find(network: Network, steps: Steps, image: Reals) -> None:
    """Raise at the first operation that differs by more than rounding; return at the first edge rounding decided."""
    values = {0: image}
    for place, (operation, step) in enumerate(zip(network.operations, steps.rows, strict=True)):
        inputs = [values[number] for number in operation.inputs]
        truth = values[place + 1] = network.run_operation(operation, values)
        found = PackedModel(_up_to(network, place), engine="native")(image)
        if operation.kind == "sign":
            moved = np.abs(inputs[0][found != truth])
            if moved.size and moved.max() <= TOLERANCE * np.abs(inputs[0]).max():
                return
        if operation.settings.get("input_bits") == 8 and not near(found, truth):
            scale = float(np.abs(network.arrays(operation).get("scale", np.ones(1, np.float32))).max())
            if (np.abs(found - truth) <= scale * _may_move(inputs[0]) + TOLERANCE * np.abs(truth).max()).all():
                return
        if not near(found, truth):
            raise PackError(
                f"layer {step.layer!r} ({operation.kind}, operation {place}): the native engine differs from numpy by "
                f"up to {float(np.abs(found - truth).max()):.3g}: the model was not packed; please report it"
            )
    raise PackError("the native engine answers otherwise than numpy: the model was not packed; please report it")


def _may_move(value: Reals) -> Reals:
    """How far each row's sums of rounded inputs may move: a step for each input that lies between two whole numbers."""
    largest = np.abs(value).max(axis=1, keepdims=True)
    whole = value / np.where(largest > 0, largest, np.float32(1)) * np.float32(127)
    between = np.abs(whole - np.floor(whole) - np.float32(0.5)) <= 2 * 127 * TOLERANCE
    moves: Reals = (between.sum(axis=1, keepdims=True) * largest / 127).astype(np.float32)
    return moves


def _up_to(network: Network, place: int) -> Network:
    """The network whose answer is the value that the operation at ``place`` makes."""
    operations = network.operations[: place + 1]
    names = {name for operation in operations for name in operation.tensors.values()}
    return Network(network.input_shape, operations, {name: network.tensors[name] for name in names})


def agree(packed: Reals, answer: Reals) -> bool:
    """Near in every number, and the same class for each image."""
    return packed.shape == answer.shape and not differing(packed, answer).any()


def differing(packed: Reals, answer: Reals) -> NDArray[np.bool_]:
    """The images whose logits are not near, or whose class is another."""
    rows, theirs = packed.reshape(len(packed), -1), answer.reshape(len(answer), -1)
    close = np.abs(rows - theirs).max(axis=1, initial=0.0) <= TOLERANCE * np.abs(theirs).max(initial=0.0) + 1e-6
    far: NDArray[np.bool_] = ~close
    return far | another_class(packed, answer)


def another_class(packed: Reals, answer: Reals) -> NDArray[np.bool_]:
    """The images whose class is another; of logits that are equal but for rounding of both, either is the class.

    >>> another_class(np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[3.0, 3.0], [3.0, 2.0]]))
    array([False,  True])
    """
    rows, theirs = packed.reshape(len(packed), -1), answer.reshape(len(answer), -1)
    gap = theirs.max(axis=1) - theirs[np.arange(len(rows)), rows.argmax(axis=1)]
    other: NDArray[np.bool_] = gap > 2 * TOLERANCE * np.abs(theirs).max()
    return other


def near(found: Reals, expected: Reals) -> bool:
    """Whether every number lies within :data:`TOLERANCE` of the largest."""
    if found.shape != expected.shape:
        return False
    largest = float(np.abs(expected).max(initial=0.0))
    return bool(np.abs(found - expected).max(initial=0.0) <= TOLERANCE * largest + 1e-6)
