"""vmap refuses a slice with the words that it is refused with alone, and writes where each slice
would be written alone."""

import pytest
import torch
from modes import Dispatched

import fusedops

ops = torch.ops.fusedops
BATCH, CLASSES = torch.randn(4, 3, 5), torch.tensor([4, 0, 1])

#: Arguments that are wrong for one slice. With the batch in front, each would be in range or fit.
BAD_SLICES = {
    "dim": lambda t: fusedops.softmax(t, 2),
    "negative dim": lambda t: fusedops.log_softmax(t, -3),
    "dim beside a dtype": lambda t: fusedops.softmax(t, 2, torch.float64),
    "dim of a gradient": lambda t: ops.softmax_backward(t, t, 5, torch.float32),
    "dim of statistics": lambda t: fusedops.softmax_stats(t, 2),
    "dim of softmax_apply": lambda t: fusedops.softmax_apply(t, t[:, :1], t[:, :1], -3),
    "dim of a stack": lambda t: fusedops.stack_softmax([t, t], 2),
    "dim of a stack of logarithms": lambda t: fusedops.stack_log_softmax([t], -3),
    "stack_dim": lambda t: fusedops.stack_log_softmax([t, t], 0, 3),
    "negative stack_dim": lambda t: fusedops.stack_layer_norm([t], [5], stack_dim=-4),
    "normalized_shape": lambda t: fusedops.layer_norm(t, [4, 3, 5]),
    "normalized_shape of std_norm": lambda t: fusedops.std_norm(t, [4, 3, 5]),
    "normalized_shape of add_rms_norm": lambda t: fusedops.add_rms_norm(t, t, [4, 3, 5])[0],
    "normalized_shape of rms_norm": lambda t: fusedops.rms_norm(t, [5, 1]),
    "weight": lambda t: fusedops.layer_norm(t, [5], torch.ones(3, 5)),
    "residual": lambda t: fusedops.add_layer_norm(t, torch.ones(4, 3, 5), [5])[0],
    "eps": lambda t: fusedops.layer_norm(t, [5], eps=-1.0),
    "mask": lambda t: fusedops.masked_softmax(t, torch.zeros(4, 3, 5)),
    "bias": lambda t: fusedops.masked_softmax(t, bias=torch.zeros(4, 1, 1)),
    "start": lambda t: fusedops.masked_softmax(t, start=torch.zeros(4, 3, dtype=torch.int64)),
    "sinks": lambda t: fusedops.masked_softmax(t, sinks=torch.zeros(4, 1)),
    "learned sinks": lambda t: ops.masked_softmax_sinks(
        t, None, 1.0, False, None, 0.0, None, None, None, 0, False, None, None, None, torch.zeros(5)
    )[0],
    "target": lambda t: fusedops.cross_entropy(t, torch.zeros(4, 3, dtype=torch.int64)),
    "dim of classes": lambda t: fusedops.cross_entropy(t, CLASSES, dim=2),
    "weights of classes": lambda t: fusedops.cross_entropy(t, CLASSES, torch.ones(3)),
    "lse": lambda t: ops.cross_entropy_backward(t, CLASSES, *[t] * 3, t[:, 0], None),
    "causality of one query": lambda t: fusedops.masked_softmax(t[0], causal=True),
    "output_mask": lambda t: ops.rms_norm_backward(t, t, [5], t[:, :1], None, [True] * 3)[0],
    "input_dtype": lambda t: ops.softmax_backward(t, t, -1, torch.bool),
    "integers": lambda t: fusedops.softmax(t.long(), -1),
    "dim in place": lambda t: fusedops.softmax_(t.clone(), 2),
    "dim with out": lambda t: fusedops.softmax(t, -3, out=torch.empty_like(t)),
    "mask with out": lambda t: fusedops.masked_softmax(
        t, torch.zeros(4, 3, 5), out=torch.empty_like(t)
    ),
}


@pytest.mark.parametrize("batch_dim", [0, 2])
def test_a_bad_slice_is_refused_as_it_is_alone(batch_dim):
    differences = []
    for name, call in BAD_SLICES.items():
        with pytest.raises(RuntimeError) as alone:
            call(BATCH[0])
        with pytest.raises(RuntimeError) as batched:
            torch.vmap(call, in_dims=batch_dim)(BATCH.movedim(0, batch_dim))
        if str(batched.value) != str(alone.value):
            differences.append(f"{name}: {batched.value}, wanted {alone.value}")
    assert not differences, "\n".join(differences)


