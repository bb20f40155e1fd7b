"""A section of the report for each kind of thing: pictures, tables, curves, and what made them."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits.paper.claims import HEADER as CLAIM_HEADER
from equalbits.paper.claims import Claim
from equalbits.report.comparison import HEADER as COMPARE_HEADER
from equalbits.report.comparison import caution, cells, ranked, remarks, usual_speed
from equalbits.report.scan import Found, Run
from equalbits.report.charts import Curve, chart
from equalbits.paper.item import get_item, setting_in_words
from equalbits.report.html import Html, details, join, table, tag
from equalbits.paper.parts import command
from equalbits.report.bit_tables import bits_of_run, bits_of_runs
from equalbits.report.run_tables import curves_of, group_of, made_by, picture, runs_table, scores_of, setting_words
from equalbits.recipes import Comparison, own_settings

Section = Callable[[Found], list[Html]]
_NAMED = {"item": "Item", "compare": "Comparison", "sweep": "Sweep", "run": "Run", "pictures": "Runs of"}


def title_of(found: Found, folder: Path) -> str:
    """What a section is called."""
    if found.kind == "item" and found.facts:
        return f"{found.facts['item']}: {found.facts['title']}"
    if found.kind == "compare" and found.facts:
        return f"Methods on {found.facts['recipe']}"
    if found.kind == "sweep" and found.facts:
        return f"Sweep of {found.facts['recipe']}{_methods(found.runs)}"
    if found.kind == "run" and found.facts:
        recipe = found.facts["recipe"]
        changed = [
            f"{name.split('.')[-1]}={setting_words(value)}"
            for name, value in own_settings(recipe).items()
            if name != "model.weight_quantizer"
        ]
        words = [recipe["name"], method_of(recipe), *changed[:4], *(["…"] if changed[4:] else [])]
        return ", ".join([*words, f"seed {found.facts['seed']}"])
    where = found.path.relative_to(folder).as_posix()
    name = found.path.resolve().name if where == "." else where
    return f"{_NAMED[found.kind]} {name}"


def method_of(recipe: Mapping[str, Any]) -> str:
    """A run's weight quantizer, by which it is told from others."""
    return recipe["model"]["weight_quantizer"] or "real weights"


def _methods(runs: Sequence[Run]) -> str:
    """The methods that runs train, each once."""
    found = list(dict.fromkeys(method_of(run.facts["recipe"]) for run in runs if run.facts.get("recipe")))
    return f" by {', '.join(found[:4])}{', …' if found[4:] else ''}" if found else ""


def item(found: Found) -> list[Html]:
    """A figure or table of the paper beside ours."""
    facts, parts = found.facts, []
    if setting := setting_in_words(get_item(facts["item"]), facts):
        parts.append(tag("p", setting))
    parts += [
        picture(path, f"{facts['item']}: {facts['title']}; the table says what it shows") for path in found.pictures
    ]
    claims = [Claim(**claim) for claim in found.claims]
    rows = [[_verdict(cell, claim) if at == 4 else cell for at, cell in enumerate(claim.cells())] for claim in claims]
    words = ("paper", "ours", "agrees", "within")
    parts.append(table(CLAIM_HEADER, rows, caption="The paper's claims and ours", words=words, cards=True))
    if facts.get("notes"):
        parts.append(tag("ul", *(tag("li", note) for note in facts["notes"])))
    seeds = facts.get("seeds") or facts["asked"]["seeds"]
    seconds = max(facts["seconds"], facts.get("trained", {}).get("seconds", 0.0))  # earlier calls trained, too
    known = {**facts, "seeds": seeds, "seconds": seconds, "command": _command_of_item(facts, found.path)}
    parts.append(made_by(known, settings=facts["asked"]["settings"]))
    return parts + _of_runs(found.runs, found.path, folded=True)


def _verdict(cell: str, claim: Claim) -> Html:
    kind = {True: "yes", False: "no", None: None}[claim.agrees]
    return tag("span", cell, class_=kind)


def _command_of_item(facts: Mapping[str, Any], path: Path) -> str:
    """The command that measures an item again, into the folder as it was named."""
    return command(facts["item"], facts["asked"], out=path.as_posix())


def compare(found: Found) -> list[Html]:
    """Methods side by side; one that has not ended has no table yet, and shows its runs as a sweep does."""
    if not found.facts:
        return sweep(found)
    comparison = Comparison.from_dict(found.facts)
    parts = [
        picture(path, "accuracy, entropy, flips, exact filters, seconds and packed size of every method")
        for path in found.pictures
    ]
    parts.append(tag("p", "The same net, data, start and batches for every method. ", caution(comparison)))
    usual = usual_speed(comparison)
    rows = [cells(row, usual=usual) for row in ranked(comparison)]
    parts.append(table(COMPARE_HEADER, rows, caption="Methods, best first"))
    parts += [tag("p", line) for line in remarks(comparison)]
    lost = [f"{row.method}, seed {seed}: {why}" for row in comparison.rows for seed, why in row.failed.items()]
    parts.append(tag("ul", *(tag("li", line) for line in lost)) if lost else Html(""))
    runs = found.judged
    entropy = [
        Curve(run.facts["method"], f"{run.facts['method']}, seed {run.facts['seed']}", list(enumerate(values)))
        for run in runs
        if (values := run.facts.get("measured", {}).get("entropy"))
    ]
    parts.append(tag("div", chart("Entropy of the weights, bits", entropy, unit=" bits", digits=5), class_="charts"))
    first: dict[str, Any] = next((run.facts for run in runs if run.facts), {})
    known = {**found.facts, "command": _commands(run.facts for run in runs), "commit": first.get("commit")}
    how = tag("ul", *(tag("li", f"{name.replace('_', ' ')}: {words}.") for name, words in found.facts["how"].items()))
    return [*parts, made_by(known, settings=found.facts["settings"]), details("How each number was taken", how)]


