"""``equalbits report``: one page of whatever a folder holds, that needs nothing beside it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from equalbits._files import write_atomically
from equalbits.report.scan import Found, contents
from equalbits.report.html import Html, table, tag, whole_page
from equalbits.report.run_tables import scores_of
from equalbits.report.sections import SECTIONS, title_of

_TITLE = "equalbits report: "
_WORDS = {"item": "item", "compare": "comparison", "sweep": "sweep", "pictures": "set of runs", "run": "run"}


def write_report(folder: Path, out: Path | None = None, *, log: Callable[[str], None] = lambda line: None) -> Path:
    """Write the page of ``folder``, as report.html in it unless ``out`` says otherwise; give back where it lies.

    A report.html that something else wrote, as the demo does, is kept unless ``out`` names it. ``tell`` hears of what
    could not be read.
    """
    folder = Path(folder)
    path = Path(out) if out else folder / "report.html"
    page, unread = _page(folder)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file for the page, as in --out page.html")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} is not there: make it first, or name another")
    if out is None and path.exists() and f"<title>{_TITLE}" not in path.read_text(errors="replace"):
        raise ValueError(f"{path} is a page that report did not write: name another with --out, or this to replace it")
    write_atomically(path, page.encode(errors="replace"))  # a folder's name may be no text
    if unread:
        log(f"{unread} thing{'s' if unread > 1 else ''} could not be read: see the page")
    return path


def report_page(folder: Path) -> str:
    """The page as text; the same folder gives the same page."""
    return _page(folder)[0]


def _page(folder: Path) -> tuple[str, int]:
    """The page, and how many things could not be read."""
    found = contents(folder)
    name = folder.resolve().name
    sections = [_section(each, folder, number) for number, each in enumerate(found)]
    unread = sum(
        sum(bool(run.trouble) for run in each.runs) or broken
        for each, (_, _, broken) in zip(found, sections, strict=True)
    )
    body = [tag("h1", name)]
    if len(found) > 1:
        titles = [title for title, _, _ in sections]
        body += [tag("p", f"Holds {_counted(found)}.", class_="note"), _overview(found, titles, folder)]
    return whole_page(f"{_TITLE}{name}", *body, *(section for _, section, _ in sections)), unread


def _counted(found: Sequence[Found]) -> str:
    """What there is, in words."""
    kinds = [each.kind for each in found]
    words = [
        f"{kinds.count(kind)} {_WORDS[kind] if kinds.count(kind) == 1 else _WORDS[kind].replace('set', 'sets', 1)}"
        + ("s" if kinds.count(kind) > 1 and kind != "pictures" else "")
        for kind in _WORDS
        if kind in kinds
    ]
    return " and ".join(", ".join(words).rsplit(", ", 1))


def _overview(found: Sequence[Found], titles: Sequence[str], folder: Path) -> Html:
    """A row for each thing, leading to its section."""
    rows = []
    for number, (each, title) in enumerate(zip(found, titles, strict=True)):
        link = tag("a", title, href=f"#s{number}")
        where = each.path.relative_to(folder).as_posix()
        row = [link, tag("code", where), _WORDS[each.kind], str(len(each.runs)), _accuracy(each), _claims(each)]
        rows.append(row)
    header = ("what", "where", "kind", "runs", "accuracy, %", "claims")
    return tag(
        "nav",
        table(header, rows, caption="Contents", words=("where", "kind", "claims"), cards=True),
        aria_label="Contents",
    )


def _accuracy(found: Found) -> str:
    """Test images right after the last epoch, from the least run to the most; an item has claims instead."""
    ended = [run for run in found.judged if run.facts and not run.trouble and run.facts.get("last")]
    try:
        scores = sorted(scores_of(run, "last") for run in ended if found.kind != "item")
    except (KeyError, TypeError, ArithmeticError):  # its section says what is wrong
        scores = []
    if not scores:
        return "–"
    low, high = f"{scores[0]:.2f}", f"{scores[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def _claims(found: Found) -> str:
    """How many claims agree, do not, and are not decided.

    >>> _claims(Found("item", Path(), {}, claims=({"agrees": True}, {"agrees": True}, {"agrees": None})))
    '2 agree, 1 not decided'
    """
    verdicts = [claim.get("agrees") for claim in found.claims]
    counts = {"agree": verdicts.count(True), "do not": verdicts.count(False), "not decided": verdicts.count(None)}
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count) or "–"


def _section(found: Found, folder: Path, number: int) -> tuple[str, Html, bool]:
    """A thing's title, its section, and whether it is broken; such a one does not take the others down."""
    broken = bool(found.trouble)
    try:
        heading = title_of(found, folder)
        inside = tag("div", *SECTIONS[found.kind](found)) if not found.trouble else _trouble(found.trouble)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError, OSError) as error:
        heading, why, broken = found.path.name, " ".join(str(error).split()), True
        inside = _trouble(f"{found.path} is no proper {_WORDS[found.kind]} ({type(error).__name__}: {why})")
    where = found.path.relative_to(folder).as_posix()
    place = tag("p", "in ", tag("code", where), class_="note") if where not in (".", heading) else ""
    name = f"s{number}"
    return heading, tag("section", tag("h2", heading, id=name), place, inside, aria_labelledby=name), broken


def _trouble(line: str) -> Html:
    return tag("p", tag("strong", "Could not be read: "), line, class_="no")
