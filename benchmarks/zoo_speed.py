"""Measure ``zoo:cifar10-resnet18`` and the same network with real weights in torch and ONNX Runtime, one image each.

    python benchmarks/zoo_speed.py results/zoo-speed.json [--rounds 100]

All run on one thread, alternately. Times are CPU time, so that threads that spin count. The weights of the real network
are new: its times do not depend on them.
"""

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from cpu_engines import Engine, seen_sets, timed, versions
from cpu_inference import compare, measure, processor, report

import equalbits as eb
from equalbits.runtime import export_onnx

_NAME = "zoo:cifar10-resnet18"


def engines(image: torch.Tensor, folder: Path) -> dict[str, Engine]:
    """Return the packed network, and the real one in torch, eager and compiled, and in ONNX Runtime."""
    import onnxruntime
    import torch._inductor.config as inductor

    inductor.freezing = True
    torch.set_num_threads(1)
    packed, given = eb.load_packed(_NAME), image.numpy()
    real = eb.create_model("resnet18", num_classes=10, weight_quantizer=None).eval()
    export_onnx(eb.pack(real, image), folder / "real.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "real.onnx"), options, providers=["CPUExecutionProvider"])
    last = image.to(memory_format=torch.channels_last)
    compiled = torch.compile(real.to(memory_format=torch.channels_last))
    eager = eb.create_model("resnet18", num_classes=10, weight_quantizer=None).eval()
    return {
        f"equalbits, {seen_sets()[0]}": timed(lambda: packed(given)),
        "torch, eager": timed(torch.no_grad()(lambda: eager(image))),
        "torch, compiled": timed(torch.no_grad()(lambda: compiled(last))),
        "ONNX Runtime, float32": timed(lambda: session.run(None, {"images": given})),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    image = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32))
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(measure(engines(image, Path(folder)), options.rounds))
    facts = {"processor": processor(), "threads": 1, "rounds": options.rounds, "versions": versions()}
    made = {**facts, "date": datetime.now(UTC).date().isoformat()}
    options.out.write_text(json.dumps({"made_with": made, "engines": rows}, indent=1) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
