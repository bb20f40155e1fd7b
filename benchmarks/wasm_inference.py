"""Time the engine of web pages beside the native one and onnxruntime-web, in one interleaved run:

    npm install --prefix build/npm onnxruntime-web
    NODE_PATH=build/npm/node_modules python benchmarks/wasm_inference.py > results/wasm-inference.json

Needs node, and the packages onnx and onnxruntime to make the peer's files; with playwright and Chromium also the time
inside an exported page. Times are of the CPU, which other jobs hardly change; in a page, where there is no such clock,
the fastest 10 ms count. All engines run one image on one thread. onnxruntime-web runs what ``export`` writes as ONNX:
the same layers in float32, with the bits unpacked beforehand; and that network quantized to int8.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from equalbits.runtime import export_onnx, list_zoo, load_packed, native, stored_images, web_page
from equalbits.runtime.engine import NativeEngine
from equalbits.runtime.export import web
from equalbits.runtime.zoo import ZOO

#: Return milliseconds an image over so many milliseconds, and the logits.
Timer = Callable[[float], tuple[float, list[float]]]


def write_files(name: str, folder: Path) -> np.ndarray:
    """Write all that node reads for one network; return the image, normalized."""
    model, stored = load_packed(f"zoo:{name}"), stored_images(ZOO / f"{name}.ebits")
    images = model.network.normalize(stored)
    (folder / f"{name}.block").write_bytes(web.plan_block(model.network))
    (folder / f"{name}.bytes").write_bytes(stored[0].tobytes())
    (folder / f"{name}.floats").write_bytes(images[0].tobytes())
    (folder / f"{name}.json").write_text(json.dumps([1, *model.input_shape]))
    export_onnx(model, folder / "exported.onnx")
    write_onnx(folder / "exported.onnx", folder / f"{name}-fp32.onnx", folder / f"{name}-int8.onnx", images)
    return images[:1]


def write_onnx(exported: Path, real: Path, int8: Path, images: np.ndarray) -> None:
    """Unpack the bits to float32 weights, then quantize weights and activations, calibrated on the images."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(real)
    onnxruntime.InferenceSession(str(exported), options, providers=["CPUExecutionProvider"])

    class Reader(CalibrationDataReader):
        left = iter([{"images": image[None]} for image in images])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    quantize_static(str(real), str(int8), Reader(), quant_format=QuantFormat.QDQ, per_channel=True)


def native_timer(name: str, instruction_set: str, image: np.ndarray) -> Timer:
    """Return the native engine for one instruction set."""
    engine = NativeEngine(load_packed(f"zoo:{name}").network, instruction_set)

    def timed(milliseconds: float) -> tuple[float, list[float]]:
        logits, start, runs = engine(image), time.thread_time(), 0
        while (taken := 1e3 * (time.thread_time() - start)) < milliseconds:
            engine(image)
            runs += 1
        return taken / runs, logits[0].tolist()

    return timed


@contextmanager
def node_timers(names: list[str], folder: Path) -> Iterator[dict[tuple[str, str], Timer]]:
    """Start node; yield a timer for each network and engine there."""
    words = ["node", str(Path(__file__).with_suffix(".js")), str(Path(web.__file__).parent), str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as node:

        def ask(words: str, milliseconds: float) -> tuple[float, list[float]]:
            print(f"{words} {milliseconds}", file=node.stdin)
            answer = json.loads(node.stdout.readline())
            return answer["ms"], answer["logits"]

        engines = {"equalbits": "wasm, node", "fp32": "onnxruntime-web, fp32", "int8": "onnxruntime-web, int8"}
        yield {
            (name, title): lambda milliseconds, words=f"{name} {engine}": ask(words, milliseconds)
            for name in names
            for engine, title in engines.items()
        }
        node.stdin.close()


@contextmanager
def chromium_timers(names: list[str], folder: Path) -> Iterator[dict[tuple[str, str], Timer]]:
    """Open the page of each network in headless Chromium; yield nothing where that is not installed."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("playwright is not installed: no time in Chromium", file=sys.stderr)
        yield {}
        return
    loop = """([milliseconds]) => {
        const image = bytesOf(IMAGE), logits = Array.from(engine.run(image)), end = performance.now() + milliseconds;
        let fastest = Infinity;
        while (performance.now() < end) {
            const start = performance.now();
            let runs = 0, taken = 0;
            for (; taken < 10; runs++, taken = performance.now() - start) engine.run(image);
            fastest = Math.min(fastest, taken / runs);
        }
        return [fastest, logits];
    }"""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        timers = {}
        for name in names:
            stored = stored_images(ZOO / f"{name}.ebits")
            page, file = browser.new_page(), folder / f"{name}.html"
            file.write_text(web_page(load_packed(f"zoo:{name}"), title=name, examples=stored), encoding="utf-8")
            page.goto(file.as_uri())
            page.wait_for_selector("body[data-ready]")
            code = loop.replace("IMAGE", json.dumps(_base64(stored[0])))
            timers[name, "wasm, Chromium"] = lambda milliseconds, page=page, code=code: page.evaluate(
                code, [milliseconds]
            )
        yield timers
        browser.close()


def _base64(image: np.ndarray) -> str:
    from base64 import b64encode

    return b64encode(image.tobytes()).decode()


def version_of(words: list[str]) -> str:
    """Return the first line that a program prints about its version."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def main() -> None:
    """Time each engine in turn, round by round; print medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--milliseconds", type=float, default=250, help="time of one engine in a round")
    options = parser.parse_args()
    names, times = list_zoo(), {}
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        timers: dict[tuple[str, str], Timer] = {}
        for name in names:
            image = write_files(name, folder)
            for kernels in native.BUILT.instruction_sets():
                timers[name, f"native, {kernels}"] = native_timer(name, kernels, image)
        timers |= stack.enter_context(node_timers(names, folder))
        timers |= stack.enter_context(chromium_timers(names, folder))
        answers = {}
        for round_number in range(options.rounds + 1):  # the first round warms up
            for key, timer in timers.items():
                milliseconds, answers[key] = timer(options.milliseconds)
                if round_number:
                    times.setdefault(key, []).append(milliseconds)
    package = Path(os.environ.get("NODE_PATH", "node_modules"), "onnxruntime-web", "package.json")
    record = {
        "cpu": next(
            line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
        ),
        "load_before": load,
        "rounds": options.rounds,
        "milliseconds": options.milliseconds,
        "python": platform.python_version(),
        "node": version_of(["node", "--version"]),
        "onnxruntime-web": json.loads(package.read_text())["version"],
        "chromium": version_of(["chromium", "--version"]) if shutil.which("chromium") else None,
        "rows": [
            {
                "network": name,
                "engine": engine,
                "ms": round(statistics.median(values), 4),
                "fastest_ms": round(min(values), 4),
                "slowest_ms": round(max(values), 4),
                "same_class": int(np.argmax(answers[name, engine]) == np.argmax(answers[name, "native, portable"])),
            }
            for (name, engine), values in times.items()
        ],
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
