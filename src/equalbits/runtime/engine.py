"""Run a packed network: images in, logits out."""

import logging
import operator
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from equalbits.runtime import native
from equalbits.runtime.audit import Audit, audit
from equalbits.runtime.format import from_bytes, read_network, to_chunks, write_network
from equalbits.runtime.lengths import at_length
from equalbits.runtime.limits import LimitError, Limits
from equalbits.runtime.lower import lower
from equalbits.runtime.network import Network
from equalbits.runtime.op_specs import Array, Floats
from equalbits.runtime.packed_summary import PackedSummary, summarize
from equalbits.runtime.ports import join_inputs, split_outputs
from equalbits.runtime.predict import Prediction, prepare, top_classes

if TYPE_CHECKING:
    from equalbits.runtime.predict import Picture

#: Images per call of numpy.
_CHUNK = 16
#: Maximum number of threads of a model.
MAX_THREADS = 1024
#: Plans that a model of several lengths keeps beside that of the longest.
_KEPT_LENGTHS = 8


def load_packed(
    path: str | os.PathLike[str], *, threads: int = 1, engine: str = "auto", limits: Limits | None = None
) -> "PackedModel":
    """Load a packed file, validated and ready to run; ``"zoo:NAME"`` loads a network of the package.

    ``threads`` is for the native engine. ``engine`` is ``"auto"`` (native where it is built and can run the file, else
    numpy), ``"native"`` or ``"numpy"``. ``limits`` bounds the memory and the work that a file may ask for, by default 1
    GiB beyond four times the size of the file.
    """
    try:
        return PackedModel(read_network(path), threads=threads, engine=engine, limits=limits)
    except LimitError as error:
        raise LimitError(f"{os.fspath(path)}: {error}") from None


