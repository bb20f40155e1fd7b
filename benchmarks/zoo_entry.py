"""Make an entry of the zoo from a finished run: packed file, card, example images and, on request, its weights.

    python benchmarks/zoo_entry.py RUN NAME [--data DIR] [--rest float16] [--weights] [--date 2026-11-18]

Everything on the card is measured here or read from the run. The accuracy is that of the packed file on all test
images. The table of docs/zoo.md is written anew from all cards.
"""

import argparse
import datetime
import json
import os
import platform
import re
import time
from pathlib import Path

import numpy as np
import torch

from equalbits._toml import flatten
from equalbits.data import Dataset
from equalbits.deploy import Preprocessing, pack
from equalbits.recipes import ByteBatches, DataSpec, RunRecord, get_recipe, list_recipes, load_run, make_loader
from equalbits.runtime import PackedModel, list_zoo, load_packed, zoo_card
from equalbits.runtime.zoo import ZOO
from equalbits.training import checkpoint_bytes, evaluate, prefixed

_EXAMPLES = 100
PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an entry of the zoo from a finished run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rest", default="float16", choices=("float32", "float16", "int8"))
    parser.add_argument("--weights", action="store_true", help="store the latent weights too, for fine-tuning")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the time measurement")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    options = parser.parse_args()

    trained, record, images = (
        load_run(options.run),
        RunRecord.read(options.run / "run.json"),
        DataSpec.read(options.run / "model.json"),
    )
    example = torch.randn(8, images.channels, images.size, images.size, generator=torch.Generator().manual_seed(0))
    preprocessing = Preprocessing(images.mean, images.std, images.resize, images.fit)
    path = ZOO / f"{options.name}.ebits"
    pack(trained.model, example, rest=options.rest, class_names=images.classes, preprocessing=preprocessing).save(path)
    model = load_packed(path)
    recipe = trained.recipe
    test = make_loader(recipe.data, "test", root=options.data).dataset
    score = evaluate(model, ByteBatches(model, test, batch_size=256))
    save_examples(model, test, path.with_suffix(".npz"))
    if options.weights:
        weights = checkpoint_bytes(prefixed("model.", trained.model.state_dict()), {})
        path.with_suffix(".safetensors").write_bytes(weights)
    card = {
        "name": options.name,
        "data": recipe.data.name,
        "classes": len(images.classes),
        "test": {"correct": score.correct, "total": score.total, "accuracy": round(score.accuracy, 2)},
        "epoch": "last",
        "seed": record.seed,
        "recipe": recipe.name,
        "settings": changed_settings(recipe),
        "bytes": path.stat().st_size,
        "bits_exact": model.audit().exact,
        "rest": options.rest,
        "milliseconds": milliseconds(model, options.seconds),
        "trained_on": record.device,
        "training_seconds": record.seconds,
        "versions": dict(record.versions),
        "date": options.date,
    }
    path.with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=1))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_table(page: str) -> str:
    """Return the page of the zoo with a row per entry, as the cards describe them."""
    before, header, rest = page.partition("| network | weights, inputs |")
    title, rule, *_ = rest.splitlines(keepends=True)
    after = rest.partition("\n\n")[2]
    return before + header + title + rule + "".join(map(row, list_zoo())) + "\n" + after


def row(name: str) -> str:
    """Return an entry's row of the table."""
    card, data = zoo_card(name), {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fashion": "Fashion-MNIST"}
    model = get_recipe(card["recipe"]).with_settings(card["settings"]).model
    bits = ", ".join("1 bit" if each else "real" for each in (model.weight_quantizer, model.input_quantizer))
    score = f"{card['test']['accuracy']:.2f} % of {card['test']['total']:,}"
    return f"| `zoo:{name}` | {bits} | {data.get(card['data'], card['data'])} | {score} | {card['bytes']:,} |\n"


def save_examples(model: PackedModel, test: object, path: Path) -> None:
    """Store images spread over the test set, with the logits of the numpy engine, which every other engine must give.

    Engines add real numbers in different orders. Where a sum is zero but for rounding, its sign is a matter of that
    order, and no two engines need agree: images whose logits change when every pixel changes by a millionth are left
    out.
    """
    assert isinstance(test, Dataset), "an entry needs a data set held in memory"
    places = torch.linspace(0, len(test) - 1, 2 * _EXAMPLES).long()
    pictures = test.images[places].numpy()
    numpy_engine = PackedModel(model.network, engine="numpy")
    logits = numpy_engine(pictures)
    real = model.network.normalize(pictures)
    noise = np.random.default_rng(0)
    stable = np.ones(len(places), bool)
    for _ in range(4):
        near = real * (1 + noise.uniform(-1e-6, 1e-6, real.shape)).astype(np.float32)
        stable &= np.abs(numpy_engine(near) - logits).max(1) < 1e-3 * np.abs(logits).max()
    kept = np.flatnonzero(stable)[:_EXAMPLES]
    labels = test.labels[places].numpy()
    np.savez_compressed(path, images=pictures[kept], labels=labels[kept], logits=logits[kept])
    print(f"examples: {len(kept)} of {stable.sum()} stable ones among {len(places)}")


def changed_settings(recipe: object) -> dict[str, object]:
    """Return the settings of a catalogued recipe that were changed, or all of another recipe."""
    table = flatten(recipe.as_dict())
    known = flatten(get_recipe(recipe.name).as_dict()) if recipe.name in list_recipes() else {}
    skipped = ("name", "about", "expected", "seed")
    return {key: value for key, value in table.items() if key not in skipped and known.get(key) != value}


def milliseconds(model: PackedModel, seconds: float) -> dict[str, object]:
    """Measure one image at a time on one thread."""
    image = np.zeros((1, *model.input_shape), np.uint8)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        start = time.perf_counter()
        model(image)
        times.append((time.perf_counter() - start) * 1e3)
    median, least = round(float(np.median(times)), 4), round(min(times), 4)
    return {"median": median, "least": least, "rounds": len(times), "threads": 1, "engine": model.engine, "cpu": cpu()}


def cpu() -> str:
    """Return the name of the processor and the number of its cores."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{found[1] if found else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
