"""Compare five nets of timm with binary weights, packed, with the real nets in ONNX Runtime: float32 and int8.

    python benchmarks/timm_speed.py results/timm-speed.json --models DIR --make     # writes the model files, minutes
    python benchmarks/timm_speed.py results/timm-speed.json --models DIR [--rounds 20]

One image of 224², one thread, 1,000 classes, untrained weights after one training step. W1A32 has binary inner layers
(bi-half), W1A1 signs as their inputs as well, with the activations that ``adapt_for_binary_inputs_`` puts in. int8 is
ONNX Runtime's static quantization (QDQ, per channel) on random images. The engines alternate within each round.
"""

import argparse
import json
import logging
import platform
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import torch
from cpu_engines import Engine, onnxruntime_engine, seen_sets, timed, versions
from cpu_inference import compare, measure, processor, report
from real_resnet import quantize_onnx
from timm_families import import_timm, train_one_step

import equalbits as eb

#: One net of each of five families, of the size that people run on a CPU: the nets that the rule of
#: ``timm_families.py`` draws have so few channels that calls and copies take longer than products.
NETS = ("resnet18", "mobilenetv3_large_100", "vit_tiny_patch16_224", "convnext_atto", "mixer_s16_224")


def make(folder: Path) -> None:
    """Write the files that are missing: each net packed twice, and as ONNX in float32 and int8."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    timm = import_timm()
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETS:
        image = torch.randn(1, 3, 224, 224)
        real, int8 = folder / f"{name}.onnx", folder / f"{name}-int8.onnx"
        if not int8.exists():
            model = timm.create_model(name).eval()
            torch.onnx.export(model, (image,), str(real), dynamo=False, input_names=["image"], opset_version=17)
            ready = folder / f"{name}-ready.onnx"
            quant_pre_process(str(real), str(ready))
            quantize_onnx(ready, int8)
        for bits in (32, 1):
            path = folder / f"{name}-W1A{bits}.ebits"
            if not path.exists():
                pack(timm.create_model(name), bits).save(path)  # type: ignore[attr-defined]
                print(f"wrote {path}", file=sys.stderr)


def pack(model: torch.nn.Module, bits: int) -> object:
    """Convert a net, train it one step and pack it."""
    images = torch.randn(4, 3, 224, 224)
    if bits == 1:
        eb.binarize_(model, eb.BiHalf(), input_quantizer=eb.SignActivation())
        eb.adapt_for_binary_inputs_(model, images)
    else:
        eb.binarize_(model, eb.BiHalf())
    train_one_step(model, images)
    return eb.pack(model, images[:2])


def engines(folder: Path, name: str) -> dict[str, Engine]:
    """Return our engine for both files of a net, and ONNX Runtime for both of the real net."""
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)).numpy()
    found = {}
    for bits in (32, 1):
        packed = eb.load_packed(folder / f"{name}-W1A{bits}.ebits")
        found[f"equalbits, W1A{bits}"] = timed(lambda packed=packed: packed(image))  # type: ignore[misc]
    for kind, file in (("float32", f"{name}.onnx"), ("int8", f"{name}-int8.onnx")):
        found[f"ONNX Runtime, {kind}"] = onnxruntime_engine(folder / file, image)
    return found


def main() -> None:
    """Make the model files, or measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path, required=True, help="directory of the model files")
    parser.add_argument("--make", action="store_true", help="write the model files that are missing, and stop")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # timm's own
    logging.getLogger("equalbits").setLevel(logging.ERROR)
    if options.make:
        make(options.models)
        return
    every = {f"{name}/{engine}": run for name in NETS for engine, run in engines(options.models, name).items()}
    times, nets = measure(every, options.rounds), {}
    for name in NETS:
        nets[name] = compare(
            {key.partition("/")[2]: taken for key, taken in times.items() if key.startswith(name + "/")}
        )
        print(f"\n{name}")
        report(nets[name])
    made = {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "instruction_set": seen_sets()[0],
        "rounds": options.rounds,
        "threads": 1,
        "versions": versions(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    options.out.write_text(json.dumps({"made_with": made, "nets": nets}, indent=1) + "\n")


if __name__ == "__main__":
    main()