class PackedModel:
    """A packed network, callable on images.

    Images are float32 of shape (batch, channel, row, column), normalized as in training, or uint8, normalized by the
    file's mean and std. A single image may have no batch axis; its logits then have none either. Numbers that are not
    finite are refused.

    >>> from equalbits.runtime.network_builder import NetworkBuilder
    >>> build = NetworkBuilder((1, 2, 2))
    >>> x = build.add("sign", build.add("flatten", build.image))
    >>> x = build.add_binary("linear", x, np.array([[1, -1, 1, 1]]), name="fc", p_pos=0.75)
    >>> model = PackedModel(build.finish())
    >>> model(np.array([[[0.5, -0.25], [0.0, 1.0]]], np.float32))
    array([4.], dtype=float32)
    >>> model.audit().exact
    True
    """

    def __init__(
        self, network: Network, *, threads: int = 1, engine: str = "auto", limits: Limits | None = None
    ) -> None:
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads={threads!r} must be an integer from 1 to {MAX_THREADS}")
        if engine not in ("auto", "native", "numpy"):
            raise ValueError(f"engine={engine!r} is not known: choose 'auto', 'native' or 'numpy'")
        limits = limits or Limits()
        limits.check(network)
        self.network, self.threads, self._requested, self._limits = network, threads, engine, limits
        self._may_be_pixels = network.mean is not None  # until a value outside 0 to 1 shows normalized floats
        self.native: NativeEngine | None = None
        if engine != "numpy":
            try:
                self.native = NativeEngine(network, limits=limits)
            except LimitError:
                raise
            except ValueError as error:
                if engine == "native":
                    raise ValueError(f"engine='native' is not available: {error}") from None
                logging.getLogger("equalbits").debug("%s", error)
        if self.native is None:
            limits.check(network, numpy=True)
        self._at_length = lru_cache(_KEPT_LENGTHS)(
            lambda length: PackedModel(at_length(network, length), threads=threads, engine=engine, limits=limits)
        )

    @property
    def engine(self) -> str:
        """Name of the engine in use: ``"numpy"``, or ``"native"`` and its instruction set."""
        return "numpy" if self.native is None else f"native ({self.native.instruction_set})"

    def __call__(self, *images: Array, **named: Array) -> Any:
        """Return the logits of each image.

        A model with named inputs takes them in order or by name. One with several outputs returns them by name. One of
        several lengths has a plan for each length: making it takes time, and eight are kept.
        """
        if (lengths := self.network.lengths) is not None:
            length = lengths.of([port.name for port in self.network.inputs] or ["images"], images, named)
            if length != lengths.most:
                return self.at_length(length)(*images, **named)
        if self.network.inputs:
            rows, has_batch = join_inputs(self.network.inputs, images, named)
        elif len(images) == 1 and not named:
            rows, has_batch = self.as_batch(images[0]), np.ndim(images[0]) != 3
            if self._may_be_pixels and rows.size and rows.dtype != np.uint8:
                self._may_be_pixels = bool(rows.min() >= 0 and rows.max() <= 1)
                if hint := self.network.unnormalized_hint(rows):
                    warnings.warn(hint, stacklevel=2)
        else:
            raise ValueError(f"the model takes one batch of images, not {len(images) + len(named)} arrays")
        logits = self.run_batch(rows)
        if not self.network.outputs:
            return logits if has_batch else logits[0]
        parts = split_outputs(self.network.outputs, logits)
        return parts if has_batch else {name: part[0] for name, part in parts.items()}

    def at_length(self, length: int) -> "PackedModel":
        """Return the model for inputs of one length, of those that it takes."""
        return self._at_length(operator.index(length))

    def run_batch(self, batch: Array) -> Floats:
        """Return the logits of images that :meth:`as_batch` returned; batches of one dtype can be joined."""
        return self._run_numpy(batch) if self.native is None else self.native(batch, self.threads)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits; empty for a file without names."""
        return self.network.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an image: (channel, row, column)."""
        return self.network.input_shape

    def prepare(self, picture: "Picture", *, max_pixels: int | None = None) -> Array:
        """Return a picture as the model takes it, preprocessed as in training.

        A picture is an image file or its bytes, an image of Pillow, or an array of pixels; the result is uint8 of
        ``input_shape``. Files of more than ``max_pixels`` (default: 2²⁶) are refused.
        """
        return prepare(self.network, picture, max_pixels=max_pixels)

    def predict(self, picture: "Picture", *, top: int = 5) -> list[Prediction]:
        """Return the ``top`` most likely classes of a picture: an image file, a Pillow image, or an array."""
        image = self.prepare(picture)
        if image.ndim != 3:
            raise ValueError(f"predict takes one image, not shape {image.shape}: give several to predict_batch")
        return self.predict_batch([image], top=top)[0]

    def predict_batch(self, pictures: "Iterable[Picture]", *, top: int = 5) -> list[list[Prediction]]:
        """Return the ``top`` most likely classes of each of several pictures."""
        logits = (self(self.prepare(picture)) for picture in pictures)  # one at a time: their dtypes may differ
        return [top_classes(row.reshape(-1), self.classes, top) for row in logits]

    def audit(self) -> Audit:
        """Count +1 and −1 in every filter from the packed bits, and compare them with the promised share."""
        return audit(self.network)

    def summary(self) -> PackedSummary:
        """Summarize weights, bytes and products of every operation."""
        return summarize(self.network)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the packed file."""
        write_network(self.network, path)

    def __reduce__(
        self,
    ) -> tuple[Callable[[bytes, int, str, int, int], "PackedModel"], tuple[bytes, int, str, int, int]]:
        """Copy and pickle as the bytes of a file, which are validated and planned again on loading."""
        limits, packed = self._limits, b"".join(to_chunks(self.network))
        return _from_packed, (packed, self.threads, self._requested, limits.memory, limits.work)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.network.input_shape))
        lengths = self.network.lengths
        shape += f" images of length {lengths.least} to {lengths.most}" if lengths else " images"
        return f"PackedModel({len(self.network.operations)} operations on {shape}, {self.engine} engine)"

    def _run_numpy(self, batch: Array) -> Floats:
        parts = [np.empty((0, *self.network.shapes[-1]), np.float32)]
        for start in range(0, len(batch), _CHUNK):
            images = batch[start : start + _CHUNK]
            if images.dtype == np.uint8:
                images = self.network.normalize(images)
            parts.append(run_numpy(self.network, images))
        return np.concatenate(parts)

    def as_batch(self, images: Array) -> Array:
        """Return the images with a batch axis, as uint8 or float32; refuse a NaN, which a sign would hide."""
        if isinstance(images, np.ma.MaskedArray):
            raise ValueError("images are a masked array, whose mask would be lost: fill it first, as with .filled(0)")
        images = np.asarray(images)
        batch = images[None] if images.ndim == 3 else images
        if batch.shape[1:] != self.network.input_shape or batch.ndim != 4:
            shape = ", ".join(map(str, self.network.input_shape))
            raise ValueError(f"images have shape {images.shape}: the model takes (batch, {shape})")
        if batch.dtype == np.uint8:
            if self.network.mean is None:
                raise ValueError(
                    "images are uint8, and the file holds no mean and std: pack again with preprocessing=, "
                    "or give normalized float32"
                )
            return batch
        if batch.dtype.kind != "f":
            raise ValueError(f"images are {batch.dtype}: give float32, or uint8 as decoded from a picture")
        if batch.dtype != np.float32:
            with np.errstate(over="ignore"):
                batch = batch.astype(np.float32)
        reals = np.ascontiguousarray(batch)
        if not np.isfinite(reals).all():
            which = int(np.isfinite(reals).all(axis=(1, 2, 3)).argmin())
            raise ValueError(f"image {which} holds numbers that are not finite in float32 (NaN or infinity)")
        return reals


def _from_packed(packed: bytes, threads: int, engine: str, memory: int, work: int) -> PackedModel:
    """Load a model from the bytes of a packed file, for ``pickle`` and ``copy``."""
    return PackedModel(from_bytes(packed), threads=threads, engine=engine, limits=Limits(memory, work))


class NativeEngine:
    """The native plan of a network; ``instruction_set`` selects its kernels, by default the best of the machine."""

    def __init__(self, network: Network, instruction_set: str = "", *, limits: Limits | None = None) -> None:
        if native.BUILT is None:
            raise ValueError(native.REASON)
        self.instruction_set = instruction_set or native.BUILT.instruction_sets()[0]
        most = limits.budget(network) if limits else sys.maxsize
        try:
            tables = native.BUILT.FIELDS, native.BUILT.KINDS
            dtypes = (np.uint8, np.int8) if self.instruction_set == "avx512" else (np.uint8,)  # else floats are as fast
            plan, answer = lower(network, *tables, most, byte_weights=dtypes)
            self._plan = native.BUILT.Plan(*plan.tables(), answer, self.instruction_set, plan.bytes_left)
        except OverflowError:
            raise LimitError((limits or Limits()).refusal(f"a plan of more than {most} bytes", network)) from None
        self.step_kinds = plan.step_kinds
        self._shape = network.shapes[-1]
        self._table = None if network.mean is None else network.byte_table().reshape(-1)

    def __call__(self, batch: Array, threads: int = 1) -> Floats:
        """Return the logits of a batch of float32 or uint8 images."""
        logits = np.empty((len(batch), *self._shape), np.float32)
        flat = logits.reshape(-1)
        if batch.dtype == np.uint8:
            self._plan.run_bytes(np.ascontiguousarray(batch).reshape(-1), self._table, flat, threads)
        else:
            self._plan.run(np.ascontiguousarray(batch, np.float32).reshape(-1), flat, threads)
        return logits

    def time_steps(self, image: Floats) -> list[float]:
        """Run one image on one thread; return the seconds of each step, whose kinds are ``step_kinds``."""
        seconds: list[float] = self._plan.time(image.reshape(-1))
        return seconds


def run_numpy(network: Network, images: Floats) -> Floats:
    """Run a network operation by operation in numpy."""
    *_, (_, logits) = deque(each_value(network, images), maxlen=1)
    return logits


def each_value(network: Network, images: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield every value with its number, the images first, computed in numpy; each is freed after its last use."""
    values: dict[int, Floats] = {0: images}
    yield 0, images
    last_read = {value: place for place, operation in enumerate(network.operations) for value in operation.inputs}
    for place, operation in enumerate(network.operations):
        result = network.run_operation(operation, values)
        whole = result.base
        if isinstance(whole, np.ndarray) and whole.nbytes > 2 * result.nbytes:  # a slice would keep all of it alive
            result = result.copy()
        yield place + 1, result
        if place + 1 in last_read:
            values[place + 1] = result
        for value in set(operation.inputs):
            if last_read[value] == place:
                del values[value]
