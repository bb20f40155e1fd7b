"""``equalbits export``."""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import equalbits as eb
from equalbits.cli.arguments import add_json, add_output, add_packing, given_output
from equalbits.cli.bench import random_inputs
from equalbits.cli.pack import check_source, export_packed, replace_when_done, written_files
from equalbits.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Call = Callable[[NDArray[np.float32]], NDArray[np.float32]]

#: Random images to compare on, and the largest relative difference of logits: rounding may flip a sign near 0.
_IMAGES, _TOLERANCE = 4, 0.05
#: Suffix of the file for each runtime.
SUFFIX = {"onnx": ".onnx", "openvino": ".xml", "c": ".c", "web": ".html"}
#: What those files are, for people.
KIND = {"onnx": "ONNX", "openvino": "OpenVINO IR", "c": "C source", "web": "web page"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE|DIR", help="a packed file, zoo:NAME, or the output directory of a run")
    text = "the file to write: net.onnx, net.xml for OpenVINO, net.c, page.html (default with --to: as the source)"
    add_output(parser, text=text)
    parser.add_argument("--to", choices=tuple(SUFFIX), help="the target runtime (default: by the suffix of PATH)")
    for name, what in (("flash", "constants"), ("ram", "static memory")):
        parser.add_argument(f"--max-{name}", type=int, metavar="BYTES", help=f"refuse C with more {what} than this")
    add_packing(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Write the network for another runtime, run it there, and compare the logits with the packed network's."""
    source, path, to = eb.runtime.find_packed(options.source), *_target(options)
    check_source(source, options.which)
    if to != "c" and (options.max_flash is not None or options.max_ram is not None):
        raise ValueError("--max-flash and --max-ram are for C: give a file such as net.c, or leave them out")
    if to not in ("c", "web") and find_spec(to) is None:
        raise ModuleNotFoundError(name=to)
    if source.is_dir():
        rounding = {name: getattr(options, name) for name in ("rest", "linear_inputs", "activations")}
        root = Path(options.data) if options.data else None
        packed, _, _ = eb.recipes.pack_run(source, which=options.which, root=root, **rounding)
    else:
        for name in ("rest", "linear_inputs", "activations"):
            if (value := getattr(options, name)) != "float32":
                raise ValueError(f"--{name.replace('_', '-')} {value}: {source} is packed already; give its run")
        packed = eb.runtime.load_packed(source)
    limits = {"max_flash": options.max_flash, "max_ram": options.max_ram}
    size, memory, verdict = export_verified(packed, source, path, to, **limits)
    if options.json:
        facts = {"file": str(path), "bytes": size, "runtime": to, "compared": verdict}
        print(json.dumps(facts | ({"flash": memory.flash, "ram": memory.ram} if memory else {})))
        return
    say(describe_export(path, to, size, memory, verdict))


def describe_export(path: Path, to: str, size: int, memory: "eb.runtime.CSizes | None", verdict: str) -> str:
    """Return the line that ``export`` and ``pack`` print on the files of another runtime."""
    facts = [f"{KIND[to]}, {size:,} bytes", *([str(memory)] if memory else []), verdict]
    return f"{written_files(path)}: {'; '.join(facts)}{'; batch size 1 only' if to == 'openvino' else ''}"


def export_verified(
    packed: "eb.runtime.PackedModel", source: Path, path: Path, to: str, **limits: int | None
) -> "tuple[int, eb.runtime.CSizes | None, str]":
    """Write the file and compare its logits; return its bytes, the memory that C takes, and how they compare.

    A web page holds the stored test images where ``source`` is an entry of the zoo.
    """
    with replace_when_done(path) as temporary:
        if to == "web":
            page = eb.runtime.web_page(
                packed, title=source.resolve().stem, examples=eb.runtime.stored_images(source)
            ).encode()
            temporary.write_bytes(page)
            return len(page), None, "open it in a browser, nothing is fetched"
        size, memory = export_packed(packed, temporary, **limits)
        exported = {"onnx": _load_onnx, "openvino": _load_openvino, "c": _load_c}[to](temporary)
        verdict = _verify(packed, exported, to=to) if exported else "not compiled: there is no C compiler (cc)"
    return size, memory, verdict


def _target(options: argparse.Namespace) -> tuple[Path, str]:
    """Return the file to write and its runtime, given by ``--to`` or by the suffix."""
    given = given_output(options, example="net.onnx", needed=not options.to)
    path = given or Path(Path(options.source).resolve().stem + SUFFIX[options.to])
    by_suffix = {suffix: name for name, suffix in SUFFIX.items()}
    if path.suffix == ".ebits":
        raise ValueError(
            f"{path}: equalbits pack DIR {path} writes a packed file; export writes {', '.join(by_suffix)}"
        )
    to = options.to or by_suffix.get(path.suffix)
    if to is None:
        raise ValueError(f"{path}: unknown suffix {path.suffix or '(none)'}; use {', '.join(by_suffix)}, or give --to")
    if path.suffix != SUFFIX[to]:
        example = f"{path.stem or 'net'}{SUFFIX[to]}"
        raise ValueError(f"--out {path}: --to {to} writes a file that ends in {SUFFIX[to]}, as {example}")
    return path, to


def _load_onnx(path: Path) -> "Call":
    """Load the file in ONNX Runtime if installed, else in ONNX's reference evaluator."""
    if find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        return lambda image: evaluator.run(None, {"images": image})[0]
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"images": image})[0]


