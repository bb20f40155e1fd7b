"""Train the methods of the demo, count their flips and entropy, and pack the bi-half net."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from equalbits._extras import require_matplotlib
from equalbits._files import write_atomically
from equalbits.analysis import EntropyWatcher, FlipWatcher, audit
from equalbits.data import load_dataset
from equalbits.deploy import Preprocessing, pack
from equalbits.functional import attainable_entropy, positive_count
from equalbits.paper.demo.show import FILTER, METHODS, DemoCounts, draw_demo, write_demo_page
from equalbits.recipes import (
    DataSpec,
    Recipe,
    check_kind,
    check_same_recipe,
    get_recipe,
    load_run,
    pick_device,
    run_recipe,
    stored_recipe,
)
from equalbits.runtime import load_packed
from equalbits.training import BEST, LAST, Reporter

_COUNTS = "measured.json"


def demo_recipe(*, epochs: int = 4) -> Recipe:
    """Return the demo's recipe; the method is set for each run."""
    settings = {"epochs": epochs, "model.options.batch_norm": False, "speed": "plain"}
    return get_recipe("fashion-conv2").with_settings(settings)


def run_demo(
    out: Path,
    *,
    recipe: Recipe | None = None,
    device: str = "cpu",
    reporters_for: Callable[[str], list[Reporter]] = lambda title: [],
) -> list[DemoCounts]:
    """Train each method into a folder of ``out``, draw demo.png and demo.svg, and write report.html.

    Methods that an earlier call measured are not trained again.
    """
    require_matplotlib()
    pick_device(device)  # raise for a missing device even if nothing is left to train
    if out.is_file():
        raise ValueError(f"{out} is a file: give a folder, new or of the same demo, with --out")
    check_kind(out, "demo")
    recipe = recipe or demo_recipe()
    measured = []
    for method, title in METHODS.items():
        of_method = recipe.with_settings({"model.weight_quantizer": method})
        measured.append(_measure(of_method, out / method, device=device, reporters=reporters_for(title)))
    draw_demo(measured, out)
    write_demo_page(measured, out)
    return measured


def is_demo_measured(out: Path) -> bool:
    """Return whether ``out`` holds the counts of every method."""
    return all((out / method / _COUNTS).is_file() for method in METHODS)


def _measure(recipe: Recipe, out: Path, *, device: str, reporters: list[Reporter]) -> DemoCounts:
    """Train one method into ``out``, or read the counts that an earlier call left there."""
    stored = out / _COUNTS
    if stored.exists():
        check_same_recipe(out, stored_recipe(out / "run.json"), recipe)
        try:
            return DemoCounts(**json.loads(stored.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{stored} is damaged ({error}): delete it to train this method again") from None
    for name in (LAST, BEST):  # an interrupted run has lost its watchers' counts: start over
        (out / name).unlink(missing_ok=True)
    flips, entropy = FlipWatcher(filters=dict([FILTER])), EntropyWatcher()
    result = run_recipe(recipe, out, device=device, watchers=[flips, entropy], reporters=reporters)
    layers = audit(result.model).layers
    filters = sum(layer.filters for layer in layers)
    last = result.history.last
    assert last is not None and last.test is not None  # run_recipe evaluates the last epoch
    counts = DemoCounts(
        method=recipe.model.weight_quantizer,
        correct=last.test.correct,
        total=last.test.total,
        to_positive=sum(sum(series.to_positive) for series in flips.layers.values()),
        to_negative=sum(sum(series.to_negative) for series in flips.layers.values()),
        filters=filters,
        exact_filters=sum(int((each.positive == positive_count(each.connections, 0.5)).sum()) for each in layers),
        entropy=entropy.network[-1],
        attainable=sum(layer.filters * attainable_entropy(layer.connections) for layer in layers) / filters,
        steps=entropy.steps,
        entropies=entropy.network,
        filter_to_positive=flips.filters[FILTER[0]].to_positive,
        filter_to_negative=flips.filters[FILTER[0]].to_negative,
        seconds=sum(record.seconds for record in result.history.epochs),
    )
    write_atomically(stored, json.dumps(vars(counts)).encode())
    return counts


@dataclass(frozen=True)
class DemoPack:
    """Size of a packed file, and on how many test images it predicts the model's class."""

    path: Path
    packed_bytes: int
    float32_bytes: int
    same: int
    total: int

    def __str__(self) -> str:
        return (
            f"Packed: {self.path} holds the bi-half net in {self.packed_bytes:,} bytes, "
            f"{self.float32_bytes / self.packed_bytes:.1f} times fewer than its weights in float32; run without torch "
            f"it gives the model's class for {self.same:,} of {self.total:,} test images."
        )


def pack_demo(run: Path, path: Path) -> DemoPack:
    """Pack the model of a run folder into ``path`` and compare both on every test image."""
    _, model = load_run(run)
    spec = DataSpec.read(run / "model.json")
    test = load_dataset("fashion", split="test")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    images = (test.images.float() / 255 - mean) / std
    pack(model, images[:8], class_names=spec.classes, preprocessing=Preprocessing(spec.mean, spec.std)).save(path)
    predicted = load_packed(path)(test.images.numpy()).argmax(axis=1)  # the file normalizes the bytes itself
    with torch.no_grad():
        expected = model(images).argmax(dim=1).numpy()
    return DemoPack(
        path=path,
        packed_bytes=path.stat().st_size,
        float32_bytes=4 * sum(parameter.numel() for parameter in model.parameters()),
        same=int((predicted == expected).sum()),
        total=len(expected),
    )
