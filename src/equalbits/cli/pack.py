"""``equalbits pack``."""

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equalbits.runtime import PackedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``pack`` takes."""
    parser.add_argument("run", metavar="DIR", help="the folder of a run")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the file to write: net.ebits; or for other runtimes net.onnx, or net.xml for OpenVINO",
    )
    parser.add_argument(
        "--rest", choices=("float32", "float16", "int8"), default="float32",
        help="how the numbers that are no bits are stored (default: float32; the others round)",
    )  # fmt: skip
    parser.add_argument(
        "--linear-inputs", choices=("float32", "int8"), default="float32",
        help="how binary linear layers take inputs that are no signs (default: float32; int8 rounds, and is faster)",
    )  # fmt: skip
    parser.add_argument(
        "--which", choices=("last", "best"), default="last", help="the last epoch (default) or the best"
    )


def run(options: argparse.Namespace) -> None:
    """Pack the run's model, check it on eight random images, write it, and say how large it is and how it answers."""
    # Imported here, so that --help need not wait for torch.
    import torch

    from equalbits.cli.export import written_files
    from equalbits.deploy import pack
    from equalbits.deploy.verify_native import another_class
    from equalbits.recipes import ImageSpec, load_run

    out, path = Path(options.run), Path(options.file)
    _check_name(path)
    _, model = load_run(out, which=options.which)
    say_if_unfinished(out)
    images = ImageSpec.read(out / "model.json")
    example = torch.randn(8, images.channels, images.size, images.size, generator=torch.Generator().manual_seed(0))
    with _notices_on_stderr():
        packed = pack(
            model,
            example,
            rest=options.rest,
            linear_inputs=options.linear_inputs,
            class_names=images.classes,
            mean=images.mean,
            std=images.std,
            resize=images.resize,
        )
    with torch.no_grad():
        otherwise = another_class(packed(example.numpy()), model(example).numpy())
    written = _write(packed, path)
    real = 4 * sum(p.numel() for name, p in model.named_parameters() if "weight_quantizer" not in name.split("."))
    audit = packed.audit()
    times = f"{real / written:.1f} times smaller" if written < real else f"{written / real:.1f} times larger"
    promised = any(layer.p_pos is not None for layer in audit.layers)
    kept = "every promised share of +1 exact" if promised else "no share of +1 promised"
    shares = kept if audit.holds else "SHARES OF +1 NOT AS PROMISED"
    layers = f"{len(audit.layers)} binary layer{'s' * (len(audit.layers) > 1)}"
    print(
        f"{written_files(path)}: {written:,} bytes, {times} than its parameters in float32; "
        f"the model's class for {int((~otherwise).sum())} of {len(example)} random images; "
        + (f"{layers}, {shares}" if audit.layers else "no layer of it is binary")
    )


def say_if_unfinished(out: Path) -> None:
    """A word on stderr where a run has epochs to go: it may be wanted so, or have been interrupted."""
    from equalbits.recipes import epoch_under_way

    under_way = epoch_under_way(out)
    if under_way:
        print(f"{out} is not finished: epoch {under_way[0]} of {under_way[1]}", file=sys.stderr)


def _check_name(path: Path) -> None:
    """Refuse a name that does not say which kind of file is wanted: none is written under another's name."""
    if not path.suffix:
        raise ValueError(f"{path} has no ending that says what to write: call it {path.name or 'net'}.ebits")
    if path.suffix not in (".ebits", ".onnx", ".xml"):
        raise ValueError(f"{path}: no file ending in {path.suffix} can be written: give .ebits, .onnx or .xml")


def _write(packed: "PackedModel", path: Path) -> int:
    """Write the file that its name asks for; returns the bytes of all there is."""
    if path.suffix == ".ebits":
        packed.save(path)
        return path.stat().st_size
    from equalbits.cli.export import put_in_place

    with put_in_place(path) as beside:
        if path.suffix == ".onnx":
            from equalbits.deploy.export import export_onnx

            export_onnx(packed, beside)
        else:
            from equalbits.deploy.export import export_openvino

            export_openvino(packed, beside)
        return sum(file.stat().st_size for file in beside.parent.iterdir())


@contextmanager
def _notices_on_stderr() -> Iterator[None]:
    """What packing has to say, such as how far rounding the rest moves the answers."""
    logger, handler = logging.getLogger("equalbits"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
