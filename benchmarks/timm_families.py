"""Pack one small net of every timm family that is listed here, and compare its logits with torch's.

    python benchmarks/timm_families.py results/timm-families.json [FAMILY ...] [--page docs/timm.md]

Each net gets 10 classes, binary inner layers (bi-half weights, real inputs), and one training step on random images. It
is packed on two images and compared on two others, in the native engine and in numpy. Rows are written as they are
made; a family that is in the file already is measured again only if it is named. ``--page`` writes the table instead.
"""

import argparse
import json
import logging
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import equalbits as eb
from equalbits.deploy import PackError
from equalbits.runtime import PackedModel

#: Family (a module of timm.models): a small variant, the side of its images, and settings.
FAMILIES: dict[str, tuple[str, int, dict[str, object]]] = {
    "byobnet": ("mobileone_s0", 64, {}),
    "cait": ("cait_xxs24_224", 64, {"img_size": 64}),
    "coat": ("coat_lite_tiny", 64, {"img_size": 64}),
    "convit": ("convit_tiny", 64, {"img_size": 64}),
    "convmixer": ("convmixer_768_32", 56, {}),
    "convnext": ("convnext_atto", 64, {}),
    "crossvit": ("crossvit_9_240", 240, {}),
    "cspnet": ("cspresnet50", 64, {}),
    "davit": ("davit_tiny", 64, {}),
    "deit": ("deit_tiny_patch16_224", 64, {"img_size": 64}),
    "densenet": ("densenet121", 64, {}),
    "dla": ("dla46x_c", 64, {}),
    "dpn": ("dpn48b", 64, {}),
    "edgenext": ("edgenext_xx_small", 64, {}),
    "efficientformer": ("efficientformer_l1", 224, {}),
    "efficientformer_v2": ("efficientformerv2_s0", 224, {}),
    "efficientnet": ("efficientnet_b0", 64, {}),
    "efficientvit_mit": ("efficientvit_b0", 64, {}),
    "efficientvit_msra": ("efficientvit_m0", 224, {}),
    "eva": ("eva02_tiny_patch14_224", 56, {"img_size": 56}),
    "fasternet": ("fasternet_t0", 64, {}),
    "fastvit": ("fastvit_t8", 64, {}),
    "focalnet": ("focalnet_tiny_srf", 64, {}),
    "ghostnet": ("ghostnet_050", 64, {}),
    "hardcorenas": ("hardcorenas_a", 64, {}),
    "hgnet": ("hgnetv2_b0", 64, {}),
    "hrnet": ("hrnet_w18_small", 64, {}),
    "inception_next": ("inception_next_atto", 64, {}),
    "levit": ("levit_128s", 224, {}),
    "mambaout": ("mambaout_femto", 64, {}),
    "maxxvit": ("coatnet_pico_rw_224", 64, {"img_size": 64}),
    "metaformer": ("poolformer_s12", 64, {}),
    "mlp_mixer": ("gmlp_ti16_224", 64, {"img_size": 64}),
    "mobilenetv3": ("mobilenetv3_small_050", 64, {}),
    "mobilevit": ("mobilevit_xxs", 64, {}),
    "nfnet": ("nfnet_l0", 64, {}),
    "pit": ("pit_ti_224", 64, {"img_size": 64}),
    "pvt_v2": ("pvt_v2_b0", 64, {}),
    "regnet": ("regnety_002", 64, {}),
    "repghost": ("repghostnet_050", 64, {}),
    "repvit": ("repvit_m0_9", 64, {}),
    "res2net": ("res2net50_48w_2s", 64, {}),
    "resnest": ("resnest14d", 64, {}),
    "resnet": ("resnet10t", 64, {}),
    "resnetv2": ("resnetv2_18", 64, {}),
    "rexnet": ("rexnet_100", 64, {}),
    "selecsls": ("selecsls42b", 64, {}),
    "senet": ("legacy_seresnet18", 64, {}),
    "sknet": ("skresnet18", 64, {}),
    "starnet": ("starnet_s050", 64, {}),
    "swiftformer": ("swiftformer_xs", 64, {}),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 56, {"img_size": 56}),
    "tiny_vit": ("tiny_vit_5m_224", 224, {}),
    "vgg": ("vgg11", 64, {}),
    "visformer": ("visformer_tiny", 64, {"img_size": 64}),
    "vision_transformer": ("vit_tiny_patch16_224", 64, {"img_size": 64}),
    "volo": ("volo_d1_224", 64, {"img_size": 64}),
    "vovnet": ("ese_vovnet19b_slim_dw", 64, {}),
    "xception_aligned": ("xception41", 64, {}),
    "xcit": ("xcit_nano_12_p16_224", 64, {"img_size": 64}),
}


