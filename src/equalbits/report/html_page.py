"""``equalbits report``: one self-contained HTML page of an output folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from equalbits._extras import install_hint
from equalbits._files import write_atomically
from equalbits._text import one_line
from equalbits.report.charts import data_uri, suits_dark
from equalbits.report.find_outputs import Entry, scan
from equalbits.report.page_sections import SECTIONS, title_of
from equalbits.report.tables import ReportTable

if TYPE_CHECKING:
    from jinja2 import Environment

_TITLE = "equalbits report: "
_KINDS = {"item": "item", "compare": "comparison", "sweep": "sweep", "run": "run"}


@dataclass(frozen=True)
class _Section:
    """Rendered section of an entry; ``error`` in its place where the entry could not be read."""

    entry: Entry
    title: str
    where: str
    body: str = ""
    error: str = ""

    @property
    def errors(self) -> int:
        """Number of runs that could not be read, or 1 where the whole section could not."""
        return sum(bool(run.error) for run in self.entry.runs) or bool(self.error)


def write_report(folder: Path, out: Path | None = None, *, log: Callable[[str], None] = lambda line: None) -> Path:
    """Write the report of ``folder`` to ``out`` (default: report.html in it) and return its path.

    A report.html that another command wrote, such as the demo's, is replaced only if ``out`` names it. ``log`` receives
    a line where something could not be read.
    """
    folder = Path(folder)
    path = Path(out) if out else folder / "report.html"
    page, errors = _render(folder)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file name, as in --out page.html")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist: create it first, or give another")
    if out is None and path.exists() and f"<title>{_TITLE}" not in path.read_text(errors="replace"):
        raise ValueError(f"{path} was not written by report: give another file with --out, or this one to replace it")
    write_atomically(path, page.encode(errors="replace"))  # a folder's name may hold bytes that are no text
    if errors:
        log(f"{errors} thing{'s' if errors > 1 else ''} could not be read: see the page")
    return path


def report_page(folder: Path) -> str:
    """Return the report of a folder as HTML; the same folder gives the same page."""
    return _render(Path(folder))[0]


def _render(folder: Path) -> tuple[str, int]:
    """Return the page, and how many things could not be read."""
    templates = _templates()
    sections = [_section(entry, folder, templates) for entry in scan(folder)]
    name = folder.resolve().name
    page = templates.get_template("page.html").render(
        title=f"{_TITLE}{name}",
        name=name,
        sections=sections,
        contents=_contents(sections) if len(sections) > 1 else None,
    )
    return page, sum(section.errors for section in sections)


def _templates() -> "Environment":
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise ValueError(f"report needs {package}: {install_hint('plot')}")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("equalbits.report")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters["data_uri"] = data_uri
    found.filters["suits_dark"] = suits_dark
    return found


def _section(entry: Entry, folder: Path, templates: "Environment") -> _Section:
    """Render an entry; a damaged one becomes one line, and the others are shown."""
    where = entry.path.relative_to(folder).as_posix()
    kind = "sweep" if entry.kind == "compare" and not entry.facts else entry.kind  # no table yet: show the runs
    try:
        title = title_of(entry, folder)
        if entry.error:
            return _Section(entry, title, where, error=entry.error)
        body = templates.get_template(f"{kind}.html").render(SECTIONS[kind](entry), pictures=entry.pictures)
        return _Section(entry, title, where, body)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError, OSError) as error:
        line = f"{entry.path} is not a valid {_KINDS[entry.kind]} ({type(error).__name__}: {one_line(error)})"
        return _Section(entry, entry.path.name, where, error=line)


def _contents(sections: Sequence[_Section]) -> ReportTable:
    """A row per section; the template links the first column."""
    header = ("what", "where", "kind", "runs", "accuracy, %", "claims")
    rows = []
    for section in sections:
        entry = section.entry
        counts = [str(len(entry.runs)), _accuracy_range(entry), _count_claims(entry)]
        rows.append([section.title, section.where, _KINDS[entry.kind], *counts])
    return ReportTable("Contents", header, rows, ("where", "kind", "claims"), cards=True)


def _accuracy_range(entry: Entry) -> str:
    """Return the lowest and highest test accuracy after the last epoch; a dash for an item, which has claims."""
    runs = [run.finished for run in entry.scored_runs if run.finished and entry.kind != "item"]
    try:
        scores = sorted(run.scored[0][1].accuracy for run in runs)
    except ArithmeticError:  # the entry's section names the error
        scores = []
    if not scores:
        return "–"
    low, high = f"{scores[0]:.2f}", f"{scores[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def _count_claims(entry: Entry) -> str:
    """Return how many claims agree, do not, and are undecided.

    >>> _count_claims(Entry("item", Path(), {}, claims=({"agrees": True}, {"agrees": True}, {"agrees": None})))
    '2 agree, 1 not decided'
    """
    verdicts = [claim.get("agrees") for claim in entry.claims]
    counts = {"agree": verdicts.count(True), "do not": verdicts.count(False), "not decided": verdicts.count(None)}
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count) or "–"
