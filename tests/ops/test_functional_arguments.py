"""Functions and modules given arguments of a wrong type: the error names the function, the argument
and what came."""

import math

import numpy as np
import pytest
import torch

import fusedops
from fusedops import nn

X = torch.randn(3, 5)
WEIGHT = torch.randn(5)
GRADIENT = torch.tensor(0.5, requires_grad=True)


def raised(call, value):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as info:
        call(value)
    return str(info.value)


NO_TENSORS = [[1.0, 2.0], "a", 3.0, (X,), np.ones((3, 5), np.float32), {"input": X}]

TENSORS = {
    "softmax input": lambda v: fusedops.softmax(v, -1),
    "softmax input of all": lambda v: fusedops.softmax(v, None),
    "softmax input with out": lambda v: fusedops.softmax(v, -1, out=X.clone()),
    "softmax input of all with out": lambda v: fusedops.softmax(v, None, out=X.clone()),
    "softmax out": lambda v: fusedops.softmax(X, -1, out=v),
    "log_softmax out": lambda v: fusedops.log_softmax(X, None, out=v),
    "softmax_ input": lambda v: fusedops.softmax_(v, -1),
    "log_softmax input": lambda v: fusedops.log_softmax(v, -1),
    "softmax_stats input": lambda v: fusedops.softmax_stats(v, -1),
    "softmax_apply input": lambda v: fusedops.softmax_apply(v, X, X, -1),
    "softmax_apply max": lambda v: fusedops.softmax_apply(X, v, X, -1),
    "merge_softmax_stats stats": lambda v: fusedops.merge_softmax_stats(v),
    "merge_softmax_stats stats[0]": lambda v: fusedops.merge_softmax_stats([v]),
    "merge_softmax_stats max of stats[0]": lambda v: fusedops.merge_softmax_stats([(v, v)]),
    "masked_softmax input": lambda v: fusedops.masked_softmax(v),
    "masked_softmax input, bottom right": lambda v: fusedops.masked_softmax(
        v, causal="bottom_right"
    ),
    "masked_softmax mask": lambda v: fusedops.masked_softmax(X, v),
    "masked_softmax bias": lambda v: fusedops.masked_softmax(X, bias=v),
    "masked_softmax start": lambda v: fusedops.masked_softmax(X, start=v),
    "masked_softmax_dropout end": lambda v: fusedops.masked_softmax_dropout(X, end=v),
    "masked_softmax out": lambda v: fusedops.masked_softmax(X, out=v),
    "masked_softmax_dropout input": lambda v: fusedops.masked_softmax_dropout(v),
    "masked_softmax_dropout seed": lambda v: fusedops.masked_softmax_dropout(X, seed=v),
    "layer_norm input": lambda v: fusedops.layer_norm(v, [5]),
    "layer_norm weight": lambda v: fusedops.layer_norm(X, [5], v),
    "std_norm bias": lambda v: fusedops.std_norm(X, [5], None, v),
    "rms_norm input": lambda v: fusedops.rms_norm(v, [5]),
    "rms_norm weight": lambda v: fusedops.rms_norm(X, [5], v),
    "rms_norm weight of t5": lambda v: fusedops.rms_norm(X, [5], v, variant="t5"),
    "rms_norm input of llama": lambda v: fusedops.rms_norm(v, [5], WEIGHT, variant="llama"),
    "add_layer_norm input": lambda v: fusedops.add_layer_norm(v, X, [5]),
    "add_layer_norm residual": lambda v: fusedops.add_layer_norm(X, v, [5]),
    "add_layer_norm input and dropout": lambda v: fusedops.add_layer_norm(v, X, [5], p=0.5),
    "add_layer_norm seed": lambda v: fusedops.add_layer_norm(X, X, [5], p=0.5, seed=v),
    "add_rms_norm input": lambda v: fusedops.add_rms_norm(v, X, [5]),
    "add_rms_norm residual": lambda v: fusedops.add_rms_norm(X, v, [5], WEIGHT),
    "stack_softmax inputs": lambda v: fusedops.stack_softmax([X, v], -1),
    "stack_layer_norm weights": lambda v: fusedops.stack_layer_norm([X], [5], [v]),
}


