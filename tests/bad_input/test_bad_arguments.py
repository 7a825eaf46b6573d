"""Every argument but the input, with a wrong type, value, shape, dtype, layout or device."""

import pytest
from bad_calls import answers, clear, refused

NORMS = {
    "layer_norm": "layer_norm(x, {shape}, {weight}, {bias}, {eps})",
    "std_norm": "std_norm(x, {shape}, {weight}, {bias}, {eps})",
    "rms_norm": "rms_norm(x, {shape}, {weight}, {eps})",
    "add_layer_norm": "add_layer_norm(x, y, {shape}, {weight}, {bias}, {eps})",
    "add_rms_norm": "add_rms_norm(x, y, {shape}, {weight}, {eps})",
    "stack_layer_norm": "stack_layer_norm([x, y], {shape}, [{weight}, w], [{bias}, b], {eps})",
}
GOOD = {"shape": "[5]", "weight": "w", "bias": "b", "eps": "1e-5"}


def _norms(argument, values, pattern):
    """A row for each norm that has the argument, and each of its values."""
    return [
        refused(call.format(**{**GOOD, argument: value}), pattern(got))
        for call in NORMS.values()
        if f"{{{argument}}}" in call
        for value, got in values.items()
    ]


def _calls(calls, argument, values):
    """A row for each call, with a place for the argument, and each of its values."""
    return [
        refused(call.format(value), clear(argument, got))
        for call in calls
        for value, got in values.items()
    ]


DIM_CALLS = (
    "softmax(x, {})",
    "log_softmax(x, {})",
    "softmax(x, {}, out=out)",
    "log_softmax(x, {}, out=out)",
    "softmax_(x, {})",
    "softmax_stats(x, {})",
    "softmax_apply(x, m, s, {})",
    "stack_softmax([x, y], {})",
    "stack_log_softmax([x, y], {})",
)
DIM_TYPES = {
    "1.0": "float|1.0",
    "'1'": "str|'1'",
    "1j": "complex|1j",
    "[1]": r"list|\[1\]",
    "(0, 1)": r"tuple|\(0, 1\)",
    "2**70": str(2**70),
    "torch.tensor([0, 1])": "[Tt]ensor",
}
DIMS = [
    *_calls(DIM_CALLS, "dim", {"2": "2", "-3": "-3", "2**31": "2147483648", "-2**63": "-92233"}),
    *_calls(DIM_CALLS, "dim", DIM_TYPES),
    *_calls(DIM_CALLS[4:], "dim", {"None": "None"}),
    *_calls(
        ("softmax(x[0, 0], {})", "log_softmax(x[0, 0], {})", "softmax_(x[0, 0], {})"),
        "dim",
        {"1": "1", "-2": "-2"},
    ),
    *_calls(
        ("stack_softmax([x, y], -1, {})", "stack_layer_norm([x, y], [5], stack_dim={})"),
        "stack_dim",
        {"3": "3", "-4": "-4", "2**40": str(2**40), "None": "None", **DIM_TYPES},
    ),
    refused("softmax_stats(x[:, :0], 1)", clear("input", "empty")),
    refused("softmax_stats(x[:0], 0)", clear("input", "empty")),
]

