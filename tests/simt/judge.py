"""Is a result as exact as the package promises: no further from float64 than eager PyTorch is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from oracle import DTYPES, Exact, relative_error, ulp_error

from . import families, philox
from .cases import EPS, Arrays, Case, decode
from .families import AnyCase
from .masked_cases import SEED, MaskedCase
from .planes_cases import PlanesCase

aten = torch.ops.aten


def tensor(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """Of values as the emulator stores them."""
    values = torch.from_numpy(stored)
    return values.view(torch.bfloat16) if dtype == "bfloat16" else values


class Judge:
    """Takes results case by case, then has the last word.

    Every case must keep its L2 error within eager's, but for the dtype's epsilon. The largest error
    of few elements is luck (subtracting the maximum alone may cost 16 ulps of a small probability):
    it is compared over all cases together, but for one ulp.
    """

    def __init__(self) -> None:
        self._ours: dict[str, float] = {}
        self._eager: dict[str, float] = {}

    def add(self, case: AnyCase, given: Arrays, outputs: Arrays) -> None:
        if isinstance(case, PlanesCase):
            return self.add(case.of_rows, case.as_rows(given), case.as_rows(outputs))
        expected = _EXPECTED[case.op](case, given)
        dtypes = families.output_dtypes(case)
        for name, stored in outputs.items():
            ours, (eager, exact, floor) = tensor(stored, dtypes[name]), expected[name]
            eager, exact = eager.to(ours.dtype).reshape(ours.shape), _shaped(exact, ours.shape)
            label = f"{name} with log" if getattr(case, "log", False) else name
            for errors, actual in ((self._ours, ours), (self._eager, eager)):
                error = ulp_error(actual, exact, floor)
                assert error == error, f"{case}: {name} is NaN"
                errors[label] = max(errors.get(label, 0.0), error)
            bound = relative_error(eager, exact.high) + torch.finfo(ours.dtype).eps
            # Of a single column nothing is left to compare with: its gradient is 0.
            if exact.high.norm() > 0:
                error = relative_error(ours, exact.high)
                assert error <= bound, f"{case}: {name} is {error:.2e} off, not {bound:.2e}"

    def conclude(self) -> None:
        for label, error in self._ours.items():
            assert error <= self._eager[label] + 1, (label, self._ours, self._eager)


def _shaped(exact: Exact, shape: torch.Size) -> Exact:
    return Exact(
        *(
            torch.as_tensor(part).expand(exact.high.shape).reshape(shape)
            for part in (exact.high, exact.low)
        )
    )


#: What eager computes, what is right, and the magnitude below which errors are absolute.
Expected = dict[str, tuple[torch.Tensor, Exact, float]]


def _softmax_forward(case: Case, given: Arrays) -> Expected:
    x = tensor(given["input"], case.dtype)
    dtype = DTYPES[case.other]
    # A log-probability near zero is the logarithm of a sum just above one, and as exact as the sum.
    if case.log:
        return {"output": (torch.log_softmax(x, -1, dtype), Exact.log_softmax(x), 1.0)}
    return {"output": (torch.softmax(x, -1, dtype), Exact.softmax(x), 0.0)}


def _softmax_backward(case: Case, given: Arrays) -> Expected:
    grad = tensor(given["grad_output"], case.other)
    output = tensor(given["output"], case.other)
    if case.log:
        eager = aten._log_softmax_backward_data(grad, output, -1, grad.dtype)
        exact = Exact.of(lambda g, y: g - np.exp(y) * g.sum(-1, keepdims=True), grad, output)
    else:
        eager = aten._softmax_backward_data(grad, output, -1, grad.dtype)
        exact = Exact.of(lambda g, y: y * (g - (g * y).sum(-1, keepdims=True)), grad, output)
    # The result cancels: errors count against the largest gradient.
    return {"grad_input": (eager, exact, exact.high.abs().max().item())}


def _factors(case: MaskedCase) -> np.ndarray:
    """What dropout multiplies with."""
    if not case.p:
        return np.ones((case.rows, case.cols))
    kept = philox.kept(case.rows, case.cols, SEED, case.threshold)
    return np.where(kept, 0.0 if case.p == 1 else 1 / (1 - case.p), 0.0)


def _scores(case: MaskedCase, given: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """In float64, which holds all of them; and where nothing hides them."""
    scores = decode(given["input"], case.dtype) * case.scale
    for name, operand in (("bias", case.bias), ("mask", case.mask)):
        if operand and not operand.startswith("bool"):
            scores = scores + case.broadcast(decode(given[name], operand.split()[0]))
    return scores, case.shown(given)


def _masked_softmax_forward(case: MaskedCase, given: Arrays) -> Expected:
    scores, shown = _scores(case, given)
    blank = ~(shown & (scores != -np.inf)).any(-1, keepdims=True) & case.zero_masked_rows
    x = torch.from_numpy(np.where(blank, 0.0, np.where(shown, scores, case.hidden_value)))
    computed = torch.float64 if case.dtype == "float64" else torch.float32
    factors = {"output": _factors(case), "probabilities": np.ones(1)}
    softmax, exact = torch.softmax(x.to(computed), -1), Exact.softmax(x)
    expected = {}
    for name, factor in factors.items():
        scale = torch.from_numpy(np.where(blank, 0.0, factor))
        right = Exact(exact.high * scale, exact.low * scale)
        expected[name] = ((softmax * scale).to(DTYPES[case.other]), right, 0.0)
    return expected


def _masked_softmax_backward(case: MaskedCase, given: Arrays) -> Expected:
    grad = tensor(given["grad_output"], case.other)
    probabilities = tensor(given["probabilities"], case.other)
    factors, shown = _factors(case), case.shown(given)
    dropped = (grad * torch.from_numpy(factors)).to(grad.dtype)
    slope = aten._softmax_backward_data(dropped, probabilities, -1, grad.dtype)
    eager = slope * case.scale * torch.from_numpy(shown)

    def grad_input(g, p):
        g = g * factors
        return np.where(shown, case.scale * p * (g - (g * p).sum(-1, keepdims=True)), 0)

    exact = Exact.of(grad_input, grad, probabilities)
    return {"grad_input": (eager, exact, exact.high.abs().max().item())}


def _parameter(case: Case, given: Arrays, name: str) -> torch.Tensor | None:
    return tensor(given[name], case.other)[0] if name in given else None


def _layer_norm_forward(case: Case, given: Arrays) -> Expected:
    x = tensor(given["input"], case.dtype)
    weight, bias = (_parameter(case, given, name) for name in ("weight", "bias"))
    shape = [case.cols]
    # Eager has no float32 parameters beside 16-bit rows: it computes in float32 and rounds.
    output = F.layer_norm(x.to(DTYPES[case.other]), shape, weight, bias, EPS)
    ones, zeros = torch.ones(shape), torch.zeros(shape)
    exact = Exact.layer_norm(x, ones if weight is None else weight, zeros if bias is None else bias)
    wide = x.to(DTYPES[case.statistics])
    _, mean, rstd = torch.native_layer_norm(wide, shape, None, None, EPS)
    # 80 bits for every dtype: eager's own statistics are as good as float64's in float64.
    mean_exact = Exact.of(lambda x: x.mean(-1), wide)
    rstd_exact = Exact.of(lambda x: 1 / np.sqrt(x.var(-1) + np.longdouble(EPS)), wide)
    return {
        "output": (output, exact, 1.0),
        "mean": (mean, mean_exact, 1.0),
        "rstd": (rstd, rstd_exact, 0.0),
    }


def _layer_norm_backward(case: Case, given: Arrays) -> Expected:
    grad, x = (tensor(given[name], case.dtype) for name in ("grad_output", "input"))
    mean, rstd = (tensor(given[name], case.statistics) for name in ("mean", "rstd"))
    weight = _parameter(case, given, "weight")
    w = torch.ones(case.cols, dtype=DTYPES[case.other]) if weight is None else weight
    wide = DTYPES[case.other]  # as in the forward pass
    leaves = [t.requires_grad_() for t in (x.to(wide, copy=True), w.clone(), torch.zeros_like(w))]
    normed = F.layer_norm(leaves[0], [case.cols], leaves[1], leaves[2], EPS)
    eager = torch.autograd.grad(normed, leaves, grad.to(wide))

    def grad_input(g, x, mean, rstd, w):
        normal, weighted = (x - mean) * rstd, g * w
        slope = (weighted * normal).mean(-1, keepdims=True)
        return (weighted - weighted.mean(-1, keepdims=True) - normal * slope) * rstd

    exact = (
        Exact.of(grad_input, grad, x, mean, rstd, w),
        Exact.of(lambda g, x, mean, rstd: (g * ((x - mean) * rstd)).sum(0), grad, x, mean, rstd),
        Exact.of(lambda g: g.sum(0), grad),
    )
    names = ("grad_input", "grad_weight", "grad_bias")
    return {
        name: (theirs, right, right.high.abs().max().item())
        for name, theirs, right in zip(names, eager, exact, strict=True)
    }


_EXPECTED: dict[str, Callable[[Case, Arrays], Expected]] = {
    "softmax_forward": _softmax_forward,
    "softmax_backward": _softmax_backward,
    "masked_softmax_forward": _masked_softmax_forward,
    "masked_softmax_backward": _masked_softmax_backward,
    "layer_norm_forward": _layer_norm_forward,
    "layer_norm_backward": _layer_norm_backward,
}
