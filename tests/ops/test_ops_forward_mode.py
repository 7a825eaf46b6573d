"""In forward mode every function and every op refuses a tangent, however PyTorch asks for it,
before it writes anything. None drops it silently."""

import pytest
import torch
from op_bad_calls import schema, valid_arguments
from torch.autograd import forward_ad

import fusedops
from fusedops import nn
from fusedops.ops import _library

ops = torch.ops.fusedops
X, TANGENT, WEIGHT = torch.randn(3, 5), torch.randn(3, 5), torch.randn(5)
SEED = torch.tensor(3)
STATS = fusedops.softmax_stats(X, -1)

#: Functions of one tensor, which has three rows and five columns.
FUNCTIONS = {
    "softmax": lambda t: fusedops.softmax(t, -1),
    "softmax of all": lambda t: fusedops.softmax(t, None),
    "log_softmax": lambda t: fusedops.log_softmax(t, 0),
    "softmax out": lambda t: fusedops.softmax(t, -1, out=torch.empty(3, 5)),
    "softmax of all out": lambda t: fusedops.softmax(t, None, out=torch.empty(3, 5)),
    "softmax into a dual": lambda t: fusedops.softmax(X, -1, out=t),
    "log_softmax out": lambda t: fusedops.log_softmax(t, -1, out=torch.empty(3, 5)),
    "softmax_": lambda t: fusedops.softmax_(t, -1),
    "softmax_, recorded": lambda t: fusedops.softmax_(t * torch.ones((), requires_grad=True), -1),
    "softmax_stats": lambda t: fusedops.softmax_stats(t, -1)[1],
    "softmax_apply": lambda t: fusedops.softmax_apply(t, *STATS, -1),
    "softmax_apply, of the sum": lambda t: fusedops.softmax_apply(X, STATS[0], t[:, :1], -1),
    "masked_softmax": lambda t: fusedops.masked_softmax(t, causal=True),
    "masked_softmax, of the mask": lambda t: fusedops.masked_softmax(X, t),
    "masked_softmax out": lambda t: fusedops.masked_softmax(t, out=torch.empty(3, 5)),
    "masked_softmax into itself": lambda t: fusedops.masked_softmax(t, out=t),
    "masked_softmax out, of the bias": lambda t: fusedops.masked_softmax(
        X, bias=t, out=torch.empty(3, 5)
    ),
    "masked_softmax_dropout": lambda t: fusedops.masked_softmax_dropout(t, seed=SEED),
    "layer_norm": lambda t: fusedops.layer_norm(t, [5]),
    "layer_norm, of the weight": lambda t: fusedops.layer_norm(X, [5], t[0]),
    "std_norm": lambda t: fusedops.std_norm(t, [5]),
    "rms_norm": lambda t: fusedops.rms_norm(t, [5]),
    "rms_norm, of the weight": lambda t: fusedops.rms_norm(X, [5], t[0], variant="gemma"),
    "add_layer_norm": lambda t: fusedops.add_layer_norm(X, t, [5])[1],
    "add_rms_norm": lambda t: fusedops.add_rms_norm(t, X, [5], p=0.5, seed=SEED)[0],
    "stack_softmax": lambda t: fusedops.stack_softmax([X, t], -1),
    "stack_log_softmax": lambda t: fusedops.stack_log_softmax([t], -1),
    "stack_layer_norm": lambda t: fusedops.stack_layer_norm([X, t], [5]),
    "stack_layer_norm, of a weight": lambda t: fusedops.stack_layer_norm([X], [5], [t[0]]),
    "nn.Softmax": lambda t: nn.Softmax(-1)(t),
    "nn.LogSoftmax": lambda t: nn.LogSoftmax(-1)(t),
    "nn.MaskedSoftmax": lambda t: nn.MaskedSoftmax()(t),
    "nn.LayerNorm": lambda t: nn.LayerNorm(5)(t),
    "nn.StdNorm": lambda t: nn.StdNorm(5)(t),
    "nn.RMSNorm": lambda t: nn.RMSNorm(5)(t),
}


def dual(function):
    with forward_ad.dual_level():
        t = forward_ad.make_dual(X.clone(), TANGENT)
        before = X.clone()
        try:
            function(t)
        finally:
            assert torch.equal(forward_ad.unpack_dual(t).primal, before)


WAYS = {
    "dual numbers": dual,
    "dual numbers without grad": lambda f: torch.no_grad()(dual)(f),
    "jvp": lambda f: torch.func.jvp(f, (X.clone(),), (TANGENT,)),
    "jacfwd": lambda f: torch.func.jacfwd(f)(X.clone()),
    "linearize": lambda f: torch.func.linearize(f, X.clone()),
    "vmap of jvp": lambda f: torch.vmap(
        lambda t: torch.func.jvp(f, (X.clone(),), (t,)), randomness="same"
    )(torch.stack([TANGENT] * 2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_refuses_a_tangent(name, way):
    with pytest.raises(NotImplementedError, match="has no forward-mode derivative"):
        WAYS[way](FUNCTIONS[name])


def differentiable(op):
    kinds = {argument.name: str(argument.type) for argument in schema(op).arguments}
    values = valid_arguments(op)
    return [
        name
        for name, kind in kinds.items()
        if ("Tensor" in kind and name != "seed")
        and (kind == "List[Tensor]" or values[name].is_floating_point())
    ]


@pytest.mark.parametrize("op", _library.PUBLIC_OPS)
def test_an_op_refuses_a_tangent_of_each_of_its_tensors(op):
    names = differentiable(op)
    assert names
    for name in names:
        given = valid_arguments(op)
        with forward_ad.dual_level():
            value = given[name]
            of = value[-1] if isinstance(value, list) else value
            made = forward_ad.make_dual(of, torch.ones_like(of))
            given[name] = [*value[:-1], made] if isinstance(value, list) else made
            with pytest.raises(NotImplementedError, match=f"{op} has no forward-mode derivative"):
                getattr(ops, op).default(*given.values())


def test_merged_statistics_carry_the_tangent_of_a_logsumexp():
    maxima, sums = torch.randn(2, 3, 1), torch.rand(2, 3, 1) + 0.5

    def logsumexp(maxima, sums):
        max, sum = fusedops.merge_softmax_stats(list(zip(maxima, sums, strict=True)))
        return max + sum.log()

    def plain(maxima, sums):
        return (maxima + sums.log()).logsumexp(0)

    tangents = torch.randn_like(maxima), torch.randn_like(sums)
    found = torch.func.jvp(logsumexp, (maxima, sums), tangents)
    torch.testing.assert_close(found, torch.func.jvp(plain, (maxima, sums), tangents))
