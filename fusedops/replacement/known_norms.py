"""Recognises the RMSNorm classes of models by the source of their forward methods.

Hugging Face's transformers 5.23 have some 170 classes that are copies of the four forms below. The
source of a class is compared with these forms. Names of local variables, annotations and docstrings
do not count.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

from torch import nn

from fusedops.functional import RmsVariant


@dataclass(frozen=True)
class KnownNorm:
    """Says what a form of RMSNorm computes.

    variant: the argument `variant` of :func:`fusedops.rms_norm` with which it computes the same.
    eps: the name of the attribute that holds eps.
    """

    variant: RmsVariant
    eps: str


_LLAMA = """
def forward(self, x):
    dtype = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * x.to(dtype)
"""
_ROUNDED_ONCE = _LLAMA.replace("self.weight * x.to(dtype)", "(self.weight * x).to(dtype)")
_T5 = """
def forward(self, x):
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + self.variance_epsilon)
    if self.weight.dtype in [torch.float16, torch.bfloat16]:
        x = x.to(self.weight.dtype)
    return self.weight * x
"""
_GEMMA = """
def forward(self, x):
    y = self._norm(x.float())
    y = y * (1.0 + self.weight.float())
    return y.type_as(x)
def _norm(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
"""


def known_norm(module: nn.Module) -> KnownNorm | None:
    """Returns what a module computes, if its class has one of the forms above, else None."""
    if type(module).__call__ is not nn.Module.__call__:  # a __call__ of its own may skip forward
        return None
    methods = tuple(getattr(type(module), name, None) for name in ("forward", "_norm"))
    try:
        return _forms().get(_normal_form(_source(methods)))
    except SyntaxError:  # the source lines of a lambda need not be complete code
        return None


@functools.cache
def _source(methods: tuple[Any, ...]) -> str:
    """Returns the source of the methods that are not None. Returns "" if Python does not have it,
    or if a decorator has wrapped a method, because the source would be that of the method
    inside."""
    if any(hasattr(method, "__wrapped__") for method in methods):
        return ""
    try:
        return "".join(textwrap.dedent(inspect.getsource(method)) for method in methods if method)
    except (OSError, TypeError):
        return ""


@functools.cache
def _forms() -> dict[str, KnownNorm]:
    by_source = {
        _LLAMA: KnownNorm("llama", "variance_epsilon"),
        _ROUNDED_ONCE: KnownNorm("torch", "variance_epsilon"),
        _T5: KnownNorm("t5", "variance_epsilon"),
        _GEMMA: KnownNorm("gemma", "eps"),
    }
    return {_normal_form(source): norm for source, norm in by_source.items()}


@functools.cache
def _normal_form(source: str) -> str:
    """Returns the code of the functions in ``source``, with local variables renamed to v0, v1, ...
    in the order in which they appear."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return "\n".join(map(_unparsed, functions))


def _unparsed(function: ast.FunctionDef) -> str:
    """Returns the name of a function and its body with renamed variables, without the docstring."""
    body = [statement for statement in function.body if not _is_docstring(statement)]
    renamed = map(_Renamed(function.args).visit, body)
    return "\n".join([function.name, *(ast.unparse(statement) for statement in renamed)])


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _Renamed(ast.NodeTransformer):
    """Renames the arguments of a function, and the variables that it assigns, to v0, v1, ..."""

    def __init__(self, arguments: ast.arguments) -> None:
        names = [argument.arg for argument in ast.walk(arguments) if isinstance(argument, ast.arg)]
        self._names = {name: f"v{number}" for number, name in enumerate(names)}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if isinstance(node.ctx, ast.Store):
            self._names.setdefault(node.id, f"v{len(self._names)}")
        return ast.Name(self._names.get(node.id, node.id), node.ctx)
