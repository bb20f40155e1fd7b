"""The documentation site builds without a warning, names every page, and loads nothing from other hosts."""

import logging
import re
from pathlib import Path
from types import ModuleType

import pytest

import equalbits as eb

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in SOURCES)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    warnings = []
    counter = logging.Handler(logging.WARNING)
    counter.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("mkdocs").addHandler(counter)
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    logging.getLogger("mkdocs").removeHandler(counter)
    assert warnings == []
    return folder


def test_the_navigation_names_every_page_once():
    named = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(named) == PAGES


def test_the_python_reference_has_every_name_of_the_root_and_of_the_pages():
    reference = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    root = {name for name in dir(eb) if name[0] != "_" and not isinstance(getattr(eb, name), ModuleType)}
    assert root == set(re.findall(r"^\| \[`eb\.(\w+)`\]", reference, flags=re.MULTILINE))
    pages = [*SOURCES, ROOT / "README.md", *(ROOT / "examples").glob("*.py")]
    imports = re.findall(r"from equalbits\.(\w+) import ([\w, ]+)", "".join(page.read_text() for page in pages))
    names = {(package, name) for package, names in imports for name in names.split(", ")} - {("cli", "main")}
    assert len(names) > 20
    assert [
        pair for pair in sorted(names) if not re.search(rf"::: equalbits\.{pair[0]}\.\S*\b{pair[1]}\n", reference)
    ] == []


def test_every_page_is_built(site):
    assert {page.removesuffix(".md") + ".html" for page in PAGES} <= {
        path.relative_to(site).as_posix() for path in site.rglob("*.html")
    }


def test_no_page_loads_anything_from_another_host(site):
    loaded = r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="?(https?://[^"\s>]+)'
    for page in site.rglob("*.html"):
        assert re.findall(loaded, page.read_text()) == [], page


def test_every_picture_has_an_alternative_text(site):
    for page in site.rglob("*.html"):
        for picture in re.findall(r"<img\b[^>]*>", page.read_text()):
            assert re.search(r'\balt="[^"]{20,}"', picture), f"{page.name}: {picture}"


def test_the_python_reference_shows_examples_as_code(site):
    page = (site / "api" / "nn.html").read_text()
    assert "&gt;&gt;&gt;" in page
    assert "<blockquote>" not in page  # doctests that Markdown took for quotations
    assert ":class:`" not in page
