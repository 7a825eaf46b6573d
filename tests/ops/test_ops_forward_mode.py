"""In forward mode every op gives each tensor's tangent, its results keep their dtypes and layouts,
and what torch refuses to differentiate is refused before anything is written."""

import pytest
import torch
from op_bad_calls import schema, valid_arguments
from torch.autograd import forward_ad

import fusedops
from fusedops.ops.registration import libraries

ops = torch.ops.fusedops
X, TANGENT = torch.randn(3, 5), torch.randn(3, 5)

#: Calls with a tensor of three rows and five columns that write into another one, or into itself.
WRITERS = {
    "softmax": lambda t: fusedops.softmax(t, -1, out=torch.empty(3, 5)),
    "softmax of all": lambda t: fusedops.softmax(t, None, out=torch.empty(3, 5)),
    "softmax into a dual": lambda t: fusedops.softmax(X, -1, out=t),
    "log_softmax": lambda t: fusedops.log_softmax(t, -1, out=torch.empty(3, 5)),
    "masked_softmax": lambda t: fusedops.masked_softmax(t, out=torch.empty(3, 5)),
    "masked_softmax into itself": lambda t: fusedops.masked_softmax(t, out=t),
    "masked_softmax, of the bias": lambda t: fusedops.masked_softmax(
        X, bias=t, out=torch.empty(3, 5)
    ),
    "masked_softmax_": lambda t: ops.masked_softmax_(t, None, 1.0, False, None),
}


def dual(function, x, tangent):
    """The results of a call in forward mode, and their tangents."""
    with forward_ad.dual_level():
        results = function(forward_ad.make_dual(x, tangent))
        results = [results] if isinstance(results, torch.Tensor) else results
        return tuple(zip(*map(forward_ad.unpack_dual, results), strict=True))


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_with_out_refuses_a_tangent_and_writes_nothing(name):
    given = X.clone()
    with pytest.raises(NotImplementedError, match=r"use the function without out"):
        dual(WRITERS[name], given, TANGENT)
    assert torch.equal(given, X)
    with pytest.raises(NotImplementedError, match=r"use the function without out"):
        torch.func.jvp(WRITERS[name], (given,), (TANGENT,))
    assert torch.equal(given, X)


@pytest.mark.parametrize("function", [fusedops.softmax_, ops.softmax_, ops.log_softmax_])
@pytest.mark.parametrize("with_grad", [False, True])
def test_a_softmax_in_place_of_a_dual_tensor_makes_a_dual_tensor_of_it(function, with_grad):
    wants_log = function is ops.log_softmax_
    torchs = torch.log_softmax if wants_log else torch.softmax

    def in_place(t):
        written = t * torch.ones((), requires_grad=with_grad and function is fusedops.softmax_)
        function(written, -1)
        return written

    found = dual(in_place, X, TANGENT)
    torch.testing.assert_close(found, dual(lambda t: torchs(t, -1), X, TANGENT))


def in_float64(value):
    if isinstance(value, list) and isinstance(value[0], torch.Tensor):
        return [v.double() for v in value]
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_floating else value


def float64_arguments(op):
    given = {name: in_float64(value) for name, value in valid_arguments(op).items()}
    return given | {name: torch.float64 for name in given if name.endswith("_dtype")}


def tensors_of(op):
    """The names of an op's floating tensors; of a list of them the last one is meant."""
    of = {"Tensor", "Optional[Tensor]", "List[Tensor]"}
    names = [argument.name for argument in schema(op).arguments if str(argument.type) in of]
    values = float64_arguments(op)
    return [n for n in names if n != "seed" and in_one(values[n]).is_floating_point()]


def in_one(value):
    return value[-1] if isinstance(value, list) else value


def call(op, name):
    """The op as a function of the tensor ``name``."""

    def function(tensor):
        given = float64_arguments(op)
        given[name] = [*given[name][:-1], tensor] if isinstance(given[name], list) else tensor
        return getattr(ops, op).default(*given.values())

    return function, in_one(float64_arguments(op)[name])


