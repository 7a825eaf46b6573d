"""Every function with every kind of input: the right result, or a refusal that names the input."""

import pytest
from bad_calls import answers, clear, either, refused

#: A call of each function; {0} is its input.
CALLS = {
    "softmax": "softmax({0}, -1)",
    "log_softmax": "log_softmax({0}, -1)",
    "softmax_": "softmax_({0}, -1)",
    "softmax_stats": "softmax_stats({0}, -1)",
    "softmax_apply": "softmax_apply({0}, m, s, -1)",
    "masked_softmax": "masked_softmax({0}, mask[1])",
    "masked_softmax_dropout": "masked_softmax_dropout({0}, mask[1], p=0.0, seed=seed)",
    "layer_norm": "layer_norm({0}, [5], w, b)",
    "std_norm": "std_norm({0}, [5], w, b)",
    "rms_norm": "rms_norm({0}, [5], w, 1e-6)",
    "add_layer_norm": "add_layer_norm({0}, {0}, [5], w, b)",
    "add_rms_norm": "add_rms_norm({0}, {0}, [5], w, 1e-6)",
    "stack_softmax": "stack_softmax([{0}, {0}], -1)",
    "stack_log_softmax": "stack_log_softmax([{0}, {0}], -1)",
    "stack_layer_norm": "stack_layer_norm([{0}, {0}], [5], [w, w], [b, b])",
}
#: What each call gives, from float64. softmax_apply's is the softmax of x, whose statistics it has.
EXPECTED = {
    "softmax": "reference.softmax({0}, -1).to({0}.dtype)",
    "log_softmax": "reference.log_softmax({0}, -1).to({0}.dtype)",
    "softmax_": "reference.softmax({0}, -1).to({0}.dtype)",
    "softmax_stats": "stats({0})",
    "masked_softmax": "reference.masked_softmax({0}, mask[1]).to({0}.dtype)",
    "masked_softmax_dropout": "reference.masked_softmax({0}, mask[1]).to({0}.dtype)",
    "layer_norm": "reference.layer_norm({0}, [5], w, b).to({0}.dtype)",
    "std_norm": "reference.std_norm({0}, [5], w, b).to({0}.dtype)",
    "rms_norm": "reference.rms_norm({0}, [5], w, 1e-6).to({0}.dtype)",
    "add_layer_norm": "(reference.layer_norm({0} + {0}, [5], w, b).to({0}.dtype), {0} + {0})",
    "add_rms_norm": "(reference.rms_norm({0} + {0}, [5], w, 1e-6).to({0}.dtype), {0} + {0})",
    "stack_softmax": "torch.stack([reference.softmax({0}, -1).to({0}.dtype)] * 2)",
    "stack_log_softmax": "torch.stack([reference.log_softmax({0}, -1).to({0}.dtype)] * 2)",
    "stack_layer_norm": "torch.stack([reference.layer_norm({0}, [5], w, b).to({0}.dtype)] * 2)",
}
WITH_PARAMETERS = ("layer_norm", "std_norm", "rms_norm", "add_layer_norm", "add_rms_norm")

#: Tensors that no function takes, and what the refusal calls them.
REFUSED_TENSORS = {
    "x.bool()": "bool|Bool",
    "x.byte()": "uint8|Byte",
    "x.char()": "int8|Char",
    "x.short()": "int16|Short",
    "x.int()": "int32",
    "x.long()": "int64",
    "x.to(torch.uint16)": "uint16|UInt16",
    "x.to(torch.complex64)": "complex64|ComplexFloat",
    "x.to(torch.complex128)": "complex128|ComplexDouble",
    "x.to(torch.complex64).conj()": "complex64|ComplexFloat",
    "x.to(torch.float8_e4m3fn)": "float8_e4m3fn|Float8_e4m3fn",
    "x.to(torch.float8_e5m2)": "float8_e5m2|Float8_e5m2",
    "x.to_sparse()": "[Ss]parse",
    "x.to_sparse_csr()": "[Ss]parse",
    "x.to_sparse_csc()": "[Ss]parse",
    "x.to_sparse_bsr((1, 5))": "[Ss]parse",
    "quantized(x)": "[Qq]uantized|qint8",
    "x.to_mkldnn()": "mkldnn|MKLDNN",
    "nested(x)": "[Nn]ested",
    "jagged(x)": "[Nn]ested|jagged",
}
#: Values that are no tensors, and the names of their types.
NO_TENSORS = {
    "None": "None",
    "3": "int",
    "0.5": "float",
    "True": "bool",
    "'x'": "str",
    "b'x'": "bytes",
    "[1.0, 2.0]": "list",
    "(x, y)": "tuple",
    "{}": "dict",
    "x.numpy()": "ndarray",
    "np.float32(1)": "float32",
    "x.size()": "Size",
    "torch.float32": "dtype",
    "torch.nn.Linear(5, 5)": "Linear",
    "lambda x: x": "function",
}
#: Functions that take nested tensors too (tests/transforms/test_nested.py).
OF_NESTED = ("softmax(", "log_softmax(", "layer_norm(", "std_norm(", "rms_norm(", "l2_norm(")
REFUSED = [
    refused(call.format(given), clear("inputs?", f"{got}|found type 'list'"))
    for given, got in {**REFUSED_TENSORS, **NO_TENSORS}.items()
    for call in CALLS.values()
    if not (
        given in ("nested(x)", "jagged(x)") and call.startswith(OF_NESTED) and "out=" not in call
    )
]

