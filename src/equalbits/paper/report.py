"""``equalbits report``: one page of whatever a folder holds, that needs nothing beside it."""

from collections.abc import Sequence
from pathlib import Path

from equalbits.paper.contents import Found, contents
from equalbits.paper.page import Html, table, tag, whole_page
from equalbits.paper.report_sections import SECTIONS, title_of
from equalbits.training.checkpoint import write_atomically

_WORDS = {"item": "item", "compare": "comparison", "sweep": "sweep", "pictures": "set of runs", "run": "run"}


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of ``folder``, as report.html in it unless ``out`` says otherwise; give back where it lies."""
    folder = Path(folder)
    path = Path(out) if out else folder / "report.html"
    page = report_page(folder)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file for the page, as in --out page.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


def report_page(folder: Path) -> str:
    """The page as text; the same folder gives the same page."""
    found = contents(folder)
    name = folder.resolve().name
    sections = [_section(each, folder, number) for number, each in enumerate(found)]
    body = [tag("h1", name)]
    if len(found) > 1:
        titles = [title for title, _ in sections]
        body += [tag("p", f"Holds {_counted(found)}.", class_="note"), _overview(found, titles, folder)]
    return whole_page(f"equalbits report: {name}", *body, *(section for _, section in sections))


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
        verdicts = [claim.get("agrees") for claim in each.claims]
        agreed = f"{verdicts.count(True)} of {len(verdicts)}" if verdicts else "–"
        not_decided = str(verdicts.count(None)) if verdicts else "–"
        where = each.path.relative_to(folder).as_posix()
        rows.append([link, tag("code", where), _WORDS[each.kind], str(len(each.runs)), agreed, not_decided])
    header = ("what", "where", "kind", "runs", "claims that agree", "not decided")
    return tag(
        "nav", table(header, rows, caption="Contents", words=("where", "kind"), cards=True), aria_label="Contents"
    )


def _section(found: Found, folder: Path, number: int) -> tuple[str, Html]:
    """A thing's title and its section; one that is broken says so and does not take the others down."""
    try:
        heading = title_of(found, folder)
        inside = tag("div", *SECTIONS[found.kind](found)) if not found.trouble else _trouble(found.trouble)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ZeroDivisionError, OSError) as error:
        heading, why = found.path.name, " ".join(str(error).split())
        inside = _trouble(f"{found.path} is no proper {_WORDS[found.kind]} ({type(error).__name__}: {why})")
    where = found.path.relative_to(folder).as_posix()
    place = tag("p", "in ", tag("code", where), class_="note") if where not in (".", heading) else ""
    name = f"s{number}"
    return heading, tag("section", tag("h2", heading, id=name), place, inside, aria_labelledby=name)


def _trouble(line: str) -> Html:
    return tag("p", tag("strong", "Could not be read: "), line, class_="no")