@pytest.mark.parametrize("value", NO_TENSORS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("name", TENSORS)
def test_an_argument_that_is_no_tensor_is_named(name, value):
    function, argument, *_ = name.replace(",", "").split()
    text = raised(TENSORS[name], value)
    assert function in text and argument in text


@pytest.mark.parametrize("name", [n for n in TENSORS if "input" in n.split()])
def test_a_missing_input_is_named(name):
    function = name.split()[0]
    text = raised(TENSORS[name], None)
    assert function in text and "input" in text


NUMBERS = {
    "masked_softmax scale": lambda v: fusedops.masked_softmax(X, scale=v),
    "masked_softmax mask_value": lambda v: fusedops.masked_softmax(X, mask_value=v),
    "masked_softmax_dropout p": lambda v: fusedops.masked_softmax_dropout(X, p=v),
    "masked_softmax_dropout scale": lambda v: fusedops.masked_softmax_dropout(X, scale=v),
    "masked_softmax_dropout mask_value": lambda v: fusedops.masked_softmax_dropout(X, mask_value=v),
    "layer_norm eps": lambda v: fusedops.layer_norm(X, [5], eps=v),
    "std_norm eps": lambda v: fusedops.std_norm(X, [5], eps=v),
    "rms_norm eps": lambda v: fusedops.rms_norm(X, [5], eps=v),
    "add_layer_norm eps": lambda v: fusedops.add_layer_norm(X, X, [5], eps=v),
    "add_layer_norm p": lambda v: fusedops.add_layer_norm(X, X, [5], p=v),
    "add_rms_norm eps": lambda v: fusedops.add_rms_norm(X, X, [5], eps=v),
    "add_rms_norm p": lambda v: fusedops.add_rms_norm(X, X, [5], p=v),
    "stack_layer_norm eps": lambda v: fusedops.stack_layer_norm([X], [5], eps=v),
    "MaskedSoftmax p": lambda v: nn.MaskedSoftmax(p=v),
    "MaskedSoftmax scale": lambda v: nn.MaskedSoftmax(scale=v),
    "MaskedSoftmax mask_value": lambda v: nn.MaskedSoftmax(mask_value=v),
}
NO_NUMBERS = ["a", "0.5", b"1", [1.0], 1j, torch.tensor([0.1, 0.2]), GRADIENT, {1.0: None}]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_an_argument_that_is_no_number_is_named(name, value):
    function, argument = name.split()
    with pytest.raises(TypeError, match=rf"{function}: {argument} is .*, wanted a number|which it"):
        NUMBERS[name](value)


@pytest.mark.parametrize("name", [n for n in NUMBERS if "rms_norm eps" not in n])
def test_none_is_no_number(name):
    function, argument = name.split()
    with pytest.raises(TypeError, match=f"{function}: {argument} is None, wanted a number"):
        NUMBERS[name](None)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5)])
def test_numbers_of_any_kind_are_numbers(value):
    expected = fusedops.masked_softmax(X, scale=0.5, mask_value=-1.0, causal=True)
    found = fusedops.masked_softmax(X, scale=value, mask_value=-1, causal=True)
    assert torch.equal(found, expected)
    assert torch.equal(fusedops.layer_norm(X, [5], eps=value), fusedops.layer_norm(X, [5], eps=0.5))


@pytest.mark.parametrize("value", [1.0, "a", [1], 2**70, 1j], ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda v: fusedops.softmax(X, v),
        lambda v: fusedops.softmax(X, v, out=X.clone()),
        lambda v: fusedops.softmax_(X.clone(), v),
        lambda v: fusedops.softmax_stats(X, v),
        lambda v: fusedops.stack_softmax([X], v),
    ],
)
def test_a_dim_of_another_type_is_named(call, value):
    text = raised(call, value)
    assert "softmax" in text and "'dim'" in text


@pytest.mark.parametrize("value", [5, None, [5.0], ["a"], [[5]], [2**65], 5.0], ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda v: fusedops.layer_norm(X, v),
        lambda v: fusedops.rms_norm(X, v),
        lambda v: fusedops.add_layer_norm(X, X, v),
        lambda v: fusedops.stack_layer_norm([X], v),
    ],
)
def test_a_normalized_shape_of_another_type_is_named(call, value):
    text = raised(call, value)
    assert "norm" in text and "normalized_shape" in text


@pytest.mark.parametrize("module", [nn.LayerNorm, nn.StdNorm, nn.RMSNorm])
@pytest.mark.parametrize("value", [[5.0], "5", None, [[5]], [2**65], -1, 5.0], ids=repr)
def test_a_module_names_a_normalized_shape_of_another_type(module, value):
    with pytest.raises(TypeError, match=f"{module.__name__}: normalized_shape is .*, wanted a siz"):
        module(value)


