"""What errors say, in full: the same in an eager call, of fake tensors and in compiled code."""

import re

import pytest
import torch
from bad_calls import refused
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops

#: Calls with x, a tensor of three rows and five columns, and what their errors say.
MESSAGES = {
    "softmax(x.int(), -1)": r"softmax: input is torch.int32, wanted torch.float32, .*pass dtype=",
    "softmax(x, -1, torch.int64)": r"dtype is torch.int64",
    "softmax(x, 2)": (
        r"softmax: dim is 2, wanted a value in \[-2, 1\] for an input of shape \[3, 5\]"
    ),
    "ops.softmax_backward(x.half(), x, -1, torch.float32)": (
        r"grad_output is torch.float16 of shape \[3, 5\], wanted torch.float32"
    ),
    "ops.log_softmax_backward(x[:2], x, -1, torch.float32)": (
        r"grad_output is torch.float32 of shape \[2, 5\], wanted .*\[3, 5\] as output is"
    ),
    "masked_softmax(x, x.new_ones(4))": (
        r"masked_softmax: mask has shape \[4\], wanted one that broadcasts to \[3, 5\]"
    ),
    "masked_softmax(x, x.int())": (
        r"mask is torch.int32, wanted torch.bool \(True where visible\) or a floating dtype"
    ),
    "masked_softmax(x, bias=x.new_ones(2, 5))": (
        r"masked_softmax: bias has shape \[2, 5\], wanted one that broadcasts to \[3, 5\]"
    ),
    "masked_softmax(x, bias=x > 0)": r"bias is torch.bool, wanted torch.float32",
    "masked_softmax(x, scale=float('nan'))": r"masked_softmax: scale is NaN, wanted a number",
    "masked_softmax(x, mask_value=float('nan'))": r"masked_softmax: mask_value is NaN",
    "masked_softmax(x.half(), mask_value=-1e+300)": (
        r"mask_value is -1e\+300, beyond float32, .* wanted -inf or at least -3.40282e\+38"
    ),
    "masked_softmax(x[0], causal=True)": (
        r"causal needs queries and keys, .* input has shape \[5\]"
    ),
    "masked_softmax(x[0, 0])": r"masked_softmax: input has no dimension",
    "masked_softmax_dropout(x, p=-0.1)": (
        r"masked_softmax_dropout: p is -0.1, wanted a probability in \[0, 1\]"
    ),
    "masked_softmax_dropout(x, seed=torch.zeros(2, dtype=torch.int64))": (
        r"seed is torch.int64 of shape \[2\], wanted one torch.int64; make it with torch.randint"
    ),
    "dropout(x, 1.5)": r"dropout: p is 1.5, wanted a probability in \[0, 1\]",
    "dropout(x.int())": r"dropout: input is torch.int32, wanted torch.float32, .*; convert it",
    "dropout(x, seed=torch.zeros(2, dtype=torch.int64))": (
        r"dropout: seed is torch.int64 of shape \[2\], wanted one torch.int64; make it with"
    ),
    "ops.masked_softmax_backward(x[:2], x, None, 1.0, False, torch.float32)": (
        r"grad_output is torch.float32 of shape \[2, 5\], wanted .* as probabilities is"
    ),
    "softmax(x, -1, out=x.new_empty(5, 3))": (
        r"softmax: out has shape \[5, 3\], wanted input's, \[3, 5\]"
    ),
    "log_softmax(x, -1, out=x.new_empty(3, 5, dtype=torch.int64))": (
        r"log_softmax: out is torch.int64, wanted torch.float32"
    ),
    "softmax_(x.int(), -1)": r"softmax_: input is torch.int32, wanted torch.float32",
    "layer_norm(x.long(), [5])": r"layer_norm: input is torch.int64",
    "layer_norm(x, [4])": (
        r"normalized_shape is \[4\], wanted the last dimensions of input, .*\[3, 5\]"
    ),
    "layer_norm(x, [])": r"normalized_shape is empty",
    "layer_norm(x, [5], x.new_ones(4))": (
        r"weight has shape \[4\], wanted normalized_shape, \[5\]"
    ),
    "layer_norm(x, [5], None, x.new_ones(1, 5))": (
        r"bias has shape \[1, 5\], wanted normalized_shape, \[5\]"
    ),
    "layer_norm(x, [5], x.new_ones(5).int())": r"weight is torch.int32, wanted torch.float32",
    "layer_norm(x, [5], eps=-1e-05)": r"eps is -1e-05, wanted",
    "add_layer_norm(x, x[:2], [5])": (
        r"add_layer_norm: residual has shape \[2, 5\], wanted input's, \[3, 5\]; expand one"
    ),
    "add_rms_norm(x, x.long(), [5])": (
        r"add_rms_norm: residual is torch.int64, wanted torch.float32, .*; convert it"
    ),
    "add_rms_norm(x.long(), x, [5])": (
        r"add_rms_norm: input is torch.int64, wanted torch.float32, .*; convert it"
    ),
    "ops.add_rms_norm_backward(x, None, x, [5], x[:, :1], None, [True] * 3, "
    "input_dtype=torch.int64)": (
        r"add_rms_norm_backward: input_dtype is torch.int64, wanted torch.float32, .*; convert it"
    ),
    "ops.add_rms_norm_backward(x, None, x, [5], x[:, :1], None, [True] * 3, 0.0, 0.0, None, "
    "torch.half, torch.double)": (
        r"add_rms_norm_backward: input_dtype is torch.float16 and residual_dtype torch.float64, "
        r"wanted those whose sum is torch.float32 as sum is"
    ),
    "add_layer_norm(x, x, [5], p=1.5)": (
        r"add_layer_norm: p is 1.5, wanted a probability in \[0, 1\]"
    ),
    "ops.add_rms_norm(x, x, [5], None, 1e-05, 0.0, False, 0.5)": (
        r"add_rms_norm: p is 0.5 without a seed; make one with torch.randint, one int64"
    ),
    "add_layer_norm(x, x, [5], p=0.5, seed=x.new_ones(2).long())": (
        r"add_layer_norm: seed is torch.int64 of shape \[2\], wanted one torch.int64"
    ),
    "spatial_layer_norm(x, 2)": r"spatial_layer_norm: dim is 2, wanted a value in \[-2, 1\]",
    "spatial_layer_norm(x, 0, x.new_ones(4))": (
        r"spatial_layer_norm: weight has shape \[4\], wanted \[3\], the size"
    ),
    "spatial_layer_norm(x, -2, None, x.new_ones(3, 1))": r"bias has shape \[3, 1\], wanted \[3\]",
    "spatial_layer_norm(x, 1, None, None, -1.0)": "eps is -1, wanted a value >= 0",
    "spatial_layer_norm(x.long(), 1)": "spatial_layer_norm: input is torch.int64",
    "ops.std_norm_backward(x[:2], x, [5], x, x, None, None, [True] * 3, 1e-06)": (
        r"std_norm_backward: grad_output is torch.float32 of shape \[2, 5\], wanted .*\[3, 5\]"
    ),
    "ops.layer_norm_backward(x, x, [5], x, x, None, None, [True] * 2)": (
        r"layer_norm_backward: output_mask has 2 entries, wanted 3, one for each gradient"
    ),
    "ops.stack_layer_norm_backward(x[None], [x], [5], x, x, [], [], 0, [True, True, True, True])": (
        r"stack_layer_norm_backward: output_mask has 4 entries, wanted 3"
    ),
    "ops.softmax_backward(x, x, -1, torch.int64)": (
        r"softmax_backward: input_dtype is torch.int64, wanted torch.float32"
    ),
    "ops.rms_norm_backward(x, x, [5], x[:, 0], None, [True, True])": (
        r"rstd is torch.float32 of shape \[3\], wanted torch.float32 of shape \[3, 1\] as the for"
    ),
    "ops.layer_norm_backward(x, x, [5], x[:, :1].double(), x[:, :1], None, None, [True] * 3)": (
        r"layer_norm_backward: mean is torch.float64 of shape \[3, 1\], wanted torch.float32"
    ),
    "ops.std_norm_backward(x, x, [5], x[:, :1], x[:, :1], None, None, [True] * 3, -1.0)": (
        r"std_norm_backward: eps is -1, wanted a value >= 0"
    ),
    "softmax(x, -1, out=x[:1].expand(3, 5))": r"softmax: elements of out share memory",
    "ops.masked_softmax_(x[:1].expand(3, 5), None, 1.0, False, 0.0)": (
        r"masked_softmax_: elements of input share memory"
    ),
    "layer_norm(x.to('meta'), [5], x.new_ones(5))": "weight is on cpu, wanted meta",
    "ops.rms_norm_backward(x, x, [5], x[:, :1].to('meta'), None, [True, True])": (
        "rstd is on meta, wanted cpu as input is"
    ),
    "ops.softmax_backward(x.to('meta'), x, -1, torch.float32)": (
        "output is on cpu, wanted|grad_output is on meta, want"
    ),
    "ops.stack_layer_norm_backward(x.to('meta')[None], [x], [5], x[None, :, :1], x[None, :, :1], "
    "[], [], 0, [True] * 3)": "grad_output is on meta, wanted cpu as inputs is",
    "softmax_stats(x[:, :0], 1)": r"dim 1 of an input of shape \[3, 0\] is empty",
    "softmax_stats(x.long(), 0)": "input is torch.int64, wanted torch.float32",
    "softmax_apply(x, x[:, 0], x[:, :1], 1)": (
        r"max is torch.float32 of shape \[3\], wanted .*\[3, 1\]"
    ),
    "softmax_apply(x, x[:, :1], x[:, :1].double(), 1)": (
        "sum is torch.float64 .* as softmax_stats returns it"
    ),
    "merge_softmax_stats([])": "stats is empty",
    "stack_softmax([x, x[1:]], -1)": (
        r"inputs\[1\] is torch.float32 of shape \[2, 5\] on cpu, "
        r"wanted torch.float32 of shape \[3, 5\] on cpu as inputs\[0\] is"
    ),
    "stack_softmax([x], 2)": r"dim is 2, wanted a value in \[-2, 1\]",
    "stack_softmax([x], 1, 3)": r"stack_dim is 3, wanted a value in \[-3, 2\]",
    "stack_softmax([x.long()], 1)": "inputs is torch.int64, wanted",
    "stack_layer_norm([x, x], [5], [x[0]])": "are 1 weights, wanted as many as inputs, 2, or none",
    "stack_layer_norm([x], [5], [x[0, 1:]])": (
        r"weights has shape \[4\], wanted normalized_shape, \[5\]"
    ),
    "cross_entropy(x.int(), x[:, 0].long())": (
        r"cross_entropy: input is torch.int32, wanted torch.float32, .*; convert it"
    ),
    "cross_entropy(x, x[:, 0])": (
        r"cross_entropy: target is torch.float32, wanted classes of torch.int64, .*probabilities"
    ),
    "cross_entropy(x, x[0].long())": (
        r"target has shape \[5\], wanted that of input without its classes, \[3\]"
    ),
    "cross_entropy(x, x[:, 0].long(), dim=2)": r"cross_entropy: dim is 2, wanted a value in \[-2",
    "cross_entropy(x, x[:, 0].long(), x[0, 1:])": (
        r"weight has shape \[4\], wanted a factor for each class of input, \[5\]"
    ),
    "cross_entropy(x, x[:, 0].long(), label_smoothing=1.5)": (
        r"label_smoothing is 1.5, wanted a value in \[0, 1\]"
    ),
    "cross_entropy(x, x[:, 0].long(), x[0], label_smoothing=0.5)": (
        r"label_smoothing is 0.5 beside a weight, wanted 0: .*use torch.nn.functional.cross_entropy"
    ),
    "cross_entropy(x, x[:, 0].long(), z_loss=-1.0)": r"z_loss is -1, wanted a finite number >= 0",
    "cross_entropy(x, x[:, 0].long(), softcap=0.0)": r"softcap is 0, wanted a finite number above",
    "cross_entropy(x.to('meta'), x[:, 0].long())": "target is on cpu, wanted meta as input is",
    "ops.cross_entropy(x, x[:, 0].long(), scale=float('inf'))": "scale is inf, wanted a finite",
    "ops.cross_entropy_backward(x, x[:, 0].long(), x[:, 1], x[:, 1], x[:, 1], None, None)": (
        "grad_losses and grad_lse are both None, wanted at least one"
    ),
    "ops.cross_entropy_backward(x, x[:, 0].long(), x[:, 1], x, x[:, 1], x[:, 1], None)": (
        r"lse is torch.float32 of shape \[3, 5\], wanted .* of shape \[3\] as cross_entropy returns"
    ),
    "ops.linear_cross_entropy(x, x, x[:, 0].long(), z_loss=2e38)": (
        r"z_loss is 2e\+38, wanted a number from 0 to 1.70141e\+38"
    ),
    "masked_softmax(x, sinks=x[:, 0].long())": "sinks is torch.int64, wanted torch.f",
    "masked_softmax(x, sinks=x[0])": r"sinks has shape \[5\], wanted one that broadcasts to \[3\]",
    "masked_softmax(x, start=x[:, 0])": "start is torch.float32, wanted torch.int32 or",
    "masked_softmax(x, start=x[0].long())": (
        r"start has shape \[5\], wanted one that broadcasts to \[3\], input's shape without"
    ),
}


