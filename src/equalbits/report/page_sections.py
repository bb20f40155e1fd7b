"""Values of the templates: a function per kind of entry returns what its template shows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from equalbits._claim import HEADER as CLAIM_HEADER
from equalbits._claim import Claim
from equalbits._toml import flatten
from equalbits.recipes import Comparison, RunRecord, own_settings
from equalbits.report.answers import answers_of
from equalbits.report.charts import Chart, Curve, dot_chart, line_chart
from equalbits.report.comparison import ALT_TEXT, HEADER, describe_precision, failures, remarks, table_rows
from equalbits.report.find_outputs import Entry, Facts, RunFiles
from equalbits.report.tables import (
    ReportTable,
    case_name,
    case_table,
    cases_of,
    epoch_table,
    layer_bits,
    run_bits,
    run_table,
    score_table,
    verdict,
)

_TITLES = {"item": "Item", "compare": "Comparison", "sweep": "Sweep", "run": "Run"}


class Origin(NamedTuple):
    """Recipe, seeds, device and versions behind the numbers, the commands that made them, and all settings."""

    facts: Mapping[str, str]
    command: str
    settings: ReportTable | None


def title_of(entry: Entry, folder: Path) -> str:
    """Return the heading of an entry's section."""
    facts = entry.facts
    if entry.kind == "item" and facts:
        return f"{facts['item']}: {facts['title']}"
    if entry.kind == "compare" and facts:
        return f"Methods on {facts['recipe']}"
    if entry.kind == "sweep" and facts:
        return f"Sweep of {facts['recipe']}{_varied(entry.runs)}{_methods(entry.runs)}"
    if entry.kind == "run" and entry.runs and (record := entry.runs[0].record):
        own = own_settings(record.recipe.as_dict())
        settings = {name: value for name, value in own.items() if name != "model.weight_quantizer"}
        changed = [f"{_short(name)}={_setting(value)}" for name, value in settings.items()]
        words = [record.recipe.name, _method(record), *changed[:4], *(["…"] if changed[4:] else [])]
        return ", ".join([*words, f"seed {record.seed}"])
    where = entry.path.relative_to(folder).as_posix()
    return f"{_TITLES[entry.kind]} {entry.path.resolve().name if where == '.' else where}"


def _method(run: RunRecord) -> str:
    return run.recipe.model.weight_quantizer or "real weights"


def _short(name: str) -> str:
    """Return a setting's name without its group, unless several groups have one of that name."""
    return name if name.endswith(".name") else name.split(".")[-1]


def _varied(runs: Sequence[RunFiles]) -> str:
    """Return which settings differ between the runs of a sweep, besides their methods and seeds."""
    recipes = [flatten(run.record.recipe.as_dict()) for run in runs if run.record]
    names = dict.fromkeys(
        name for recipe in recipes for name in recipe if name not in ("seed", "model.weight_quantizer")
    )
    varied = [_short(name) for name in names if len({repr(recipe.get(name)) for recipe in recipes}) > 1]
    return f" over {', '.join(varied)}" if varied else ""


def _methods(runs: Sequence[RunFiles]) -> str:
    found = list(dict.fromkeys(_method(run.record) for run in runs if run.record))
    return f", {', '.join(found[:4])}{', …' if found[4:] else ''}" if found else ""


def _run(entry: Entry) -> dict[str, object]:
    (run,) = entry.runs
    count = len(run.epochs)
    losses, accuracies = ([_curve(s, run, s, value) for s in ("train", "test")] for value in ("loss", "accuracy"))
    return {
        "scores": score_table(run.finished) if run.finished else None,
        "diverged": run.record.error if run.record else "",
        "state": f"{count} epoch{'s are' if count > 1 else ' is'} done." if count else "no epoch is done yet.",
        "answers": answers_of(run.path),
        "bits": layer_bits(run),
        "charts": _charts("Loss", losses, "Accuracy, %", accuracies),
        "epochs": epoch_table(run) if run.epochs else None,
        "origin": _origin(_facts(run.record), run.record.recipe.as_dict() if run.record else {}),
        "recipe": run.recipe,
    }


def _sweep(entry: Entry) -> dict[str, object]:
    runs = entry.scored_runs
    finished = [run.finished for run in runs if run.finished]
    first, seeds = _facts(finished[0] if finished else None), sorted({run.seed for run in finished})
    facts = {**first, **entry.facts, "seeds": seeds, "command": _commands(finished), "seconds": None}
    facts["device"] = entry.facts.get("devices", first.get("device"))
    state = "the runs that ended are shown." if runs else "its learning rates are being tuned."
    cases = cases_of(runs, entry.path).items()
    scores = {name: [run.scored[0][1].accuracy for run in some] for name, some in cases}
    return {
        "state": "" if entry.facts else state,
        "cases": case_table(runs, entry.path),
        "dots": [dot_chart("Test accuracy of the last epoch: a dot per seed, a line at the mean", scores)],
        **_of_runs(runs, entry.path),
        "origin": _origin(facts, entry.facts.get("settings", {})),
    }


