"""Holds results to the bounds of the error analysis (bounds.py), as on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import bounds
import numpy as np
import torch
from bounds import Bounded
from oracle import DTYPES

from . import families
from .cases import cross_entropy as cross_entropy_cases
from .cases.column_sums import ColumnSumsCase, joined
from .cases.cross_entropy import CrossEntropyCase
from .cases.dropout import DropoutCase
from .cases.masked import MaskedCase
from .cases.norm import NormCase
from .cases.prepared import Arrays
from .cases.rows import Case, encode
from .cases.spatial import SpatialCase
from .cases.stack import StackCase
from .cases.statistics import StatisticsCase
from .emulator.library import Emulator
from .families import AnyCase, RowsCase


def tensor(stored: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor of values in the form in which the emulator stores them."""
    values = torch.from_numpy(stored)
    return values.view(torch.bfloat16) if dtype == "bfloat16" else values


def same_bits(first: Arrays, second: Arrays) -> bool:
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


def without_what_rows_share(case: RowsCase) -> RowsCase:
    """Leaves out sums of columns and dropout, whose pattern depends on the row's index."""
    if isinstance(case, NormCase):
        return replace(case, wanted=(True, False, False), p=0.0, with_sum=True)
    return case


def assert_row_is_alike(
    emulator: Emulator, case: AnyCase, row: int, given: Arrays, batch: Arrays
) -> None:
    """A row of a batch has the bits that it has alone."""
    one = slice(row, row + 1)
    of_columns = ("weight", "bias")
    own = {name: values if name in of_columns else values[one] for name, values in given.items()}
    alone = families.run(emulator, with_rows(case, 1), own)
    assert same_bits(alone, {name: values[one] for name, values in batch.items()}), (case, row)


def with_rows(case: AnyCase, rows: int) -> AnyCase:
    if isinstance(case, StatisticsCase):
        return replace(case, of=replace(case.of, rows=rows))
    return replace(case, rows=rows)


def assert_rows_are_independent(emulator: Emulator, case: RowsCase) -> None:
    """A row alone and in a batch has equal bits."""
    case = without_what_rows_share(case)
    given = families.inputs(case)
    batch = families.run(emulator, case, given)
    for row in (0, case.rows - 2):
        assert_row_is_alike(emulator, case, row, given, batch)


