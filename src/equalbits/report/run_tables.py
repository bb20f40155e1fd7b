"""What the report's sections share: pictures carried in the page, curves and scores of runs, and what made them."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits.report.scan import Run
from equalbits.report.charts import Curve, chart
from equalbits.report.html import Html, details, facts, join, table, tag
from equalbits.training import flat

_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}


def picture(path: Path, alt: str) -> Html:
    """A picture inside the page. As an image, an SVG can neither run nor fetch anything."""
    inside = base64.b64encode(path.read_bytes()).decode()
    image = tag("img", alt=alt, src=f"data:{_KINDS[path.suffix]};base64,{inside}")
    return tag("figure", image, class_="picture", tabindex="0")  # it can be scrolled to its side, also by the keyboard


def group_of(run: Run, within: Path) -> str:
    """The case a run belongs to: its folder, less the seed's."""
    parts = run.path.relative_to(within).parts
    kept = parts[:-1] if parts and parts[-1].startswith("seed") and len(parts) > 1 else parts
    return "/".join(kept) or run.path.name


def curves_of(runs: Sequence[Run], within: Path, *, split: bool) -> list[Html]:
    """Loss and accuracy over the epochs: of one run train and test apart, of several a colour a case."""
    loss: list[Curve] = []
    accuracy: list[Curve] = []
    for run in runs:
        name = run.path.relative_to(within).as_posix()
        for which in ("train", "test"):
            scores = [(record.epoch, getattr(record, which)) for record in run.epochs]
            scored = [(epoch, score) for epoch, score in scores if score is not None]
            group = which if split else group_of(run, within)
            told = which if split else f"{name}, {which}"
            if split or which == "train":
                loss.append(Curve(group, told, [(epoch, score.loss) for epoch, score in scored]))
            if split or which == "test":
                accuracy.append(Curve(group, told, [(epoch, score.accuracy) for epoch, score in scored]))
    words = ("Loss", "Accuracy, %") if split else ("Training loss", "Test accuracy, %")
    return [chart(words[0], loss, unit="", digits=4), chart(words[1], accuracy, unit=" %")]


def scores_of(run: Run, which: str) -> float:
    """Per cent of the test images right."""
    test = run.facts[which]["test"]
    return float(100 * test["correct"] / test["total"])


def runs_table(runs: Sequence[Run], within: Path) -> Html:
    """A row for each run."""
    rows = []
    for run in runs:
        name = run.path.relative_to(within).as_posix()
        if run.trouble or not run.facts or run.facts.get("last") is None:
            known = run.trouble or run.facts.get("failed") or ("diverged" if run.diverged else "")
            state = known or f"not finished, epochs done: {len(run.epochs)}"
            rows.append([name, str(run.facts.get("seed", "–")), state, "–", "–", "–"])
            continue
        test = run.facts["last"]["test"]
        right = f"{test['correct']:,} of {test['total']:,}"
        best = f"{scores_of(run, 'best'):.2f} (epoch {run.facts['best']['epoch']})"
        seconds = f"{run.facts['seconds']:.1f}"
        rows.append([name, str(run.facts["seed"]), f"{scores_of(run, 'last'):.2f}", right, best, seconds])
    header = ("run", "seed", "last epoch, %", "right", "best epoch, %", "seconds")
    return table(header, rows, caption="Every run's test accuracy")


def made_by(known: Mapping[str, Any], *, settings: Mapping[str, Any]) -> Html:
    """What made the numbers, and the command that makes them again; what was not recorded is left out."""
    seeds = known.get("seeds")
    count = f" (n = {len(seeds)})" if seeds else ""
    recipe = known.get("recipe")
    seconds = known.get("seconds")
    made = [
        ("recipe", recipe.get("name") if isinstance(recipe, Mapping) else recipe),
        ("seeds" if seeds else "seed", ", ".join(map(str, seeds)) + count if seeds else _text(known.get("seed"))),
        ("device", _text(known.get("device"))),
        ("processes", _text(known.get("processes"))),
        ("time", f"{seconds:,.1f} s" if seconds else None),
        ("versions", _versions(known.get("versions"))),
        ("commit", _text(known.get("commit"))),
    ]
    command = known.get("command")
    again = Html("")
    if command:
        again = join([tag("p", "To make it again:", class_="note"), tag("pre", tag("code", command), class_="again")])
    listed = [[name, setting_words(value)] for name, value in flat(dict(settings)).items() if value not in (None, "")]
    all_settings = details("Settings", table(("setting", "value"), listed, caption="As recorded", words=("value",)))
    parts = [facts(made) if any(value for _, value in made) else "", again, all_settings if listed else ""]
    return tag("div", tag("h3", "What made it"), *parts) if any(parts) else Html("")


def setting_words(value: Any) -> str:
    """A setting's value as ``--set`` takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _versions(found: Any) -> str | None:
    if isinstance(found, Mapping):
        return " · ".join(f"{name} {version}" for name, version in found.items())
    return "; ".join(_versions(each) or "" for each in found) if isinstance(found, list) else _text(found)


def _text(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return None if value is None else str(value)
