"""Refuses arguments whose type an operator's schema does not take, by errors that name the function
and the argument. torch's error would print the schema of an operator that the user did not call.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Any

import torch

_MISMATCH = re.compile(r"Expected a value of type '(.+?)' for argument '(\w+)' but instead found")

#: What to pass, by the types of a schema.
_WANTED = {
    "Tensor": "a tensor; make it with torch.as_tensor",
    "Optional[Tensor]": "a tensor or None; make it with torch.as_tensor",
    "List[Tensor]": "a list of tensors",
    "List[bool]": "a list of bools",
    "int": "an int of 64 bits",
    "Optional[int]": "an int of 64 bits or None",
    "float": "a number",
    "Optional[float]": "a number or None",
    "bool": "True or False",
    "ScalarType": "a torch.dtype",
    "Optional[ScalarType]": "a torch.dtype or None",
}


def explained(function: str, overload: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``call``, a way to call ``overload``, with errors that name the argument of
    ``function``.

    Raises:
        TypeError: an argument has a type that the schema does not take.
    """
    names = [argument.name for argument in overload._schema.arguments]

    def run(*args: Any) -> Any:
        try:
            return call(*args)
        except RuntimeError as error:
            mismatch = _MISMATCH.search(str(error))
            if mismatch is None or mismatch[2] not in names[: len(args)]:
                raise
            problem = _problem(args[names.index(mismatch[2])], mismatch[1])
        raise TypeError(f"{function}: {mismatch[2]} is {problem}")

    return run


def _problem(value: Any, type_name: str) -> str:
    """Returns the end of an error: what an argument is, and what the schema wants instead."""
    if type_name == "List[int]":
        wanted = f"a list of sizes, as [{value if isinstance(value, int) else 8}]"
    else:
        wanted = _WANTED.get(type_name, type_name)
    is_long = isinstance(value, torch.Tensor) or type_name in ("Tensor", "Optional[Tensor]")
    shown = "" if is_long else f"{reprlib.repr(value)}, "
    return f"{shown}of type {type(value).__name__}, wanted {wanted}"