DTYPE_CALLS = (
    "softmax(x, -1, {})",
    "log_softmax(x, -1, {})",
    "softmax_apply(x, m, s, -1, {})",
    "masked_softmax(x, dtype={})",
    "masked_softmax_dropout(x, dtype={})",
    "masked_softmax_dropout(x, training=False, dtype={})",
)
BAD_DTYPES = {
    "torch.int64": "int64|Long",
    "torch.bool": "bool|Bool",
    "torch.complex64": "complex64|ComplexFloat",
    "torch.float8_e5m2": "float8_e5m2|Float8_e5m2",
    "'float32'": "float32",
    "6": "6|int",
    "[torch.float32]": r"list|\[torch",
    "torch.strided": "layout|strided",
}
OUT_CALLS = ("softmax(x, -1, out={})", "log_softmax(x, 0, out={})", "masked_softmax(x, out={})")
BAD_OUTS = {
    "out.t()": r"\[5, 3\]",
    "out[0]": r"\[5\]",
    "out[:2]": r"\[2, 5\]",
    "out.unsqueeze(0)": r"\[1, 3, 5\]",
    "out[:0]": r"\[0, 5\]",
    "out.int()": "int32",
    "out.bool()": "bool",
    "out.to(torch.complex64)": "complex64|ComplexFloat",
    'out.to("meta")': "meta",
    "out.to_sparse()": "[Ss]parse",
    "quantized(out)": "[Qq]uantized|qint8",
    "[]": r"list|\[\]",
    "3": "int|3",
    "x.numpy()": "array",
    "(out,)": r"tuple|\(tensor",
}
DTYPES_AND_OUTS = [
    *_calls(DTYPE_CALLS, "dtype", BAD_DTYPES),
    *_calls(OUT_CALLS, "out", BAD_OUTS),
    *_calls(
        ("softmax(x, -1, {}, out=out)", "log_softmax(x, None, {}, out=out)"),
        "(out|dtype)",
        {"torch.float64": "float64", "torch.half": "float16", "torch.int32": "int32"},
    ),
    *_calls(
        ("softmax(x, None, out={})", "log_softmax(x, None, out={})"),
        "out",
        {"out.t()": r"\[5, 3\]", "out.t().contiguous().t()": r"\[1, 3\]", "out[:2]": r"\[2, 5\]"},
    ),
    *(
        refused(call.format(place), "(?s)(share memory|expand|overlap).*wanted")
        for call in OUT_CALLS
        for place in ("out[:1].expand(3, 5)", "out.as_strided((3, 5), (1, 1))")
    ),
    refused("softmax(leaf, -1, out=out)", r"(?s)derivative.*requires grad.*no_grad"),
    refused("softmax(x, -1, out=leaf)", r"(?s)derivative.*requires grad.*no_grad"),
    refused("log_softmax(leaf, None, out=out)", r"(?s)derivative.*requires grad.*no_grad"),
    refused("masked_softmax(leaf, out=out)", r"(?s)derivative.*requires grad.*no_grad"),
    refused("masked_softmax(x, bias=leaf, out=out)", r"(?s)derivative.*requires grad.*no_grad"),
    refused("softmax_(leaf, -1)", r"(?s)leaf that requires grad"),
    refused("softmax_(leaf.view(-1), 0)", r"(?s)leaf"),
    refused("softmax_(leaf[1], 0)", r"(?s)leaf"),
    refused("softmax_(leaf.t(), 0)", r"(?s)leaf"),
    refused("softmax_(leaf.view_as(leaf), -1)", r"(?s)leaf"),
    refused("softmax_(leaf.unbind()[0], -1)", r"(?s)leaf|view"),
    refused("softmax_((leaf * 1).unbind()[0], -1)", r"(?s)view"),
    refused("softmax_((leaf * 1).chunk(3)[0], -1)", r"(?s)view"),
    refused("softmax_((leaf * 1).split(1)[0], -1)", r"(?s)view"),
    refused("softmax_(x[:1].expand(3, 5), -1)", r"(?s)(share memory|expand|overlap).*wanted"),
    refused("softmax_(x.as_strided((3, 5), (1, 1)), -1)", r"(?s)(share memory|overlap).*wanted"),
    refused("softmax_(x.as_strided((2, 5), (5, 0)), 0)", r"(?s)(share memory|overlap).*wanted"),
]

