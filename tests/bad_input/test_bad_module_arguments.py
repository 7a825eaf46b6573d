"""fusedops.nn with bad arguments, and modules called with bad tensors."""

import pytest
from bad_calls import answers, clear, refused

MODULES = {
    "nn.Softmax(-1)({})": "torch.softmax({}, -1)",
    "nn.LogSoftmax(-1)({})": "torch.log_softmax({}, -1)",
    "nn.MaskedSoftmax()({})": "torch.softmax({}, -1)",
    "nn.LayerNorm(5)({}).detach()": "torch.nn.functional.layer_norm({}, (5,))",
    "nn.StdNorm(5)({}).detach()": "reference.std_norm({}, (5,)).float()",
    "nn.RMSNorm(5)({}).detach()": "torch.nn.functional.rms_norm({}, (5,))",
}
INPUTS = {
    "None": "None",
    "3": "int",
    "'x'": "str",
    "[1.0, 2.0]": "list",
    "x.numpy()": "ndarray",
    "(x, y)": "tuple",
    "x.int()": "int32",
    "x.bool()": "bool|Bool",
    "x.to(torch.complex64)": "complex64|ComplexFloat",
    "x.to(torch.float8_e5m2)": "float8_e5m2|Float8_e5m2",
    "x.to_sparse()": "[Ss]parse",
    "x.to_sparse_csr()": "[Ss]parse",
    "quantized(x)": "[Qq]uantized|qint8",
    "x.to_mkldnn()": "mkldnn|MKLDNN",
    "nested(x)": "[Nn]ested",
}
REFUSED = [
    refused(call.format(given), clear("input", got))
    for call in MODULES
    for given, got in INPUTS.items()
    if given != "nested(x)" or "Masked" in call or "2d" in call
] + [
    refused("nn.Softmax(2)(x)", clear("dim", "2")),
    refused("nn.Softmax('a')(x)", clear("dim", "'a'|str")),
    refused("nn.Softmax(1.0)(x)", clear("dim", "1.0|float")),
    refused("nn.LogSoftmax(-3)(x)", clear("dim", "-3")),
    refused("nn.LogSoftmax([0])(x)", clear("dim", "list")),
    refused("nn.MaskedSoftmax(p=-0.1)", clear("p", "-0.1")),
    refused("nn.MaskedSoftmax(p=1.5)", clear("p", "1.5")),
    refused("nn.MaskedSoftmax(p=nan)", clear("p", "nan")),
    refused("nn.MaskedSoftmax(p='a')", clear("p", "'a'|str")),
    refused("nn.MaskedSoftmax(p=None)", clear("p", "None")),
    refused("nn.MaskedSoftmax(p=[0.5])", clear("p", "list|0.5")),
    refused("nn.MaskedSoftmax(p=1j)", clear("p", "complex|1j")),
    refused("nn.MaskedSoftmax(scale='a')(x)", clear("scale", "'a'|str")),
    refused("nn.MaskedSoftmax(scale=nan)(x)", clear("scale", "nan|NaN")),
    refused("nn.MaskedSoftmax(scale=None)(x)", clear("scale", "None")),
    refused("nn.MaskedSoftmax(mask_value='a')(x)", clear("mask_value", "'a'|str")),
    refused("nn.MaskedSoftmax(mask_value=nan)(x)", clear("mask_value", "nan|NaN")),
    refused("nn.MaskedSoftmax(mask_value=-1e300)(x)", clear("mask_value", r"1e\+300")),
    refused("nn.MaskedSoftmax(causal='up')(x)", clear("causal", "'up'")),
    refused("nn.MaskedSoftmax(causal=2)(x)", clear("causal", "2")),
    refused("nn.MaskedSoftmax(causal=True)(x[0])", clear("causal", r"\[5\]")),
    refused("nn.MaskedSoftmax(masked_rows='none')(x)", clear("masked_rows", "'none'")),
    refused("nn.MaskedSoftmax(masked_rows=None)(x)", clear("masked_rows", "None")),
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
    refused("nn.RMSNorm(5, variant='lama')", clear("variant", "'lama'")),
    refused("nn.RMSNorm(5, variant=None)", clear("variant", "None")),
    refused("nn.RMSNorm(5, variant=['t5'])", clear("variant", "t5")),
    refused('nn.RMSNorm(5, device="meta")(x)', clear("weight", "meta")),
]
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


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_a_module_refuses_what_its_function_refuses(row, child):
    assert not child.problem_with(row)


@pytest.mark.parametrize("row", ANSWERED, ids=str)
def test_a_module_gives_what_its_function_gives(row, child):
    assert not child.problem_with(row)
