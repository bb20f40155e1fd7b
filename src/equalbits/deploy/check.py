"""Hold a packed network against the model it was made from, before anyone gets it."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equalbits.deploy.check_native import agree, check_native, near
from equalbits.deploy.freeze import Frozen
from equalbits.deploy.reference import answer_of, run
from equalbits.deploy.steps import PackError, Steps, as_array
from equalbits.runtime import Network, ops
from equalbits.runtime.engine import run_numpy

Reals = NDArray[np.float32]


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
    before, after = (_run_packed(network, as_array(images)) for network in (exact, rounded))
    check_native(rounded, steps, as_array(images), (after,))
    kept = int((before.argmax(axis=1) == after.argmax(axis=1)).sum())
    change = float(np.abs(after - before).max() / max(float(np.abs(before).max()), 1e-30))
    return f"{kept} of {len(before)} answers keep their class; logits move by up to {change:.2%} of the largest"


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
