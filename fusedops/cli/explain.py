"""`python -m fusedops explain FILE:FUNCTION|MODEL` reports which sites of a model are replaced.

A site is one softmax, norm, cross entropy or dropout. Prints the expected saving of time, each site
with the reason if it is not replaced, and a diff of the graphs, or with --graphs the whole graphs.
MODEL is a Hugging Face model, given by its id or the folder of its config. FUNCTION takes no
argument and returns the model and its example inputs:

    def build():
        return model, (input_ids, mask)             # or without the inner brackets, or by name:
        return model, {"input_ids": input_ids}
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import fusedops
from fusedops.cli import hugging_face
from fusedops.cli.errors import UsageError, UserError, location_of
from fusedops.graph import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `explain`."""
    parser.add_argument(
        "target",
        metavar="FILE:FUNCTION|MODEL",
        help="FILE:FUNCTION, where FUNCTION() returns the model and its inputs: model, args or "
        "model, {name: value}; or a Hugging Face model: its id, or the folder of its config",
    )
    parser.add_argument(
        "--graphs", action="store_true", help="print the whole graphs, not what changed in them"
    )
    parser.add_argument(
        "--mode",
        choices=["training", "inference"],
        help="put the model into train() or eval(); by default FUNCTION's is judged as it is "
        "returned, and MODEL in inference",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    hugging_face.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the report on the model."""
    # torch 2.15 logs what goes wrong with a fake tensor, with its traceback, and raises it as well.
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    report = _of_hugging_face(args) if hugging_face.is_model(args.target) else _of_function(args)
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


def _of_hugging_face(args: argparse.Namespace) -> Report:
    # Many models that take text take other inputs beside it.
    advice = "; write a FUNCTION that returns the model and its inputs, and pass FILE:FUNCTION"
    with (
        blamed_on(f"target: {args.target!r}, given token ids or images,", advice=advice),
        hugging_face.example(args) as (model, inputs),
    ):
        model.train(args.mode == "training")
        return fusedops.explain(model, **inputs)


def _of_function(args: argparse.Namespace) -> Report:
    """Returns the report on the model and inputs that FUNCTION returns."""
    file, function = load_function(args.target)
    hugging_face.refuse_options(args)
    with blamed_on("FUNCTION", file):
        example = function()
    model, inputs, named_inputs = split_example(example)
    if args.mode and isinstance(model, torch.nn.Module):
        model.train(args.mode == "training")
    with blamed_on("the model, given its inputs,", file):
        return fusedops.explain(model, *inputs, **named_inputs)


def load_function(target: str) -> tuple[Path, Callable[[], Any]]:
    """Imports FILE, with its folder first on the import path. Returns the file and FUNCTION, or
    raises UsageError if there is no such file or function."""
    text, _, name = target.rpartition(":")
    file = _python_file(text)
    if not (name and file):
        raise UsageError(
            f"target: got {target!r}, wanted FILE:FUNCTION with an existing Python file, as in "
            "model.py:build, or a Hugging Face model"
        )
    with blamed_on(f"{file.name}: importing it", file):
        function = getattr(_import_file(file), name, None)
    if not callable(function):
        raise UsageError(f"target: {file} defines no function {name!r}")
    return file, function


def _python_file(name: str) -> Path | None:
    try:
        file = Path(name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # there is no such file, or the name is invalid
        return None
    return file if file.suffix == ".py" and file.is_file() else None


def _import_file(file: Path) -> ModuleType:
    """Imports a file under a name of its own, so that a user's torch.py does not replace torch."""
    sys.path.insert(0, str(file.parent))
    name = f"explained_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # there is a loader for names in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Dynamo look modules up there
    spec.loader.exec_module(module)
    return module


@contextmanager
def blamed_on(what: str, file: Path | None = None, advice: str = "") -> Iterator[None]:
    """Turns an error of the user's code into a UserError, which says that `what` raised it, in
    which line, of `file` if that is known, and what to do."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        line = location_of(error, None if file is None else str(file))
        where = f" at {line}" if line else ""
        raise UserError(f"{what} raised {type(error).__name__}{where}: {error}{advice}") from error


def split_example(example: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Returns the model, its positional inputs and its named inputs, from `example`, the result of
    FUNCTION. Raises UserError if that is not a tuple that begins with the model."""
    if not (isinstance(example, tuple) and example and callable(example[0])):
        raise UserError(
            f"FUNCTION returned {_kind(example)}, wanted a tuple: the model, then its inputs"
        )
    model, *inputs = example
    match inputs:
        case [dict(named)]:
            return model, (), named
        case [tuple() | list() as positional]:
            return model, tuple(positional), {}
        case _:
            return model, tuple(inputs), {}


def _kind(example: Any) -> str:
    if not isinstance(example, tuple):
        return f"a {type(example).__name__}"
    if not example:
        return "an empty tuple"
    return f"a tuple whose first element, a {type(example[0]).__name__}, cannot be called"
