"""Every function with every kind of input that it takes gives the right result."""

from itertools import product

from bad_calls import answers, either

_SOFTMAX = "reference.softmax({0}, -1).to({0}.dtype)"
_MASKED = "reference.masked_softmax({0}, mask[1]).to({0}.dtype)"
_STACKED = "torch.stack([reference.{}.to({{0}}.dtype)] * 2)".format
#: With the seed 7 and p = 0.25.
_KEPT = "(reference.philox(7, {0}.numel() // 5, 5).view({0}.shape) >= 2**30)"
_SUM = "(reference.{}.to({{0}}.dtype), {{0}} + {{0}})".format
#: A call of each function, {0} is its input; and what it gives, from float64.
CALLS = {
    "softmax": ("softmax({0}, -1)", _SOFTMAX),
    "log_softmax": ("log_softmax({0}, -1)", "reference.log_softmax({0}, -1).to({0}.dtype)"),
    "softmax_": ("softmax_({0}, -1)", _SOFTMAX),
    "softmax_stats": ("softmax_stats({0}, -1)", "stats({0})"),
    "masked_softmax": ("masked_softmax({0}, mask[1])", _MASKED),
    "masked_softmax_dropout": (
        "masked_softmax_dropout({0}, mask[1], p=0.0, seed=seed)",
        _MASKED,
    ),
    "dropout": (
        "dropout({0}, 0.25, seed=seed)",
        f"({{0}}.double() * {_KEPT} / 0.75).to({{0}}.dtype)",
    ),
    **{
        norm: (f"{norm}({{0}}, {given})", f"reference.{norm}({{0}}, {given}).to({{0}}.dtype)")
        for norm, given in {
            "layer_norm": "[5], w, b",
            "std_norm": "[5], w, b",
            "rms_norm": "[5], w, 1e-6",
        }.items()
    },
    "add_layer_norm": (
        "add_layer_norm({0}, {0}, [5], w, b)",
        _SUM("layer_norm({0} + {0}, [5], w, b)"),
    ),
    "add_rms_norm": (
        "add_rms_norm({0}, {0}, [5], w, 1e-6)",
        _SUM("rms_norm({0} + {0}, [5], w, 1e-6)"),
    ),
    "stack_softmax": ("stack_softmax([{0}, {0}], -1)", _STACKED("softmax({0}, -1)")),
    "stack_log_softmax": ("stack_log_softmax([{0}, {0}], -1)", _STACKED("log_softmax({0}, -1)")),
    "stack_layer_norm": (
        "stack_layer_norm([{0}, {0}], [5], [w, w], [b, b])",
        _STACKED("layer_norm({0}, [5], w, b)"),
    ),
}
WITHOUT_A_MASK = ("layer_norm", "std_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
WITHOUT_A_MASK += ("softmax", "log_softmax", "softmax_stats", "stack_softmax", "dropout")

#: Tensors that every function takes; tests/properties have dtypes, strides and values.
TAKEN = (
    "x",
    "x[:0]",
    "x.t().contiguous().t()",
    "x.as_subclass(Subclass)",
    "x.double().mul(1e-310)",
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
#: Inputs of 5 columns, for functions without a mask or statistics of three rows.
OF_OTHER_ROWS = (
    "x.unsqueeze(0)",
    "x.unsqueeze(1)",
    "x.expand(2, 3, 5)",
    "x.unsqueeze(1).expand(3, 4, 5)",
    "x[0]",
    "x.view(3, 1, 1, 1, 1, 1, 1, 5)",
    "x.new_empty(0, 7, 5)",
)
ANSWERED = [
    *(
        answers(*(text.format(given) for text in CALLS[name]))
        for name, given in (
            *product(CALLS, TAKEN),
            *product([name for name in CALLS if name != WRITES], TAKEN_TO_READ),
            *product(WITHOUT_A_MASK, OF_OTHER_ROWS),
        )
    ),
    *(
        answers(f"softmax_apply({given}, m, s, -1)", f"reference.softmax({given}, -1).float()")
        for given in ("x", "x.repeat(1, 2)[:, ::2]", "negative_view(x)", "leaf", "inference(x)")
    ),
]

#: Where nothing can be computed there is the right shape, dtype and device, or a clear refusal.
META = [
    *(
        answers(*(text.format('x.to("meta")') for text in CALLS[name]))
        for name in ("softmax", "log_softmax", "softmax_", "stack_softmax", "stack_log_softmax")
    ),
    either("softmax_(negative_view(x), -1)", "torch.softmax(x, -1)", "(?s)input.*negat"),
    answers('softmax(torch.empty(2**42, 4, device="meta"), 1).shape', "(2**42, 4)"),
    answers('log_softmax(torch.empty(2**30, 2**30, device="meta"), 1).shape', "(2**30, 2**30)"),
    answers('rms_norm(torch.empty(2**41, 2, device="meta"), [2]).shape', "(2**41, 2)"),
]


def test_every_input_that_is_taken_gives_the_right_result(judge):
    judge(ANSWERED + META)