def main() -> None:
    """Measure the families that are asked for, or all that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []])
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.page:
        options.page.write_text(page(rows))
        return
    warnings.simplefilter("ignore")  # timm's own
    logging.getLogger("equalbits").setLevel(logging.ERROR)
    timm = import_timm()
    for family in options.families or [name for name in FAMILIES if name not in rows]:
        started = time.perf_counter()
        rows[family] = measure(timm, family)
        options.out.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        print(f"{family:20} {time.perf_counter() - started:5.0f} s  {rows[family]}", flush=True)


def measure(timm: object, family: str) -> dict[str, object]:
    """Convert, train one step, pack and compare a net; return its row."""
    name, side, settings = FAMILIES[family]
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=10, **settings)  # type: ignore[attr-defined]
    row: dict[str, object] = {"variant": name, "image": side}
    row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    try:
        row["binary_layers"] = len(eb.binarize_(model, eb.BiHalf()).replaced)
    except ValueError as error:
        return {**row, "refused": f"by binarize_: {error}"}
    train_one_step(model, torch.randn(4, 3, side, side))
    images = torch.randn(4, 3, side, side)
    try:
        packed = eb.pack(model, images[:2])
    except PackError as error:
        return {**row, "refused": str(error)}
    with torch.no_grad():
        logits = model(images[2:]).numpy()
    largest = float(np.abs(logits).max())
    for engine, runs in (("native", packed), ("numpy", PackedModel(packed.network, engine="numpy"))):
        found = runs(images[2:].numpy())
        row[f"{engine}_difference"] = float(np.abs(found - logits).max()) / largest
    kinds = sorted({operation.kind for operation in packed.network.operations})
    return {**row, "engine": packed.engine, "bytes": packed.summary().file_bytes, "kinds": kinds}


def page(rows: dict[str, dict[str, object]]) -> str:
    """Return the table of all rows as Markdown."""
    packed = {family: row for family, row in rows.items() if "refused" not in row}
    lines = [
        "# Families of timm",
        "",
        f"`benchmarks/timm_families.py` takes small nets of {len(rows)} families of timm with 10 classes and binary",
        "inner layers (`eb.binarize_(model, eb.BiHalf())`, real inputs), trains them one step, packs them, compares",
        f"the logits of two other images with torch's. {len(packed)} of the {len(rows)} pack; the native engine runs",
        "all of these. The last two columns are the largest difference from torch's logits, relative to the largest",
        "logit: rounding. Besides the bits, files are float32, so a net with few binary layers stays large.",
        "",
        "| family | net | image | parameters | binary layers | file, bytes | native | numpy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family, row in packed.items():
        differences = " | ".join(f"{row[f'{engine}_difference']:.1e}" for engine in ("native", "numpy"))
        sizes = f"{row['parameters']:,} | {row['binary_layers']} | {row['bytes']:,}"
        lines.append(f"| {family} | `{row['variant']}` | {row['image']}² | {sizes} | {differences} |")
    lines += ["", "Refused, each with the first reason; [freeze](freeze.md) such a model and export it to ONNX:", ""]
    lines += ["| family | net | reason |", "|---|---|---|"]
    for family, row in rows.items():
        if "refused" in row:
            lines.append(f"| {family} | `{row['variant']}` | {str(row['refused']).replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def train_one_step(model: nn.Module, images: torch.Tensor) -> None:
    """Run forward, backward and one step of SGD, then switch to eval."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=1e-3)
    output = model(images)
    output = output[0] if isinstance(output, tuple) else output
    nn.functional.cross_entropy(output, torch.arange(len(images))).backward()
    optimizer.step()
    model.eval()


def import_timm() -> object:
    """Import timm, also where torchvision lacks its compiled operators: no net here calls them."""
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
    import timm

    return timm


if __name__ == "__main__":
    main()
