"""Fewer and cheaper steps that give the same numbers but for rounding, around convolutions with real weights.

* A batch norm behind a real convolution or linear layer goes into its weights and bias.
* An average over windows behind a real convolution that sees one pixel is taken before it: both are linear, and the
  convolution then has fewer pixels to see. The shortcuts of ResNets are such.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from equalbits.deploy.graph import Arrays, Step, Steps, Value


def join(steps: Steps, answer: Value, norms: Container[str]) -> None:
    """Rewrite ``steps`` in place; ``norms`` names the nodes that are batch norms.

    Other gains and shifts stay by themselves, so that what a layer takes in a file does not hang on its neighbours.
    Rows that nothing reads any more stay, for whoever drops what is dead.
    """
    readers = Counter(number for step in steps.rows for number in step.inputs)
    readers[answer.number] += 1
    layers = Counter(step.layer for step in steps.rows if _is_real(step))
    for place, step in enumerate(steps.rows):
        number = step.inputs[0]
        before = steps.rows[number - 1] if number else None
        # A layer that is used twice stays as it is: its weights are stored once.
        if before is None or readers[number] > 1 or not _is_real(before) or layers[before.layer] > 1:
            continue
        if step.kind == "affine" and step.node is not None and step.node in norms:
            arrays = _folded(before.arrays, step.arrays["gain_shift"])
            steps.rows[place] = replace(before, arrays=arrays, node=step.node)
        elif step.kind == "avg_pool" and _sees_one_pixel(before) and not any(step.settings["padding"]):
            channels = steps.rows[before.inputs[0] - 1].shape[0] if before.inputs[0] else steps.input_shape[0]
            shape = (channels, *step.shape[1:])
            steps.rows[number - 1] = replace(step, inputs=before.inputs, shape=shape, node=None)
            steps.rows[place] = replace(before, inputs=(number,), shape=step.shape, node=step.node)


def _is_real(step: Step) -> bool:
    """Whether a step multiplies by real weights, and nothing scales them."""
    return step.kind in ("conv", "linear") and step.arrays["weight"].dtype == np.float32 and "scale" not in step.arrays


def _sees_one_pixel(step: Step) -> bool:
    settings = step.settings
    return step.kind == "conv" and settings["kernel"] == settings["stride"] == (1, 1) and not any(settings["padding"])


def _folded(arrays: Arrays, gain_shift: NDArray[np.float32]) -> Arrays:
    """Weights and bias with a gain and a shift for each filter behind them; found in float64 and rounded once."""
    gain, shift = gain_shift.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 does not hold is refused where it is stored
        weight = arrays["weight"] * gain.reshape(-1, *(1,) * (arrays["weight"].ndim - 1))
        bias = arrays.get("bias", np.zeros(1, np.float32)) * gain + shift
        return {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