def slope(function, x, tangent):
    """The derivatives of all results along the tangent, by differences of fourth order."""

    def at(step):
        results = function(x + step * tangent)
        return [results] if isinstance(results, torch.Tensor) else list(results)

    h = 1e-3
    points = zip(at(-2 * h), at(-h), at(h), at(2 * h), strict=True)
    return [(a - 8 * b + 8 * c - d) / (12 * h) for a, b, c, d in points]


#: A backward op takes statistics as numbers of their own, but std_norm's takes the deviation from
#: the rows, and softmax_stats takes the maximum for a constant: test_torch_func.py has both.
NOT_OF_NUMBERS = {("std_norm_backward", "input"), ("std_norm_backward", "mean")}
NOT_OF_NUMBERS |= {("std_norm_backward", "rstd"), ("softmax_stats", "input")}
CASES = [
    (op, name)
    for op in libraries.PUBLIC_OPS
    if not schema(op).is_mutable
    for name in tensors_of(op)
    if (op, name) not in NOT_OF_NUMBERS
]


@pytest.mark.parametrize(("op", "name"), CASES)
def test_the_tangent_of_a_tensor_is_the_slope_of_the_op_along_it(op, name):
    function, x = call(op, name)
    tangent = torch.randn_like(x)
    expected = slope(function, x, tangent)
    values, tangents = dual(function, x, tangent)
    for value, found, right in zip(values, tangents, expected, strict=True):
        found = torch.zeros_like(value) if found is None else found
        torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-7)


#: The arguments that have the input's dtype.
CONVERTED = ("input", "residual", "linear_weight", "linear_bias")


@pytest.mark.parametrize("op", sorted({op for op, _ in CASES}))
def test_results_have_the_dtypes_and_strides_that_they_have_without_a_tangent(op):
    given = {
        name: value.bfloat16() if name in CONVERTED else value
        for name, value in valid_arguments(op).items()
        if not (op.endswith("_backward") and name == "input")
    }
    given = given if len(given) == len(schema(op).arguments) else valid_arguments(op)
    expected = getattr(ops, op).default(*given.values())
    name = tensors_of(op)[0]
    first = in_one(given[name])
    with forward_ad.dual_level():
        made = forward_ad.make_dual(first, torch.ones_like(first))
        given[name] = [*given[name][:-1], made] if isinstance(given[name], list) else made
        found = getattr(ops, op).default(*given.values())
        pairs = zip(
            *([r] if isinstance(r, torch.Tensor) else r for r in (found, expected)), strict=True
        )
        for ours, plain in pairs:
            primal = forward_ad.unpack_dual(ours).primal
            torch.testing.assert_close(primal, plain, check_stride=True)


def test_a_norm_over_channels_keeps_channels_last_beside_a_tangent():
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    (found,), (tangent,) = dual(lambda t: fusedops.spatial_layer_norm(t, 1), image, image)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert tangent.is_contiguous(memory_format=torch.channels_last)


def test_a_bad_call_with_a_tangent_is_refused_with_the_words_of_one_without():
    for bad in (
        lambda t: fusedops.softmax(t, 2),
        lambda t: fusedops.layer_norm(t, [4]),
        lambda t: fusedops.masked_softmax(t, torch.zeros(2, 5)),
        lambda t: fusedops.stack_layer_norm([t], [5], eps=-1.0),
    ):
        with pytest.raises(RuntimeError) as alone:
            bad(X)
        with pytest.raises(RuntimeError) as beside:
            dual(bad, X, TANGENT)
        assert str(beside.value) == str(alone.value)


def test_the_norm_of_a_constant_row_has_no_tangent_of_its_deviation():
    x = torch.full((2, 4), 3.0, dtype=torch.float64)
    tangent = torch.randn(2, 4, dtype=torch.float64)
    for norm in (fusedops.std_norm, fusedops.l2_norm):
        (_, found) = torch.func.jvp(lambda x, f=norm: f(x, [4], eps=10.0), (x,), (tangent,))
        gradient = torch.func.jacrev(lambda x, f=norm: f(x, [4], eps=10.0))(x)
        torch.testing.assert_close(found, torch.einsum("ijkl,kl->ij", gradient, tangent))


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
