"""`python -m fusedops explain FILE:FUNCTION`: what is replaced in a model, and why not the rest.

Prints a table of sites, and the graph before and after: what differs, or with --graphs all of it.

FUNCTION takes no argument and returns the model and its example inputs:

    def build():
        return model, (input_ids, mask)             # or without the inner brackets, or by name:
        return model, {"input_ids": input_ids}
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusedops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `explain`."""
    parser.add_argument(
        "target",
        metavar="FILE:FUNCTION",
        help="FUNCTION() returns the model and its inputs: model, args or model, {name: value}",
    )
    parser.add_argument(
        "--graphs", action="store_true", help="print the whole graphs, not what changed in them"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report on what FUNCTION returned."""
    model, inputs, named_inputs = split_example(load_function(args.target)())
    report = fusedops.explain(model, *inputs, **named_inputs)
    if args.json:
        print(json.dumps(report.to_dict(), indent=2, default=str))
        return 0
    print(report)
    if args.graphs:
        for number, (before, after) in enumerate(report.graphs):
            print(f"\n--- graph {number} before\n{before}\n--- graph {number} after\n{after}")
    elif changes := report.diff():
        print(f"\n{changes}")
    return 0


def load_function(target: str) -> Callable[[], Any]:
    """Import FILE and return its FUNCTION; the file's own folder comes first on the import path."""
    file, _, name = target.rpartition(":")
    path = Path(file).resolve()
    if not file or not path.is_file():
        sys.exit(f"target: got {target!r}, wanted FILE:FUNCTION with an existing Python file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        sys.exit(f"target: {file} defines no function {name!r}")
    return getattr(module, name)


def split_example(example: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The model, its positional and its named inputs, from what FUNCTION returned."""
    if not isinstance(example, tuple) or not callable(example[0]):
        sys.exit(
            f"FUNCTION: returned {type(example).__name__}, wanted a tuple: model, then its inputs"
        )
    model, *inputs = example
    match inputs:
        case [dict(named)]:
            return model, (), named
        case [tuple() | list() as positional]:
            return model, tuple(positional), {}
        case _:
            return model, tuple(inputs), {}
