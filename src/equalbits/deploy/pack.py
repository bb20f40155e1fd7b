"""``pack``: turn any torch module into a packed model, verified against it."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from equalbits.deploy.activations import ACTIVATIONS, log_agreement, round_activations
from equalbits.deploy.compare import as_array
from equalbits.deploy.graph import Header, PackError, same_computation, to_network
from equalbits.deploy.lengths import Span, with_lengths
from equalbits.deploy.pack_weights import LINEAR_INPUTS, RESTS, narrow_arrays, round_linear_inputs
from equalbits.deploy.ports import Example
from equalbits.deploy.torch_export import trace_program
from equalbits.deploy.translate import translate
from equalbits.deploy.verify import verify, verify_rounding
from equalbits.runtime import Array, Floats, Limits, Network, PackedModel

#: torch.export has global state, which two exports at once would corrupt.
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of pictures: ``mean`` and ``std`` per channel, the side to ``resize`` to, and ``fit``.

    With ``mean`` and ``std`` the packed model also takes images of bytes. With ``resize``, ``equalbits run`` scales
    each picture to a square of that side, as ``fit`` says (``stretch``, ``crop`` or ``pad``), and crops its centre;
    without, it scales a picture to cover the model's input.
    """

    mean: Iterable[float] | None = None
    std: Iterable[float] | None = None
    resize: int | None = None
    fit: str = "stretch"


#: A model of one's own may take what it takes.
_NO_LIMITS = Limits(memory=1 << 60)


def pack(
    model: nn.Module,
    example: Example,
    *,
    rest: str = "float32",
    linear_inputs: str = "float32",
    activations: str = "float32",
    calibration: Tensor | Array | None = None,
    class_names: Iterable[str] | None = None,
    preprocessing: Preprocessing | None = None,
    lengths: Sequence[int] | None = None,
) -> PackedModel:
    """Pack ``model`` into operations and bits; ``.save(path)`` writes the file.

    ``example`` is a batch of images as the model takes them; or a batch of token ids (integers), several tensors in a
    tuple, or several by name in a dict. The packed model then takes the same inputs, of the same shapes.

    The packed model is verified on the first 8 images before this returns: the same class for each, and logits within
    1e-4 of the largest, both in numpy and in the native engine where it is built. :class:`PackError` names the
    layer that differs, or the first operation that cannot be packed.

    One difference is allowed, with a warning of the logger ``equalbits`` that counts the images: where the model takes
    the sign of a sum that is 0 up to rounding. Its own class then varies between machines, or in float64. Untrained
    networks with sign inputs have many such sums, trained ones few.

    ``rest`` is the dtype of the non-binary tensors: ``"float32"``; ``"float16"``; or ``"int8"``, real weights with a
    scale per filter and everything else as float16. The last two round; how far logits change is logged.

    ``linear_inputs="int8"`` makes binary linear layers round inputs that are not signs to 255 values per row, which is
    an image or a token: several times faster, and not exact. How far logits change is logged; a model is refused where
    an image changes its class or logits change by more than 5 % of the largest.

    ``activations="int8"`` or ``"int4"`` rounds the inputs of binary convolutions that are not signs, and so makes them
    integers times ±1: faster, and not exact. Each input has one range for all images, which ``calibration``, a batch of
    images as the model takes them, sets (by default the example). How many of these keep their class is logged.

    ``class_names`` and ``preprocessing`` are stored in the file.

    ``lengths=(least, most)`` packs one file for all lengths between: the axes of the example of size ``most`` vary. The
    model is traced and verified at up to four lengths. All that depends on the length must be a rule that these show;
    :class:`PackError` names the first operation where it is not.

    >>> import torch
    >>> from equalbits.nn import BinaryConv2d
    >>> net = nn.Sequential(BinaryConv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> packed = pack(net, torch.randn(2, 1, 4, 4))
    >>> [operation.kind for operation in packed.network.operations]
    ['conv', 'affine', 'relu', 'flatten', 'linear']
    """
    for name, value, known in (
        ("rest", rest, RESTS),
        ("linear_inputs", linear_inputs, LINEAR_INPUTS),
        ("activations", activations, ACTIVATIONS),
    ):
        if value not in known:
            raise PackError(f"{name}={value!r} is not known: choose one of {', '.join(map(repr, known))}")
    if calibration is not None and activations == "float32":
        raise PackError(
            "calibration is for activations='int8' or 'int4', and activations is 'float32': give both or none"
        )
    if lengths is not None and activations != "float32":
        raise PackError(f"activations={activations!r} takes one range for all inputs: pack one length")
    header = _header(class_names, preprocessing or Preprocessing())
    span = None if lengths is None else Span.of(lengths, example)
    with _LOCK:
        frozen = trace_program(model, example)
        graph = translate(frozen)
        if frozen.ports is not None:
            header |= {"inputs": frozen.ports.bounded_inputs(graph.below), "outputs": frozen.ports.outputs}
        network = to_network(graph, header)
        verify(network, graph, frozen)
        if frozen.single is not None and not same_computation(translate(frozen.single), graph):
            raise PackError(
                f"the model treats a single image differently from a batch of {len(frozen.images)}, and not by "
                f"rounding: its forward depends on the batch size; make it a function of each image"
            )
        images = as_array(frozen.images)

        def rounded(exact: Network, option: str) -> Network:
            made = to_network(graph, header)
            verify_rounding(option, exact, made, graph, images)
            return made

        shorter = {} if span is None else span.trace_shorter(model, example)
        graphs = [graph, *(short for short, _ in shorter.values())]
        if rest != "float32":
            for step in (step for each in graphs for step in each.steps):
                step.arrays = narrow_arrays(step, rest)
            network = rounded(network, f"{rest=}")
        if linear_inputs != "float32":
            for each in graphs:
                round_linear_inputs(each)
            network = rounded(network, f"{linear_inputs=}")
        if activations != "float32":
            shown = _calibration_images(calibration, network, images)
            round_activations(graph, network, shown, activations)
            exact, network = network, rounded(network, f"{activations=}")
            log_agreement(f"{activations=}", exact, network, shown)
        if span is not None:
            network = with_lengths(network, {span.most: (graph, frozen), **shorter}, span.sizes(example))
        return PackedModel(network, limits=_NO_LIMITS)


