"""Which parts of the package may import which: docs/architecture.md has the table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fusedops"

#: Each module or folder of the package, and what else of the package it may import.
MAY_IMPORT = {
    "_installation": set(),
    "ops": {"_installation"},
    "config": set(),
    "reference": set(),
    "parallel": set(),
    "_arguments": {"ops"},
    "losses": {"ops", "_arguments"},
    "functional": {"losses", "ops", "_arguments"},
    "nn": {"functional", "losses", "_arguments"},
    "graph": {"_installation", "ops", "config"},
    "backend": {"graph", "config", "_arguments"},
    "export": {"graph"},
    "replacement": {"nn", "graph", "functional"},
    "integrations": {"export", "functional", "ops", "reference"},
    "__main__": {"cli"},
}
#: The same for the packages and modules of graph/.
PARTS_OF_GRAPH = {
    "availability": set(),
    "inductor": set(),
    "kernel_calls": set(),
    "analysis": set(),
    "rule": {"analysis", "availability"},
    "readers": {"analysis", "rule", "availability"},
    "rules": {"analysis", "rule", "readers", "availability"},
    "policy": {"analysis", "rule"},
    "memory": {"analysis"},
    "rewriting": {"analysis", "rule", "rules", "policy", "availability"},
    "fx": {"rewriting"},
    "explain": {"rewriting"},
    "passes": {"rewriting", "policy", "memory", "availability", "inductor", "kernel_calls"},
}
LAYERS = {"fusedops": MAY_IMPORT, "fusedops.graph": PARTS_OF_GRAPH}
#: The package itself imports its parts, and the command line all of them.
MAY_IMPORT_ALL = {"__init__", "cli"}


def imported_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(source: str, package: str = "fusedops") -> set[str]:
    """The modules and folders of a package that a source imports from."""
    names = (name.removeprefix(f"{package}.") for name in imported_names(source) if package in name)
    return {name.split(".")[0] for name in names if not name.startswith("fusedops")}


def sources(part: str, package: Path = PACKAGE) -> list[Path]:
    module = package / f"{part}.py"
    return [module] if module.exists() else sorted((package / part).rglob("*.py"))


@pytest.mark.parametrize("package", LAYERS)
def test_a_part_imports_what_lies_below_it_alone(package):
    root, may_import = PACKAGE.parent.joinpath(*package.split(".")), LAYERS[package]
    for part, allowed in may_import.items():
        for source in sources(part, root):
            more = parts_imported(source.read_text(), package) - allowed - {part}
            assert not more, f"{source.relative_to(PACKAGE)} imports {', '.join(sorted(more))}"


def test_registration_imports_no_family_of_operators():
    for source in sources("registration", PACKAGE / "ops"):
        assert parts_imported(source.read_text(), "fusedops.ops") <= {"registration"}, source


def test_nothing_but_its_entry_point_imports_the_command_line():
    for source in PACKAGE.rglob("*.py"):
        if PACKAGE / "cli" not in source.parents and source.name != "__main__.py":
            assert "cli" not in parts_imported(source.read_text()), source


def test_every_part_has_its_place():
    for folder, parts in (
        (PACKAGE, set(MAY_IMPORT) | MAY_IMPORT_ALL),
        (PACKAGE / "graph", set(PARTS_OF_GRAPH) | {"__init__"}),
    ):
        found = {path.stem for path in folder.glob("*.py")}
        assert found | {path.parent.name for path in folder.glob("*/__init__.py")} == parts


def test_an_import_of_another_part_is_found():
    assert parts_imported("from fusedops.graph.rewriting.rewriter import x") == {"graph"}
    assert parts_imported("def f():\n    import fusedops.cli.bench") == {"cli"}
    assert parts_imported("from fusedops import config\nimport torch") == {"config"}
