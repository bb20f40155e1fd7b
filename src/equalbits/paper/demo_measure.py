"""The paper's point in two minutes: sign, IR-Net and bi-half trained alike, their flips and entropy side by side.

The net is the paper's Conv2, narrower and on the embedded Fashion-MNIST, so the numbers are not the paper's; what
they show is. Each method gets the same seed, start, batches and settings.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from equalbits._files import write_atomically
from equalbits.analysis import EntropyWatcher, FlipWatcher, audit
from equalbits.functional import attainable_entropy, positive_count
from equalbits.recipes import Recipe, check_same, get_recipe, recipe_in, run_recipe
from equalbits.training import BEST, LAST, Reporter

METHODS = {"sign": "Sign", "irnet-stable": "IR-Net", "bihalf": "Bi-half"}
#: The filter whose flips are drawn: the first of the second convolution, as in the paper's figure 2.
FILTER = ("conv2", 0)
_STORED = "measured.json"


@dataclass(frozen=True)
class Measured:
    """What one method did: counts, as they are stored."""

    method: str
    correct: int
    total: int
    to_positive: int
    to_negative: int
    filters: int
    exact_filters: int
    entropy: float
    attainable: float
    steps: list[int]
    entropies: list[float]
    filter_to_positive: list[int]
    filter_to_negative: list[int]
    seconds: float

    @property
    def accuracy(self) -> float:
        """Per cent of the test images right after the last epoch."""
        return 100 * self.correct / self.total

    @property
    def filter_difference(self) -> list[int]:
        """How many more flips to +1 than to −1 the drawn filter has made so far, step by step."""
        found, running = [], 0
        for up, down in zip(self.filter_to_positive, self.filter_to_negative, strict=True):
            running += up - down
            found.append(running)
        return found


def demo_recipe(*, epochs: int = 4) -> Recipe:
    """The demo's settings: the method is filled in for each."""
    own = {"epochs": epochs, "model.options.batch_norm": False, "speed": "plain"}
    return get_recipe("fashion-conv2").with_settings(own)


def is_measured(out: Path) -> bool:
    """Whether an earlier call has trained all methods into ``out``."""
    return all((out / method / _STORED).is_file() for method in METHODS)


def measure(recipe: Recipe, out: Path, *, device: str, reporters: list[Reporter]) -> Measured:
    """Train one method into ``out``, or read what an earlier call measured there."""
    stored = out / _STORED
    if stored.exists():
        check_same(out, recipe_in(out / "run.json"), recipe)  # else other epochs would be answered with the old numbers
        try:
            return Measured(**json.loads(stored.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{stored} is damaged ({error}): delete it to train this method anew") from None
    for name in (LAST, BEST):  # a run cut off has lost its watchers' counts: begin it anew
        (out / name).unlink(missing_ok=True)
    flips, entropy = FlipWatcher(filters=dict([FILTER])), EntropyWatcher()
    result = run_recipe(recipe, out, device=device, watchers=[flips, entropy], reporters=reporters)
    layers = audit(result.model).layers
    halves = [positive_count(layer.connections, 0.5) for layer in layers]
    last = result.history.last
    assert last is not None and last.test is not None  # run_recipe scores the last epoch
    one = flips.filters[FILTER[0]]
    measured = Measured(
        method=recipe.model.weight_quantizer,
        correct=last.test.correct,
        total=last.test.total,
        to_positive=sum(sum(series.to_positive) for series in flips.layers.values()),
        to_negative=sum(sum(series.to_negative) for series in flips.layers.values()),
        filters=sum(layer.filters for layer in layers),
        exact_filters=sum(int((layer.positive == half).sum()) for layer, half in zip(layers, halves, strict=True)),
        entropy=entropy.network[-1],
        attainable=sum(layer.filters * attainable_entropy(layer.connections) for layer in layers)
        / sum(layer.filters for layer in layers),
        steps=entropy.steps,
        entropies=entropy.network,
        filter_to_positive=one.to_positive,
        filter_to_negative=one.to_negative,
        seconds=sum(record.seconds for record in result.history.epochs),
    )
    write_atomically(stored, json.dumps(vars(measured)).encode())
    return measured