X = torch.linspace(-2, 2, 15).reshape(3, 5)
NAMES = {**vars(fusedops), "torch": torch, "ops": torch.ops.fusedops}
FUNCTIONS = {call: eval(f"lambda x: {call}", NAMES) for call in MESSAGES}


def text_of(error, function, x):
    with pytest.raises(error) as info:
        function(x)
    return str(info.value)


def test_an_error_says_what_came_and_what_was_wanted(judge):
    judge([refused(call, f"RuntimeError: .*({message})") for call, message in MESSAGES.items()])


def test_a_fake_kernel_says_the_same():
    differences = []
    for call, function in FUNCTIONS.items():
        real = text_of(RuntimeError, function, X)
        with FakeTensorMode() as mode:
            fake = text_of(RuntimeError, function, mode.from_tensor(X))
        differences += [f"{call}: {fake}, wanted {real}"] * (fake != real)
    assert not differences, "\n".join(differences)


def test_compiled_code_says_the_same():
    differences = []
    for call, function in FUNCTIONS.items():
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        text = text_of(Exception, compiled, X)
        if not re.search(MESSAGES[call], text):
            differences.append(f"{call}: {text}, wanted {MESSAGES[call]}")
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize(
    "misspelt, meant",
    [("layernorm", "layer_norm"), ("LayerNorm2D", "nn.LayerNorm2d"), ("explian", "explain")],
)
def test_a_misspelt_name_is_answered_with_the_name_that_is_like_it(misspelt, meant):
    with pytest.raises(AttributeError, match=f"no attribute '{misspelt}'; did you mean '{meant}'"):
        getattr(fusedops, misspelt)
