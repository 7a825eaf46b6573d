"""Is a result as exact as the package promises: no further from float64 than eager PyTorch is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from oracle import DTYPES, Exact, annotated_norm, relative_error, ulp_error

from . import families, philox
from .cases import Arrays, Case, decode, encode
from .families import AnyCase
from .masked_cases import SEED, MaskedCase
from .norm_cases import EPS, NormCase, exact_statistics
from .planes_cases import PlanesCase
from .stack_cases import StackCase
from .statistics_cases import StatisticsCase

aten = torch.ops.aten


def tensor(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """Of values as the emulator stores them."""
    values = torch.from_numpy(stored)
    return values.view(torch.bfloat16) if dtype == "bfloat16" else values


def same_bits(first: Arrays, second: Arrays) -> bool:
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


class Judge:
    """Takes results case by case, then has the last word.

    Every case must keep its L2 error within eager's, but for the dtype's epsilon. The largest error
    is luck (subtracting the maximum alone may cost 16 ulps of a small probability), and so is any
    of few elements: it is compared over all cases together, but for one ulp.
    """

    FEW = 32

    def __init__(self) -> None:
        self._ours: dict[str, float] = {}
        self._eager: dict[str, float] = {}

    def add(self, case: AnyCase, given: Arrays, outputs: Arrays) -> None:
        if isinstance(case, PlanesCase):
            return self.add(case.of_rows, case.as_rows(given), case.as_rows(outputs))
        if isinstance(case, StackCase):
            for i in range(case.count):
                self.add(case.of, case.slot(i, given), case.slot(i, outputs))
            return None
        if "sum" in outputs:  # the rest is held to what was made of it
            given = given | {"sum": outputs["sum"]}
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
            if exact.high.norm() > 0 and exact.high.numel() >= self.FEW:
                error = relative_error(ours, exact.high)
                assert error <= bound, f"{case}: {name} is {error:.2e} off, not {bound:.2e}"

    def conclude(self, **ulps: float) -> None:
        """``ulps``: by name of an output a bound of its own, where eager's error differs from CPU
        to CPU."""
        for label, error in self._ours.items():
            bound = ulps.get(label, self._eager[label] + 1)
            assert error <= bound, (label, self._ours, self._eager)


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


def _softmax_statistics(case: StatisticsCase, given: Arrays) -> Expected:
    x = tensor(given["input"], case.of.dtype).to(DTYPES[case.wide])
    max = x.amax(-1, keepdim=True)

    def total(x: np.ndarray) -> np.ndarray:
        return np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)

    eager = (x - max).exp().sum(-1, keepdim=True)
    return {"max": (max, Exact(max.double()), 0.0), "sum": (eager, Exact.of(total, x), 0.0)}


def _softmax_apply(case: StatisticsCase, given: Arrays) -> Expected:
    x = tensor(given["input"], case.of.dtype).to(DTYPES[case.wide])
    max, sum = (tensor(given[name], case.wide) for name in ("max", "sum"))
    exact = Exact.of(lambda x, max, sum: np.exp(x - max) / sum, x, max, sum)
    return {"output": ((x - max).exp() / sum, exact, 0.0)}


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


def _right(case: NormCase, definition: Callable, *tensors: torch.Tensor) -> Exact:
    """In numpy operations: 80 bits for float64, float64 for the rest."""
    if case.dtype == "float64":
        return Exact.of(definition, *tensors)
    return Exact(torch.from_numpy(definition(*(t.double().numpy() for t in tensors))))


def _weight(case: NormCase, given: Arrays) -> torch.Tensor:
    """What rows are multiplied with, as wide as it is computed."""
    if "weight" not in given:
        return torch.ones(case.cols, dtype=DTYPES[case.statistics])
    weight = tensor(given["weight"], case.parameter_dtype)[0]
    return weight.to(DTYPES[case.statistics]) + case.weight_offset


def _eager_statistics(case: NormCase, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if case.kind == "layer":
        return torch.native_layer_norm(x, [case.cols], None, None, EPS)[1:]
    if case.kind == "std":
        return x.mean(-1, keepdim=True), 1 / (x.std(-1, keepdim=True) + EPS)
    return torch.zeros(1, dtype=x.dtype), torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def _eager_norm(
    case: NormCase, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    if case.kind == "layer":
        return torch.nn.functional.layer_norm(x, [case.cols], weight, None, EPS) + bias
    if case.kind == "std":
        return annotated_norm(x, weight, bias, EPS)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight + bias


def _eager_dropout(case: NormCase, x: torch.Tensor) -> torch.Tensor:
    wide = DTYPES[case.statistics]
    return (x.to(wide) * torch.from_numpy(case.factors()).to(wide)).to(x.dtype)


def _added(case: NormCase, given: Arrays) -> tuple[torch.Tensor, Exact]:
    """What eager makes of the input and the residual, and what is right."""
    x, residual = (tensor(given[name], case.dtype) for name in ("input", "residual"))
    factors = case.factors()
    right = _right(case, lambda x, r: x * factors + r, x, residual)
    return _eager_dropout(case, x) + residual, right


def _norm_forward(case: NormCase, given: Arrays) -> Expected:
    expected = {}
    x = tensor(given["input"], case.dtype)
    if case.adds:
        eager, right = _added(case, given)
        expected["sum"] = (eager, right, 1.0)
        found = given.get("sum")
        x = tensor(encode(right.high.numpy(), case.dtype) if found is None else found, case.dtype)
    wide, weight = x.to(DTYPES[case.statistics]), _weight(case, given)
    bias = torch.zeros(1, dtype=wide.dtype)
    if "bias" in given:
        bias = tensor(given["bias"], case.parameter_dtype)[0].to(wide.dtype)
    mean, rstd = _eager_statistics(case, wide)
    output = _eager_norm(case, wide, weight, bias)
    if case.rounds_normalized:
        output = ((wide - mean) * rstd).to(x.dtype) * weight + bias

    def right(x, w, b):
        mean, rstd = exact_statistics(case, x)
        return (x - mean) * rstd * w + b

    return expected | {
        "output": (output, _right(case, right, wide, weight, bias), 1.0),
        "mean": (mean, Exact.of(lambda x: x.mean(-1), wide), 1.0),
        # 80 bits for every dtype: eager's own statistics are as good as float64's in float64.
        "rstd": (rstd, Exact.of(lambda x: exact_statistics(case, x)[1], wide), 0.0),
    }


def _eager_gradients(case: NormCase, given: Arrays) -> tuple[torch.Tensor, ...]:
    """Of input, weight and bias."""
    grad, x = (tensor(given[name], case.dtype) for name in ("grad_output", "input"))
    leaves = [x.to(DTYPES[case.statistics], copy=True), _weight(case, given)]
    x, w, b = [t.requires_grad_() for t in (*leaves, torch.zeros_like(leaves[1]))]
    return torch.autograd.grad(_eager_norm(case, x, w, b), (x, w, b), grad.to(x.dtype))


def _norm_backward(case: NormCase, given: Arrays) -> Expected:
    grad, x = (tensor(given[name], case.dtype) for name in ("grad_output", "input"))
    rstd, weight = tensor(given["rstd"], case.statistics), _weight(case, given)
    mean = tensor(given["mean"], case.statistics) if "mean" in given else torch.zeros(1, 1)
    added = torch.zeros(1, 1)
    if "grad_sum" in given:
        added = tensor(given["grad_sum"], case.dtype)

    def along_count(rstd):
        """What is left of 1 - eps rstd where the standard deviation is 0 is rounding."""
        if case.kind != "std":
            return case.cols
        kept = 1 - EPS * rstd
        return np.where(kept > 0, kept * (case.cols - 1), np.inf)

    def grad_input(g, x, mean, rstd, w, added):
        normal, weighted = (x - mean) * rstd, g * w
        slope = (weighted * normal).sum(-1)[:, None] / along_count(rstd)
        level = weighted.mean(-1)[:, None] if case.has_mean else 0.0
        return (weighted - level - normal * slope) * rstd + added

    eager_input, eager_weight, eager_bias = _eager_gradients(case, given)
    eager_input = eager_input.to(grad.dtype) + added.to(grad.dtype)
    factors = torch.from_numpy(case.factors())
    right_input = Exact.of(grad_input, grad, x, mean, rstd, weight, added)
    right_branch = Exact(right_input.high * factors, right_input.low * factors)
    right_weight = Exact.of(
        lambda g, x, mean, rstd: (g * ((x - mean) * rstd)).sum(0), grad, x, mean, rstd
    )
    found = {
        "grad_input": (eager_input, right_input),
        "grad_branch": (_eager_dropout(case, eager_input), right_branch),
        "grad_weight": (eager_weight, right_weight),
        "grad_bias": (eager_bias, Exact.of(lambda g: g.sum(0), grad)),
    }
    return {name: (*pair, pair[1].high.abs().max().item()) for name, pair in found.items()}


_EXPECTED: dict[str, Callable[[Case, Arrays], Expected]] = {
    "softmax_forward": _softmax_forward,
    "softmax_backward": _softmax_backward,
    "softmax_statistics": _softmax_statistics,
    "softmax_apply": _softmax_apply,
    "masked_softmax_forward": _masked_softmax_forward,
    "masked_softmax_backward": _masked_softmax_backward,
    "norm_forward": _norm_forward,
    "norm_backward": _norm_backward,
}
