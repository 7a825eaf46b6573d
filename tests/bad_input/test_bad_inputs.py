"""Every function with every kind of input that it takes gives the right result."""

from bad_calls import answers, either, refused

#: A call of each function; {0} is its input.
CALLS = {
    "softmax": "softmax({0}, -1)",
    "log_softmax": "log_softmax({0}, -1)",
    "softmax_": "softmax_({0}, -1)",
    "softmax_stats": "softmax_stats({0}, -1)",
    "softmax_apply": "softmax_apply({0}, m, s, -1)",
    "cross_entropy": "cross_entropy({0}, {0}.new_ones({0}.shape[:-1]).long(), dim=-1)",
    "linear_cross_entropy": (
        "linear_cross_entropy({0}, {0}.flatten(0, -2), {0}.new_zeros({0}.shape[:-1]).long())"
    ),
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


def test_every_input_that_is_taken_gives_the_right_result(judge):
    judge(ANSWERED + META)


def test_a_result_too_large_for_any_memory_is_refused(judge):
    judge(TOO_LARGE)
