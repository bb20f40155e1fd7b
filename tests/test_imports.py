"""Packages import each other through ``__init__``: inner modules can then be moved without touching other packages."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "equalbits"
MOST = 2


def deep_imports() -> list[str]:
    found = []
    for path in sorted({*SRC.rglob("*.py")} - {SRC / "__init__.py"}):  # the root is the index of all packages
        package = path.relative_to(SRC).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                parts = module.split(".")
                if parts[0] == "equalbits" and len(parts) > 2 and parts[1] != package:
                    found.append(f"{path.relative_to(SRC)}:{node.lineno} {module}")
    return found


def test_few_imports_reach_into_the_inner_modules_of_another_package():
    found = deep_imports()
    assert len(found) <= MOST, "\n".join(found)
