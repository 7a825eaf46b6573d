"""On the CPU a denormal is computed only where a result is one, as each takes some hundred cycles.

The cost cannot be timed on every machine, but the processor sets two flags of the thread: one where
a result underflows, and one where an operand is denormal. They are clear after a kernel whose
results are all normal or zero.
"""

import ctypes
import platform
import subprocess
from functools import partial

import pytest
import torch

import fusedops

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is of x86 alone")
ops = torch.ops.fusedops

INF = float("inf")
DENORMAL_OPERAND, UNDERFLOW = 0x02, 0x10
FLAGS = r"""
#include <xmmintrin.h>
void clear(void) { _mm_setcsr(_mm_getcsr() & ~0x3fu); }
unsigned raised(void) { return _mm_getcsr() & 0x3fu; }
"""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
WITH_HALF = DTYPES | {"float16": torch.float16}
#: Less than a chunk of a row, more than one of every instruction set, and a long row.
COLS = [40, 1000, 4097, 9001, 70_001]


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("flags")
    (folder / "flags.c").write_text(FLAGS)
    command = ["gcc", "-O1", "-shared", "-fPIC", "flags.c", "-o", "flags.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "flags.so"))


@pytest.fixture(autouse=True)
def one_thread(threads):
    torch.set_num_threads(1)


def is_denormal(x):
    return (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)


def clean(flags, call, *args):
    """The results of a call that neither met a denormal nor gave one."""
    flags.clear()
    results = call(*args)
    raised = flags.raised()
    results = results if isinstance(results, tuple | list) else (results,)
    assert not any(is_denormal(x).any() for x in results), "a case for other tests"
    assert not raised & DENORMAL_OPERAND, "an operand was denormal"
    assert not raised & UNDERFLOW, "something underflowed"
    return results[0]


def test_the_flags_show_a_denormal(flags):
    small = torch.full((100,), 1e-30)
    with pytest.raises(AssertionError, match="underflowed"):
        clean(flags, lambda: small * small)
    with pytest.raises(AssertionError, match="operand"):
        clean(flags, lambda: (small * 1e-10) * 1e10)
    clean(flags, lambda: small * 1e10)


def lowest(dtype):
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)


HIDDEN = {
    "a tenth": lambda shape: torch.rand(shape) < 0.1,
    "half": lambda shape: torch.rand(shape) < 0.5,
    "padding": lambda shape: (torch.arange(shape[-1]) > shape[-1] * 0.6).expand(shape),
}
VALUES = {"-inf": -INF, "-1e4": -1e4, "lowest": None}


def hidden_and_scores(kind, dtype, rows, cols):
    torch.manual_seed(cols)
    hidden = HIDDEN[kind]((rows, cols)).clone()
    hidden[:, 0] = False
    return hidden, (torch.randn(rows, cols) / 2).to(dtype)


def value_of(name, dtype):
    return lowest(dtype) if VALUES[name] is None else VALUES[name]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("dtype", WITH_HALF.values(), ids=WITH_HALF)
def test_masked_fill_makes_no_denormal(flags, dtype, kind, value):
    for cols in COLS if dtype != torch.float16 else [40, 100]:
        hidden, scores = hidden_and_scores(kind, dtype, 3, cols)
        x = scores.masked_fill(hidden, value_of(value, dtype))
        y = clean(flags, ops.softmax, x, -1, None)
        assert (y[hidden] == 0).all()
        clean(flags, ops.log_softmax, x, -1, None)
        clean(flags, ops.softmax, x.mT.contiguous(), 0, None)


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**-24])
def test_gradients_of_masked_fill_make_no_denormal(flags, dtype, kind, scale):
    for cols in COLS:
        hidden, scores = hidden_and_scores(kind, dtype, 3, cols)
        x = scores.masked_fill(hidden, -1e4)
        grad = (torch.randn(3, cols) * scale).to(dtype)
        for op in ("softmax", "log_softmax"):
            y = getattr(ops, op)(x, -1, None)
            backward = getattr(ops, f"{op}_backward")
            clean(flags, backward, grad, y, -1, dtype)
            clean(flags, backward, grad.mT.contiguous(), y.mT.contiguous(), 0, dtype)


def masked(scores, mask, causal, mask_value):
    return fusedops.masked_softmax(scores, mask, scale=0.5, causal=causal, mask_value=mask_value)


