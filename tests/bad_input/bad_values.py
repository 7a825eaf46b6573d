"""Bad values for every argument of the public functions, and how a message may show each.

A value is the text of an expression (see bad_calls.py), what shows it a pattern.
"""

from __future__ import annotations

import re

Values = dict[str, str]


def shown(*values: str, error: str = "") -> Values:
    """Values that a message shows as they are written here, in an error of that type."""
    return {value: f"{error}.*{re.escape(value)}" for value in values}


def typed(**values: str) -> Values:
    """Values by their types, of which a message shows either."""
    return {value: f"{re.escape(value)}|{kind}" for kind, value in values.items()}


def of(good: str, *tables: Values) -> Values:
    """The tables' values for the good one that stands where they have {}."""
    return {value.replace("{}", good): got for table in tables for value, got in table.items()}


NONE = {"None": "None"}
SCALARS = {**typed(int="3", float="0.5", bool="True"), "np.float32(1)": "float32"}
NO_TENSORS = {
    **typed(str="'x'", bytes="b'x'", list="[1.0, 2.0]"),
    "(x, y)": r"\(tensor|tuple",
    "{'input': x}": "{'input'|dict",
    "x.numpy()": "array",
    "x.size()": "Size",
    "torch.float32": "torch.float32|dtype",
    "torch.nn.Linear(5, 5)": "Linear",
    "lambda x: x": "function",
}
INTEGERS = {
    "{}.byte()": "uint8|Byte",
    "{}.char()": "int8|Char",
    "{}.short()": "int16|Short",
    "{}.to(torch.uint16)": "uint16|UInt16",
}
INDICES = {"{}.int()": "int32", "{}.long()": "int64"}
BOOL = {"{}.bool()": "[Bb]ool"}
NO_REAL_NUMBERS = {
    "{}.to(torch.complex64)": "complex64|ComplexFloat",
    "{}.to(torch.complex128)": "complex128|ComplexDouble",
    "{}.to(torch.complex64).conj()": "complex64|ComplexFloat",
    "{}.to(torch.float8_e4m3fn)": "float8_e4m3fn|Float8_e4m3fn",
    "{}.to(torch.float8_e5m2)": "float8_e5m2|Float8_e5m2",
}
NO_FLOATS = {**INTEGERS, **INDICES, **BOOL, **NO_REAL_NUMBERS}
LAYOUTS = {
    "{}.to_sparse()": "[Ss]parse",
    "quantized({}.float())": "[Qq]uantized|qint8",
    "{}.float().to_mkldnn()": "mkldnn|MKLDNN",
}
LAYOUTS_OF_MATRICES = {
    "{}.to_sparse_csr()": "[Ss]parse",
    "{}.to_sparse_csc()": "[Ss]parse",
    "{}.to_sparse_bsr((1, 5))": "[Ss]parse",
}
NESTED = {"nested({})": "[Nn]ested", "jagged({})": "[Nn]ested|jagged"}
META = {'{}.to("meta")': "meta"}
#: Other shapes than [3, 5] or, of a statistic, [3, 1].
SHAPES = {
    "{}[:2]": r"\[2, [15]\]",
    "{}[:0]": r"\[0, [15]\]",
    "{}[0]": r"\[[15]\]",
    "{}.t()": r"\[[15], 3\]",
    "{}.unsqueeze(0)": r"\[1, 3, [15]\]",
}
#: They broadcast to no [3, 5].
BROADCASTS = {
    "torch.ones(4)": r"\[4\]",
    "torch.ones(2, 5)": r"\[2, 5\]",
    "torch.ones(5, 3)": r"\[5, 3\]",
    "torch.ones(1, 3, 5)": r"\[1, 3, 5\]",
    "torch.ones(0)": r"\[0\]",
    "torch.ones(3, 0)": r"\[3, 0\]",
}
#: ... nor to [3].
BOUNDS = {value.replace(")", ", dtype=torch.int64)"): got for value, got in BROADCASTS.items()}
#: Other shapes than [5].
SHAPES_OF_COLUMNS = {
    "{}[:4]": r"\[4\]",
    "{}[:0]": r"\[0\]",
    "{}[0]": r"\[\]",
    "{}.unsqueeze(0)": r"\[1, 5\]",
    "x": r"\[3, 5\]",
}
NO_NUMBERS = {
    **shown("'a'", "'0.5'", "b'1'", "[1.0]", "1j", "{}", "{1.0: None}", error="TypeError"),
    "torch.tensor([0.1, 0.2])": "TypeError.*Tensor",
    "leaf[0, 0]": "TypeError.*a tensor that requires grad",
    "10**400": "TypeError.*10{15}",
    "object()": "TypeError.*object",
}
NO_INTEGERS = {
    **typed(float="1.0", str="'a'", complex="1j", list="[1]", tuple="(0, 1)"),
    "2**70": str(2**70),
    "2**31": str(2**31),
    "-2**63": "-92233",
    "torch.tensor([0, 1])": "[Tt]ensor",
}
DTYPES = {
    "torch.int64": "int64|Long",
    "torch.bool": "bool|Bool",
    "torch.complex64": "complex64|ComplexFloat",
    "torch.float8_e5m2": "float8_e5m2|Float8_e5m2",
    **shown("torch.qint8", "'float32'", "6", "[torch.float32]", "torch.strided"),
    "np.float32": "numpy.float32",
    "float": "class 'float'",
}
SEEDS = {
    "3": "int",
    "'a'": "str",
    "[1]": "list",
    "torch.ones(())": "float32",
    "torch.zeros(2, dtype=torch.int64)": r"\[2\]",
    "torch.zeros(0, dtype=torch.int64)": r"\[0\]",
    "torch.zeros((), dtype=torch.int32)": "int32",
    'torch.tensor(3, device="meta")': "meta",
    "torch.zeros(1, dtype=torch.int64).to_sparse()": "[Ss]parse",
    "np.int64(3)": "int64",
}
NORMALIZED_SHAPES = {
    **shown("[4]", "[3]", "[5, 3]", "[1, 3, 5]", "[5, 1]", "[0]", "[-5]"),
    "[]": r"empty|\[\]",
    "()": r"empty|\[\]",
    "[2**62, 4]": str(2**62),
    "[2**70]": str(2**70),
    **typed(int="5", float="5.0", str="'5'", list="[[5]]"),
    "[5.0]": "float|5.0",
    "['a']": "str|'a'",
    "[None]": "None",
    "None": "None",
    "x": "[Tt]ensor",
}
#: Words that are not known, and what is no word.
WORDS = {
    **shown("'no'", "''", "b'nan'", "None", "3", "-1", "0.5", "[]", error="ValueError"),
    **shown("[True, False]", "['nan']", error="ValueError"),
    "np.ones(2)": "ValueError.*array",
    "torch.ones(2)": "ValueError.*tensor",
}
WINDOWS = shown("0", "-2", "2.0", "(1, -1)", "(1,)", "'all'", error="ValueError")
NO_LISTS = {**shown("3", "'ab'", error="TypeError"), "x": "TypeError.*Tensor"}
NO_INPUTS = of("x", NO_FLOATS, LAYOUTS, LAYOUTS_OF_MATRICES, NESTED)
NOT_LIKE_X = of("y", SHAPES, LAYOUTS, META, INDICES) | {"y.half()": "float16"}
STACKED = {
    **shown("None", error="TypeError"),
    "[]": "inputs is empty, wanted at least one tensor",
    "()": "inputs is empty, wanted at least one tensor",
    **{f"[x, {value}]": f"{got}|list" for value, got in {**NONE, **SCALARS, **NO_TENSORS}.items()},
    **{f"[x, {value}]": got for value, got in NOT_LIKE_X.items()},
    **{f"[{value}, {value}]": got for value, got in NO_INPUTS.items()},
    "[x, [y]]": "list",
}
NOT_LIKE_W = of("w", SHAPES_OF_COLUMNS, LAYOUTS, META, NO_FLOATS)
PARAMETERS = {
    "[w]": "1",
    "[w, w, w]": "3",
    "[w, b.half()]": "float16",
    "[w, b.double()]": "float64",
    **{f"[w, {value}]": f"{got}|list" for value, got in {**NONE, **SCALARS, **NO_TENSORS}.items()},
    **{f"[{value}, {value}]": got for value, got in NOT_LIKE_W.items()},
}
_NO_PAIRS = {**NONE, **SCALARS, **NO_TENSORS}
del _NO_PAIRS["(x, y)"]
STATISTICS = {
    "None": "None|empty",
    "[]": "empty",
    "()": "empty",
    "x": "[Tt]ensor|tuple|pair",
    "[x]": "[Tt]ensor|tuple|pair",
    "[(m,)]": "1|tensor",
    "[(m, s, s)]": "3",
    "[(m, s), None]": "None",
    "[(m, s[:1])]": r"\[1, 1\]",
    "[(m, s), (m[:1], s[:1])]": r"max of stats\[1\] is torch.float32 of shape \[1, 1\], wanted",
    "[(m, s), (m, s.double())]": r"sum of stats\[1\] is torch.float64",
    "[(m, s), (m.double(), s.double())]": "float64",
    "[(m.double(), s)]": "float",
    "[(m.int(), s)]": "int32",
    "[(m.long(), s.long())]": "int64",
    '[(m, s), (m, s.to("meta"))]': r"sum of stats\[1\] is on meta, wanted cpu",
    '[(m, s), (m.to("meta"), s.to("meta"))]': "meta",
    **{f"[{value}]": r"stats\[0\]" for value in _NO_PAIRS},
    **{f"[({value}, s)]": r"max of stats\[0\]" for value in _NO_PAIRS},
    **{f"[(m, {value})]": r"sum of stats\[0\]" for value in _NO_PAIRS},
}