#: Tensors that every function takes.
TAKEN = (
    "x",
    "x.half()",
    "x.bfloat16()",
    "x.double()",
    "x[:0]",
    "x[:1]",
    "x.t().contiguous().t()",
    "x.flip(0)",
    "x.repeat(1, 2)[:, ::2]",
    "x.repeat(2, 1)[::2]",
    "torch.cat([x, y], 1)[:, :5]",
    "torch.cat([x[0, :1], x.view(-1)])[1:].view(3, 5)",
    "torch.cat([x[0, :1], x.view(-1)]).half()[1:].view(3, 5)",
    "x.as_subclass(Subclass)",
    "x.mul(0.0)",
    "x.mul(-0.0)",
    "x.mul(1e-30)",
    "x.mul(1e-42)",
    "x.mul(1e3)",
    "x.double().mul(1e-310)",
    "x.bfloat16().mul(1e-39)",
    "x.half().mul(1e-7)",
    "x.masked_fill(mask, nan)",
    "x.masked_fill(mask, inf)",
    "x.double().masked_fill(mask, -inf)",
)
#: ... but for those that write into their input.
TAKEN_TO_READ = (
    "negative_view(x)",
    "x[:1].expand(3, 5)",
    "x[:, :1].expand(3, 5)",
    "x.as_strided((3, 5), (1, 1))",
    "x.as_strided((3, 5), (1, 3))",
    "leaf",
    "SubclassedParameter(x)",
    "inference(x)",
)
WRITES = "softmax_"
#: Inputs of 5 columns, for functions without a mask of three rows.
OF_OTHER_ROWS = (
    "x.unsqueeze(0)",
    "x.unsqueeze(1)",
    "x.expand(2, 3, 5)",
    "x.unsqueeze(1).expand(3, 4, 5)",
    "x[0]",
    "x.view(3, 1, 1, 1, 1, 1, 1, 5)",
    "x.new_empty(0, 7, 5)",
)
#: A row with a NaN has a sum of NaN; its maximum is unspecified.
OF_NAN = ("softmax_stats", "x.masked_fill(mask, nan)")
ANSWERED = [
    answers("softmax_stats(x.masked_fill(mask, nan), -1)[1]", "m.mul(nan)"),
    *(
        answers(CALLS[name].format(given), expected.format(given))
        for name, expected in EXPECTED.items()
        for given in TAKEN
        if (name, given) != OF_NAN
    ),
    *(
        answers(CALLS[name].format(given), expected.format(given))
        for name, expected in EXPECTED.items()
        for given in TAKEN_TO_READ
        if name != WRITES
    ),
    *(
        answers(CALLS[name].format(given), EXPECTED[name].format(given))
        for name in (*WITH_PARAMETERS, "softmax", "log_softmax", "softmax_stats", "stack_softmax")
        for given in OF_OTHER_ROWS
    ),
    *(
        answers(f"softmax_apply({given}, m, s, -1)", f"reference.softmax({given}, -1).to({dtype})")
        for given, dtype in {
            "x": "torch.float32",
            "x.t().contiguous().t()": "torch.float32",
            "x.repeat(1, 2)[:, ::2]": "torch.float32",
            "negative_view(x)": "torch.float32",
            "leaf": "torch.float32",
            "inference(x)": "torch.float32",
        }.items()
    ),
]

#: Where nothing can be computed there is the right shape, dtype and device, or a clear refusal.
META = [
    answers(call.format('x.to("meta")'), EXPECTED[name].format('x.to("meta")'))
    for name, call in CALLS.items()
    if name in ("softmax", "log_softmax", "softmax_", "stack_softmax", "stack_log_softmax")
] + [
    either("softmax_(negative_view(x), -1)", "torch.softmax(x, -1)", "(?s)input.*negat"),
    answers('softmax(torch.empty(2**42, 4, device="meta"), 1).shape', "(2**42, 4)"),
    answers('log_softmax(torch.empty(2**30, 2**30, device="meta"), 1).shape', "(2**30, 2**30)"),
    answers('rms_norm(torch.empty(2**41, 2, device="meta"), [2]).shape', "(2**41, 2)"),
]
#: More memory than any machine has.
TOO_LARGE = [
    refused(call.format("x[:1, :1].expand(2**30, 2**30)"), r"memory|bytes")
    for call in (
        "softmax({0}, -1)",
        "softmax({0}, 0)",
        "softmax({0}, -1, torch.float64)",
        "log_softmax({0}, -1)",
        "masked_softmax({0})",
        "masked_softmax({0}, causal=True)",
        "masked_softmax_dropout({0})",
        "layer_norm({0}, [2**30])",
        "std_norm({0}, [2**30])",
        "rms_norm({0}, [2**30])",
        "add_layer_norm({0}, {0}, [2**30])",
        "add_rms_norm({0}, {0}, [2**30])",
        "stack_softmax([{0}], -1)",
        "stack_log_softmax([{0}], -1)",
        "stack_layer_norm([{0}], [2**30])",
    )
]


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_an_input_that_no_kernel_supports_is_refused(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", ANSWERED + META, ids=str)
def test_every_other_input_gives_the_right_result(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", TOO_LARGE, ids=str)
def test_a_result_too_large_for_any_memory_is_refused(row, child):
    assert not child.problem_with(row)
