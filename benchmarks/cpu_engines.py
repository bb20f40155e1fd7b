"""Engines measured by ``cpu_inference.py``: functions that run one image and return the time it took."""

import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from real_resnet import OnnxMaker, quantize_onnx, quantize_openvino, torch_resnet18

from equalbits.runtime import Network, native
from equalbits.runtime.engine import NativeEngine

#: Milliseconds of CPU time for one image, summed over threads: spinning threads count.
Engine = Callable[[], float]


def timed(run: Callable[[], object]) -> Engine:
    """Return an engine that makes the call four times and times the last, so that caches are its own."""

    def clocked() -> float:
        for _ in range(3):
            run()
        start = time.process_time()
        run()
        return (time.process_time() - start) * 1e3

    return clocked


def packed_engines(network: Network, image: np.ndarray, sets: list[str]) -> dict[str, Engine]:
    """Return our engine for each instruction set."""
    found = {}
    for name in sets:
        engine = NativeEngine(network, name)
        found[f"equalbits, {name}"] = timed(lambda engine=engine: engine(image))  # type: ignore[misc]
    return found


def torch_engines(image: np.ndarray, *, compiled: bool) -> dict[str, Engine]:
    """Return torch in eager mode; optionally also compiled in channels_last with frozen weights."""
    import torch

    torch.set_num_threads(1)
    model, tensor = torch_resnet18(), torch.from_numpy(image)

    def call(model: Callable[[torch.Tensor], object], tensor: torch.Tensor) -> Engine:
        return timed(torch.no_grad()(lambda: model(tensor)))

    found = {"torch, eager": call(torch.inference_mode()(model), tensor)}
    if compiled:
        import torch._inductor.config as inductor

        inductor.freezing = True
        if (
            seen_sets()[0] == "avx2"
        ):  # it asks the operating system, not the processor, so it must be limited explicitly
            inductor.cpp.simdlen = 256
        last = torch_resnet18().to(memory_format=torch.channels_last)
        lasting = tensor.to(memory_format=torch.channels_last)
        found["torch, compiled"] = call(torch.compile(last), lasting)
        found["torch, compiled"]()
    return found


def make_models(folder: Path) -> list[str]:
    """Write missing model files; return a line for each that cannot be made here."""
    real, int8, vino = (folder / name for name in ("resnet18.onnx", "resnet18-int8.onnx", "resnet18-int8.xml"))
    makers: list[tuple[Path, tuple[str, ...], Callable[[], None]]] = [
        (real, ("onnx",), lambda: OnnxMaker().save(real)),
        (int8, ("onnx", "onnxruntime"), lambda: quantize_onnx(real, int8)),
        (vino, ("openvino", "nncf"), lambda: quantize_openvino(real, vino)),
    ]
    missing = []
    folder.mkdir(parents=True, exist_ok=True)
    for path, packages, make in makers:
        lacking = [name for name in packages if find_spec(name) is None]
        if not path.exists() and (lacking or (path != real and not real.exists())):
            missing.append(f"{path.name} is missing, and making it needs {', '.join(lacking) or real.name}")
        elif not path.exists():
            make()
    return missing


def onnxruntime_engine(path: Path, image: np.ndarray) -> Engine:
    """Return ONNX Runtime on one thread with all graph optimizations, its default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return timed(lambda: session.run(None, {"image": image}))


def openvino_engine(path: Path, image: np.ndarray) -> Engine:
    """Return OpenVINO on one thread."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    return timed(lambda: request.infer({"image": image}))


def file_engines(folder: Path, image: np.ndarray) -> dict[str, Engine]:
    """Return the engines that read model files, for each file that exists."""
    kinds = (("float32", "resnet18.onnx"), ("int8", "resnet18-int8.onnx"), ("int8 by nncf", "resnet18-int8.xml"))
    found = {}
    for kind, name in kinds:
        if find_spec("onnxruntime") and (folder / name).exists() and name.endswith(".onnx"):
            found[f"ONNX Runtime, {kind}"] = onnxruntime_engine(folder / name, image)
        if find_spec("openvino") and (folder / name).exists():
            found[f"OpenVINO, {kind}"] = openvino_engine(folder / name, image)
    return found


def larq_engine(program: Path, model: Path) -> Engine:
    """Return Larq Compute Engine's benchmark program on a converted model; it measures wall time."""
    words = [str(program), f"--graph={model}", "--num_threads=1", "--num_runs=5", "--warmup_runs=1", "--max_secs=1"]

    def clocked() -> float:
        said = subprocess.run(words, capture_output=True, text=True, check=True)
        found = re.search(r"Inference \(avg\): ([0-9.e+]+)", said.stdout + said.stderr)
        if found is None:
            raise ValueError(f"{program} printed no inference time")
        return float(found[1]) / 1e3

    return clocked


def seen_sets() -> list[str]:
    """Return the instruction sets that our engine supports here, fastest first."""
    if native.BUILT is None:
        raise SystemExit(native.REASON)
    return list(native.BUILT.instruction_sets())


def versions() -> dict[str, str]:
    """Return the versions of the measured packages."""
    found = {}
    for name in ("numpy", "torch", "onnxruntime", "openvino", "nncf"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