def tensor(good: str, *tables: Values) -> tuple[str, Values]:
    return good, of(good, SCALARS, NO_TENSORS, *tables)


def number(good: str, *others: str) -> tuple[str, Values]:
    """A number, with those that are out of its range."""
    printed = {other: f"(?i:{re.escape(format(float(other), 'g'))})" for other in others}
    return good, NO_NUMBERS | printed | NONE


_MASK = (BROADCASTS, of("x", INTEGERS, INDICES, NO_REAL_NUMBERS, LAYOUTS, META))
_BOUND = (BOUNDS, BOOL, NO_REAL_NUMBERS, {"{}.float()": "float32"}, META)
_SEGMENTS = (INTEGERS, BOOL, NO_REAL_NUMBERS, {"{}.float()": "float32", "{}[0]": r"\[\]"})
_STATISTIC = (NONE, INDICES, BOOL, LAYOUTS, META, SHAPES, {"{}.squeeze(-1)": r"\[3\]"})
#: They are no classes for three rows.
_CLASSES = {
    **{value: got for value, got in INTEGERS.items() if value != "{}.byte()"},
    **BOOL,
    **NO_REAL_NUMBERS,
    "{}.float()": "float32.*class probabilities.*torch.nn.functional.(linear_)?cross_entropy",
    "{}.half()": "float16",
    "{}.to_sparse()": "[Ss]parse",
    **META,
    "{}[:2]": r"\[2\]",
    "{}[0]": r"\[\]",
    "{}.unsqueeze(0)": r"\[1, 3\]",
    "{} - 1": "row 0 is -1",
    "{} + 3": "row 2 is 5",
    "{}.int() * 2**30": "row 1 is 1073741824",
}
_LINEAR_WEIGHTS = {
    "{}[:, :4]": r"\[5, 4\]",
    "{}[0]": r"\[5\]",
    "{}[:0]": r"\[0, 5\]",
    "{}.unsqueeze(1)": r"\[5, 1, 5\]",
    "{}.double()": "float64.*wanted torch.float32",
}
_LINEAR_BIASES = {
    "{}[:2]": r"\[2\]",
    "{}[0]": r"\[\]",
    "{}.unsqueeze(0)": r"\[1, 5\]",
    "{}.double()": "float64.*wanted torch.float32",
}
_ROUNDED = {"{}.half()": "float16", "{}.bfloat16()": "bfloat16", "{}.double()": "float64"}
_PROBABILITY = number("0.5", "nan", "inf", "-inf", "-0.1", "1.1", "1.0000001", "-1e-300", "2e70")