def _calibration_images(calibration: Tensor | Array | None, network: Network, example: Floats) -> Floats:
    if calibration is None:
        return example
    images = as_array(calibration) if isinstance(calibration, Tensor) else np.ascontiguousarray(calibration, np.float32)
    if images.shape[1:] != network.input_shape or not len(images):
        shape = ", ".join(map(str, network.input_shape))
        raise PackError(f"calibration has shape {tuple(images.shape)}: give images of shape (batch, {shape})")
    if not np.isfinite(images).all():
        raise PackError("calibration holds numbers that are not finite (NaN or infinity)")
    return images


def _header(class_names: Iterable[str] | None, preprocessing: Preprocessing) -> Header:
    if isinstance(class_names, str) or not isinstance(class_names, Iterable | None):  # a str is an iterable of letters
        raise PackError(f"class_names={class_names!r}: give a name per class, as in ['cat', 'dog']")
    if not isinstance(preprocessing, Preprocessing):
        raise PackError(f"preprocessing={preprocessing!r}: give equalbits.deploy.Preprocessing(mean=…, std=…)")
    return {
        "classes": () if class_names is None else tuple(class_names),
        "mean": _floats("mean", preprocessing.mean),
        "std": _floats("std", preprocessing.std),
        "resize": preprocessing.resize,
        "fit": preprocessing.fit,
    }


def _floats(name: str, numbers: Iterable[float] | None) -> tuple[float, ...] | None:
    try:
        return None if numbers is None else tuple(map(float, numbers))
    except (TypeError, ValueError):
        raise PackError(f"{name}={numbers!r}: give a number per channel, as in [0.5, 0.5, 0.5]") from None
