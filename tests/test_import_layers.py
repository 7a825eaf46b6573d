"""Which parts of the package may import which: docs/architecture.md has the table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fusedops"

#: Each module or folder of the package, and what else of the package it may import.
MAY_IMPORT = {
    "ops": set(),
    "config": set(),
    "reference": set(),
    "parallel": set(),
    "_arguments": {"ops"},
    "functional": {"ops", "_arguments"},
    "nn": {"functional", "_arguments"},
    "graph": {"ops", "config"},
    "backend": {"graph"},
    "export": {"graph"},
    "integrations": {"export"},
    "__main__": {"cli"},
}
#: The package itself imports its parts, and the command line all of them.
MAY_IMPORT_ALL = {"__init__", "cli"}


def imported_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(source: str) -> set[str]:
    """The modules and folders of the package that a source imports from."""
    names = (name.split(".") for name in imported_names(source))
    return {name[1] for name in names if name[0] == "fusedops" and len(name) > 1}


def sources(part: str) -> list[Path]:
    module = PACKAGE / f"{part}.py"
    return [module] if module.exists() else sorted((PACKAGE / part).rglob("*.py"))


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_what_lies_below_it_alone(part):
    for source in sources(part):
        more = parts_imported(source.read_text()) - MAY_IMPORT[part] - {part}
        assert not more, f"{source.relative_to(PACKAGE)} imports {', '.join(sorted(more))}"


def test_nothing_but_its_entry_point_imports_the_command_line():
    for source in PACKAGE.rglob("*.py"):
        if PACKAGE / "cli" not in source.parents and source.name != "__main__.py":
            assert "cli" not in parts_imported(source.read_text()), source


def test_every_part_has_its_place():
    found = {path.stem for path in PACKAGE.glob("*.py")}
    found |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found == set(MAY_IMPORT) | MAY_IMPORT_ALL


def test_an_import_of_another_part_is_found():
    assert parts_imported("from fusedops.graph.rewriting.rewriter import x") == {"graph"}
    assert parts_imported("def f():\n    import fusedops.cli.bench") == {"cli"}
    assert parts_imported("from fusedops import config\nimport torch") == {"config"}
