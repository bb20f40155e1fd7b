"""Hold a packed network against the model it was made from, before anyone gets it."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.deploy.freeze import Frozen
from equalbits.deploy.graph import PackError, Steps, as_array
from equalbits.deploy.run_program import answer_of, run
from equalbits.deploy.verify_native import (
    TOLERANCE,
    agree,
    another_class,
    check_native,
    differing,
    near,
)
from equalbits.runtime import Network, run_numpy

Reals = NDArray[np.float32]

#: How far rounded inputs may move logits, as a share of the largest.
MOST_MOVED = 0.05


def check(network: Network, steps: Steps, frozen: Frozen) -> None:
    """Refuse a packed network whose answer is not the model's, and name the first layer that differs.

    The whole network is run first, and held against the model's answer. Where it differs, each operation is run by
    itself on the numbers that the traced model has there; one that then differs is a fault, and is named. Where none
    does, rounding made the difference. An image may get another class by it only where the model itself leaves its
    class to rounding: in float64 the model gives the packed answer, or the first sign that differs is that of a number
    which is 0 but for rounding (:func:`_check_ties`). Anything else is refused. The native engine, where it is built,
    must give the same. One warning says how many images get another class by such ties.
    """
    images, answer = as_array(frozen.images), as_array(frozen.answer)
    packed = _run_packed(network, images)
    if not agree(packed, answer):
        _explain(network, steps, frozen, packed)
    found = check_native(network, steps, images, (packed, answer))
    if not agree(found, answer):
        _warn(frozen, found, answer)


def _explain(network: Network, steps: Steps, frozen: Frozen, packed: Reals) -> None:
    """Raise, unless rounding in the model itself makes the packed answer another than the model's."""
    images, program, answer = as_array(frozen.images), frozen.program, as_array(frozen.answer)
    node = answer_of(program).name
    traced = run(program, frozen.images)
    if not near(as_array(traced[node]), answer):
        raise PackError(
            "the traced model answers differently from the model: its forward hangs on something that torch.export "
            "does not see (random numbers, a change in place of a view); make it a function of the image alone"
        )
    exact = run(program, frozen.images, torch.float64)
    otherwise = differing(packed, answer) & differing(packed, as_array(exact[node]))
    if otherwise.any():
        _check_steps(network, steps, images, exact)
        _check_ties(network, steps, traced, images, otherwise & another_class(packed, answer))


def _warn(frozen: Frozen, found: Reals, answer: Reals) -> None:
    """Say how many images get another class packed, and of how many the model itself leaves it to rounding."""
    node = answer_of(frozen.program).name
    exact = as_array(run(frozen.program, frozen.images, torch.float64)[node])
    share = float(np.abs(found - answer).max() / max(float(np.abs(answer).max()), 1e-30))
    logging.getLogger("equalbits").warning(
        "%d of %d example images get another class packed than from the model, and logits differ by up to %.3g of the "
        "largest. Each operation agrees, and rounding decides the rest: a sum that is 0 but for it has either sign. In "
        "float64 the model itself gives %d of the %d another class. Untrained networks do so; compare both on your "
        "own images",
        int(another_class(found, answer).sum()),
        len(answer),
        share,
        int(another_class(exact, answer).sum()),
        len(answer),
    )


def check_rounded(exact: Network, rounded: Network, steps: Steps, images: Tensor) -> str:
    """How far storing the rest in fewer bits moves the answers to ``images``; both engines must move alike."""
    kept, change = _moved(exact, rounded, steps, as_array(images))
    return f"{kept} of {len(images)} answers keep their class; logits move by up to {change:.2%} of the largest"


