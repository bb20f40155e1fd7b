"""Simplify around convolutions with real weights; results are equal up to rounding.

* A batch norm behind a real convolution or linear layer is folded into its weights and bias.
* An average pooling behind a real 1×1 convolution is moved before it, as in the shortcuts of ResNets: both are linear,
  and the convolution then has fewer pixels.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import replace

import numpy as np

from equalbits.deploy.graph import Arrays, Graph, Step
from equalbits.deploy.traced_values import Value
from equalbits.runtime import Floats


def fold_batch_norms(graph: Graph, output: Value, norms: Container[str]) -> None:
    """Rewrite ``graph`` in place; ``norms`` holds the names of the nodes that are batch norms.

    Other affines are left alone. Steps that nothing reads any more stay; :func:`drop_unused` removes them.
    """
    readers = Counter(number for step in graph.steps for number in step.inputs)
    readers[output.number] += 1
    layers = Counter(step.layer for step in graph.steps if _has_real_weights(step))
    for place, step in enumerate(graph.steps):
        number = step.inputs[0]
        before = graph.steps[number - 1] if number else None
        # A layer that is used twice stays as it is: its weights are stored once.
        if before is None or readers[number] > 1 or not _has_real_weights(before) or layers[before.layer] > 1:
            continue
        if step.kind == "affine" and step.node is not None and step.node in norms:
            arrays = _fold(before.arrays, step.arrays["gain_shift"])
            graph.steps[place] = replace(before, arrays=arrays, node=step.node)
        elif step.kind == "avg_pool" and _is_pointwise(before) and not any(step.settings["padding"]):
            shape = (graph.value(before.inputs[0]).shape[0], *step.shape[1:])
            graph.steps[number - 1] = replace(step, inputs=before.inputs, shape=shape, node=None)
            graph.steps[place] = replace(before, inputs=(number,), shape=step.shape, node=step.node)


def _has_real_weights(step: Step) -> bool:
    """Return whether a step has float32 weights without a scale, and a filter per channel."""
    return (
        (step.kind == "conv" or (step.kind == "linear" and len(step.shape) == 1))
        and step.arrays["weight"].dtype == np.float32
        and "scale" not in step.arrays
    )


def _is_pointwise(step: Step) -> bool:
    settings = step.settings
    return step.kind == "conv" and settings["kernel"] == settings["stride"] == (1, 1) and not any(settings["padding"])


def _fold(arrays: Arrays, gain_shift: Floats) -> Arrays:
    """Return weights and bias with a gain and a shift per filter folded in, in float64 and rounded once."""
    gain, shift = gain_shift.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # the network refuses numbers beyond float32
        weight = arrays["weight"] * gain.reshape(-1, *(1,) * (arrays["weight"].ndim - 1))
        bias = arrays.get("bias", np.zeros(1, np.float32)) * gain + shift
        return {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
