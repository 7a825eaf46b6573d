"""Rows that threads share: the same bits whichever thread computes a part, and exact results."""

import bounds
import pytest
import torch
from oracle import DTYPES, annotated_norm, assert_same_on_threads, relative_error, same_bits
from with_gradients import norm_with_gradients, softmax_with_gradient

import fusedops

ops = torch.ops.fusedops

#: Lengths of long rows: one column more than a short row, a partial last segment, several segments
#: for each thread.
LENGTHS = [65537, 100003, 1 << 18]


any_threads = pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


SOFTMAXES, NORMS = ("softmax", "log_softmax"), ("layer_norm", "rms_norm", "std_norm")
#: Each op as a function of its name, input, gradient, weight and bias, that gives all results.
OPS = {
    **{op: lambda op, x, grad, w, b: softmax_with_gradient(op, x, grad) for op in SOFTMAXES},
    **{op: norm_with_gradients for op in NORMS},
}


def results(op, rows, cols, dtype=torch.float32):
    given = randn(rows, cols, dtype=dtype, seed=1), randn(rows, cols, dtype=dtype)
    parameters = randn(cols, dtype=dtype, seed=2), randn(cols, dtype=dtype, seed=3)
    return OPS[op](op, *given, *parameters)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("op", OPS)
def test_bits_do_not_depend_on_the_number_of_threads(op, rows, dtype):
    assert_same_on_threads(lambda: results(op, rows, 100003, dtype), counts=(1, 2, 5))


@pytest.mark.parametrize("op", OPS)
def test_a_hundred_runs_give_the_same_bits(op):
    assert_same_on_threads(lambda: results(op, 1, 70001), counts=[1] + [2] * 100)


@any_threads
@pytest.mark.parametrize("op", SOFTMAXES)
@pytest.mark.parametrize("cols", LENGTHS)
def test_a_long_row_has_the_bits_it_has_in_a_batch(op, cols, threads):
    x, grad = randn(4, cols), randn(4, cols, seed=1)
    batch = softmax_with_gradient(op, x, grad)
    for row in range(4):
        alone = softmax_with_gradient(op, x[row : row + 1], grad[row : row + 1])
        assert all(same_bits(a, b[row : row + 1]) for a, b in zip(alone, batch, strict=True))


@any_threads
@pytest.mark.parametrize("op", NORMS)
def test_a_long_row_is_normalised_alone_as_in_a_batch(op, threads):
    x, grad = randn(5, 70001), randn(5, 70001, seed=1)
    w, b = randn(70001, seed=2), randn(70001, seed=3)
    batch = norm_with_gradients(op, x, grad, w, b)
    for row in range(5):
        alone = norm_with_gradients(op, x[row : row + 1], grad[row : row + 1], w, b)
        of_rows = range(3 if op == "rms_norm" else 4)  # but for the sums over rows
        assert all(same_bits(alone[i], batch[i][row : row + 1]) for i in of_rows)


@any_threads
def test_streaming_results_have_the_same_bits(threads):
    """Results of 32 MiB bypass the cache, and their exponentials are computed twice; results of one
    row of 4 MiB do not."""
    x, grad = randn(8, 1 << 20), randn(8, 1 << 20, seed=1)
    for op in ("softmax", "log_softmax"):
        batch, alone = (
            softmax_with_gradient(op, x, grad),
            softmax_with_gradient(op, x[7:], grad[7:]),
        )
        assert all(same_bits(a, b[7:]) for a, b in zip(alone, batch, strict=True))


@any_threads
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cols", LENGTHS)
def test_softmaxes_of_long_rows_are_within_their_bound_and_typical(cols, dtype, threads):
    x = randn(3, cols, dtype=dtype)
    bounds.assert_typical(fusedops.softmax(x, -1), bounds.softmax(x))
    bounds.assert_typical(fusedops.log_softmax(x, -1), bounds.log_softmax(x))


@any_threads
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_long_rows_are_within_their_bound_and_typical(dtype, threads):
    x, grad = randn(3, 100003, dtype=dtype), randn(3, 100003, dtype=dtype, seed=1)
    formulas = {"softmax": bounds.softmax_gradient, "log_softmax": bounds.log_softmax_gradient}
    for op, formula in formulas.items():
        y, gradient = softmax_with_gradient(op, x, grad)
        bounds.assert_typical(gradient, formula(y, grad, dtype).rounded_to(dtype))


@any_threads
@pytest.mark.parametrize("op", OPS)
def test_gradients_of_long_rows_in_float64_are_right(op, threads):
    x, grad = randn(2, 70001, dtype=torch.float64), randn(2, 70001, dtype=torch.float64, seed=1)
    w, b = randn(70001, dtype=torch.float64, seed=2), randn(70001, dtype=torch.float64, seed=3)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    if op.endswith("softmax"):
        y, leaves = getattr(torch, op)(leaves[0], -1), leaves[:1]
    elif op == "layer_norm":
        y = torch.nn.functional.layer_norm(leaves[0], (70001,), *leaves[1:])
    elif op == "rms_norm":
        y, leaves = torch.nn.functional.rms_norm(leaves[0], (70001,), leaves[1], 1e-5), leaves[:2]
    else:
        y = annotated_norm(*leaves, 1e-5)
    want = torch.autograd.grad(y, leaves, grad)
    ours = OPS[op](op, x, grad, w, b)[-len(want) :]
    assert all(relative_error(a, e) < 1e-14 for a, e in zip(ours, want, strict=True))