def check_inputs(exact: Network, rounded: Network, steps: Steps, images: Tensor) -> str:
    """How far rounding the inputs of linear layers moves the answers to ``images``; refuses what moves too far."""
    kept, change = _moved(exact, rounded, steps, as_array(images))
    if kept < len(images) or change > MOST_MOVED:
        raise PackError(
            f"linear_inputs='int8' gives {len(images) - kept} of {len(images)} answers another class, and moves logits "
            f"by up to {change:.2%} of the largest: none and {MOST_MOVED:.0%} are the most; pack with "
            f"linear_inputs='float32'"
        )
    return f"all {kept} answers keep their class; logits move by up to {change:.2%} of the largest"


def _moved(exact: Network, rounded: Network, steps: Steps, images: Reals) -> tuple[int, float]:
    """How many answers keep their class (of equal logits, either is it), and how far logits move: a share."""
    before, after = (_run_packed(network, images).reshape(len(images), -1) for network in (exact, rounded))
    found = check_native(rounded, steps, images, (after.reshape(-1, *rounded.shapes[-1]),)).reshape(after.shape)
    if not agree(found, after):
        logging.getLogger("equalbits").warning(
            "some values lie so near an edge that rounding decides their side: the native engine's answers differ from "
            "numpy's by up to %.3g",
            float(np.abs(found - after).max()),
        )
    kept = int((~another_class(after, before)).sum())
    return kept, float(np.abs(after - before).max() / max(float(np.abs(before).max()), 1e-30))


def _run_packed(network: Network, images: Reals) -> Reals:
    """The packed answer, an image at a time: numpy's convolutions take much memory."""
    return np.concatenate([run_numpy(network, images[i : i + 1]) for i in range(len(images))])


def _check_steps(network: Network, steps: Steps, images: Reals, traced: Mapping[str, Any]) -> None:
    """Run each operation on the model's own numbers, and refuse the first that gives others than the model."""
    values = {0: images}
    for place, (operation, step) in enumerate(zip(network.operations, steps.rows, strict=True)):
        found = network.run_operation(operation, values)
        expected = found if step.node is None else as_array(traced[step.node]).reshape(found.shape)
        if not near(found, expected):
            largest = float(np.abs(found - expected).max())
            raise PackError(
                f"layer {step.layer!r} ({operation.kind}, operation {place}) differs from the model's by up to "
                f"{largest:.3g} on the model's own input: the model was not packed; please report it"
            )
        values[place + 1] = expected


def _check_ties(
    network: Network, steps: Steps, traced: Mapping[str, Any], images: Reals, otherwise: NDArray[np.bool_]
) -> None:
    """Refuse where the first sign to differ of an image of ``otherwise`` is not that of a number 0 but for rounding.

    The packed network and the model run side by side, each on its own numbers. A sign is the one operation that
    rounding can turn; up to the first that differs, the two are apart by rounding alone.
    """
    open_ = otherwise.copy()
    ours, theirs = {0: images}, {0: images}
    for place, (operation, step) in enumerate(zip(network.operations, steps.rows, strict=True)):
        for values in (ours, theirs):
            values[place + 1] = network.run_operation(operation, values)
        if step.node is not None:
            theirs[place + 1] = as_array(traced[step.node]).reshape(ours[place + 1].shape)
        if operation.kind != "sign":
            continue
        turned = (ours[place + 1] != theirs[place + 1]).reshape(len(images), -1)
        for i in np.flatnonzero(turned.any(axis=1) & open_):
            before, model = (values[operation.inputs[0]][i].reshape(-1) for values in (ours, theirs))
            apart = float(np.maximum(np.abs(before), np.abs(model))[turned[i]].max())
            if apart > TOLERANCE * np.abs(model).max():
                raise PackError(
                    f"layer {step.layer!r} (operation {place}) takes the sign of a number that is {apart:.3g} from 0, "
                    f"and the model's sign is the other: the model was not packed; please report it"
                )
            open_[i] = False
    if open_.any():
        raise PackError(
            f"{int(open_.sum())} of {len(images)} example images get another class packed than from the model, though "
            f"no sign of theirs differs: roundings add up, as where huge numbers cancel; bring the numbers between "
            f"layers to one size, as a batch norm does"
        )
