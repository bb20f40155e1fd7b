"""Docstrings begin with a verb or a noun phrase, and a class name means one thing."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "equalbits"
RELATIVE = re.compile(r"(What|Which|How|Where|Whether|Who|When|Whose|Why)\b")


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(SRC), node


def test_no_docstring_begins_with_a_relative_clause() -> None:
    found = []
    for path, node in nodes():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if RELATIVE.match(first):
                found.append(f"{path}:{getattr(node, 'lineno', 1)} {first}")
    assert not found, "\n".join(found)


def test_public_class_names_are_unique() -> None:
    defined = defaultdict(list)
    for path, node in nodes():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            defined[node.name].append(str(path))
    assert not {name: paths for name, paths in defined.items() if len(paths) > 1}