@any_threads
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_norms_of_long_rows_in_every_dtype_are_within_their_bound_and_typical(dtype, threads):
    x, w, b = randn(3, 100003, dtype=dtype), *(randn(100003, dtype=dtype, seed=s) for s in (2, 3))
    ours = fusedops.layer_norm(x, w.shape, w, b)
    bounds.assert_typical(ours, bounds.norm("layer_norm", x, w, b))


@any_threads
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_long_rows_and_their_gradients_are_right(dtype, mean, threads):
    x, grad = randn(3, 100003, dtype=dtype) + mean, randn(3, 100003, dtype=dtype, seed=1)
    w, b = randn(100003, dtype=dtype, seed=2), randn(100003, dtype=dtype, seed=3)
    y, _, _, *gradients = norm_with_gradients("layer_norm", x, grad, w, b)
    bounds.assert_typical(y, bounds.norm("layer_norm", x, w, b))
    wanted = bounds.norm_gradients("layer_norm", x, w, grad, 1e-5)
    for actual, bound in zip(gradients, wanted, strict=True):
        bounds.assert_typical(actual, bound.rounded_to(dtype))


@any_threads
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, 70000, 99999])
def test_special_values_in_any_part_of_a_long_row_come_out_as_in_eager(value, where, threads):
    x = randn(2, 100000)
    x[0, where] = value
    for op in (torch.softmax, torch.log_softmax):
        ours = getattr(fusedops, op.__name__)(x, -1)
        assert torch.equal(ours.isnan(), op(x, -1).isnan())
        bounds.assert_within(ours, getattr(bounds, op.__name__)(x))
    y = fusedops.layer_norm(x, (100000,))
    assert torch.equal(y.isnan(), torch.nn.functional.layer_norm(x, (100000,)).isnan())
    bounds.assert_within(y, bounds.norm("layer_norm", x))


@any_threads
def test_parts_of_a_long_row_may_be_hidden(threads):
    x = randn(3, 100000)
    x[0, :70000] = -torch.inf
    x[1, 5000:] = -torch.inf
    x[2] = -torch.inf
    bounds.assert_within(fusedops.softmax(x, -1), bounds.softmax(x))
    assert fusedops.softmax(x[2], -1).isnan().all()
    lowest = torch.full((1, 70000), torch.finfo(torch.float32).min)
    assert (fusedops.softmax(lowest, -1) == 1 / 70000).all()


@any_threads
def test_long_rows_may_lie_apart_in_memory(threads):
    wide = randn(3, 80001)
    x = wide[:, 1:]  # misaligned, and not adjacent
    assert same_bits(fusedops.softmax(x, -1), fusedops.softmax(x.clone(), -1))
    assert same_bits(fusedops.layer_norm(x, (80000,)), fusedops.layer_norm(x.clone(), (80000,)))
    x.requires_grad_()
    fusedops.softmax(x, -1)[:, ::2].sum().backward()
    exact = x.detach().double().requires_grad_()
    torch.softmax(exact, -1)[:, ::2].sum().backward()
    assert relative_error(x.grad, exact.grad) < 1e-5


@any_threads
def test_a_long_row_may_be_normalised_in_place(threads):
    x = randn(2, 1 << 17)
    want = fusedops.softmax(x, -1)
    assert fusedops.softmax_(x, -1) is x and same_bits(x, want)


@any_threads
def test_long_rows_take_float32_parameters_and_none(threads):
    x = randn(2, 70000, dtype=torch.bfloat16)
    w, b = randn(70000, seed=2), randn(70000, seed=3)
    want = torch.nn.functional.layer_norm(x.double(), (70000,), w.double(), b.double())
    assert relative_error(fusedops.layer_norm(x, (70000,), w, b), want) < 3e-3
    plain = torch.nn.functional.layer_norm(x.double(), (70000,))
    assert relative_error(fusedops.layer_norm(x, (70000,)), plain) < 3e-3
    gradient = ops.layer_norm_backward(
        x, x, [70000], *ops.layer_norm(x, [70000], w, b, 1e-5)[1:], w, b, [False, True, False]
    )
    assert gradient[1].dtype == torch.float32 and gradient[1].shape == (70000,)


@any_threads
@pytest.mark.parametrize("op", SOFTMAXES)
def test_without_a_dim_all_elements_are_one_row(op, threads):
    x = randn(7, 100, 200).transpose(0, 1).requires_grad_()
    function = getattr(fusedops, op)
    y = function(x, None)
    assert same_bits(y, function(x.reshape(-1), 0).view(x.shape))
    total = y.double().exp().sum() if op == "log_softmax" else y.double().sum()
    assert abs(total - 1) < 1e-5
    grad = randn(100, 7, 200, seed=1)
    exact = x.detach().double().requires_grad_()
    want = torch.autograd.grad(
        getattr(torch, op)(exact.reshape(-1), 0), exact, grad.double().view(-1)
    )
    assert relative_error(torch.autograd.grad(y, x, grad)[0], want[0]) < 1e-5


def test_without_a_dim_results_may_go_into_a_contiguous_tensor():
    x = randn(3, 4)
    out = torch.empty_like(x)
    assert fusedops.softmax(x, None, out=out) is out
    assert same_bits(out, fusedops.softmax(x, None))
    with pytest.raises(RuntimeError, match=r"out has shape \[4, 3\].*contiguous tensor of input's"):
        fusedops.softmax(x, None, out=torch.empty(4, 3))
    with pytest.raises(RuntimeError, match="contiguous"):
        fusedops.softmax(x, None, out=torch.empty(4, 3).t())


def test_without_a_dim_it_compiles():
    x = randn(3, 4)
    compiled = torch.compile(lambda t: fusedops.softmax(t, None), fullgraph=True)
    assert same_bits(compiled(x), fusedops.softmax(x, None))
