"""fusedops.nn with bad arguments, and modules called with bad tensors."""

import re

from bad_calls import answers, clear, refused
from bad_values import ARGUMENTS, WORDS, shown

PROBABILITIES = ARGUMENTS["p"][1]
#: No size, and no sizes either.
SIZES = shown("[5.0]", "'5'", "None", "[[5]]", "-1", "5.0", error="TypeError") | {
    "[2**65]": rf"TypeError.*\[{2**65}\]"
}

MODULES = {
    "nn.Softmax(-1)({})": "torch.softmax({}, -1)",
    "nn.LogSoftmax(-1)({})": "torch.log_softmax({}, -1)",
    "nn.MaskedSoftmax()({})": "torch.softmax({}, -1)",
    "nn.LayerNorm(5)({}).detach()": "torch.nn.functional.layer_norm({}, (5,))",
    "nn.StdNorm(5)({}).detach()": "reference.std_norm({}, (5,)).float()",
    "nn.RMSNorm(5)({}).detach()": "torch.nn.functional.rms_norm({}, (5,))",
}
OF_NESTED = tuple(name for name in MODULES if "Masked" not in name)
#: Arguments of constructors, which may be refused only by the call, and their bad values.
ARGUMENTS_OF = {
    "nn.MaskedSoftmax(p={})": PROBABILITIES,
    "nn.MaskedSoftmax(scale={})": ARGUMENTS["scale"][1],
    "nn.MaskedSoftmax(mask_value={})": ARGUMENTS["mask_value"][1],
    "nn.MaskedSoftmax(causal={})": WORDS,
    "nn.MaskedSoftmax(masked_rows={})": WORDS,
    "nn.RMSNorm(5, variant={})": WORDS,
    **{f"nn.{norm}(normalized_shape={{}})": SIZES for norm in ("LayerNorm", "StdNorm", "RMSNorm")},
}
REFUSED = (
    [
        refused(call.format(given), clear("input", got))
        for call in MODULES
        for given, got in ARGUMENTS["input"][1].items()
        if not (given in ("nested(x)", "jagged(x)") and call in OF_NESTED)
    ]
    + [
        refused(f"{call.format(value)}(x)", clear(re.findall(r"(\w+)={}", call)[0], got))
        for call, values in ARGUMENTS_OF.items()
        for value, got in values.items()
    ]
    + [
        refused("nn.Softmax(2)(x)", clear("dim", "2")),
        refused("nn.Softmax('a')(x)", clear("dim", "'a'|str")),
        refused("nn.Softmax(1.0)(x)", clear("dim", "1.0|float")),
        refused("nn.LogSoftmax(-3)(x)", clear("dim", "-3")),
        refused("nn.LogSoftmax([0])(x)", clear("dim", "list")),
        refused("nn.MaskedSoftmax(causal=True)(x[0])", clear("causal", r"\[5\]")),
        refused("nn.MaskedSoftmax()(x, x.int())", clear("mask", "int32")),
        refused("nn.MaskedSoftmax()(x, mask[:2])", clear("mask", r"\[2, 5\]")),
        refused("nn.MaskedSoftmax()(x, [[True]])", clear("mask", "list")),
        refused("nn.MaskedSoftmax()(x, None, mask)", clear("bias", "bool")),
        refused("nn.MaskedSoftmax()(x, None, y.t())", clear("bias", r"\[5, 3\]")),
        refused("nn.MaskedSoftmax(p=0.5)(x, 'mask')", clear("mask", "str")),
        refused("nn.LayerNorm(4)(x)", clear("normalized_shape", r"\[4\]")),
        refused("nn.LayerNorm((5, 3))(x)", clear("normalized_shape", r"\[5, 3\]")),
        refused("nn.LayerNorm(5, eps=-1.0)(x)", clear("eps", "-1")),
        refused("nn.LayerNorm(5, eps=nan)(x)", clear("eps", "nan")),
        refused("nn.LayerNorm(5, eps='a')(x)", clear("eps", "'a'|str")),
        refused('nn.LayerNorm(5, device="meta")(x)', clear("weight", "meta")),
        refused('nn.LayerNorm(5)(x.to("meta"))', clear("weight", "cpu")),
        refused("nn.StdNorm(4)(x)", clear("normalized_shape", r"\[4\]")),
        refused("nn.StdNorm(5, eps=-1.0)(x)", clear("eps", "-1")),
        refused("nn.StdNorm(5, eps=None)(x)", clear("eps", "None")),
        refused('nn.StdNorm(5, device="meta")(x)', clear("weight", "meta")),
        refused("nn.RMSNorm(4)(x)", clear("normalized_shape", r"\[4\]")),
        refused("nn.RMSNorm(5, eps=-1.0)(x)", clear("eps", "-1")),
        refused("nn.RMSNorm(5, eps='a')(x)", clear("eps", "'a'|str")),
        refused('nn.RMSNorm(5, device="meta")(x)', clear("weight", "meta")),
    ]
)
ANSWERED = [
    answers(call.format(given), expected.format(given))
    for call, expected in MODULES.items()
    for given in (
        "x",
        "x[:0]",
        "x.t().contiguous().t()",
        "x[:1].expand(3, 5)",
        "x.unsqueeze(0)",
        "negative_view(x)",
        "x.masked_fill(mask, nan)",
    )
] + [
    answers("nn.Softmax()(x)", "torch.softmax(x, 1)"),
    answers("nn.Softmax(None)(x[0, 0])", "torch.ones(())"),
    answers("nn.LogSoftmax()(x.view(3, 5, 1))", "torch.log_softmax(x.view(3, 5, 1), 0)"),
    answers(
        "nn.MaskedSoftmax(scale=0.5)(x, mask)", "reference.masked_softmax(x, mask, 0.5).float()"
    ),
    answers("nn.MaskedSoftmax(p=1)(x)", "x.mul(0).abs()"),
    answers("nn.MaskedSoftmax(p=1).eval()(x)", "torch.softmax(x, -1)"),
    answers(
        "nn.LayerNorm(5, elementwise_affine=False)(x)", "torch.nn.functional.layer_norm(x, (5,))"
    ),
    answers("nn.LayerNorm(5).half()(x).detach()", "torch.nn.functional.layer_norm(x, (5,))", 1e-3),
    answers("nn.LayerNorm(5).double()(x).detach()", "torch.nn.functional.layer_norm(x, (5,))"),
    answers("nn.RMSNorm(5, variant='gemma').weight.detach()", "torch.zeros(5)"),
    answers("nn.RMSNorm(5, variant='gemma')(x).detach()", "torch.nn.functional.rms_norm(x, (5,))"),
]


def test_a_module_refuses_what_its_function_refuses(judge):
    judge(REFUSED)


def test_a_module_gives_what_its_function_gives(judge):
    judge(ANSWERED)
