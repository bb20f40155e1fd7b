"""``pack(activations="int8")``: round the inputs of binary convolutions, with ranges from calibration images."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from equalbits.deploy.compare import other_class
from equalbits.deploy.graph import Graph, PackError, Step
from equalbits.runtime import Floats, Network, PackedModel, Settings, each_value, exact_products, many_filters, native

_LOG = logging.getLogger("equalbits")

#: Dtypes of the inputs of binary convolutions that are not signs, and their bits.
ACTIVATIONS: Mapping[str, int] = {"float32": 32, "int8": 8, "int4": 4}
#: Images per run of numpy, and numbers of a value that calibration looks at.
_CHUNK, _SAMPLED = 8, 1 << 17
#: Shares of the range that are tried as the largest number that is not clipped.
_SHARES = np.linspace(0.1, 1, 46)


def round_activations(graph: Graph, network: Network, images: Floats, activations: str) -> None:
    """Put a ``quantize`` before convolutions of bits, or of int8, whose input is not signs; ``network`` is the graph's.

    Its range makes the squared error of rounding least on the values that the images give. The image keeps 8 bits.
    """
    bits = ACTIVATIONS[activations]
    rounded = [step for step in graph.steps if _is_rounded(graph, step, bits)]
    if not rounded:
        raise PackError(
            f"activations={activations!r} rounds the inputs of binary convolutions that are not signs, and the model "
            f"has no such layer: leave it at 'float32'"
        )
    values = {step.inputs[0] for step in rounded}
    settings = {
        value: choose_range(sample, 8 if value == 0 else bits)
        for value, sample in _sample_values(network, values, images).items()
    }
    for step in rounded:
        gain = np.float32(settings[step.inputs[0]]["gain"])
        step.arrays = {**step.arrays, "scale": step.arrays["scale"].astype(np.float32) / gain}
    _insert(graph, settings, rounded)


def log_agreement(option: str, exact: Network, rounded: Network, images: Floats) -> None:
    """Log how many of the calibration images keep their class."""
    engine = "auto" if native.BUILT else "numpy"
    before, after = (PackedModel(network, engine=engine).run_batch(images) for network in (exact, rounded))
    lost = int(other_class(after, before).sum())
    _LOG.info(
        "%s: %d of %d calibration images keep the class of the exact file", option, len(images) - lost, len(images)
    )


def choose_range(sample: Floats, bits: int) -> Settings:
    """Return the settings of a ``quantize``: those of the least squared error on ``sample``.

    >>> choose_range(np.float32([0, 1, 2, 3]), 2)
    {'gain': 1.0, 'min': 0, 'max': 3}
    """
    levels = (1 << bits) - 1
    low, high = min(float(sample.min()), 0.0), max(float(sample.max()), 0.0)
    tried = [_settings(low * share, high * share, levels) for share in _SHARES[::-1]]
    errors = [float(np.square(_rounded(sample, each) - sample).mean()) for each in tried]
    return tried[int(np.argmin(errors))]


def _settings(low: float, high: float, levels: int) -> Settings:
    gain = float(np.float32(levels / max(high - low, 1e-30)))
    least = max(-levels, int(np.rint(low * gain)))
    return {"gain": gain, "min": least, "max": least + levels}


def _rounded(sample: Floats, settings: Settings) -> Floats:
    whole = np.clip(np.rint(sample * np.float32(settings["gain"])), settings["min"], settings["max"])
    result: Floats = whole / np.float32(settings["gain"])
    return result


def _is_rounded(graph: Graph, step: Step, bits: int) -> bool:
    """Return whether the input of a step is rounded: with 8 bits also that of int8 weights, where sums stay exact."""
    if step.kind != "conv" or graph.is_moved_sign(step.inputs[0]):
        return False
    weight, groups = step.arrays["weight"], step.settings.get("groups", 1)
    exact = weight.dtype == np.int8 and bits == 8 and exact_products(weight, 255)
    return many_filters(step.shape[0], groups) and (weight.dtype == np.uint8 or exact)


def _sample_values(network: Network, wanted: set[int], images: Floats) -> dict[int, Floats]:
    """Return evenly spaced numbers of each wanted value, with the smallest and the largest of all, over all images."""
    samples: dict[int, list[Floats]] = {value: [] for value in wanted}
    each = max(1, _SAMPLED // len(images))
    for start in range(0, len(images), _CHUNK):
        for number, value in islice(each_value(network, images[start : start + _CHUNK]), max(wanted) + 1):
            if number in wanted:
                rows = value.reshape(len(value), -1)
                samples[number] += [rows[:, :: max(1, rows.shape[1] // each)].reshape(-1)]
                samples[number] += [np.array([rows.min(), rows.max()])]
    return {value: np.concatenate(parts) for value, parts in samples.items()}


def _insert(graph: Graph, settings: Mapping[int, Settings], readers: list[Step]) -> None:
    """Insert a ``quantize`` behind each value of ``settings`` and have ``readers`` read it; renumber the steps."""
    numbers, rounded, steps = {0: 0}, dict[int, int](), list[Step]()
    chosen = {id(step) for step in readers}

    def add_rounding(value: int) -> None:
        if value in settings:
            before = graph.steps[value - 1] if value else None
            shape, layer = (before.shape, before.layer) if before else (graph.input_shape, "image")
            steps.append(Step("quantize", (numbers[value],), {}, settings[value], layer, shape))
            rounded[value] = len(steps)

    add_rounding(0)
    for place, step in enumerate(graph.steps):
        known = rounded if id(step) in chosen else numbers
        steps.append(replace(step, inputs=tuple(known[value] for value in step.inputs)))
        numbers[place + 1] = len(steps)
        add_rounding(place + 1)
    graph.steps = steps