def sweep(found: Found) -> list[Html]:
    """Combinations of settings, each with several seeds."""
    runs = found.judged
    so_far = "the runs that ended are shown." if runs else "its learning rates are being tuned."
    parts = [] if found.facts else [tag("p", tag("strong", "Not finished: "), so_far)]
    cases: dict[str, list[Run]] = {}
    for run in runs:
        if run.facts and not run.trouble and "failed" not in run.facts:
            cases.setdefault(group_of(run, found.path), []).append(run)
    rows = [_case_row(name, some) for name, some in cases.items()]
    header = ("case", "last epoch, %", "n", "best epoch, %", "seconds a run")
    caption = "Test accuracy: mean ± sample standard deviation over seeds"
    parts += [table(header, rows, caption=caption)] if rows else []
    parts += [picture(path, path.stem) for path in found.pictures]
    of_runs = [run.facts for some in cases.values() for run in some]
    first: dict[str, Any] = next(iter(of_runs), {})
    seeds = sorted({facts["seed"] for facts in of_runs})
    known = {**first, **found.facts, "seeds": seeds, "command": _commands(of_runs), "seconds": None}
    known["device"] = found.facts.get("devices", first.get("device"))
    parts += _of_runs(runs, found.path, folded=False)
    return [*parts, made_by(known, settings=found.facts.get("settings", {}))]


def _commands(of_runs: Iterable[Mapping[str, Any]]) -> str:
    """The commands that made the runs of a folder, a line each: one may have gone on with what another began."""
    return "\n".join(dict.fromkeys(filter(None, (facts.get("command") for facts in of_runs))))


def _case_row(name: str, runs: Sequence[Run]) -> list[str]:
    last, best = ([scores_of(run, which) for run in runs] for which in ("last", "best"))
    spread = f" ± {statistics.stdev(last):.2f}" if len(last) > 1 else ""
    seconds = statistics.fmean(run.facts["seconds"] for run in runs)
    return [
        name,
        f"{statistics.fmean(last):.2f}{spread}",
        str(len(runs)),
        f"{statistics.fmean(best):.2f}",
        f"{seconds:.1f}",
    ]


def run(found: Found) -> list[Html]:
    """One run: scores, curves, and its recipe."""
    (one,) = found.runs
    parts = [_scores(one)] if one.facts and "failed" not in one.facts else [_unfinished(one)]
    parts.append(bits_of_run(one))
    parts.append(tag("div", *curves_of([one], found.path, split=True), class_="charts"))
    parts += [picture(path, path.stem) for path in found.pictures]
    parts.append(made_by(one.facts | {"seeds": None}, settings=one.facts.get("recipe", {})))
    return [*parts, details("The recipe", tag("pre", one.recipe))] if one.recipe else parts


def _unfinished(one: Run) -> Html:
    if why := one.diverged or one.facts.get("failed"):
        return tag("p", tag("strong", "Diverged: "), why)
    count = len(one.epochs)
    done = f"{count} epoch{'s are' if count > 1 else ' is'} done." if count else "no epoch is done yet."
    return tag("p", tag("strong", "Not finished: "), done)


def _scores(one: Run) -> Html:
    rows = []
    for which in ("last", "best"):
        record = one.facts[which]
        if record is None:
            continue
        test, train = record["test"], record["train"]
        rows.append(
            [
                which,
                str(record["epoch"]),
                f"{100 * test['correct'] / test['total']:.2f} %",
                f"{test['correct']:,} of {test['total']:,}",
                f"{test['loss_sum'] / test['total']:.4f}",
                f"{100 * train['correct'] / train['total']:.2f} %",
                f"{train['loss_sum'] / train['total']:.4f}",
            ]
        )
    header = ("which", "epoch", "test accuracy", "right", "test loss", "train accuracy", "train loss")
    return table(header, rows, caption="The last epoch, and the best by the test images themselves")


def pictures(found: Found) -> list[Html]:
    """Runs that one picture is drawn from."""
    shown = [picture(path, f"{path.stem}, drawn from the runs below") for path in found.pictures]
    first: dict[str, Any] = next((run.facts for run in found.runs if run.facts), {})
    known = {**first, "seconds": sum(run.facts.get("seconds", 0.0) for run in found.runs)}
    return [*shown, *_of_runs(found.runs, found.path, folded=False), made_by(known, settings={})]


def _of_runs(runs: Sequence[Run], within: Path, *, folded: bool) -> list[Html]:
    """The curves and the scores of several runs."""
    if not runs:
        return []
    drawn = tag("div", *curves_of(runs, within, split=False), class_="charts")
    bits, listed = bits_of_runs(runs, within), runs_table(runs, within)
    words = f"All {len(runs)} runs" if len(runs) > 1 else "Its run"
    return [details(words, join([drawn, bits, listed]))] if folded else [bits, drawn, details(words, listed)]


SECTIONS: Mapping[str, Section] = {"item": item, "compare": compare, "sweep": sweep, "run": run, "pictures": pictures}
