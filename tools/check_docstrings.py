"""`python tools/check_docstrings.py` finds docstrings that are missing or incomplete.

The functions and classes of the API are the public ones of the files in API, or those in the
`__all__` of such a file. Their docstrings must have these sections:

- `Args:` has an entry with a text for every parameter. The entry of a tensor describes shape and
  dtype, or refers to another description ("as in ...", ":func:`...`").
- `Returns:` is needed if there is a result. A class has `Shape:` instead, which describes the
  inputs and results of its instances.
- `Raises:` is needed if there are parameters. It names every error that the body raises.
- `Source:` names the paper or the function of PyTorch that the function or class is taken from.

Every other public class, function and method whose body is longer than SHORT lines must have a
docstring. Methods of a class with a base are exempt, because they may override documented methods,
and so is `cli`, whose help texts describe the commands.

Prints the problems with file and line, and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fusedops"
API = (
    "backend.py",
    "export.py",
    "functional.py",
    "graph/explain.py",
    "graph/fx.py",
    "losses.py",
    "nn.py",
    "parallel/api.py",
    "replacement/api.py",
)
#: Functions outside of the API whose body has at most this many lines need no docstring.
SHORT = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef
Problem = tuple[int, str]

#: The heading of a section, alone on its line or followed by text.
SECTION = re.compile(r"(Args|Returns|Raises|Shape|Source): *(.*)")
#: An entry of Args: one or several names, and their text.
ENTRY = re.compile(r"    (\w+(?:, \w+)*): *(.*)")
#: What the entry of a tensor must contain: a shape and a dtype, or a reference to another entry.
SHAPE = re.compile(r"shape|dimension|\[|\bone int64\b")
DTYPE = re.compile(r"dtype|float|\bint64\b|bool")
REFERENCE = re.compile(r"\bas (in|for)\b|:(func|class):")
#: Base classes without documented methods, so that methods of their subclasses need a docstring.
PLAIN_BASES = {"ABC", "Enum", "Exception", "Generic", "NamedTuple", "Protocol"}


def problems_of(text: str, is_api: bool) -> list[Problem]:
    """Returns the line and the description of every problem in `text`, the content of a file.
    `is_api` says whether the file is in API."""
    tree = ast.parse(text)
    found = []
    api = _exported(tree) if is_api else set()
    for node in tree.body:
        if not isinstance(node, (Function, ast.ClassDef)) or _is_overload(node):
            continue
        if node.name in api:
            found += [(node.lineno, f"{node.name}: {what}") for what in _incomplete(node)]
        elif not node.name.startswith("_"):
            found += _undescribed(node)
    return found


def _exported(tree: ast.Module) -> set[str]:
    """Returns the names in `__all__`, or all public names if there is none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    nodes = [node for node in tree.body if isinstance(node, (Function, ast.ClassDef))]
    return {node.name for node in nodes if not node.name.startswith("_")}


def _is_overload(node: Function | ast.ClassDef) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


# --- outside of the API -------------------------------------------------------------------------


def _undescribed(node: Function | ast.ClassDef, owner: str = "") -> Iterator[Problem]:
    name = f"{owner}{node.name}"
    if _body_lines(node) > SHORT and not ast.get_docstring(node):
        yield node.lineno, f"{name} has no docstring"
    if isinstance(node, ast.ClassDef) and not _has_base(node):
        for method in node.body:
            if isinstance(method, Function) and not method.name.startswith("_"):
                yield from _undescribed(method, f"{name}.")


def _has_base(node: ast.ClassDef) -> bool:
    names = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    return not names <= PLAIN_BASES


def _body_lines(node: Function | ast.ClassDef) -> int:
    return (node.body[-1].end_lineno or 0) - node.body[0].lineno + 1


# --- in the API ---------------------------------------------------------------------------------


def _incomplete(node: Function | ast.ClassDef) -> Iterator[str]:
    """Yields what the docstring of a function or class of the API lacks."""
    docstring = ast.get_docstring(node)
    if not docstring:
        yield "has no docstring"
        return
    sections = sections_of(docstring)
    function = _constructor(node) if isinstance(node, ast.ClassDef) else node
    parameters = _parameters(function) if function else []
    yield from _missing_arguments(parameters, sections.get("Args", ""))
    if isinstance(node, ast.ClassDef):
        wanted = ["Args", "Shape", "Raises", "Source"]
    else:
        given = ["Args", "Raises"] if parameters else []
        wanted = [*given, *(["Returns"] if _returns(node) else []), "Source"]
    yield from (f"no {name}: section" for name in wanted if not sections.get(name, "").strip())
    raised = _raised(function) if function else set()
    for error in sorted(raised - set(re.findall(r"\w+", sections.get("Raises", "")))):
        yield f"Raises: does not name {error}"


def sections_of(docstring: str) -> dict[str, str]:
    """Returns the text of each section by its name. A section ends at the next line that is not
    indented, but the section Source ends only at the next heading or at the end."""
    sections: dict[str, str] = {}
    name = None
    for line in inspect.cleandoc(docstring).splitlines():
        heading = SECTION.fullmatch(line)
        if heading:
            name, text = heading.groups()
            sections[name] = f"{text}\n"
        elif line and not line.startswith(" ") and name != "Source":
            name = None
        elif name:
            sections[name] += f"{line}\n"
    return sections


def _entries(section: str) -> dict[str, str]:
    """Returns the text of each parameter in `section`, the text of Args."""
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        entry = ENTRY.fullmatch(line)
        if entry:
            names = entry[1].split(", ")
            entries |= dict.fromkeys(names, entry[2])
        elif line.startswith(" " * 5):
            entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
    return entries


def _missing_arguments(parameters: list[ast.arg], section: str) -> Iterator[str]:
    """Yields what the section Args lacks, and its entries for names that are no parameters."""
    entries = _entries(section)
    known = {parameter.arg for parameter in parameters}
    for parameter in parameters:
        text = entries.get(parameter.arg, "")
        if not text.strip():
            yield f"Args: says nothing of {parameter.arg}"
        elif _is_of_tensors(parameter) and not _tells_form(text):
            yield f"Args: does not tell shape and dtype of {parameter.arg}"
    if parameters:
        yield from (f"Args: there is no parameter {name}" for name in entries if name not in known)


def _is_of_tensors(parameter: ast.arg) -> bool:
    return parameter.annotation is not None and "Tensor" in ast.unparse(parameter.annotation)


def _tells_form(text: str) -> bool:
    return bool(REFERENCE.search(text) or (SHAPE.search(text) and DTYPE.search(text)))


def _constructor(node: ast.ClassDef) -> Function | None:
    methods = [method for method in node.body if isinstance(method, Function)]
    return next((method for method in methods if method.name == "__init__"), None)


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [argument for argument in every if argument is not None and argument.arg != "self"]


def _returns(function: Function) -> bool:
    result = ast.unparse(function.returns) if function.returns else "None"
    return result not in ("None", "Iterator[None]")


def _raised(function: Function) -> set[str]:
    """Returns the classes of the errors that the body raises by name."""
    errors = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise)]
    called = [error.func for error in errors if isinstance(error, ast.Call)]
    return {name.id for name in called if isinstance(name, ast.Name)}


def main() -> int:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(("cli/", "lib/")):
            problems = problems_of(path.read_text(), name in API)
            found += [f"fusedops/{name}:{line}: {what}" for line, what in problems]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
