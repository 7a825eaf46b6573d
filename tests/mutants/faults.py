"""Faults: small changes of one place of a source, in Python and in C++."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple


class Fault(NamedTuple):
    """What takes the place of the characters ``before`` of a file, from ``start`` on."""

    path: str
    line: int
    kind: str
    start: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        """The text of the file with the fault."""
        return text[: self.start] + self.after + text[self.start + len(self.before) :]

    def changed_line(self, text: str) -> str:
        """What becomes of the line of the file where the fault begins."""
        start = text.rfind("\n", 0, self.start) + 1
        return self.apply(text)[start:].partition("\n")[0].strip()

    def __str__(self) -> str:
        before, after = (" ".join(part.split())[:99] for part in (self.before, self.after))
        return f"{self.path}:{self.line} ({self.kind}) {before} -> {after}"


def faults_of(path: str, text: str) -> list[Fault]:
    """Every fault of a source, in the order of the file."""
    return list(_python_faults(path, text) if path.endswith(".py") else _cpp_faults(path, text))


# Python: faults are expressions in an expression's place, in parentheses.

PAIRS = {
    **{ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn},
    **{ast.Add: ast.Sub, ast.Mult: ast.Div, ast.BitOr: ast.BitAnd, ast.And: ast.Or},
    **{"min": "max", "any": "all", "float64": "float32", "bfloat16": "float16", "int64": "int32"},
}
OPPOSITES = PAIRS | {second: first for first, second in PAIRS.items()}
#: Methods and functions whose argument takes their place.
DROPPED_METHODS = {"to", "contiguous", "detach", "expand", "reshape", "unsqueeze", "clamp"}
DROPPED_FUNCTIONS = {"float", "int", "abs", "reversed", "sorted", "set", "frozenset"}
MESSAGES = {"add_argument", "add_parser", "print", "warn", "UsageError", "ArgumentTypeError"}
#: Fields of nodes, and arguments, that decide nothing.
LEFT_OUT = {"annotation", "returns", "decorator_list", "bases"}
LEFT_OUT_KEYWORDS = {"strict", "stacklevel", "help", "metavar", "highlight"}
Change = tuple[ast.expr, str, ast.expr]


def _python_faults(path: str, text: str) -> Iterator[Fault]:
    starts = [0, *accumulate(len(line) for line in text.encode().splitlines(keepends=True))]
    for node, kind, changed in _inside(ast.parse(text)):
        start = len(text.encode()[: starts[node.lineno - 1] + node.col_offset].decode())
        before = ast.get_source_segment(text, node) or ""
        yield Fault(path, node.lineno, kind, start, before, f"({ast.unparse(changed)})")


def _inside(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.FunctionDef(name="__repr__"):
            return
        case ast.If(ast.Name("TYPE_CHECKING")):
            return
        case ast.keyword(name) if name in LEFT_OUT_KEYWORDS:
            return
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if name in MESSAGES:
            return
        case ast.If(test, [ast.Return() | ast.Raise() | ast.Continue(), *_]):
            yield test, "guard", ast.BoolOp(ast.And(), [ast.Constant(False), test])
        case ast.If(test) if not isinstance(test, ast.UnaryOp):
            yield test, "condition", ast.UnaryOp(ast.Not(), test)
        case ast.Call():
            yield from ((node, kind, changed) for kind, changed in _calls(node))
        case ast.expr():
            yield from ((node, kind, changed) for kind, changed in _expressions(node))
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in LEFT_OUT:
                yield from _inside(child)


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left, [op], operands):
            yield "comparison", ast.Compare(left, [OPPOSITES[type(op)]()], operands)
        case ast.BinOp(left, op, right) if type(op) in OPPOSITES and not _is_text(node):
            yield "arithmetic", ast.BinOp(left, OPPOSITES[type(op)](), right)
        case ast.BoolOp(op, values):
            yield "logic", ast.BoolOp(OPPOSITES[type(op)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield "sign", operand
        case ast.IfExp(_, body, orelse) if not _is_text(node):
            yield from (("choice", part) for part in (body, orelse))
        case ast.Constant(bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int(value)) if value <= 2:  # larger ones are mostly sizes
            yield "constant", ast.Constant(value - 1 if value > 0 else 1)
        case ast.Attribute(ast.Name("torch") as torch, name) if name in OPPOSITES:
            yield "dtype", ast.Attribute(torch, OPPOSITES[name])


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Call(ast.Attribute(value, name)) if name in DROPPED_METHODS:
            yield "call", value
        case ast.Call(ast.Attribute(_, "where" | "masked_fill"), [_, argument, _]):
            yield "mask", argument
        case ast.Call(ast.Name(name), [argument]) if name in DROPPED_FUNCTIONS:
            yield "call", argument
        case ast.Call(ast.Name(name), arguments, keywords) if name in OPPOSITES:
            yield "call", ast.Call(ast.Name(OPPOSITES[name]), arguments, keywords)
    for dropped in node.keywords:
        if dropped.arg is None or dropped.arg in LEFT_OUT_KEYWORDS:
            continue
        rest = [given for given in node.keywords if given is not dropped]
        yield "argument", ast.Call(node.func, node.args, rest)


def _is_text(node: ast.expr) -> bool:
    constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return any(isinstance(value, str) for value in constants)


# C++: clang-format puts spaces around operators, and none beside the brackets of templates.

_FIRST = "< > == + * && += & << min minimum true kFloat16 Half".split()
_SECOND = "<= >= != - / || -= | >> max maximum false kBFloat16 BFloat16".split()
SWAPS = dict(zip(_FIRST + _SECOND, _SECOND + _FIRST, strict=True))
_BRACKETS = r"\((?:[^()\0]|\((?:[^()\0]|\([^()\0]*\))*\))*\)"
#: After an operator in `a < b ? a : b` or `a < b ? b : a`, where <= does no harm.
_LEAST = r" ([\w.<>:()]+) \? (\2 :|[^;?:]+ : \2(?!\w))"
_LEAVES = r" \{?\s*(return|continue|break)\b"
#: A kind, what has the fault, and what takes its place. \0 stands for what is not code.
CHANGES = [
    ("comparison", rf"(?<= )([<>]=?(?!{_LEAST})|[!=]=)(?=\s)", SWAPS.get),
    ("arithmetic", r"(?<=[^\0] )([-+*/&|]|[-+]=|<<|>>)(?=\s[^\0])", SWAPS.get),
    ("logic", r"(?<= )(&&|\|\|)(?=\s)", SWAPS.get),
    ("sign", r"(?<=[(=, ])[-!](?=[\w(])", lambda _: ""),
    ("constant", r"(?<![\w.'])[012](?![\w.'])", lambda n: str(int(n) - 1 if n > "0" else 1)),
    ("constant", r"\b(true|false)\b", SWAPS.get),
    ("choice", r"(?<=\s)\?(?= )", lambda _: "|| true ?"),
    ("choice", r"(?<=\s)\?(?= )", lambda _: "&& false ?"),
    ("call", r"\b(min|max|minimum|maximum)(?=[(<])", SWAPS.get),
    ("cast", r"(static_cast<(double|Acc)>|\bdouble)(?=\([a-z][^()]*\) [-+*/] )", lambda _: ""),
    ("dtype", r"(?<=::)(kFloat16|kBFloat16|Half|BFloat16)\b", SWAPS.get),
    ("statement", r"(?<=[;{}]\n) +[\w:.]+(<[^;(]*>)?\([^;{}]*\);(?=\n)", lambda _: ";"),
    ("statement", r"(?<=\) )(return|continue|break);", lambda _: ";"),
    ("guard", rf"(?<=\bif ){_BRACKETS}(?={_LEAVES})", lambda test: f"(false && {test})"),
    ("condition", rf"(?<=\bif ){_BRACKETS}(?!{_LEAVES})", lambda test: f"(!{test})"),
    ("condition", rf"(?<=\bif constexpr ){_BRACKETS}", lambda test: f"(false && {test})"),
]
#: Comments, texts, and what the compiler alone reads, which could not build with a fault.
NOT_CODE = [
    r"(?s://[^\n]*|/\*.*?\*/)",
    r'"(\\.|[^"\\\n])*"|\'(\\.|[^\'\\\n])\'',
    r"(?m:^[ \t]*#(\\\n|[^\n])*)",
    r"\b(static_assert|using|case|alignas|operator|enum)\b[^;:{]*",
    r"\btemplate <(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>",
]
#: Lines that decide speed alone.
FOR_SPEED = re.compile(
    r"[pP]refetch|stream(s|ing|ed)\b|grain|assume|inline constexpr|is_long_row|__builtin_expect"
    r"|int64_t bytes ="
)


def _cpp_faults(path: str, text: str) -> Iterator[Fault]:
    code = text
    for pattern in NOT_CODE:
        code = re.sub(pattern, lambda found: re.sub(r"[^\n]", "\0", found[0]), code)
    for kind, pattern, change in CHANGES:
        for found in re.finditer(pattern, code):
            # Whole lines, so that a report shows the place.
            first, last = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            before = text[first:last]
            after = text[first : found.start()] + change(found[0]) + text[found.end() : last]
            if not FOR_SPEED.search(before):
                line = text.count("\n", 0, found.start()) + 1
                yield Fault(path, line, kind, first, before, after)
