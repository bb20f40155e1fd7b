"""Pack the smallest net of every family of timm, and compare its logits with torch's.

    python benchmarks/timm_families.py results/timm-families.json [FAMILY ...] [--inputs sign] [--page docs/timm.md]

A family is a module of ``timm.models``. :func:`draw` takes its net with the fewest parameters, and the smallest image
that the net accepts. Each net gets 10 classes, binary inner layers (bi-half weights; real inputs, or signs with
``--inputs sign``), and one training step on random images. It is frozen, packed on two images and compared on two
others, in the native engine and in numpy. Rows are written as they are made; a family that is in the file already is
measured again only if it is named. ``--page`` writes the table instead (``timm_page.py``).
"""

import argparse
import json
import logging
import signal
import time
import warnings
from pathlib import Path
from types import FrameType, ModuleType

import numpy as np
import torch
from timm_page import page
from torch import Tensor, nn

import equalbits as eb
from equalbits.deploy import PackError
from equalbits.runtime import PackedModel

#: Sides of images, tried in this order; a net that accepts none gets the one that timm lists for it.
SIDES = (64, 96, 112, 128, 160, 192, 224, 256)
#: Families whose smallest net has more parameters are left out, as are nets that take more seconds.
MOST_PARAMETERS = 130_000_000
MOST_SECONDS = 1200

Row = dict[str, object]


def draw(timm: ModuleType, family: str) -> tuple[str, int]:
    """Return the net of a family with the fewest parameters, by name where several have them, and their number.

    timm's own ``test_…`` nets, of a few channels, are left out: they exist for its unit tests.
    """
    sizes = []
    for name in timm.list_models(module=family, exclude_filters="test_*"):
        with torch.device("meta"):
            model = timm.create_model(name, num_classes=10)
        sizes.append((sum(parameter.numel() for parameter in model.parameters()), name))
    smallest, name = min(sizes)
    return name, smallest


def create(timm: ModuleType, name: str) -> tuple[nn.Module, int]:
    """Return a new net and the smallest side of :data:`SIDES` that it accepts, or else its own."""
    own = timm.get_pretrained_cfg(name).input_size[-1]
    for side in (*SIDES, own):
        for settings in ({"img_size": side}, {}):
            torch.manual_seed(0)
            try:
                model: nn.Module = timm.create_model(name, num_classes=10, **settings).eval()
                with torch.no_grad():
                    logits = model(torch.randn(2, 3, side, side))
            except Exception:  # a net may raise anything for an image or a setting that it does not know
                continue
            if logits.shape == (2, 10) and bool(logits.isfinite().all()):
                return model, side
    raise ValueError(f"{name} accepts images of none of {SIDES}, nor of {own}")


