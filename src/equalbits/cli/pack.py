"""``equalbits pack``."""

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equalbits.cli.arguments import add_which
from equalbits.cli.packed_files import export_packed, pack_run, replace_when_done, written_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pack``."""
    parser.add_argument("run", metavar="DIR", help="output directory of a run")
    parser.add_argument(
        "file", metavar="FILE", help="the file to write: net.ebits, or net.onnx, or net.xml for OpenVINO"
    )
    parser.add_argument(
        "--rest", choices=("float32", "float16", "int8"), default="float32",
        help="dtype of the non-binary tensors (default: float32; the others round)",
    )  # fmt: skip
    parser.add_argument(
        "--linear-inputs", choices=("float32", "int8"), default="float32",
        help="dtype of the real inputs of binary linear layers (default: float32; int8 rounds and is faster)",
    )  # fmt: skip
    add_which(parser)


def run(options: argparse.Namespace) -> None:
    """Pack the run's model, verify it on eight random images, write it, and print its size."""
    path = Path(options.file)
    if not path.suffix:
        raise ValueError(f"{path} has no suffix: call it {path.name or 'net'}.ebits")
    if path.suffix not in (".ebits", ".onnx", ".xml"):
        raise ValueError(f"{path}: unknown suffix {path.suffix}; use .ebits, .onnx or .xml")
    with _log_to_stderr():
        packed, model, example = pack_run(
            Path(options.run), which=options.which, rest=options.rest, linear_inputs=options.linear_inputs
        )
    import torch

    from equalbits.deploy import other_class

    with torch.no_grad():
        same = int((~other_class(packed(example.numpy()), model(example).numpy())).sum())
    if path.suffix == ".ebits":
        packed.save(path)
        written = path.stat().st_size
    else:
        with replace_when_done(path) as temporary:
            written = export_packed(packed, temporary)
    real = 4 * sum(p.numel() for name, p in model.named_parameters() if "weight_quantizer" not in name.split("."))
    ratio = f"{real / written:.1f} times smaller" if written < real else f"{written / real:.1f} times larger"
    layers, shares = packed.audit().layers, "no binary layer"
    if layers:
        promised = any(layer.p_pos is not None for layer in layers)
        exact = "every promised share of +1 exact" if promised else "no share of +1 promised"
        plural = "s" * (len(layers) > 1)
        shares = f"{len(layers)} binary layer{plural}, {exact if packed.audit().holds else 'SHARES OF +1 NOT EXACT'}"
    print(
        f"{written_files(path)}: {written:,} bytes, {ratio} than its parameters in float32; "
        f"same class as the model for {same} of {len(example)} random images; {shares}"
    )


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