MASKED_CALLS = (
    "masked_softmax(x, {})",
    "masked_softmax(x, out=out, {})",
    "masked_softmax_dropout(x, {})",
    "masked_softmax_dropout(x, training=False, {})",
)
BAD_NUMBERS = {
    "None": "None",
    "'a'": "str|'a'",
    "[1.0]": r"list|\[1.0\]",
    "1j": "complex|1j",
    "torch.ones(2)": "[Tt]ensor",
    "10**400": "(large|float|overflow|10{15})",
    "{}": "dict|{}",
    "object()": "object",
}
BAD_MASKS = {
    "torch.ones(4)": r"\[4\]",
    "torch.ones(2, 5)": r"\[2, 5\]",
    "torch.ones(5, 3)": r"\[5, 3\]",
    "torch.ones(1, 3, 5)": r"\[1, 3, 5\]",
    "torch.ones(0)": r"\[0\]",
    "torch.ones(3, 0)": r"\[3, 0\]",
    "x.int()": "int32",
    "x.long()": "int64",
    "x.byte()": "uint8|Byte",
    "x.to(torch.complex64)": "complex64|ComplexFloat",
    "x.to(torch.float8_e5m2)": "float8_e5m2|Float8_e5m2",
    'x.to("meta")': "meta",
    "x.to_sparse()": "[Ss]parse",
    "x.to_mkldnn()": "mkldnn|MKLDNN",
    "quantized(x)": "[Qq]uantized|qint8",
    "[[True]]": "list",
    "3": "int",
    "'x'": "str",
    "x.numpy()": "ndarray",
}
_MASKED = tuple(call.replace("{}", "{}={{}}") for call in MASKED_CALLS)
MASKED = [
    *_calls([call.format("scale") for call in _MASKED], "scale", {**BAD_NUMBERS, "nan": "NaN|nan"}),
    *_calls(
        [call.format("mask_value") for call in _MASKED],
        "mask_value",
        {**BAD_NUMBERS, "nan": "NaN|nan", "-1e300": r"1e\+300", "1e39": r"1e\+39"},
    ),
    *_calls([call.format("mask") for call in _MASKED], "mask", BAD_MASKS),
    *_calls([call.format("bias") for call in _MASKED], "bias", {**BAD_MASKS, "mask": "bool"}),
    *_calls(
        [call.format("causal") for call in _MASKED],
        "causal",
        {
            "2": "2",
            "-1": "-1",
            "0.5": "0.5",
            "None": "None",
            "'up'": "'up'",
            "[]": r"\[\]",
            "[True, False]": r"list|\[True",
            "torch.ones(2)": "[Tt]ensor",
        },
    ),
    *_calls(
        [call.format("masked_rows") for call in _MASKED],
        "masked_rows",
        {"'none'": "'none'", "None": "None", "0": "0", "True": "True", "['nan']": "nan"},
    ),
    *_calls(
        ["masked_softmax(x[0], causal={})", "masked_softmax_dropout(x[0], causal={})"],
        "causal",
        {"True": r"\[5\]", "'top_left'": r"\[5\]", "'bottom_right'": r"\[5\]"},
    ),
    refused("masked_softmax(x[0, 0])", clear("input", "no dimension")),
    refused("masked_softmax_dropout(x[0, 0])", clear("input", "no dimension")),
]

