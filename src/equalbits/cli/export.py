"""``equalbits export``."""

import argparse
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from equalbits.runtime import PackedModel

#: How many random images both must answer alike, and how far a sign that rounding turned may move a logit.
_IMAGES, _TURNED = 4, 0.05
_UNFINISHED = ".unfinished-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``export`` takes."""
    parser.add_argument("source", metavar="FILE|DIR", help="a packed file, or the folder of a run")
    parser.add_argument("--to", choices=("onnx", "openvino"), required=True, help="the runtime to write for")
    parser.add_argument("--out", metavar="PATH", required=True, help="the file to write: net.onnx, or net.xml")
    parser.add_argument(
        "--which", choices=("last", "best"), default="last", help="of a run: the last epoch (default) or the best"
    )


def run(options: argparse.Namespace) -> None:
    """Write the network for another runtime, run it there, and hold its logits against the packed ones."""
    source, path, suffix = Path(options.source), Path(options.out), {"onnx": ".onnx", "openvino": ".xml"}[options.to]
    if path.suffix != suffix:
        raise ValueError(f"--out {path}: a file for {options.to} is called {path.stem or 'net'}{suffix}")
    if not source.exists():
        raise ValueError(f"{source} is not there: give a packed file, or the folder of a run")
    if source.is_file() and options.which != "last":
        raise ValueError(f"--which {options.which}: {source} is a packed file, of one epoch; leave --which away")
    if find_spec(options.to) is None:
        raise ModuleNotFoundError(name=options.to)
    packed = _packed_run(source, options.which) if source.is_dir() else _packed_file(source)
    with put_in_place(path) as beside:
        answer = _write_onnx(packed, beside) if options.to == "onnx" else _write_openvino(packed, beside)
        verdict = _check(packed, answer)
        size = sum(file.stat().st_size for file in beside.parent.iterdir())
    takes = "; it takes one image at a time" if options.to == "openvino" else ""
    print(f"{written_files(path)}: {size:,} bytes for {options.to}; {verdict}{takes}")


def written_files(path: Path) -> str:
    """What was written, by name: OpenVINO's numbers lie in a file of their own, which must go where the other goes."""
    return f"{path} and {path.with_suffix('.bin').name}" if path.suffix == ".xml" else str(path)


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """A path of the same name in a folder of its own; what is written there takes its place beside ``path`` at the end.

    Where something is raised before that, what was there stays as it was.
    """
    try:
        with TemporaryDirectory(dir=path.parent, prefix=_UNFINISHED) as folder:
            yield Path(folder, path.name)
            for file in sorted(Path(folder).iterdir(), key=lambda file: file.name != path.name):
                _move(file, os.path.realpath(path.with_name(file.name)))
    except OSError as error:
        of_the_system = error.errno is not None and error.filename2 is None
        if of_the_system and _UNFINISHED in str(error.filename or _UNFINISHED):
            error.filename = str(path)  # what was asked for, not the folder beside it that nobody knows
        raise
    except RuntimeError as error:
        if "iostream" not in str(error):  # all that OpenVINO says of a file that it could not write
            raise
        raise ValueError(f"{path} does not fit: make room on its disk and call again, or name another") from None


def _move(file: Path, target: str) -> None:
    try:
        file.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # a link to another disk, where nothing can be moved to
            raise
        shutil.copyfile(file, target)


def _packed_file(path: Path) -> "PackedModel":
    from equalbits.runtime import load_packed

    return load_packed(path)


def _packed_run(folder: Path, which: str) -> "PackedModel":
    # Imported here, so that --help need not wait for torch.
    import torch

    from equalbits.cli.pack import say_if_unfinished
    from equalbits.deploy import pack
    from equalbits.recipes import ImageSpec, load_run

    _, model = load_run(folder, which=which)
    say_if_unfinished(folder)
    images = ImageSpec.read(folder / "model.json")
    example = torch.randn(8, images.channels, images.size, images.size, generator=torch.Generator().manual_seed(0))
    return pack(model, example, class_names=images.classes, mean=images.mean, std=images.std)


def _write_onnx(packed: "PackedModel", path: Path) -> Callable[[Any], Any]:
    """Write the file; returns what answers by it: ONNX Runtime where it is installed, else ONNX's own evaluator."""
    from equalbits.deploy.export import export_onnx

    export_onnx(packed, path)
    if find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        return lambda image: evaluator.run(None, {"images": image})[0]
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"images": image})[0]


def _write_openvino(packed: "PackedModel", path: Path) -> Callable[[Any], Any]:
    from equalbits.deploy.export import export_openvino

    export_openvino(packed, path)
    import openvino

    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda image: model({"images": image})["logits"]


def _check(packed: "PackedModel", answer: Callable[["NDArray[np.float32]"], Any]) -> str:
    """Say how near the logits are. Sums of reals are rounded in another order there, which may turn a sign near 0."""
    import numpy as np

    shape = (_IMAGES, 1, *packed.network.input_shape)
    images = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    twin, which = _unrounded(packed)
    ours = np.concatenate([twin(image) for image in images])
    theirs = np.concatenate([np.asarray(answer(image)) for image in images])
    if ours.shape != theirs.shape:
        raise ValueError(f"the written network answers in shape {theirs.shape}, the packed one in {ours.shape}")
    apart = float(np.abs(ours - theirs).max() / np.abs(ours).max(initial=1e-6))
    if not apart <= _TURNED:
        raise ValueError(f"the written network's logits are up to {apart:.1%} from the packed ones: it was not kept")
    same = int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
    near = "the same logits as" if apart <= 1e-4 else f"logits within {apart:.2%} of the largest of"
    return f"{near} the packed network{which}, the same class for {same} of {_IMAGES} images"


def _unrounded(packed: "PackedModel") -> tuple["PackedModel", str]:
    """The network that other runtimes are given: no input of a linear layer is rounded there."""
    from equalbits.runtime import PackedModel

    network = packed.network
    if all(operation.settings.get("input_bits", 32) == 32 for operation in network.operations):
        return packed, ""
    operations = tuple(
        replace(operation, settings={**operation.settings, "input_bits": 32})
        if operation.kind == "linear"
        else operation
        for operation in network.operations
    )
    return PackedModel(replace(network, operations=operations)), " before it rounds inputs of linear layers"