def _load_openvino(path: Path) -> "Call":
    import openvino

    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda image: model({"images": image})["logits"]


def _load_c(path: Path) -> "Call | None":
    """Compile the file as a shared library; None where there is no compiler."""
    import ctypes
    import shutil
    import subprocess

    import numpy as np

    if (compiler := shutil.which("cc")) is None:
        return None
    with TemporaryDirectory() as folder:
        library = Path(folder, "net.so")
        subprocess.run([compiler, "-std=c99", "-O2", "-fPIC", "-shared", "-o", library, path], check=True)
        run = ctypes.CDLL(str(library)).equalbits_run
    outputs = int(re.findall(r"EQUALBITS_OUTPUTS (\d+)", path.with_suffix(".h").read_text())[0])

    def call(image: "NDArray[np.float32]") -> "NDArray[np.float32]":
        logits = np.empty((1, outputs), np.float32)
        run(image.ctypes.data_as(ctypes.c_void_p), logits.ctypes.data_as(ctypes.c_void_p))
        return logits

    return call


def _verify(packed: "eb.runtime.PackedModel", exported: "Call", *, to: str = "onnx") -> str:
    """Return how closely the logits agree; raise if they do not. Sums are rounded in another order there."""

    import numpy as np

    network, reference, note = packed.network, packed, ""
    if to != "c" and any(operation.settings.get("input_bits", 32) != 32 for operation in network.operations):
        # ONNX and OpenVINO do not round the inputs of linear layers.
        operations = tuple(
            replace(operation, settings={**operation.settings, "input_bits": 32})
            if operation.kind == "linear"
            else operation
            for operation in network.operations
        )
        reference = eb.runtime.PackedModel(replace(network, operations=operations))
        note = " before it rounds inputs of linear layers"
    images = random_inputs(network, _IMAGES)[:, None]
    if to == "c" and network.mean is not None:
        images = np.random.default_rng(0).integers(0, 256, images.shape).astype(np.uint8)
    ours = np.concatenate([reference.run_batch(image).reshape(1, -1) for image in images])
    theirs = np.concatenate([np.asarray(exported(image)).reshape(1, -1) for image in images])
    if ours.shape != theirs.shape:
        raise ValueError(f"the exported network returns shape {theirs.shape}, the packed one {ours.shape}")
    difference = float(np.abs(ours - theirs).max() / np.abs(ours).max(initial=1e-6))
    if not difference <= _TOLERANCE:
        raise ValueError(f"logits of the exported network differ by up to {difference:.1%}: no file was kept")
    same = int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
    close = "the same logits as" if difference <= 1e-4 else f"logits within {difference:.2%} of the largest of"
    return f"{close} the packed network{note}, the same class for {same} of {_IMAGES} images"