def _compare(entry: Entry) -> dict[str, object]:
    comparison = Comparison.from_dict(entry.facts)
    finished = [run.finished for run in entry.scored_runs if run.finished]
    entropies = [(run.method, (run.measured or {}).get("entropy", [])) for run in finished]
    curves = [Curve(method, list(enumerate(values))) for method, values in entropies if values]
    return {
        "alt": ALT_TEXT,
        "precision": describe_precision(comparison),
        "methods": ReportTable("Methods, best first", HEADER, table_rows(comparison)),
        "remarks": remarks(comparison),
        "failed": failures(comparison),
        "charts": [line_chart("Entropy of the weights, bits", curves, unit=" bits", digits=5)],
        "origin": _origin({**entry.facts, "command": _commands(finished)}, entry.facts["settings"]),
        "definitions": entry.facts["how"],
    }


def _item(entry: Entry) -> dict[str, object]:
    facts, asked = entry.facts, entry.facts["asked"]
    origin = {
        **facts,
        "seeds": facts.get("seeds") or asked["seeds"],
        "seconds": max(facts["seconds"], facts.get("trained", {}).get("seconds", 0.0)),  # earlier calls trained, too
    }
    return {
        "setting": facts.get("setting", ""),
        "alt": f"{facts['item']}: {facts['title']}; the table says what it shows",
        "claims": _claim_table(entry.claims),
        "notes": facts.get("notes", []),
        "origin": _origin(origin, asked["settings"]),
        **_of_runs(entry.runs, entry.path),
    }


def _claim_table(claims: Sequence[Facts]) -> ReportTable:
    rows = []
    for claim in (Claim(**facts) for facts in claims):
        cells = dict(zip(CLAIM_HEADER, claim.cells(), strict=True))
        rows.append([*{**cells, "agrees": verdict(cells["agrees"], claim.agrees)}.values()])
    words = ("paper", "ours", "agrees", "decided by")
    return ReportTable("The paper's claims and ours", CLAIM_HEADER, rows, words, cards=True)


def _of_runs(runs: Sequence[RunFiles], within: Path) -> dict[str, object]:
    """Return curves, bits and scores of several runs."""
    if not runs:
        return {"charts": [], "bits": None, "runs": None}
    losses = [_curve(case_name(run, within), run, "train", "loss") for run in runs]
    accuracies = [_curve(case_name(run, within), run, "test", "accuracy") for run in runs]
    charts = _charts("Training loss", losses, "Test accuracy, %", accuracies)
    return {"charts": charts, "bits": run_bits(runs, within), "runs": run_table(runs, within)}


def _charts(loss: str, losses: Sequence[Curve], accuracy: str, accuracies: Sequence[Curve]) -> list[Chart | None]:
    return [line_chart(loss, losses, digits=4), line_chart(accuracy, accuracies, unit=" %")]


def _curve(group: str, run: RunFiles, split: str, value: str) -> Curve:
    """Return the loss or the accuracy of each epoch of a run, on the train or the test split."""
    scores = [(record.epoch, getattr(record, split)) for record in run.epochs]
    return Curve(group, [(epoch, getattr(score, value)) for epoch, score in scores if score is not None])


def _commands(runs: Iterable[RunRecord]) -> str:
    """Return the commands that made the runs, a line each: one may have resumed what another began."""
    return "\n".join(dict.fromkeys(run.command for run in runs if run.command))


def _facts(run: RunRecord | None) -> Facts:
    return {} if run is None else {**vars(run), "seed": run.seed, "recipe": run.recipe.name}


def _origin(facts: Facts, settings: Facts) -> Origin | None:
    """Return what is recorded about the making of the numbers; None where nothing is."""
    seeds, seconds = facts.get("seeds"), facts.get("seconds")
    shown = {
        "recipe": _text(facts.get("recipe")),
        "seeds" if seeds else "seed": f"{_text(seeds)} (n = {len(seeds)})" if seeds else _text(facts.get("seed")),
        "device": _text(facts.get("device")),
        "processes": _text(facts.get("processes")),
        "time": f"{seconds:,.1f} s" if seconds else "",
        "versions": _versions(facts.get("versions")),
    }
    rows = [[name, _setting(value)] for name, value in flatten(dict(settings)).items() if value not in (None, "")]
    table = ReportTable("As recorded", ("setting", "value"), rows, ("value",)) if rows else None
    known = {name: value for name, value in shown.items() if value}
    command = facts.get("command") or ""
    return Origin(known, command, table) if known or command or table else None


def _setting(value: object) -> str:
    """Return a setting's value as ``--set`` parses it."""
    return value if isinstance(value, str) else json.dumps(value)


def _versions(found: object) -> str:
    if isinstance(found, Mapping):
        return " · ".join(f"{name} {version}" for name, version in found.items())
    return "; ".join(map(_versions, found)) if isinstance(found, list) else _text(found)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


SECTIONS: Mapping[str, Callable[[Entry], dict[str, object]]] = {
    "item": _item,
    "compare": _compare,
    "sweep": _sweep,
    "run": _run,
}