INTERVALS = {
    "window": {"window": (30, 3)},
    "bounds": {"start": torch.arange(8) * 3, "end": torch.arange(8) * 5 + 7},
    "sinks": {"sinks": torch.arange(8) / 8 - 0.5},
    "window and sinks": {"window": (70, 3), "sinks": torch.arange(8) * 10 - 70.0},
    "soft cap": {"softcap": 50.0},
    "soft cap and window": {"softcap": 0.5, "window": (30, 3)},
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("dtype", WITH_HALF.values(), ids=WITH_HALF)
def test_intervals_sinks_and_soft_caps_make_no_denormal(flags, dtype, interval, value):
    for cols in [40, 100] if dtype == torch.float16 else [40, 1000, 4097]:
        _, scores = hidden_and_scores("half", dtype, 8, cols)
        options = INTERVALS[interval] | {"mask_value": value_of(value, dtype)}
        y = clean(flags, partial(fusedops.masked_softmax, **options), scores)
        if dtype == torch.float16:  # gradients are small differences, and may be denormal
            continue
        hiding = {name: options[name] for name in ("start", "end") if name in options}
        if "window" in options:
            hiding["lower_diagonal"] = -options["window"][0]
        grad = torch.randn(scores.shape).to(dtype)
        backward = partial(ops.masked_softmax_backward, **hiding)
        clean(flags, backward, grad, y, None, 0.5, False, dtype)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("dtype", WITH_HALF.values(), ids=WITH_HALF)
@pytest.mark.parametrize("causal", [False, True])
def test_masks_make_no_denormal(flags, dtype, kind, value, causal):
    for cols in [40, 100] if dtype == torch.float16 else [40, 1000, 4097]:
        hidden, scores = hidden_and_scores(kind, dtype, 8, cols)
        hidden, scores, value_ = hidden[None], scores[None], value_of(value, dtype)
        for mask in (~hidden, torch.zeros(1, 8, cols).to(dtype).masked_fill(hidden, value_)):
            clean(flags, partial(masked, mask_value=value_), scores, mask, causal)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_masked_training_makes_no_denormal(flags, dtype, p):
    for cols in (40, 1000, 4097):
        hidden, scores = hidden_and_scores("half", dtype, 8, cols)
        x = scores[None].clone().requires_grad_()
        grad = (torch.randn(1, 8, cols) * 2.0**-24).to(dtype)
        forward = partial(fusedops.masked_softmax_dropout, p=p, causal=True)
        y = clean(flags, forward, x, ~hidden[None])
        clean(flags, torch.autograd.grad, y, x, grad)


@pytest.mark.parametrize("dtype", WITH_HALF.values(), ids=WITH_HALF)
@pytest.mark.parametrize("lowest_score", [-60.0, -103.0, -150.0, -600.0])
def test_results_that_round_to_zero_make_no_denormal(flags, dtype, lowest_score):
    """float16 rounds exp(-60) to 0, and float32 exp(-103) where the others add up to hundreds."""
    if (dtype, lowest_score) == (torch.bfloat16, -103.0):
        lowest_score = -104.5
    for cols in (400, 5000):
        x = torch.zeros(2, cols, dtype=dtype)
        x[:, ::3] = lowest_score
        clean(flags, ops.softmax, x, -1, None)
        clean(flags, ops.softmax, x.mT.contiguous(), 0, None)
        clean(flags, ops.log_softmax, x, -1, None)


@pytest.mark.parametrize("options", [(), (0.1,), (0.0, 0.5), (0.0, 1.0, 20.0)], ids=str)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_cross_entropies_of_hidden_logits_make_no_denormal(flags, dtype, kind, value, options):
    """Nor do gradients so small that their products with probabilities would be denormal."""
    for cols in COLS:
        hidden, logits = hidden_and_scores(kind, dtype, 3, cols)
        logits[1] -= torch.linspace(0, 200, cols)
        x = logits.masked_fill(hidden, value_of(value, dtype))
        x[2, 0] = 95  # the losses of confident rows are small
        target = torch.zeros(3, dtype=torch.int64)
        clean(flags, ops._cross_entropy, x, target, -100, *options)
        saved = ops._cross_entropy(x, target, -100, *options)
        for scale in (1.0, 2.0**-40):
            grads = torch.full((2, 3), scale).to(saved[0].dtype)
            backward = ops._cross_entropy_backward
            clean(flags, backward, x, target, *saved, *grads, -100, *options)


@pytest.mark.parametrize("kind", HIDDEN)
def test_statistics_of_hidden_scores_make_no_denormal(flags, kind):
    hidden, scores = hidden_and_scores(kind, torch.float32, 3, 5000)
    x = scores.masked_fill(hidden, -1e4)
    clean(flags, fusedops.softmax_stats, x, -1)


@pytest.mark.parametrize("cols", [7, 400, 5000])
def test_denormal_results_are_computed(cols):
    """They are exact to half a step, and what rounding twice adds."""
    x = torch.zeros(2, cols)
    x[0, 1:] -= torch.linspace(80, 110, cols - 1)
    x[1, 1::2] -= 92
    exact = torch.softmax(x.double(), -1)
    for y in (ops.softmax(x, -1, None), ops.softmax(x.mT.contiguous(), 0, None).mT):
        assert is_denormal(y).any()
        off = (y.double() - exact).abs()
        assert (off <= 1.01 * 2.0**-149 + exact * 2.0**-22).all()


ROWS = {
    "zeros": lambda: torch.zeros(5, 200),
    "constant": lambda: torch.tensor([0.1, 1e-8, 1e-20, 1e-28, 3.0])[:, None].expand(5, 200),
    "tiny": lambda: torch.randn(5, 200) * torch.tensor([1e-12, 1e-18, 1e-20, 1e-25, 1.0])[:, None],
}
NORMS = ("layer_norm", "rms_norm", "std_norm")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_norms_of_tiny_and_constant_rows_make_no_denormal(flags, norm, rows, dtype):
    x = ROWS[rows]().to(dtype).contiguous()
    for eps in (1e-5, 0.0) if rows == "tiny" else (1e-5,):
        clean(flags, partial(getattr(fusedops, norm), eps=eps), x, x.shape[-1:])


#: Magnitudes of rows and of their gradients, and eps. Every gradient of the norm is normal.
BACKWARDS = {
    "tiny gradients": (1.0, 1e-30, 1e-5),
    "tiny rows": (1e-15, 1e-12, 1e-5),
    "rows that eps outweighs": (1e-25, 1.0, 1e-5),
    "tiny rows and gradients, no eps": (1e-15, 1e-24, 0.0),
    "tinier rows, no eps": (1e-25, 1e-15, 0.0),
    "large rows": (1e15, 1e-12, 1e-5),
}
#: Rows in groups, interleaved rows and those left over, and long rows: one, and several in a sum.
SHAPES = [(70, 9), (70, 24), (70, 200), (3, 1000), (1, 70_001), (3, 70_001)]


def scaled_rows(dtype, rows, cols, magnitude):
    """Values neither near 0 nor near the mean, as the products of such values may be denormal."""
    signs = torch.randint(0, 2, (rows, cols), dtype=torch.float64) * 2 - 1
    return (signs * (0.5 + torch.rand(rows, cols, dtype=torch.float64)) * magnitude).to(dtype)


#: Norms with what they take beside rows, parameters and eps.
DIFFERENTIATED = [(norm, {}) for norm in NORMS]
DIFFERENTIATED += [(f"add_{norm}", {"p": p}) for norm in NORMS[:2] for p in (0.0, 0.1)]


@pytest.mark.parametrize("norm, options", DIFFERENTIATED)
@pytest.mark.parametrize("case", BACKWARDS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gradients_of_norms_make_no_denormal(flags, norm, options, case, dtype):
    of_rows, of_gradients, eps = BACKWARDS[case]
    terms = 1 + norm.startswith("add")
    for rows, cols in SHAPES:
        x = [scaled_rows(dtype, rows, cols, of_rows * 4**n).requires_grad_() for n in range(terms)]
        parameters = scaled_rows(dtype, 1 if "rms" in norm else 2, cols, 1.0).abs()
        leaves = [*x, *(p.requires_grad_() for p in parameters.unbind())]
        y = getattr(fusedops, norm)(*x, [cols], *leaves[terms:], eps=eps, **options)
        grad = scaled_rows(dtype, rows, cols, of_gradients)
        clean(flags, torch.autograd.grad, y if terms == 1 else y[0], leaves, grad)
