"""Hold a packed network against the model it was made from, before anyone gets it."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.deploy.check_native import TOLERANCE, agree, check_native, near
from equalbits.deploy.freeze import Frozen
from equalbits.deploy.reference import answer_of, run
from equalbits.deploy.steps import PackError, Steps, as_array
from equalbits.runtime import Network, ops
from equalbits.runtime.engine import run_numpy

Reals = NDArray[np.float32]

#: How far rounded inputs may move logits, as a share of the largest.
MOST_MOVED = 0.05


def check(network: Network, steps: Steps, frozen: Frozen) -> None:
    """Refuse a packed network whose answer is not the model's, and name the first layer that differs.

    The whole network is run first, and held against the model's answer; then, where rounding might have moved that,
    against the traced model in float64. Where both differ, each operation is run by itself on the numbers that the
    traced model has there. An operation that then differs is a fault, and is named. Where none does, the sum of a real
    layer fell on the other side of a sign by rounding, as it may between two machines. That is no fault of the packed
    file, and is logged. At last the native engine, where it is built, must give the same.
    """
    images, answer = as_array(frozen.images), as_array(frozen.answer)
    packed = _run_packed(network, images)
    if not agree(packed, answer):
        _explain(network, steps, frozen, packed)
    check_native(network, steps, images, (packed, answer))


def _explain(network: Network, steps: Steps, frozen: Frozen, packed: Reals) -> None:
    """Say which layer makes the packed answer another than the model's, or that rounding did."""
    images, program, answer = as_array(frozen.images), frozen.program, as_array(frozen.answer)
    node = answer_of(program).name
    if not near(as_array(run(program, frozen.images)[node]), answer):
        raise PackError(
            "the traced model answers differently from the model: its forward hangs on something that torch.export "
            "does not see (random numbers, a change in place of a view); make it a function of the image alone"
        )
    exact = run(program, frozen.images, torch.float64)
    if agree(packed, as_array(exact[node])):
        return
    _check_steps(network, steps, images, exact)
    logging.getLogger("equalbits").warning(
        "every operation agrees with the model's, but some values lie so near an edge that rounding decides their "
        "sign: the packed answers differ by up to %.3g",
        float(np.abs(packed - answer).max()),
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
    check_native(rounded, steps, images, (after.reshape(-1, *rounded.shapes[-1]),))
    largest = float(np.abs(before).max())
    gap = before.max(axis=1) - before[np.arange(len(before)), after.argmax(axis=1)]
    kept = int((gap <= TOLERANCE * largest).sum())
    return kept, float(np.abs(after - before).max() / max(largest, 1e-30))


def _run_packed(network: Network, images: Reals) -> Reals:
    """The packed answer, an image at a time: numpy's convolutions take much memory."""
    return np.concatenate([run_numpy(network, images[i : i + 1]) for i in range(len(images))])


def _check_steps(network: Network, steps: Steps, images: Reals, traced: Mapping[str, Any]) -> None:
    """Run each operation on the model's own numbers, and refuse the first that gives others than the model."""
    values = {0: images}
    for place, (operation, step) in enumerate(zip(network.operations, steps.rows, strict=True)):
        inputs = (values[number] for number in operation.inputs)
        found = ops.RUN[operation.kind](*inputs, tensors=network.arrays(operation), settings=operation.settings)
        expected = found if step.node is None else as_array(traced[step.node])
        if not near(found, expected):
            largest = float(np.abs(found - expected).max())
            raise PackError(
                f"layer {step.layer!r} ({operation.kind}, operation {place}) differs from the model's by up to "
                f"{largest:.3g} on the model's own input: the model was not packed; please report it"
            )
        values[place + 1] = expected
