"""A bad argument is one clear error that names it: the same in eager, fake and compiled calls."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops
from fusedops.ops import _library

ops = torch.ops.fusedops
x = torch.randn(3, 5)

BAD_CALLS = {
    "integer input": (
        lambda x: fusedops.softmax(x.int(), -1),
        r"softmax: input is torch.int32, wanted torch.float32, .*pass dtype=",
    ),
    "bool input": (lambda x: fusedops.log_softmax(x > 0, -1), r"input is torch.bool"),
    "integer dtype": (lambda x: fusedops.softmax(x, -1, torch.int64), r"dtype is torch.int64"),
    "dim too large": (
        lambda x: fusedops.softmax(x, 2),
        r"softmax: dim is 2, wanted a value in \[-2, 1\] for an input of shape \[3, 5\]",
    ),
    "dim too small": (lambda x: fusedops.log_softmax(x, -3), r"log_softmax: dim is -3, wanted"),
    "gradient of another dtype": (
        lambda x: ops.softmax_backward(x.half(), x, -1, torch.float32),
        r"grad_output is torch.float16 of shape \[3, 5\], wanted torch.float32",
    ),
    "gradient of another shape": (
        lambda x: ops.log_softmax_backward(x[:2], x, -1, torch.float32),
        r"grad_output is torch.float32 of shape \[2, 5\], wanted .*\[3, 5\] as output is",
    ),
    "mask that does not broadcast": (
        lambda x: fusedops.masked_softmax(x, x.new_ones(4)),
        r"masked_softmax: mask has shape \[4\], wanted one that broadcasts to \[3, 5\]",
    ),
    "mask of more dimensions": (
        lambda x: fusedops.masked_softmax(x, x.new_ones(1, 3, 5)),
        r"mask has shape \[1, 3, 5\], wanted one that broadcasts",
    ),
    "integer mask": (
        lambda x: fusedops.masked_softmax(x, x.int()),
        r"mask is torch.int32, wanted torch.bool \(True where visible\) or a floating dtype",
    ),
    "byte mask": (lambda x: fusedops.masked_softmax(x, x.byte()), r"mask is torch.uint8"),
    "bias that does not broadcast": (
        lambda x: fusedops.masked_softmax(x, bias=x.new_ones(2, 5)),
        r"masked_softmax: bias has shape \[2, 5\], wanted one that broadcasts to \[3, 5\]",
    ),
    "bool bias": (
        lambda x: fusedops.masked_softmax(x, bias=x > 0),
        r"bias is torch.bool, wanted torch.float32",
    ),
    "NaN scale": (
        lambda x: fusedops.masked_softmax(x, scale=float("nan")),
        r"masked_softmax: scale is NaN, wanted a number",
    ),
    "NaN mask_value": (
        lambda x: fusedops.masked_softmax(x, mask_value=float("nan")),
        r"masked_softmax: mask_value is NaN",
    ),
    "mask_value that overflows": (
        lambda x: fusedops.masked_softmax(x.half(), mask_value=-1e300),
        r"mask_value is -1e\+300, beyond float32, .* wanted -inf or at least -3.40282e\+38",
    ),
    "causal without queries": (
        lambda x: fusedops.masked_softmax(x[0], causal=True),
        r"causal needs queries and keys, .* input has shape \[5\]",
    ),
    "integer scores": (
        lambda x: fusedops.masked_softmax(x.int()),
        r"masked_softmax: input is torch.int32, wanted torch.float32, .*pass dtype=",
    ),
    "scores without a dimension": (
        lambda x: fusedops.masked_softmax(x[0, 0]),
        r"masked_softmax: input has no dimension",
    ),
    "negative p": (
        lambda x: fusedops.masked_softmax_dropout(x, p=-0.1),
        r"masked_softmax_dropout: p is -0.1, wanted a probability in \[0, 1\]",
    ),
    "p above one": (lambda x: fusedops.masked_softmax_dropout(x, p=1.5), r"p is 1.5, wanted"),
    "NaN p": (lambda x: fusedops.masked_softmax_dropout(x, p=float("nan")), r"p is nan, wanted"),
    "two seeds": (
        lambda x: fusedops.masked_softmax_dropout(x, seed=torch.zeros(2, dtype=torch.int64)),
        r"seed is torch.int64 of shape \[2\], wanted one torch.int64; make it with torch.randint",
    ),
    "floating seed": (
        lambda x: fusedops.masked_softmax_dropout(x, seed=x.new_zeros(())),
        r"seed is torch.float32 of shape \[\], wanted one torch.int64",
    ),
    "masked gradient of another shape": (
        lambda x: ops.masked_softmax_backward(x[:2], x, None, 1.0, False, torch.float32),
        r"grad_output is torch.float32 of shape \[2, 5\], wanted .* as probabilities is",
    ),
    "out of another shape": (
        lambda x: fusedops.softmax(x, -1, out=x.new_empty(5, 3)),
        r"softmax: out has shape \[5, 3\], wanted input's, \[3, 5\]",
    ),
    "integer out": (
        lambda x: fusedops.log_softmax(x, -1, out=x.new_empty(3, 5, dtype=torch.int64)),
        r"log_softmax: out is torch.int64, wanted torch.float32",
    ),
    "integer in place": (
        lambda x: fusedops.softmax_(x.int(), -1),
        r"softmax_: input is torch.int32, wanted torch.float32",
    ),
    "integer norm input": (
        lambda x: fusedops.layer_norm(x.long(), [5]),
        r"layer_norm: input is torch.int64",
    ),
    "normalized_shape that does not match": (
        lambda x: fusedops.layer_norm(x, [4]),
        r"normalized_shape is \[4\], wanted the last dimensions of input, .*\[3, 5\]",
    ),
    "normalized_shape too long": (lambda x: fusedops.layer_norm(x, [1, 3, 5]), r"is \[1, 3, 5\]"),
    "empty normalized_shape": (lambda x: fusedops.layer_norm(x, []), r"normalized_shape is empty"),
    "zero-size normalized_shape": (
        lambda x: fusedops.layer_norm(x[:, :0], [0]),
        r"wanted no dimension of size 0",
    ),
    "weight of the wrong shape": (
        lambda x: fusedops.layer_norm(x, [5], x.new_ones(4)),
        r"weight has shape \[4\], wanted normalized_shape, \[5\]",
    ),
    "bias of the wrong shape": (
        lambda x: fusedops.layer_norm(x, [5], None, x.new_ones(1, 5)),
        r"bias has shape \[1, 5\], wanted normalized_shape, \[5\]",
    ),
    "integer weight": (
        lambda x: fusedops.layer_norm(x, [5], x.new_ones(5).int()),
        r"weight is torch.int32, wanted torch.float32",
    ),
    "negative eps": (lambda x: fusedops.layer_norm(x, [5], eps=-1e-5), r"eps is -1e-05, wanted"),
    "residual of another shape": (
        lambda x: fusedops.add_layer_norm(x, x[:2], [5]),
        r"add_layer_norm: residual has shape \[2, 5\], wanted input's, \[3, 5\]; expand one",
    ),
    "integer residual": (
        lambda x: fusedops.add_rms_norm(x, x.long(), [5]),
        r"add_rms_norm: residual is torch.int64, wanted torch.float32, .*; convert it",
    ),
    "complex residual": (
        lambda x: fusedops.add_layer_norm(x, x.to(torch.complex64), [5]),
        r"add_layer_norm: residual is torch.complex64, wanted torch.float32, .*; convert it",
    ),
    "integer input beside a residual": (
        lambda x: fusedops.add_rms_norm(x.long(), x, [5]),
        r"add_rms_norm: input is torch.int64, wanted torch.float32, .*; convert it",
    ),
    "integer input_dtype beside a residual": (
        lambda x: ops.add_rms_norm_backward(
            x, None, x, [5], x[:, :1], None, [True] * 3, input_dtype=torch.int64
        ),
        r"add_rms_norm_backward: input_dtype is torch.int64, wanted torch.float32, .*; convert it",
    ),
    "dtypes of another sum": (
        lambda x: ops.add_rms_norm_backward(
            x, None, x, [5], x[:, :1], None, [True] * 3, 0.0, 0.0, None, torch.half, torch.double
        ),
        r"add_rms_norm_backward: input_dtype is torch.float16 and residual_dtype torch.float64, "
        r"wanted those whose sum is torch.float32 as sum is",
    ),
    "p of the branch above 1": (
        lambda x: fusedops.add_layer_norm(x, x, [5], p=1.5),
        r"add_layer_norm: p is 1.5, wanted a probability in \[0, 1\]",
    ),
    "negative p of the branch": (
        lambda x: fusedops.add_rms_norm(x, x, [5], p=-0.5),
        r"add_rms_norm: p is -0.5, wanted",
    ),
    "dropout without a seed": (
        lambda x: ops.add_rms_norm(x, x, [5], None, 1e-5, 0.0, False, 0.5),
        r"add_rms_norm: p is 0.5 without a seed; make one with torch.randint, one int64",
    ),
    "several seeds of the branch": (
        lambda x: fusedops.add_layer_norm(x, x, [5], p=0.5, seed=x.new_ones(2).long()),
        r"add_layer_norm: seed is torch.int64 of shape \[2\], wanted one torch.int64",
    ),
    "rms weight of the wrong shape": (
        lambda x: fusedops.rms_norm(x, [5], x.new_ones(4)),
        r"rms_norm: weight has shape \[4\], wanted normalized_shape, \[5\]",
    ),
    "std weight of the wrong shape": (
        lambda x: fusedops.std_norm(x, [5], x.new_ones(4)),
        r"std_norm: weight has shape \[4\], wanted normalized_shape, \[5\]",
    ),
    "std gradient of the wrong shape": (
        lambda x: ops.std_norm_backward(x[:2], x, [5], x, x, None, None, [True] * 3, 1e-6),
        r"std_norm_backward: grad_output is torch.float32 of shape \[2, 5\], wanted .*\[3, 5\]",
    ),
    "negative std eps": (
        lambda x: fusedops.std_norm(x, [5], eps=-1.0),
        r"std_norm: eps is -1, wanted a value >= 0",
    ),
    "zero-size rms normalized_shape": (
        lambda x: fusedops.rms_norm(x[:, :0], [0]),
        r"rms_norm: .*wanted no dimension of size 0",
    ),
    "negative rms eps": (lambda x: fusedops.rms_norm(x, [5], eps=-1.0), r"eps is -1, wanted"),
    "output_mask of the wrong length": (
        lambda x: ops.layer_norm_backward(x, x, [5], x, x, None, None, [True] * 2),
        r"layer_norm_backward: output_mask has 2 entries, wanted 3, one for each gradient",
    ),
    "output_mask of a stack that is too long": (
        lambda x: ops.stack_layer_norm_backward(
            x[None], [x], [5], x, x, [], [], 0, [True, True, True, True]
        ),
        r"stack_layer_norm_backward: output_mask has 4 entries, wanted 3",
    ),
    "integer input_dtype": (
        lambda x: ops.softmax_backward(x, x, -1, torch.int64),
        r"softmax_backward: input_dtype is torch.int64, wanted torch.float32",
    ),
    "complex input_dtype": (
        lambda x: ops.masked_softmax_backward(x, x, None, 1.0, False, torch.complex64),
        r"masked_softmax_backward: input_dtype is torch.complex64, wanted torch.float32",
    ),
    "a statistic of another shape": (
        lambda x: ops.rms_norm_backward(x, x, [5], x[:, 0], None, [True, True]),
        r"rstd is torch.float32 of shape \[3\], wanted torch.float32 of shape \[3, 1\] as the for",
    ),
    "a statistic of another dtype": (
        lambda x: ops.layer_norm_backward(
            x, x, [5], x[:, :1].double(), x[:, :1], None, None, [True] * 3
        ),
        r"layer_norm_backward: mean is torch.float64 of shape \[3, 1\], wanted torch.float32",
    ),
    "negative eps of a gradient": (
        lambda x: ops.std_norm_backward(
            x, x, [5], x[:, :1], x[:, :1], None, None, [True] * 3, -1.0
        ),
        r"std_norm_backward: eps is -1, wanted a value >= 0",
    ),
    "an expanded out": (
        lambda x: fusedops.softmax(x, -1, out=x[:1].expand(3, 5)),
        r"softmax: elements of out share memory",
    ),
    "an expanded input in place": (
        lambda x: ops.masked_softmax_(x[:1].expand(3, 5), None, 1.0, False, 0.0),
        r"masked_softmax_: elements of input share memory",
    ),
    "NaN eps": (lambda x: fusedops.layer_norm(x, [5], eps=float("nan")), r"eps is nan, wanted"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_the_op_says_what_came_and_what_was_wanted(name):
    call, message = BAD_CALLS[name]
    with pytest.raises(RuntimeError, match=message):
        call(x)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_the_fake_kernel_says_the_same(name):
    call, _ = BAD_CALLS[name]
    with pytest.raises(RuntimeError) as real:
        call(x)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError) as fake:
        call(mode.from_tensor(x))
    assert str(fake.value) == str(real.value)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_compiled_code_says_the_same(name):
    call, message = BAD_CALLS[name]
    with pytest.raises(Exception, match=message):
        torch.compile(call, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize(
    "call", [fusedops.rms_norm, lambda x, n, **o: fusedops.add_rms_norm(x, x, n, **o)]
)
def test_an_unknown_variant_is_answered_with_the_known_ones(call):
    with pytest.raises(
        ValueError, match="variant is 'lama', wanted 'torch', 'llama', 't5' or 'gemma'"
    ):
        call(x, [5], variant="lama")


def test_a_weight_on_another_device_is_named():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="weight is on cpu, wanted meta"):
        ops.layer_norm(torch.empty(3, 5, device="meta"), [5], torch.empty(5), None, 1e-5)


def test_gradients_and_statistics_on_another_device_are_named():
    meta, statistic = x.to("meta"), x[:, :1]
    with pytest.raises(RuntimeError, match="output is on cpu, wanted|grad_output is on meta, want"):
        ops.softmax_backward(meta, x, -1, torch.float32)
    with pytest.raises(RuntimeError, match="grad_output is on meta, wanted cpu as inputs is"):
        given = (meta[None], [x], [5], statistic[None], statistic[None], [], [], 0, [True] * 3)
        ops.stack_layer_norm_backward(*given)
    with pytest.raises(RuntimeError, match="rstd is on meta, wanted cpu as input is"):
        ops.rms_norm_backward(x, x, [5], statistic.to("meta"), None, [True, True])
    with pytest.raises(RuntimeError, match="max is on meta, wanted cpu as input is"):
        ops.softmax_apply(x, statistic.to("meta"), statistic, -1)


@pytest.mark.parametrize("op", _library.OPS)
def test_a_cuda_tensor_without_cuda_kernels_is_refused_with_the_reason(op):
    """A tensor that dispatches to the CUDA key, as a CUDA tensor would."""
    if _library.has_kernels("cuda"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fusedops::{op}", "CUDA")
        return
    overload = getattr(ops, op).default
    by_name = {"normalized_shape": [5], "dim": -1, "eps": 1e-5}
    by_name |= {"input_dtype": torch.float32, "residual_dtype": None, "dtype": None}
    by_name |= {"lower_diagonal": None, "softcap": None, "scale": 1.0, "causal": False}
    by_name |= {"mask_value": 0.0, "p": 0.5, "diagonal": 0, "zero_masked_rows": False}
    by_name |= {name: [x] for name in ("inputs", "weights", "biases")} | {"stack_dim": 0}
    by_name |= {"weight_offset": 0.0, "rounds_normalized": False, "wants_sum": True}
    if op.endswith("norm_backward"):
        by_name["output_mask"] = [True] * len(overload._schema.returns)
    arguments = [by_name.get(argument.name, x) for argument in overload._schema.arguments]
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    named = op.removesuffix("_output")
    with pytest.raises(RuntimeError, match=rf"fusedops::{named} was given a CUDA tensor, but .*\w"):
        overload.redispatch(cuda, *arguments)