INF, NAN = np.inf, np.nan
SPECIAL_ROWS = {
    "all -inf": [-INF] * 8,
    "one finite": [-INF, -INF, 2.0, -INF, -INF, -INF, -INF, -INF],
    "+inf": [1.0, INF, 2.0, 4.0, 0.0, 1.0, 2.0, 3.0],
    "+inf beside -inf": [1.0, INF, 2.0, -INF, 0.0, 1.0, 2.0, 3.0],
    "NaN first": [NAN, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    "NaN beside -inf": [-INF, -INF, -INF, NAN, -INF, -INF, -INF, -INF],
    "lowest and largest": [6e4, -6e4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
}


def special_rows(cols: int, dtype: str, beside: float) -> np.ndarray:
    """Rows of that length as the emulator stores them, and the same from the last column on."""
    rows = np.array([row + [beside] * (cols - 8) for row in SPECIAL_ROWS.values()])
    return encode(np.concatenate([rows, rows[:, ::-1]]), dtype)


def rows_of_hidden_parts(cols: int, part: int, dtype: str) -> np.ndarray:
    """Rows whose parts, of so many columns, are often nothing but -inf."""
    rows = np.full((7, cols), -INF)
    rows[1, 0], rows[2, -1], rows[3, part - 1 : part + 1] = 2.0, -3.0, 1.0
    rows[4:, : cols // 2] = np.linspace(-1, 1, cols // 2)
    rows[4, -1], rows[5, part + 3] = NAN, INF
    return encode(rows, dtype)


def assert_nonfinite_as_in_eager(
    emulator: Emulator, case: Case | SpatialCase, stored: np.ndarray, dim: int = -1
) -> np.ndarray:
    """Infinities and NaNs come out where torch has them. Returns the output."""
    found = families.run(emulator, case, {"input": stored})["output"]
    actual = tensor(found, case.other)
    eager = (torch.log_softmax if case.log else torch.softmax)(tensor(stored, case.dtype), dim)
    assert torch.equal(actual.isnan(), eager.isnan())
    assert torch.equal(actual.isinf(), eager.isinf())
    return found


def assert_special_rows_are_as_in_eager(
    emulator: Emulator, dtype: str, cols: int, width: int
) -> None:
    stored = special_rows(cols, dtype, -INF)
    width = min(width, 16 // stored.itemsize)
    for log in (False, True):
        case = Case("softmax_forward", dtype, dtype, len(stored), cols, width, log=log)
        assert_nonfinite_as_in_eager(emulator, case, stored)


class Judge:
    """Holds every element of every case to its bound. conclude() then checks that the errors of all
    cases together are no larger than independent roundings make them."""

    def __init__(self) -> None:
        self._tallies: dict[str, bounds.Tally] = {}

    def run(self, emulator: Emulator, case: AnyCase, given: Arrays | None = None) -> None:
        """Adds what a case computes, from its own inputs or from given ones."""
        given = families.inputs(case) if given is None else given
        self.add(case, given, families.run(emulator, case, given))

    def add(self, case: AnyCase, given: Arrays, outputs: Arrays) -> None:
        if isinstance(case, SpatialCase):
            return self.add(case.of_rows, case.as_rows(given), case.as_rows(outputs))
        if isinstance(case, StackCase):
            for i in range(case.count):
                self.add(case.of, case.slot(i, given), case.slot(i, outputs))
            return None
        if "sum" in outputs:  # the other outputs are judged by the sum as it was rounded
            given = given | {"sum": outputs["sum"]}
        if "lse" in outputs:  # its error is that of the number that was returned
            given = given | {"lse": outputs["lse"]}
        wanted = _WANTED[case.op](case, given)
        dtypes = case.output_dtypes()
        for name, stored in outputs.items():
            actual, bound = tensor(stored, dtypes[name]), wanted[name]
            actual = actual.reshape(bound.exact.shape)
            try:
                bounds.assert_within(actual, bound)
            except AssertionError as error:
                raise AssertionError(f"{case}: {name}: {error}") from None
            self._tallies.setdefault(name, bounds.Tally()).add(actual, bound)

    def conclude(self) -> None:
        for name, tally in self._tallies.items():
            try:
                tally.assert_typical()
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


def assert_within_bounds(
    emulator: Emulator, cases: Iterable[AnyCase], given: Arrays | None = None
) -> None:
    """The cases on their own inputs, or all of them on given ones."""
    judge = Judge()
    for case in cases:
        judge.run(emulator, case, given)
    judge.conclude()


#: The exact value of each output, and its error bound, by name.
Wanted = dict[str, Bounded]


def _softmax_forward(case: Case, given: Arrays) -> Wanted:
    formula = bounds.log_softmax if case.log else bounds.softmax
    return {"output": formula(tensor(given["input"], case.dtype), DTYPES[case.other])}


def _softmax_statistics(case: StatisticsCase, given: Arrays) -> Wanted:
    x = tensor(given["input"], case.of.dtype)
    max = bounds.exactly(x).max(-1, keepdims=True)
    sum = bounds.softmax_sum(x, DTYPES[case.wide])
    return {"max": Bounded(max, np.zeros((2, *max.shape))), "sum": sum}


def _softmax_apply(case: StatisticsCase, given: Arrays) -> Wanted:
    x, dtype = tensor(given["input"], case.of.dtype), DTYPES[case.of.other]
    max, sum = (tensor(given[name], case.wide) for name in ("max", "sum"))
    parts = bounds.Softmax.with_statistics(x, max, sum, dtype)
    return {"output": bounds.softmax(parts, dtype)}


def _softmax_backward(case: Case, given: Arrays) -> Wanted:
    grad, output = (tensor(given[name], case.other) for name in ("grad_output", "output"))
    formula = bounds.log_softmax_gradient if case.log else bounds.softmax_gradient
    dtype = DTYPES[case.dtype]
    return {"grad_input": formula(output, grad, dtype).rounded_to(dtype)}


def _scores(case: MaskedCase, given: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The scores, the errors of their terms and sums, and where nothing hides them."""
    dtype, shown = DTYPES[case.other], case.shown(given)
    scores = bounds.exactly(tensor(given["input"], case.dtype)) * case.scale
    error = np.zeros((2, *scores.shape))
    if case.softcap:
        scores, error = bounds.soft_capped(scores, case.softcap, dtype)
    size = np.abs(scores)
    for name, operand in (("bias", case.bias), ("mask", case.mask)):
        if operand and not operand.startswith("bool"):
            values = bounds.exactly(tensor(given[name], operand.split()[0]))
            scores = scores + case.broadcast(values)
            size = size + np.abs(case.broadcast(values))
    error = error + bounds.rounded(4, np.where(np.isfinite(size), size, 0), dtype)
    return scores, np.where(shown & np.isfinite(size), error, 0), shown


def _masked_softmax_forward(case: MaskedCase, given: Arrays) -> Wanted:
    dtype, (scores, error, shown) = DTYPES[case.other], _scores(case, given)
    blank = ~(shown & (scores != -np.inf)).any(-1, keepdims=True) & case.zero_masked_rows
    scores = np.where(blank, 0.0, np.where(shown, scores, case.mask_value))
    error = np.where(blank, 0.0, error)
    factors = {"output": case.factors(), "probabilities": np.ones_like(scores)}
    if not case.sinks:
        parts = bounds.Softmax.of(scores, dtype, error)
        return {
            name: bounds.softmax(parts, dtype, np.where(blank, 0.0, factor))
            for name, factor in factors.items()
        }
    sinks = case.broadcast_rows(bounds.exactly(tensor(given["sinks"], case.wide)))
    scores = np.concatenate([scores, np.where(blank, -np.inf, sinks)], -1)
    error = np.concatenate([error, np.zeros((2, case.rows, 1))], -1)
    parts = bounds.Softmax.of(scores, dtype, error)
    columns = np.s_[..., :-1], np.s_[..., -1:]
    wanted = {}
    for name, factor in factors.items():
        whole = np.concatenate([np.where(blank, 0.0, factor), np.ones_like(sinks)], -1)
        wanted[name] = Bounded(*(of[columns[0]] for of in bounds.softmax(parts, dtype, whole)))
    exact, error = (of[columns[1]] for of in bounds.softmax(parts, dtype))
    return wanted | {"sink_probabilities": Bounded(np.where(blank, 1.0, exact), error)}


def _masked_softmax_backward(case: MaskedCase, given: Arrays) -> Wanted:
    grad, probabilities = (
        bounds.exactly(tensor(given[name], case.other)) for name in ("grad_output", "probabilities")
    )
    dtype = DTYPES[case.dtype]
    grad = grad * case.factors()
    slope = bounds.softmax_gradient(probabilities, grad, dtype)
    scale = np.where(case.shown(given), case.scale, 0.0)
    wanted = {"grad_input": slope.scaled(scale, dtype).rounded_to(dtype)}
    if not case.sinks:
        return wanted
    sinks = bounds.exactly(tensor(given["sink_probabilities"], case.wide))
    total = bounds.total_of_products(grad, probabilities, dtype)
    wide = DTYPES[case.wide]
    return wanted | {"grad_sinks": total.scaled(-sinks, wide).rounded_to(wide)}


def _weight(case: NormCase, given: Arrays) -> np.ndarray:
    """The factors of a row."""
    if "weight" not in given:
        return np.ones(case.cols)
    weight = bounds.exactly(tensor(given["weight"], case.parameter_dtype))[0]
    return weight + case.weight_offset


def _sum_that_is_normalised(
    case: NormCase, given: Arrays, sum: Bounded
) -> tuple[torch.Tensor, np.ndarray | float]:
    """The sum as it was returned. Where it was not: the exact one, rounded, and how far the
    kernel's may be from it."""
    if "sum" in given:
        return tensor(given["sum"], case.dtype), 0.0
    exact, off = sum.exact, sum.error[0] - 0.5 * bounds.ulps(sum.exact, DTYPES[case.dtype])
    below, rounded, above = (
        tensor(encode(exact + side * off, case.dtype), case.dtype) for side in (-1, 0, 1)
    )
    return rounded, bounds.exactly(above) - bounds.exactly(below)


def _norm_forward(case: NormCase, given: Arrays) -> Wanted:
    wanted, kind, off = {}, f"{case.kind}_norm", 0.0
    x = tensor(given["input"], case.branch_dtype).to(DTYPES[case.dtype])
    if case.adds:
        wanted["sum"] = bounds.added(x, tensor(given["residual"], case.dtype), case.factors())
        x, off = _sum_that_is_normalised(case, given, wanted["sum"])
    bias = 0.0
    if "bias" in given:
        bias = bounds.exactly(tensor(given["bias"], case.parameter_dtype))[0]
    output = bounds.norm(
        *(kind, x, _weight(case, given), bias, case.eps),
        rounds_normalized=case.rounds_normalized,
        error=off,
    )
    mean, rstd = bounds.Norm.of(kind, x, case.eps, x.dtype, off).statistics(x.dtype)
    return wanted | {"output": output, "mean": mean, "rstd": rstd}


def _norm_backward(case: NormCase, given: Arrays) -> Wanted:
    grad, x = (tensor(given[name], case.dtype) for name in ("grad_output", "input"))
    weight = _weight(case, given)
    to_input, *of_columns = bounds.norm_gradients(f"{case.kind}_norm", x, weight, grad, case.eps)
    if "grad_sum" in given:
        to_input = to_input.plus(tensor(given["grad_sum"], case.dtype), x.dtype)
    to_branch = to_input.scaled(case.factors(), x.dtype) if case.drops else to_input
    parameters = DTYPES[case.parameter_dtype]
    to_weight, to_bias = (bound.rounded_to(parameters) for bound in of_columns)
    return {
        "grad_input": to_input.rounded_to(x.dtype),
        "grad_branch": to_branch.rounded_to(DTYPES[case.branch_dtype]),
        "grad_weight": to_weight,
        "grad_bias": to_bias,
    }


def _logits(case: CrossEntropyCase, given: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The logits, and their errors beside the largest of the row."""
    dtype = DTYPES[case.dtype]
    x = bounds.exactly(tensor(given["input"], case.dtype)) * case.scale
    if case.softcap:
        return bounds.soft_capped(x, case.softcap, dtype)
    if case.scale <= 0:
        return x, bounds.rounded(2, np.abs(x), dtype)
    times = 0 if case.scale == 1 else 1
    return x, bounds.rounded(times, np.abs(x - x.max(-1, keepdims=True)), dtype)


def _cross_entropy_forward(case: CrossEntropyCase, given: Arrays) -> Wanted:
    """An error of the other classes' sum counts by their share of all; what follows from the sum,
    and the class's own logit, is computed in double. A mean is summed too."""
    exact, (x, error) = cross_entropy_cases.exact(case, given), _logits(case, given)
    dtype, wide = DTYPES[case.dtype], DTYPES[case.wide]
    classes = np.arange(case.cols) == given["target"]
    others = bounds.Softmax.of(np.where(classes, -np.inf, x), dtype, np.where(classes, 0, error))
    share = (np.exp(x - exact["lse"]) * ~classes).sum(-1, keepdims=True)
    finite = np.where(np.isfinite(x), np.abs(x), 0).max(-1, keepdims=True)
    off = share * others.sum_error + bounds.rounded(6, 1 + finite, torch.float64)
    off = np.where(cross_entropy_cases.is_unread(case, given["target"]), 0, off)
    of_mean = (bounds.summed(x, bounds.of_row, dtype) + error.sum(-1, keepdims=True)) / case.cols
    of_loss = off + case.label_smoothing * of_mean
    of_loss = np.where(cross_entropy_cases.is_ignored(case, given["target"]), 0, of_loss)
    left = exact["lse"] - given["lse"] if wide.itemsize == 4 else np.zeros_like(exact["lse"])
    return {
        "losses": Bounded(exact["losses"], of_loss).rounded_to(wide),
        "lse": Bounded(exact["lse"], off).rounded_to(wide),
        "lse_error": Bounded(left, off).rounded_to(wide),
    }


def _cross_entropy_backward(case: CrossEntropyCase, given: Arrays) -> Wanted:
    exact, (x, error) = cross_entropy_cases.exact_gradient(case, given), _logits(case, given)
    dtype = DTYPES[case.dtype]
    lse = cross_entropy_cases.exact(replace(case, reads_ignored=True), given)["lse"]
    p, classes = np.exp(x - lse), np.arange(case.cols) == given["target"]
    ignored = cross_entropy_cases.is_ignored(case, given["target"])
    grad = np.where(ignored, 0, bounds.exactly(tensor(given["grad_losses"], case.wide)))
    of_lse = bounds.exactly(tensor(given["grad_lse"], case.wide))
    of_p = bounds._exponential(x - lse, dtype) + error
    size = np.abs(grad + of_lse) * p
    spread = np.abs(grad) * case.label_smoothing / case.cols
    off = size * of_p + bounds.rounded(5, size + spread, dtype)
    of_class = np.abs(grad) * (1 - p + case.label_smoothing) + np.abs(of_lse) * p
    off = np.where(classes & ~ignored, bounds.rounded(4, of_class, dtype), off)
    slope, argument = case.scale, 0.0
    if case.softcap:
        argument = np.arctanh(x / case.softcap)
        slope = case.scale / np.cosh(argument) ** 2
        off = off + np.abs(exact / slope) * bounds._exponential(-2 * np.abs(argument), dtype)
    off = off * np.abs(slope) + bounds.rounded(8, np.abs(exact), dtype)
    return {"grad_input": Bounded(exact, off + 4 * bounds.smallest(dtype)).rounded_to(dtype)}


def _column_sums(case: ColumnSumsCase, given: Arrays) -> Wanted:
    """Each addition rounds."""
    x = bounds.exactly(tensor(given["input"], case.dtype))
    before = bounds.exactly(tensor(joined(case, given), case.wide))
    size = np.abs(before) + np.abs(x).sum(0, keepdims=True)
    off = bounds.rounded(case.rows, size, DTYPES[case.wide])
    sums = Bounded(before + x.sum(0, keepdims=True), off)
    return {"sums": sums.rounded_to(DTYPES[case.dtype])}


def _dropout_forward(case: DropoutCase, given: Arrays) -> Wanted:
    x, dtype = tensor(given["input"], case.dtype), DTYPES[case.dtype]
    exact = Bounded(bounds.exactly(x), np.zeros((2, *x.shape)))
    return {"output": exact.scaled(case.factors(), dtype).rounded_to(dtype)}


_WANTED: dict[str, Callable[[Case, Arrays], Wanted]] = {
    "softmax_forward": _softmax_forward,
    "softmax_backward": _softmax_backward,
    "softmax_statistics": _softmax_statistics,
    "softmax_apply": _softmax_apply,
    "masked_softmax_forward": _masked_softmax_forward,
    "masked_softmax_backward": _masked_softmax_backward,
    "norm_forward": _norm_forward,
    "norm_backward": _norm_backward,
    "cross_entropy_forward": _cross_entropy_forward,
    "cross_entropy_backward": _cross_entropy_backward,
    "column_sums": _column_sums,
    "dropout_forward": _dropout_forward,
}
