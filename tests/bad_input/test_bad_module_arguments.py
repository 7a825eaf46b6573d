"""fusedops.nn with bad arguments, and modules called with bad tensors."""

import re

from bad_calls import clear, refused
from bad_values import ARGUMENTS, NONE, WORDS, shown

PROBABILITIES = ARGUMENTS["p"][1]
EPS, SOFTCAPS = (
    {value: got for value, got in ARGUMENTS[name][1].items() if value not in NONE}
    for name in ("eps", "softcap")
)
#: No size, and no sizes either.
SIZES = shown("[5.0]", "'5'", "None", "[[5]]", "-1", "5.0", error="TypeError") | {
    "[2**65]": rf"TypeError.*\[{2**65}\]"
}

OF_NESTED = (
    "nn.Softmax(-1)({})",
    "nn.LogSoftmax(-1)({})",
    "nn.LayerNorm(5)({})",
    "nn.StdNorm(5)({})",
    "nn.RMSNorm(5)({})",
)
MODULES = (*OF_NESTED, "nn.MaskedSoftmax()({})")
#: Arguments of constructors, which may be refused only by the call, and their bad values.
ARGUMENTS_OF = {
    "nn.MaskedSoftmax(p={})": PROBABILITIES,
    "nn.MaskedSoftmax(scale={})": ARGUMENTS["scale"][1],
    "nn.MaskedSoftmax(mask_value={})": ARGUMENTS["mask_value"][1],
    "nn.MaskedSoftmax(softcap={})": SOFTCAPS,
    "nn.MaskedSoftmax(causal={})": WORDS,
    "nn.MaskedSoftmax(masked_rows={})": WORDS,
    "nn.RMSNorm(5, variant={})": WORDS,
    "nn.CrossEntropyLoss(reduction={})": WORDS,
    "nn.LinearCrossEntropyLoss(5, 5, reduction={})": WORDS,
    "nn.LayerNorm(5, eps={})": EPS | NONE,
    "nn.StdNorm(5, eps={})": EPS | NONE,
    "nn.RMSNorm(5, eps={})": EPS,
    "nn.LinearCrossEntropyLoss(5, 5, out_features={})": SIZES,
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
        refused('nn.LayerNorm(5, device="meta")(x)', clear("weight", "meta")),
        refused('nn.LayerNorm(5)(x.to("meta"))', clear("weight", "cpu")),
        refused("nn.StdNorm(4)(x)", clear("normalized_shape", r"\[4\]")),
        refused('nn.StdNorm(5, device="meta")(x)', clear("weight", "meta")),
        refused("nn.RMSNorm(4)(x)", clear("normalized_shape", r"\[4\]")),
        refused('nn.RMSNorm(5, device="meta")(x)', clear("weight", "meta")),
        refused("nn.CrossEntropyLoss(w[:4])(x, classes)", clear("weight", r"\[4\]")),
        refused("nn.CrossEntropyLoss(z_loss='1')(x, classes)", clear("z_loss", "'1'")),
        refused("nn.CrossEntropyLoss(z_loss=-1)(x, classes)", clear("z_loss", "-1")),
        refused(
            "nn.CrossEntropyLoss(label_smoothing=2)(x, classes)", clear("label_smoothing", "2")
        ),
        refused("nn.CrossEntropyLoss(softcap=0)(x, classes)", clear("softcap", "0")),
        refused("nn.LinearCrossEntropyLoss(4, 5)(x, classes)", clear("linear_weight", r"\[5, 4\]")),
        refused(
            "nn.LinearCrossEntropyLoss(5, 5, weight=w[:4])(x, classes)", clear("weight", r"\[4\]")
        ),
        refused("nn.LinearCrossEntropyLoss(5, 5, z_loss='1')", clear("z_loss", "'1'")),
        refused("nn.LinearCrossEntropyLoss(5, 5, options=3)", clear("options", "3")),
        refused(
            "nn.LinearCrossEntropyLoss(5, 5, out_features=[2])(x, classes)", r"target.*\[3, 2\]"
        ),
        refused("nn.CrossEntropyLoss(ignore_index='a')(x, classes)", clear("ignore_index", "'a'")),
    ]
)


def test_a_module_refuses_what_its_function_refuses(judge):
    judge(REFUSED)
