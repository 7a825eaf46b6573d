"""Every argument of every public function with a wrong type, value, shape, dtype, layout or device.

The rows follow from the functions' signatures and the bad values of :data:`ARGUMENTS`. A function
with an argument of a new name is refused here until the name has bad values there.
"""

import inspect
from collections.abc import Iterator

import pytest
from bad_calls import Row, answers, clear, refused
from bad_values import ARGUMENTS, LAYOUTS, LAYOUTS_OF_MATRICES, NESTED, NO_FLOATS, of

import fusedops

Given = dict[str, str]

#: They take models, graphs and functions (test_bad_compiler_arguments.py).
OF_MODELS = (
    "disable",
    "enable",
    "explain",
    "parallel_stack",
    "patch",
    "replace_modules",
    "rewrite",
)
FUNCTIONS = [
    name
    for name in fusedops.__all__
    if inspect.isfunction(getattr(fusedops, name)) and name not in OF_MODELS
]
_SOFTMAX = ({"out": "out"}, {"dim": "None"}, {"dim": "None", "out": "out"})
#: Arguments beside which a function takes another way.
WAYS = {
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "masked_softmax": ({"out": "out"}, {"causal": "'bottom_right'"}),
    "masked_softmax_dropout": ({"training": "False"}, {"input": "leaf", "mask": "mask"}),
    "dropout": ({"input": "leaf"},),
    "cross_entropy": ({"dim": "1"}, {"input": "leaf", "weight": "w", "return_lse": "True"}),
    "linear_cross_entropy": (
        {"reduction": "'none'"},
        {"input": "leaf", "weight": "w", "linear_bias": "b"},
        {
            "linear_weight": "(x.t() @ x).unsqueeze(1)",
            "target": "classes.unsqueeze(1)",
            "linear_bias": "b.unsqueeze(1)",
        },
    ),
    "rms_norm": ({"variant": "'t5'"}, {"variant": "'llama'", "weight": "w"}),
    "add_layer_norm": ({"training": "False"}, {"input": "leaf"}),
    "add_rms_norm": ({"training": "False"}, {"input": "leaf", "variant": "'llama'"}),
    "stack_layer_norm": ({"weights": "[w, w]"}, {"biases": "[b, b]"}),
}
#: Values that only some functions refuse, and the functions that take them.
TAKEN_BY = {
    ("dim", "None"): ("softmax", "log_softmax", "cross_entropy"),
    ("eps", "None"): ("rms_norm", "add_rms_norm", "spatial_rms_norm"),
    ("softcap", "None"): (
        "masked_softmax",
        "masked_softmax_dropout",
        "cross_entropy",
        "linear_cross_entropy",
    ),
    **dict.fromkeys(
        [("input", "nested(x)"), ("input", "jagged(x)")],
        ("softmax", "log_softmax", "layer_norm", "std_norm", "rms_norm", "l2_norm"),
    ),
}
#: Words are checked before a function's own name is known.
ANONYMOUS = (
    "reduction",
    "causal",
    "masked_rows",
    "window",
    "variant",
    "segment_ids",
    "cu_seqlens",
    "length",
)
#: Other dtypes are taken with `out` and by some variants; without `dim` torch refuses the layouts.
UP_TO_THE_WAY = {
    name: of(good, NO_FLOATS, LAYOUTS, LAYOUTS_OF_MATRICES, NESTED)
    for name, good in {"input": "x", "weight": "w", "out": "out"}.items()
}


def is_left_out(function: str, way: Given, name: str, value: str) -> bool:
    of_another_kind = way.keys() & {"out", "variant", "dim", "causal"}
    if name in way or (of_another_kind and value in UP_TO_THE_WAY.get(name, ())):
        return True
    if ("training" in way and name == "seed") or ("out" in way and name == "dtype"):
        return True
    return function in TAKEN_BY.get((name, value), ())


def rows_of(function: str) -> Iterator[Row]:
    parameters = inspect.signature(getattr(fusedops, function)).parameters
    required = [n for n, p in parameters.items() if p.default is p.empty or n == "p"]
    for way in ({}, *WAYS.get(function, ())):
        given = {name: ARGUMENTS[name][0] for name in required} | way
        for name in parameters:
            of_norm = name == "bias" and "norm" in function
            _, bad = ARGUMENTS["bias of a norm" if of_norm else name]
            for value, got in bad.items():
                if not is_left_out(function, way, name, value):
                    given_now = ", ".join(f"{n}={v}" for n, v in (given | {name: value}).items())
                    stem = function.removesuffix("_dropout")
                    named = "" if name in ANONYMOUS else rf"\b{stem}\w*: "
                    yield refused(f"{function}({given_now})", clear(name, got, named))