def use_plain_convolutions(model: nn.Module) -> None:
    """Replace subclasses of nn.Conv2d, all that NF-Nets have, which ``binarize_`` leaves real.

    They standardize their weights, which changes no bit of bi-half.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Conv2d) and type(layer) is not nn.Conv2d:
            window = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
            plain = nn.Conv2d(layer.in_channels, layer.out_channels, *window, bias=layer.bias is not None)
            plain.load_state_dict(layer.state_dict(), strict=False)
            model.set_submodule(name, plain)


def measure(timm: ModuleType, family: str, inputs: str) -> Row:
    """Convert, train one step, freeze, pack and compare a net; return its row."""
    name, parameters = draw(timm, family)
    row: Row = {"variant": name, "parameters": parameters}
    if parameters > MOST_PARAMETERS:
        return {**row, "left_out": f"more than {MOST_PARAMETERS:,} parameters"}
    model, side = create(timm, name)
    row |= {"image": side, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    if family == "nfnet":
        use_plain_convolutions(model)
    images = torch.randn(4, 3, side, side)
    try:
        if inputs == "sign":
            report = eb.binarize_(model, eb.BiHalf(), input_quantizer=eb.SignActivation())
            eb.adapt_for_binary_inputs_(model, images)
        else:
            report = eb.binarize_(model, eb.BiHalf())
    except ValueError as error:
        return {**row, "refused": f"by binarize_: {error}"}
    row["binary_layers"] = len(report.replaced)
    train_one_step(model, torch.randn(4, 3, side, side))
    frozen = eb.freeze(model)
    with torch.no_grad():
        logits, plain = model(images), frozen(images)
    row["frozen_equal"] = torch.equal(logits, plain)
    try:
        packed = eb.pack(model, images[:2])
    except PackError as error:
        return {**row, "refused": str(error), "onnx_difference": run_in_onnx(frozen, images, logits)}
    exact = in_float64(frozen, images)
    found = {"native": packed(images.numpy()), "numpy": PackedModel(packed.network, engine="numpy")(images.numpy())}
    for engine, answer in found.items():
        row[f"{engine}_difference"] = difference(answer[2:], logits[2:].numpy())
    if exact is not None:
        found["torch"] = logits.numpy()
        row["from_float64"] = {engine: difference(answer[2:], exact[2:]) for engine, answer in found.items()}
    kinds = sorted({operation.kind for operation in packed.network.operations})
    return {**row, "engine": packed.engine, "bytes": packed.summary().file_bytes, "kinds": kinds}


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def in_float64(frozen: nn.Module, images: Tensor) -> np.ndarray | None:
    """Return the logits of the frozen net in float64; None where its forward makes float32 numbers."""
    try:
        with torch.no_grad():
            logits: np.ndarray = frozen.double()(images.double()).numpy()
            return logits
    except RuntimeError:
        return None


def run_in_onnx(frozen: nn.Module, images: Tensor, logits: Tensor) -> float | str:
    """Return how far ONNX Runtime's logits of the exported frozen net are from torch's, or why there are none."""
    import io

    import onnxruntime

    for dynamo in (False, True):
        file = io.BytesIO()
        try:
            torch.onnx.export(frozen, (images,), file, dynamo=dynamo, input_names=["images"])
            session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
            (answer,) = session.run(None, {"images": images.numpy()})
            return difference(answer, logits.numpy())
        except Exception as error:  # torch's exporters raise anything
            reason = f"{type(error).__name__}: {error}"
    return " ".join(reason.split())[:300]


def train_one_step(model: nn.Module, images: Tensor) -> None:
    """Run forward, backward and one step of SGD, then switch to eval."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=1e-3)
    output = model(images)
    output = output[0] if isinstance(output, tuple) else output
    nn.functional.cross_entropy(output, torch.arange(len(images))).backward()
    optimizer.step()
    model.eval()


def import_timm() -> ModuleType:
    """Import timm, also where torchvision lacks its compiled operators: no net here calls them."""
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
    import timm

    return timm


def stop(number: int, frame: FrameType | None) -> None:
    """Raise where a net takes too long."""
    raise TimeoutError(f"more than {MOST_SECONDS} seconds")


def main() -> None:
    """Measure the families that are asked for, or all that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--inputs", choices=("real", "sign"), default="real")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    rows: dict[str, Row] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.page:
        options.page.write_text(page(rows, MOST_PARAMETERS, MOST_SECONDS, options.out.parent))
        return
    warnings.simplefilter("ignore")  # timm's own
    logging.getLogger("equalbits").setLevel(logging.ERROR)
    timm = import_timm()
    signal.signal(signal.SIGALRM, stop)
    for family in options.families or [name for name in timm.list_modules() if name not in rows]:
        started = time.perf_counter()
        signal.alarm(MOST_SECONDS)
        try:
            rows[family] = measure(timm, family, options.inputs)
        except TimeoutError as error:
            rows[family] = {"left_out": str(error)}
        signal.alarm(0)
        options.out.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        print(f"{family:20} {time.perf_counter() - started:5.0f} s  {rows[family]}", flush=True)


if __name__ == "__main__":
    main()
