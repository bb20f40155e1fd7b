"""A packed ResNet-18 (224², one image, one thread) against the same net with real weights in other engines.

    python benchmarks/cpu_inference.py result.json [--rounds 40] [--instruction-set avx2]

Torch, ONNX Runtime and OpenVINO take part where they are installed. The engines take turns within each round, so that
a busy machine slows them alike; the claim is the ratio of CPU times (of all threads: an engine that spins pays for it).
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from packed_resnet import resnet18
from real_resnet import OnnxMaker, quantize, torch_resnet18

from equalbits.runtime.engine import NativeEngine

Engine = Callable[[], object]

OURS = "equalbits, packed"


def packed_engine(image: np.ndarray, instruction_set: str) -> Engine:
    engine = NativeEngine(resnet18(), instruction_set)
    return lambda: engine(image)


def torch_engine(image: np.ndarray) -> Engine:
    import torch

    torch.set_num_threads(1)
    model, tensor = torch_resnet18(), torch.from_numpy(image)

    def run() -> object:
        with torch.inference_mode():
            return model(tensor)

    return run


def onnxruntime_engine(path: Path, image: np.ndarray) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"image": image})


def openvino_engine(path: Path, image: np.ndarray) -> Engine:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    return lambda: request.infer({"image": image})


def engines(folder: Path, instruction_set: str) -> dict[str, Engine]:
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    found = {OURS: packed_engine(image, instruction_set)}
    if find_spec("torch"):
        found["torch, eager"] = torch_engine(image)
    if find_spec("onnx") and find_spec("onnxruntime"):
        real, int8 = folder / "resnet18.onnx", folder / "resnet18-int8.onnx"
        OnnxMaker().save(real)
        quantize(real, int8)
        for kind, path in (("float32", real), ("int8", int8)):
            found[f"ONNX Runtime, {kind}"] = onnxruntime_engine(path, image)
            if find_spec("openvino"):
                found[f"OpenVINO, {kind}"] = openvino_engine(path, image)
    return found


def measure(found: dict[str, Engine], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds + 2):
        for name, run in found.items():
            run()  # what the engine before left in the caches is not this one's fault
            start = time.process_time()
            run()
            times[name].append((time.process_time() - start) * 1e3)
    return {name: taken[2:] for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--instruction-set", default="", help="avx512, avx2, neon or portable; the best by default")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(engines(Path(folder), chosen.instruction_set), chosen.rounds)
    rows = {}
    print(f"{'engine':24}{'ms, median':>12}{'least':>9}{'× as long, median':>20}{'least':>9}")
    for name, taken in times.items():
        ratios = [theirs / ours for theirs, ours in zip(taken, times[OURS], strict=True)]
        median, least = statistics.median(taken), min(taken)
        rows[name] = {"ms": taken, "median": median, "least": least, "ratio": statistics.median(ratios)}
        print(f"{name:24}{median:12.2f}{least:9.2f}{rows[name]['ratio']:20.2f}{least / min(times[OURS]):9.2f}")
    made_with = {"processor": platform.processor() or "unknown", "rounds": chosen.rounds, "numpy": np.__version__}
    made_with["instruction_set"] = chosen.instruction_set or "best"
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"made_with": made_with, "engines": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
