"""Docstrings begin with a verb or a noun phrase, and a class name means one thing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "equalbits"
RELATIVE = re.compile(r"(What|Which|How|Where|Whether|Who|When|Whose|Why)\b")

#: Packages whose docstrings are yet to be rewritten. Take a package out when it is done; none is added.
NOT_YET_REWRITTEN: set[str] = set()

#: Class names that still have two meanings. Take a name out when it is done; none is added.
NOT_YET_UNIQUE: set[str] = set()


def modules() -> list[tuple[Path, ast.Module]]:
    return [(path.relative_to(SRC), ast.parse(path.read_text())) for path in sorted(SRC.rglob("*.py"))]


@pytest.mark.parametrize("package", sorted({path.parts[0] for path, _ in modules()} - NOT_YET_REWRITTEN))
def test_no_docstring_begins_with_a_relative_clause(package: str) -> None:
    found = []
    for path, tree in modules():
        for node in ast.walk(tree) if path.parts[0] == package else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if RELATIVE.match(first):
                    found.append(f"{path}:{getattr(node, 'lineno', 1)} {first}")
    assert not found, "\n".join(found)


def test_public_class_names_are_unique() -> None:
    defined = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(str(path))
    twice = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert twice.keys() <= NOT_YET_UNIQUE, twice