def test_a_bad_slice_of_scalars_is_refused_too():
    with pytest.raises(RuntimeError, match=r"dim is 1, wanted a value in \[-1, 0\] .* shape \[\]"):
        torch.vmap(lambda t: fusedops.softmax(t, 1))(torch.randn(4))


def test_the_slices_of_an_empty_batch_are_checked():
    assert torch.vmap(lambda t: fusedops.softmax(t, 1))(BATCH[:0]).shape == (0, 3, 5)
    with pytest.raises(RuntimeError, match="dim is 2"):
        torch.vmap(lambda t: fusedops.softmax(t, 2))(BATCH[:0])


def test_an_empty_batch_has_gradients_of_zeros():
    x, weight = BATCH[:0].clone().requires_grad_(), torch.ones(5, requires_grad=True)

    def normed(x, weight):
        return fusedops.add_layer_norm(x, x, [5], weight, p=0.5, return_sum=False).sum()

    of_batch = torch.vmap(normed, (0, None), randomness="different")(x, weight)
    found = torch.autograd.grad(of_batch.sum(), (x, weight))
    torch.testing.assert_close(found, (torch.zeros(0, 3, 5), torch.zeros(5)))
    per_sample = torch.vmap(torch.func.grad(normed, 1), (0, None), randomness="different")
    assert per_sample(x, weight).shape == (0, 5)


BIAS = torch.randn(4, 5)

#: Calls that write into their first argument.
WRITERS = {
    "softmax_": lambda t, _: fusedops.softmax_(t, 0),
    "softmax, out": lambda t, _: fusedops.softmax(t, -1, out=t),
    "log_softmax, out": lambda t, _: fusedops.log_softmax(t * 2, 0, out=t),
    "log_softmax_": lambda t, _: ops.log_softmax_(t, 1),
    "masked_softmax, out": lambda t, b: fusedops.masked_softmax(t, bias=b, causal=True, out=t),
    "cross_entropy_backward_": lambda t, b: ops.cross_entropy_backward_(
        t, CLASSES, *[b[:3]] * 3, b[2:], None
    ),
    "masked_softmax_": lambda t, b: ops.masked_softmax_(t, b, 0.5, False, None),
}


@pytest.mark.parametrize("batch_dim", [0, 1, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_a_call_that_writes_writes_each_slice(name, batch_dim):
    memory = BATCH.clone().movedim(0, batch_dim).contiguous()
    torch.vmap(lambda t, b: [WRITERS[name](t, b), t][1], (batch_dim, 0))(memory, BIAS)
    expected = BATCH.clone()
    for t, b in zip(expected, BIAS, strict=True):
        WRITERS[name](t, b)
    torch.testing.assert_close(memory.movedim(batch_dim, 0), expected)


def test_a_batch_of_scalars_is_written_too():
    memory = torch.randn(4)
    assert torch.vmap(lambda t: fusedops.softmax_(t, 0))(memory).tolist() == [1.0] * 4
    torch.vmap(lambda t: fusedops.log_softmax(t, 0, out=t))(memory)
    assert memory.tolist() == [0.0] * 4


def test_an_input_without_a_batch_is_written_to_each_slice_of_out():
    out = torch.empty(4, 3, 5)
    torch.vmap(lambda o: fusedops.softmax(BATCH[0], -1, out=o))(out)
    assert torch.equal(out, fusedops.softmax(BATCH[0], -1).expand(4, 3, 5))


@pytest.mark.parametrize(
    "call",
    [
        lambda t, out: fusedops.softmax(t, -1, out=out),
        lambda t, out: fusedops.masked_softmax(t, out=out),
        lambda t, out: ops.masked_softmax_(out, t, 1.0, False, None),
    ],
)
def test_slices_that_would_be_written_to_one_place_are_refused(call):
    out = torch.zeros(3, 5)
    with pytest.raises(RuntimeError, match="(out|input) has no batch dimension for vmap"):
        torch.vmap(lambda t: [call(t, out), t][1])(BATCH)
    assert torch.equal(out, torch.zeros(3, 5))


@pytest.mark.parametrize("norm", [fusedops.layer_norm, fusedops.std_norm])
def test_slices_that_share_their_parameters_are_one_call(norm):
    parameters = torch.randn(2, 5)
    with Dispatched() as mode:
        torch.func.vmap(lambda x: norm(x, [5], *parameters))(BATCH)
    assert sum(name.startswith("fusedops.") for name in mode.seen) == 1