BAD_SEEDS = {
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
DROPOUT_CALLS = (
    "masked_softmax_dropout(x, {})",
    "masked_softmax_dropout(leaf, mask, {})",
    "add_layer_norm(x, y, [5], {})",
    "add_rms_norm(x, y, [5], w, {})",
    "add_rms_norm(leaf, y, [5], variant='llama', {})",
)
DROPOUT = [
    *_calls(
        [call.format("p={}") for call in DROPOUT_CALLS],
        "p",
        {
            **BAD_NUMBERS,
            "nan": "nan",
            "inf": "inf",
            "-inf": "-inf",
            "-0.1": "-0.1",
            "1.1": "1.1",
            "-1e-300": "-1e-300",
            "1.0000001": "1",
            "2**70": "1.18",
        },
    ),
    *_calls([call.format("p=0.5, seed={}") for call in DROPOUT_CALLS], "seed", BAD_SEEDS),
]

BAD_EPS = {
    "-1e-5": "-1e-05",
    "-1e-300": "-1e-300",
    "-inf": "-inf",
    "nan": "nan",
    "'a'": "str|'a'",
    "1j": "complex|1j",
    "[1e-5]": r"list|\[1e-05\]",
    "torch.ones(2)": "[Tt]ensor",
    "10**400": "(large|int|float|10{15})",
}
BAD_SHAPES = {
    "[4]": r"\[4\]",
    "[3]": r"\[3\]",
    "[5, 3]": r"\[5, 3\]",
    "[1, 3, 5]": r"\[1, 3, 5\]",
    "[5, 1]": r"\[5, 1\]",
    "[]": r"empty|\[\]",
    "()": r"empty|\[\]",
    "[0]": r"\[0\]",
    "[-5]": r"\[-5\]",
    "[2**62, 4]": str(2**62),
    "[2**70]": str(2**70),
    "5": "int|5",
    "5.0": "float|5.0",
    "[5.0]": "float|5.0",
    "['5']": "str|'5'",
    "'5'": "str|'5'",
    "[None]": "None",
    "[[5]]": r"list|\[\[5",
    "None": "None",
    "x": "[Tt]ensor",
}
BAD_PARAMETERS = {
    "w[:4]": r"\[4\]",
    "w[:0]": r"\[0\]",
    "w[0]": r"\[\]",
    "w.unsqueeze(0)": r"\[1, 5\]",
    "x": r"\[3, 5\]",
    "w.int()": "int32",
    "w.bool()": "bool|Bool",
    "w.to(torch.complex64)": "complex64|ComplexFloat",
    "w.to(torch.float8_e5m2)": "float8_e5m2|Float8_e5m2",
    'w.to("meta")': "meta",
    "w.to_sparse()": "[Ss]parse",
    "w.to_mkldnn()": "mkldnn|MKLDNN",
    "quantized(w)": "[Qq]uantized|qint8",
    "w.tolist()": r"list|\[",
    "w.numpy()": "array|list",
    "1.0": "float|1.0",
    "'w'": "str|'w'",
}
BAD_RESIDUALS = {
    "y[:2]": r"\[2, 5\]",
    "y[0]": r"\[5\]",
    "y.t()": r"\[5, 3\]",
    "y.unsqueeze(0)": r"\[1, 3, 5\]",
    "y[:0]": r"\[0, 5\]",
    "y.int()": "int32",
    "y.bool()": "bool",
    "y.to(torch.complex64)": "complex64",
    'y.to("meta")': "meta",
    "y.to_sparse()": "[Ss]parse",
    "y.to_mkldnn()": "mkldnn|MKLDNN",
    "quantized(y)": "[Qq]uantized|qint8",
    "None": "None",
    "1.0": "float",
    "[y]": "list",
    "y.numpy()": "ndarray",
}
BAD_SPELLINGS = {
    "'lama'": "'lama'",
    "''": "''",
    "None": "None",
    "3": "3",
    "['torch']": "torch",
    "b'torch'": "torch",
}
NORM_ROWS = [
    *_norms("eps", BAD_EPS, lambda got: clear("eps", got)),
    *_norms("shape", BAD_SHAPES, lambda got: clear("normalized_shape", got)),
    *_norms("weight", BAD_PARAMETERS, lambda got: clear("weights?", got)),
    *_norms("bias", BAD_PARAMETERS, lambda got: clear("(bias|biases)", got)),
    *_calls(
        ("add_layer_norm(x, {}, [5], w, b)", "add_rms_norm(x, {}, [5], w)"),
        "residual",
        BAD_RESIDUALS,
    ),
    *_calls(
        ("rms_norm(x, [5], w, variant={})", "add_rms_norm(x, y, [5], w, variant={})"),
        "variant",
        BAD_SPELLINGS,
    ),
    *_calls(
        [f"{name}(x[:, :0], {{}})" for name in ("layer_norm", "std_norm", "rms_norm")],
        "normalized_shape",
        {"[0]": "0", "[3, 0]": "0"},
    ),
    *_calls(("layer_norm(x, [5], eps={})", "std_norm(x, [5], eps={})"), "eps", {"None": "None"}),
]

STACKS = (
    "stack_softmax({}, -1)",
    "stack_log_softmax({}, -1)",
    "stack_layer_norm({}, [5])",
    "stack_layer_norm({}, [5], [w, w], [b, b])",
)
BAD_STACKS = {
    "[]": "empty",
    "()": "empty",
    "None": "None",
    "3": "int|3",
    "[x, 3]": "int",
    "[x, None]": "None",
    "[x, [y]]": "list",
    "[x, 'y']": "str|list",
    "[x, y.numpy()]": "array|list",
    "[x, y[:2]]": r"\[2, 5\]",
    "[x, y.t()]": r"\[5, 3\]",
    "[x, y[0]]": r"\[5\]",
    "[x, y.half()]": "float16",
    "[x, y.int()]": "int32",
    '[x, y.to("meta")]': "meta",
    "[x, y.to_sparse()]": "[Ss]parse",
    "[x, quantized(y)]": "[Qq]uantized|qint8",
    "[x, y.to_mkldnn()]": "mkldnn|MKLDNN",
}
STACK_ROWS = [
    *_calls(STACKS, "inputs", BAD_STACKS),
    *_calls(
        ("stack_layer_norm([x, y], [5], {})", "stack_layer_norm([x, y], [5], {}, [b, b])"),
        "weights",
        {
            "[w]": "1",
            "[w, w, w]": "3",
            "[w, None]": "None",
            "[w, 3]": "int",
            "[w, b.half()]": "float16",
            "3": "int|3",
            "'ab'": "str|'ab'",
        },
    ),
    *_calls(
        ("stack_layer_norm([x, y], [5], None, {})", "stack_layer_norm([x, y], [5], [w, w], {})"),
        "biases",
        {
            "[b]": "1",
            "[b, b, b]": "3",
            "[b, None]": "None",
            "[b, b.double()]": "float64",
            "3": "int|3",
        },
    ),
]

STATISTICS = [
    *_calls(
        ("softmax_apply(x, {}, s, -1)",),
        "max",
        {
            "m[:1]": r"\[1, 1\]",
            "m.squeeze(-1)": r"\[3\]",
            "m.half()": "float16",
            "m.double()": "float64",
            "m.int()": "int32",
            'm.to("meta")': "meta",
            "m.to_sparse()": "[Ss]parse",
            "None": "None",
            "1.0": "float",
            "[m]": "list",
        },
    ),
    *_calls(
        ("softmax_apply(x, m, {}, -1)",),
        "sum",
        {
            "s[:1]": r"\[1, 1\]",
            "s.squeeze(-1)": r"\[3\]",
            "s.bfloat16()": "bfloat16",
            "s.double()": "float64",
            "s.int()": "int32",
            's.to("meta")': "meta",
            "quantized(s)": "[Qq]uantized|qint8",
            "None": "None",
            "1.0": "float",
            "(s,)": "tuple",
        },
    ),
    refused("softmax_apply(x.double(), m, s, -1)", clear("max", "float32")),
    refused("softmax_apply(x, m, s, 0)", clear("max", r"\[3, 1\]")),
    *_calls(
        ("merge_softmax_stats({})",),
        "stats",
        {
            "[]": "empty",
            "()": "empty",
            "None": "None|empty",
            "3": "int|3",
            "x": "[Tt]ensor|tuple|pair",
            "[x]": "[Tt]ensor|tuple|pair",
            "[3]": "int|3",
            "[(m,)]": r"1|tensor",
            "[(m, s, s)]": "3",
            "[(m, 3)]": "int|3",
            "[(None, s)]": "None",
            "[(m, s), None]": "None",
            "[(m, s[:1])]": r"\[1, 1\]",
            "[(m, s), (m[:1], s[:1])]": r"\[1, 1\]",
            "[(m, s), (m.double(), s.double())]": "float64",
            "[(m.double(), s)]": "float",
            "[(m.int(), s)]": "int32",
            "[(m.long(), s.long())]": "int64",
            '[(m, s), (m.to("meta"), s.to("meta"))]': "meta",
        },
    ),
]

#: Python's own refusals name the argument too.
CALLED_WRONGLY = [
    refused("softmax()", "input"),
    refused("softmax(x)", "dim"),
    refused("softmax(x, -1, None, out)", "positional"),
    refused("softmax(x, dimension=-1)", "dimension"),
    refused("log_softmax(x)", "dim"),
    refused("softmax_(x)", "dim"),
    refused("softmax_(x, -1, out=out)", "out"),
    refused("softmax_apply(x, m, s)", "dim"),
    refused("masked_softmax(x, mask, 1.0)", "positional"),
    refused("masked_softmax(x, None, mask, 1.0)", "positional"),
    refused("masked_softmax(x, p=0.5)", "p"),
    refused("masked_softmax_dropout(x, out=out)", "out"),
    refused("layer_norm(x)", "normalized_shape"),
    refused("layer_norm(x, [5], out=out)", "out"),
    refused("rms_norm(x, [5], w, 1e-5, 't5')", "positional"),
    refused("rms_norm(x, [5], bias=b)", "bias"),
    refused("add_layer_norm(x, y)", "normalized_shape"),
    refused("stack_softmax([x])", "dim"),
]

TAKEN = [
    answers("softmax(x, torch.tensor(1))", "torch.softmax(x, 1)"),
    answers("softmax(x, np.int64(1))", "torch.softmax(x, 1)"),
    answers("softmax(x, None)", "torch.softmax(x.view(-1), 0).view(3, 5)"),
    answers("softmax(x[0, 0], None)", "torch.ones(())"),
    answers("softmax(x[0, 0], -1)", "torch.ones(())"),
    answers("softmax(x[:, :0], 1)", "x[:, :0]"),
    answers("softmax(x[:, :0], 0)", "x[:, :0]"),
    answers("softmax(x[:, :0], None)", "x[:, :0]"),
    answers("softmax(x.int(), -1, torch.float32)", "torch.softmax(x.int().float(), -1)"),
    answers("softmax(x.bool(), 0, torch.float64)", "torch.softmax(x.bool().double(), 0)"),
    answers("log_softmax(x.long(), -1, torch.half)", "x.long().half().log_softmax(-1)"),
    answers("softmax(x, -1, out=out)", "torch.softmax(x, -1)"),
    answers("softmax(x, -1, out=out.half())", "torch.softmax(x.half(), -1)", tolerance=1e-2),
    answers("softmax(x, 0, out=x)", "torch.softmax(x, 0)"),
    answers("softmax(x, None, out=x)", "torch.softmax(x.view(-1), 0).view(3, 5)"),
    answers("log_softmax(x, -1, out=out.t().contiguous().t())", "torch.log_softmax(x, -1)"),
    answers("softmax(x, -1, out=out.repeat(1, 2)[:, ::2])", "torch.softmax(x, -1)"),
    answers("softmax(leaf.detach(), -1, out=out)", "torch.softmax(x, -1)"),
    answers("softmax_(leaf.detach(), -1)", "torch.softmax(x, -1)"),
    answers("softmax_(leaf * 1, -1).detach()", "torch.softmax(x, -1)"),
    answers("softmax_((leaf * 1)[0], -1).detach()", "torch.softmax(x[0], -1)"),
    answers("softmax_((leaf * 1).t(), 0).detach()", "torch.softmax(x.t(), 0)"),
    answers("masked_softmax(x, mask, causal=np.bool_(True))", "masked_softmax(x, mask, causal=1)"),
    answers("masked_softmax(x, mask[:, :1])", "reference.masked_softmax(x, mask[:, :1]).float()"),
    answers("masked_softmax(x, mask[0, 0])", "torch.softmax(x, -1)"),
    answers("masked_softmax(x, ~mask[0, 0])", "x.mul(nan)"),
    answers('masked_softmax(x, ~mask[0, 0], masked_rows="zero")', "x.mul(0.0)"),
    answers("masked_softmax(x, ~mask[0, 0], mask_value=-1e4)", "torch.full((3, 5), 0.2)"),
    answers("masked_softmax(x, scale=True)", "torch.softmax(x, -1)"),
    answers("masked_softmax(x, scale=torch.tensor(2.0))", "torch.softmax(x * 2, -1)"),
    answers("masked_softmax(x, scale=0)", "torch.full((3, 5), 0.2)"),
    answers("masked_softmax(x, scale=-0.5)", "torch.softmax(x * -0.5, -1)"),
    answers("masked_softmax(x, scale=inf)", "torch.softmax(x * inf, -1)"),
    answers("masked_softmax(x.int(), dtype=torch.float32)", "torch.softmax(x.int().float(), -1)"),
    answers("masked_softmax(x, x.half())", "torch.softmax(x + x.half(), -1)"),
    answers("masked_softmax(x.half(), x)", "torch.softmax(x.half() + x, -1).half()", 2e-3),
    answers("masked_softmax(x, x.mul(nan))", "x.mul(nan)"),
    answers("masked_softmax(x, bias=x.mul(inf))", "torch.softmax(x + x.mul(inf), -1)"),
    answers("masked_softmax_dropout(x, p=0)", "torch.softmax(x, -1)"),
    answers("masked_softmax_dropout(x, p=1)", "x.mul(0).abs()"),
    answers("masked_softmax_dropout(x, p=2, training=False)", "torch.softmax(x, -1)"),
    answers("layer_norm(x, torch.Size([5]))", "torch.nn.functional.layer_norm(x, (5,))"),
    answers("layer_norm(x, (5,))", "torch.nn.functional.layer_norm(x, (5,))"),
    answers("layer_norm(x, [3, 5], x, y)", "torch.nn.functional.layer_norm(x, (3, 5), x, y)"),
    answers("layer_norm(x, [5], w.half())", "torch.nn.functional.layer_norm(x, (5,)) * w", 1e-2),
    answers("layer_norm(x, [5], w.double())", "torch.nn.functional.layer_norm(x, (5,)) * w"),
    answers("layer_norm(x, [5], w[:1].expand(5))", "torch.nn.functional.layer_norm(x, (5,)) / 2"),
    answers("layer_norm(x, [5], eps=inf)", "x.mul(0.0)"),
    answers("layer_norm(x, [5], eps=0)", "torch.nn.functional.layer_norm(x, (5,), eps=0)"),
    answers("rms_norm(x, [5])", "torch.nn.functional.rms_norm(x, (5,))"),
    answers("add_layer_norm(x, y, [5], p=2, training=False)[1]", "x + y"),
    answers("add_layer_norm(x, y, [5], p=1, seed=seed)[1]", "y"),
    answers("add_rms_norm(x, y, [5], p=1.0)[1]", "y"),
    answers("stack_softmax((x, y), -1)", "torch.softmax(torch.stack([x, y]), -1)"),
    answers(
        "stack_softmax([x, x], -1, -1)", "torch.softmax(torch.stack([x, x]), -1).movedim(0, 2)"
    ),
    answers("stack_softmax([x[0, 0]], 0)", "torch.ones(1)"),
    answers("stack_layer_norm([x, y], (5,), (), ())", "stack_layer_norm([x, y], [5])"),
    answers("merge_softmax_stats([(m, s)])", "(m, s)"),
    answers("merge_softmax_stats(((m, s), [m, s]))", "(m, s * 2)"),
]


@pytest.mark.parametrize("row", DIMS + DTYPES_AND_OUTS, ids=str)
def test_a_dim_dtype_or_out_tensor_that_does_not_fit_is_refused(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", MASKED + DROPOUT, ids=str)
def test_masks_and_dropout_that_make_no_sense_are_refused(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", NORM_ROWS, ids=str)
def test_arguments_that_a_norm_cannot_use_are_refused(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", STACK_ROWS + STATISTICS, ids=str)
def test_tensors_that_do_not_belong_together_are_refused(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", CALLED_WRONGLY, ids=str)
def test_a_call_with_too_many_or_too_few_arguments_is_refused(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", TAKEN, ids=str)
def test_unusual_arguments_that_make_sense_are_taken(row, child):
    assert not child.problem_with(row)
