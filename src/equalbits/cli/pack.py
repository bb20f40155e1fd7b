"""``equalbits pack``: a packed file of a run, or the file of another runtime, as ``export`` writes it."""

import argparse
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import equalbits as eb
from equalbits._files import write_all_atomically
from equalbits._text import size_ratio
from equalbits.cli.arguments import add_json, add_output, add_packing, given_output
from equalbits.cli.terminal import say

if TYPE_CHECKING:
    from torch import Tensor, nn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="DIR", help="output directory of a run")
    add_output(parser, text="the file to write: net.ebits, or as export: net.onnx, net.xml, net.c or page.html")
    add_packing(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Pack the run's model, verify it, write it, and print its size and its accuracy on the test images."""
    from equalbits.cli.export import SUFFIX, describe_export, export_verified

    path, source = _checked_paths(options)
    to = {suffix: name for name, suffix in SUFFIX.items()}.get(path.suffix)
    root = Path(options.data) if options.data else None
    with _log_to_stderr():
        rounding = {name: getattr(options, name) for name in ("rest", "linear_inputs", "activations")}
        packed, model, example = eb.recipes.pack_run(source, which=options.which, root=root, **rounding)
    same, score = _compare(packed, model, example, options)
    if to is None:
        packed.save(path)
        written, exported = path.stat().st_size, ""
        line = f"{path}: {written:,} bytes, {size_ratio(written, _float32_bytes(model))} its parameters in float32"
    else:
        written, memory, exported = export_verified(packed, source, path, to)
        line = describe_export(path, to, written, memory, exported)
    layers, shares = packed.audit().layers, "no binary layer"
    if layers:
        promised = any(layer.p_pos is not None for layer in layers)
        exact = "every promised share of +1 exact" if promised else "no share of +1 promised"
        plural = "s" * (len(layers) > 1)
        shares = f"{len(layers)} binary layer{plural}, {exact if packed.audit().exact else 'SHARES OF +1 NOT EXACT'}"
    if options.json:
        facts: dict[str, object] = {
            "file": str(path),
            "bytes": written,
            "float32_bytes": _float32_bytes(model),
            "binary_layers": len(layers),
        }
        facts |= {"exact": packed.audit().exact, "compared": same, **({"exported": exported} if to else {})}
        if score is not None:
            facts["test"] = {"correct": score.correct, "total": score.total, "accuracy": score.accuracy}
        print(json.dumps(facts))
        return
    same += "" if score is None else f", accuracy {score.accuracy:.2f} % of {score.total:,}"
    say(f"{line}\nsame class as the model for {same}\n{shares}")
    if options.which == "last":
        print_best_hint(source)


def _float32_bytes(model: "nn.Module") -> int:
    return 4 * sum(p.numel() for name, p in model.named_parameters() if "weight_quantizer" not in name.split("."))


def _checked_paths(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the file to write, whose suffix names what to write, and the directory of the run."""
    from equalbits.cli.export import SUFFIX

    path, source = given_output(options, example="net.ebits"), Path(options.run)
    assert path is not None
    if not path.suffix:
        raise ValueError(f"{path} has no suffix: call it {path.name or 'net'}.ebits")
    if path.suffix not in (".ebits", *SUFFIX.values()):
        raise ValueError(f"{path}: unknown suffix {path.suffix}; use .ebits, {', '.join(SUFFIX.values())}")
    if options.run.startswith("zoo:") or (source.suffix == ".ebits" and source.is_file()):
        raise ValueError(f"{options.run} is packed already: equalbits export {options.run} net.onnx converts it")
    return path, source


def _compare(
    packed: "eb.runtime.PackedModel", model: "nn.Module", example: "Tensor", options: argparse.Namespace
) -> "tuple[str, eb.training.Score | None]":
    """Compare with the model on test images and score all of them, where they are found; else on random images."""
    import torch

    try:
        return eb.recipes.check_on_test_images(
            packed, model, Path(options.run), Path(options.data) if options.data else None
        )
    except eb.data.DataError as error:
        say(f"no test images to compare on: {error}", error=True)
    with torch.no_grad():
        same = int((~eb.deploy.other_class(packed(example.numpy()), model(example).numpy())).sum())
    return f"{same} of {len(example)} random images", None


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Print the log of packing, such as how far rounding moves the logits."""
    logger, handler = logging.getLogger("equalbits"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def print_best_hint(out: Path) -> None:
    """Print a line where the best epoch of a finished run has a higher accuracy than the last one."""
    try:
        (_, last), (end, best) = eb.recipes.RunRecord.read(out / "run.json").scored
    except (OSError, ValueError):  # not finished, diverged or damaged
        return
    if best.correct > last.correct:
        chosen = f"epoch {end.epoch} had {best.accuracy:.2f} %, selected on these test images"
        say(f"hint: --which best takes the best epoch instead: {chosen}", error=True)


def check_source(path: Path, which: str) -> None:
    """Raise if there is no such run or packed file, or if ``--which`` is given for a packed file."""
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a packed file or the directory of a run")
    if path.is_file() and which != "last":
        raise ValueError(f"--which {which}: {path} is a packed file and has no epochs; omit --which")


def export_packed(
    packed: "eb.runtime.PackedModel", path: Path, **limits: int | None
) -> "tuple[int, eb.runtime.CSizes | None]":
    """Write the files of the runtime that the suffix names; return their bytes, and the memory that C takes."""
    memory = eb.runtime.export_c(packed, path, **limits) if path.suffix == ".c" else None
    if memory is None:
        (eb.runtime.export_onnx if path.suffix == ".onnx" else eb.runtime.export_openvino)(packed, path)
    return sum(file.stat().st_size for file in path.parent.iterdir()), memory


def written_files(path: Path) -> str:
    """Return the names of the written files: C has a header, and OpenVINO keeps its weights in a second file."""
    second = {".xml": ".bin", ".c": ".h"}.get(path.suffix)
    return f"{path} and {path.with_suffix(second).name}" if second else str(path)


@contextmanager
def replace_when_done(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary directory; move the files written there beside ``path`` at the end.

    If an exception is raised, existing files stay as they are.
    """
    with TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as folder:
        yield Path(folder, path.name)
        files = sorted(Path(folder).iterdir(), key=lambda file: file.name != path.name)
        targets = (Path(os.path.realpath(path.with_name(file.name))) for file in files)
        write_all_atomically({target: file.read_bytes() for file, target in zip(files, targets, strict=True)})