_SHARED = "(?s)(share memory|expand|overlap).*wanted"
_DERIVATIVE = r"(?s)derivative.*requires grad.*no_grad"
#: Arguments that do not fit to each other, and inputs that an argument does not fit.
TOGETHER = [
    *(
        refused(call.format(dim), clear("dim", dim))
        for call in ("softmax(x[0, 0], {})", "log_softmax(x[0, 0], {})", "softmax_(x[0, 0], {})")
        for dim in ("1", "-2")
    ),
    refused("softmax_stats(x[:0], 0)", clear("input", "empty")),
    refused("softmax_apply(x.double(), m, s, -1)", clear("max", "float32")),
    refused("softmax_apply(x, m, s, 0)", clear("max", r"\[3, 1\]")),
    *(
        refused(call.format(dtype), clear("(out|dtype)", dtype))
        for call in ("softmax(x, -1, torch.{}, out=out)", "log_softmax(x, None, torch.{}, out=out)")
        for dtype in ("float64", "float16", "int32")
    ),
    *(
        refused(f"{function}(x, None, out=out.t().contiguous().t())", clear("out", r"\[1, 3\]"))
        for function in ("softmax", "log_softmax")
    ),
    *(
        refused(call.format(place), _SHARED)
        for call in (
            "softmax(x, -1, out={})",
            "log_softmax(x, 0, out={})",
            "masked_softmax(x, out={})",
        )
        for place in ("out[:1].expand(3, 5)", "out.as_strided((3, 5), (1, 1))")
    ),
    refused("softmax_(x.as_strided((2, 5), (5, 0)), 0)", _SHARED),
    refused("log_softmax(leaf, None, out=out)", _DERIVATIVE),
    refused("masked_softmax(leaf, out=out)", _DERIVATIVE),
    refused("masked_softmax(x, bias=leaf, out=out)", _DERIVATIVE),
    *(
        refused(f"{function}(x[0], causal={causal})", clear("causal", r"\[5\]"))
        for function in ("masked_softmax", "masked_softmax_dropout")
        for causal in ("True", "'top_left'", "'bottom_right'")
    ),
    refused("masked_softmax(x, window=3)", "ValueError: window is 3, .* wanted causal beside it"),
    refused("cross_entropy(x.t(), classes)", clear("target", r"\[3\]")),
    refused("cross_entropy(x[0, 0], seed)", clear("input", r"\[\]")),
    refused("cross_entropy(x[:, :0], classes)", clear("input", r"\[3, 0\]")),
    refused("cross_entropy(x, classes, dim=0)", clear("target", r"\[3\]")),
    refused("segment_bounds()", "TypeError: segment_bounds: wanted segment_ids or cu_seqlens"),
    *(
        refused(f"segment_bounds(cu_seqlens=classes, length={length})", clear("length", length))
        for length in ("None", "-1", "3.0", "'3'", str(2**70))
    ),
    refused("segment_bounds(classes, length=3)", clear("length", "3 beside segment_ids")),
    refused("masked_softmax_dropout(x[0, 0])", clear("input", "no dimension")),
    refused("dropout(x.long(), training=False)", clear("input", "int64")),
    refused("dropout([1.0], 0.0)", clear("input", "list|\\[1.0\\]")),
    *(
        refused(call.format(tensor), f"{call.partition('(')[0]}: {name} {what}")
        for call, name in (
            ("softmax({}, -1)", "input"),
            ("layer_norm({}, [5])", "input"),
            ("masked_softmax(x, {})", "mask"),
            ("layer_norm(x, [5], {})", "weight"),
        )
        for tensor, what in {
            "y.to_sparse()": "has layout torch.sparse_coo, wanted torch.strided.*to_dense",
            "y.to_sparse_csr()": "has layout torch.sparse_csr",
            "y.to_mkldnn()": "has layout torch._mkldnn",
            "quantized(y)": "is quantized, torch.qint8.*dequant",
        }.items()
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

#: What unusual arguments mean; other tests have usual ones.
TAKEN = [
    answers("softmax(x, torch.tensor(1))", "torch.softmax(x, 1)"),
    answers("softmax(x, np.int64(1))", "torch.softmax(x, 1)"),
    answers("softmax(x[0, 0], None)", "torch.ones(())"),
    answers("softmax(x[:, :0], None)", "x[:, :0]"),
    answers("softmax(x.bool(), 0, torch.float64)", "torch.softmax(x.bool().double(), 0)"),
    answers("log_softmax(x.long(), -1, torch.half)", "x.long().half().log_softmax(-1)"),
    answers(
        "softmax(x, -1, torch.half, out=out.half())", "torch.softmax(x.half(), -1)", tolerance=1e-2
    ),
    answers("softmax(x, None, out=x)", "torch.softmax(x.view(-1), 0).view(3, 5)"),
    answers("softmax(leaf.detach(), -1, out=out)", "torch.softmax(x, -1)"),
    answers("softmax_(leaf.detach(), -1)", "torch.softmax(x, -1)"),
    answers("softmax_((leaf * 1).t(), 0).detach()", "torch.softmax(x.t(), 0)"),
    answers("masked_softmax(x, mask, causal=np.bool_(True))", "masked_softmax(x, mask, causal=1)"),
    answers("masked_softmax(x, scale=True)", "torch.softmax(x, -1)"),
    answers("masked_softmax(x, scale=torch.tensor(2.0))", "torch.softmax(x * 2, -1)"),
    answers("masked_softmax(x, scale=inf)", "torch.softmax(x * inf, -1)"),
    answers("masked_softmax(x, x.mul(nan))", "x.mul(nan)"),
    answers("masked_softmax(x, bias=x.mul(inf))", "torch.softmax(x + x.mul(inf), -1)"),
    answers("masked_softmax_dropout(x, p=1, training=False)", "torch.softmax(x, -1)"),
    answers("dropout(x, p=1, training=False)", "x", tolerance=0),
    answers("dropout(x, np.float32(1), seed=seed)", "x.mul(0)"),
    answers("nn.MaskedSoftmax(p=1)(x)", "x.mul(0).abs()"),
    answers("nn.MaskedSoftmax(p=1).eval()(x)", "torch.softmax(x, -1)"),
    answers("nn.Softmax(None)(x[0, 0])", "torch.ones(())"),
    answers("nn.LogSoftmax()(x.view(3, 5, 1))", "torch.log_softmax(x.view(3, 5, 1), 0)"),
    answers("layer_norm(x, torch.Size([5]))", "torch.nn.functional.layer_norm(x, (5,))"),
    answers("layer_norm(x, [5], w[:1].expand(5))", "torch.nn.functional.layer_norm(x, (5,)) / 2"),
    answers("layer_norm(x, [5], eps=inf)", "x.mul(0.0)"),
    answers("cross_entropy(x, classes.byte(), dim=np.int64(1))", "cross_entropy(x, classes)"),
    answers("cross_entropy(x[0], classes[2])", "cross_entropy(x[:1], classes[2:])"),
    answers("cross_entropy(x, classes, w.double())", "cross_entropy(x, classes, w)"),
    answers("add_layer_norm(x, y, [5], p=1, training=False)[1]", "x + y"),
    answers("stack_softmax((x, y), -1)", "torch.softmax(torch.stack([x, y]), -1)"),
    answers("stack_softmax([x[0, 0]], 0)", "torch.ones(1)"),
    answers("stack_layer_norm([x, y], (5,), (), ())", "stack_layer_norm([x, y], [5])"),
    answers("merge_softmax_stats([(m, s)])", "(m, s)"),
    answers("merge_softmax_stats(((m, s), [m, s]))", "(m, s * 2)"),
    *(
        answers(
            f"masked_softmax(x, scale={half}, mask_value=-1, softcap={half}, causal=True)",
            "masked_softmax(x, scale=0.5, mask_value=-1.0, softcap=0.5, causal=True)",
            tolerance=0,
        )
        for half in ("0.5", "np.float32(0.5)", "np.float64(0.5)", "torch.tensor(0.5)")
    ),
    answers("masked_softmax(x, softcap=2)", "masked_softmax(x, softcap=2.0)", tolerance=0),
    answers("layer_norm(x, [5], eps=np.float32(0.5))", "layer_norm(x, [5], eps=0.5)", tolerance=0),
    answers("layer_norm(x, [5], None, w, inf)", "w.expand(3, 5)", tolerance=0),
    answers("stack_softmax((t for t in (x, y)), -1)", "stack_softmax([x, y], -1)", tolerance=0),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_refuses_what_an_argument_cannot_be(function, judge):
    judge(list(rows_of(function)))


def test_arguments_that_do_not_belong_together_are_refused(judge):
    judge(TOGETHER)


def test_a_call_with_too_many_or_too_few_arguments_is_refused(judge):
    judge(CALLED_WRONGLY)


def test_unusual_arguments_that_make_sense_are_taken(judge):
    judge(TAKEN)