#: By the name of an argument, a good value and bad ones.
ARGUMENTS = {
    "input": tensor("x", NONE, NO_INPUTS),
    "inputs": ("[x, y]", NO_LISTS | STACKED),
    "dim": ("-1", NO_INTEGERS | NONE | shown("2", "-3")),
    "stack_dim": ("0", NO_INTEGERS | NONE | shown("3", "-4")),
    "dtype": ("torch.float32", DTYPES),
    "out": tensor("out", INDICES, BOOL, NO_REAL_NUMBERS, LAYOUTS, META, SHAPES),
    "max": tensor("m", *_STATISTIC, _ROUNDED),
    "sum": tensor("s", *_STATISTIC, _ROUNDED),
    "stats": ("[(m, s)]", SCALARS | STATISTICS),
    "target": tensor("classes", NONE, _CLASSES, NESTED),
    "linear_weight": tensor("(x.t() @ x)", NONE, NO_FLOATS, LAYOUTS, META, NESTED, _LINEAR_WEIGHTS),
    "linear_bias": tensor("b", NO_FLOATS, LAYOUTS, META, NESTED, _LINEAR_BIASES),
    "ignore_index": ("1", {v: NO_INTEGERS[v] for v in NO_INTEGERS.keys() - {"2**31", "-2**63"}}),
    "reduction": ("'sum'", WORDS),
    "label_smoothing": number("0.1", "nan", "inf", "-0.1", "1.5"),
    "options": ("None", typed(int="3", str="'x'", dict="{}", type="object")),
    "z_loss": number("0.1", "nan", "inf", "-0.1"),
    "return_lse": ("True", {}),
    "mask": tensor("mask", *_MASK),
    "bias": tensor("y", *_MASK, BOOL),
    "start": tensor("seed", *_BOUND),
    "end": tensor("seed", *_BOUND),
    "sinks": ("w[:3]", of("w[:3]", NO_TENSORS, BROADCASTS, NO_FLOATS, META)),
    "scale": number("0.5", "nan"),
    "mask_value": number("-1e4", "nan", "-1e300", "1e39"),
    "softcap": number("2.0", "nan", "inf", "0", "-1", "1e-40", "1e38"),
    "causal": ("True", WORDS),
    "masked_rows": ("'zero'", WORDS | shown("0", "True", error="ValueError")),
    "window": ("(1, 1)", WINDOWS),
    "p": _PROBABILITY,
    "seed": ("seed", SEEDS),
    "training": ("True", {}),
    "residual": tensor("y", NONE, NO_FLOATS, LAYOUTS, META, SHAPES),
    "normalized_shape": ("[5]", NORMALIZED_SHAPES),
    "weight": tensor("w", NO_FLOATS, LAYOUTS, META, NESTED, SHAPES_OF_COLUMNS),
    "bias of a norm": tensor("b", NO_FLOATS, LAYOUTS, META, SHAPES_OF_COLUMNS),
    "weights": ("[w, w]", NO_LISTS | PARAMETERS),
    "biases": ("[b, b]", NO_LISTS | PARAMETERS),
    "eps": number("1e-5", "-1e-5", "-1e-300", "-inf", "nan"),
    "variant": ("'torch'", WORDS),
    "return_sum": ("True", {}),
    "segment_ids": tensor("classes", *_SEGMENTS),
    "cu_seqlens": tensor("classes", *_SEGMENTS, {"{}[:0]": r"\[0\]", "{}[None]": r"\[1, 3\]"}),
    "length": ("3", {}),
}