@pytest.mark.parametrize("value", [None, 3, X, "a"], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("inputs", lambda v: fusedops.stack_softmax(v, -1)),
        ("inputs", lambda v: fusedops.stack_log_softmax(v, -1)),
        ("inputs", lambda v: fusedops.stack_layer_norm(v, [5])),
        ("weights", lambda v: fusedops.stack_layer_norm([X], [5], v)),
        ("biases", lambda v: fusedops.stack_layer_norm([X], [5], None, v)),
    ],
)
def test_an_argument_that_is_no_list_of_tensors_is_named(argument, call, value):
    if argument != "inputs" and value is None:
        return  # none are wanted
    with pytest.raises(TypeError, match=f"stack_.*: {argument} is .*, wanted a list of tensors"):
        call(value)


def test_a_generator_is_a_list_of_tensors():
    found = fusedops.stack_softmax((t for t in (X, X)), -1)
    assert torch.equal(found, fusedops.stack_softmax([X, X], -1))


def test_parts_of_statistics_that_differ_are_named():
    max, sum = fusedops.softmax_stats(X, 1)
    for other, what in (
        ((max[:2], sum[:2]), r"max of stats\[1\] is torch.float32 of shape \[2, 1\], wanted"),
        ((max, sum.double()), r"sum of stats\[1\] is torch.float64"),
        ((max, sum.to("meta")), r"sum of stats\[1\] is on meta, wanted cpu"),
    ):
        with pytest.raises(RuntimeError, match=f"merge_softmax_stats: {what}"):
            fusedops.merge_softmax_stats([(max, sum), other])


@pytest.mark.parametrize("value", ["float32", 3, torch.int64, torch.qint8, np.float32, float])
@pytest.mark.parametrize(
    "call",
    [
        lambda v: fusedops.softmax(X, -1, v),
        lambda v: fusedops.log_softmax(X, -1, v),
        lambda v: fusedops.masked_softmax(X, dtype=v),
        lambda v: fusedops.masked_softmax_dropout(X, dtype=v),
        lambda v: fusedops.softmax_apply(X, *fusedops.softmax_stats(X, -1), -1, v),
    ],
)
def test_a_dtype_that_is_not_floating_is_named(call, value):
    assert "softmax" in (text := raised(call, value)) and ": dtype is" in text


@pytest.mark.parametrize("value", [3, None, "no", [1, 2], np.ones(2), torch.ones(2)], ids=repr)
def test_an_unknown_word_is_answered_with_the_known_ones(value):
    for call, argument in (
        (lambda v: fusedops.masked_softmax(X, causal=v), "causal"),
        (lambda v: fusedops.masked_softmax(X, masked_rows=v), "masked_rows"),
        (lambda v: fusedops.rms_norm(X, [5], variant=v), "variant"),
        (lambda v: nn.MaskedSoftmax(causal=v), "causal"),
        (lambda v: nn.MaskedSoftmax(masked_rows=v), "masked_rows"),
        (lambda v: nn.RMSNorm(5, variant=v), "variant"),
    ):
        with pytest.raises(ValueError, match=f"{argument} is (.|\n)*, wanted .* or "):
            call(value)


def test_a_layout_is_named_with_the_call_that_makes_it_strided():
    for given, what in (
        (X.to_sparse(), "has layout torch.sparse_coo, wanted torch.strided.*to_dense"),
        (X.to_sparse_csr(), "has layout torch.sparse_csr"),
        (X.to_mkldnn(), "has layout torch._mkldnn"),
        (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "is quantized, torch.qint8.*dequant"),
    ):
        with pytest.raises(RuntimeError, match=f"softmax: input {what}"):
            fusedops.softmax(given, -1)
        with pytest.raises(RuntimeError, match=f"layer_norm: input {what}"):
            fusedops.layer_norm(given, [5])
    with pytest.raises(RuntimeError, match="masked_softmax: mask has layout torch.sparse_coo"):
        fusedops.masked_softmax(X, X.to_sparse())
    with pytest.raises(RuntimeError, match="layer_norm: weight has layout torch._mkldnn"):
        fusedops.layer_norm(X, [5], WEIGHT.to_mkldnn())


def test_infinity_is_accepted_where_its_result_is_defined():
    assert torch.equal(fusedops.layer_norm(X, [5], None, WEIGHT, math.inf), WEIGHT.expand(3, 5))
