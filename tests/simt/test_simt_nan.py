"""A NaN of any payload stays a NaN through all conversions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from .cases import masked as masked_cases
from .cases import norm as norm_cases
from .cases import rows as row_cases
from .cases.rows import PAIRS, decode, encode
from .cases.spatial import OPS as SPATIAL_OPS
from .cases.spatial import SpatialCase
from .emulator.library import DTYPES, VECTOR_BYTES
from .families import run

#: Quiet and signalling NaNs of either sign. A payload of ones is the hardest to round: its carry
#: goes furthest.
PAYLOADS = {
    "float32": [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFBFFFFF, 0x7FFF8000],
    "bfloat16": [0x7FC0, 0x7FFF, 0xFFFF, 0x7F81, 0xFFBF],
    "float16": [0x7E00, 0x7FFF, 0xFFFF, 0x7C01, 0xFDFF],
    "float64": [
        0x7FF8 << 48,
        2**63 - 1,
        2**64 - 1,
        (0x7FF0 << 48) + 1,
        (0xFFF0 << 48) + 0xFFFFFFFF,
    ],
}
COLS = 72  # a multiple of every vector width
PLACES = [0, 7, 40, COLS - 1]


def with_nans(dtype: str) -> np.ndarray:
    """Zeros with one NaN in each row but the last."""
    rows = list(product(PAYLOADS[dtype], PLACES))
    values = encode(np.zeros((len(rows) + 1, COLS)), dtype)
    bits = values.view(f"u{values.itemsize}")
    for row, (payload, place) in enumerate(rows):
        bits[row, place] = payload
    return values


def nan_rows(values: np.ndarray, dtype: str) -> list[bool]:
    is_nan = np.isnan(decode(values, dtype))
    assert (is_nan.all(-1) == is_nan.any(-1)).all()
    return is_nan.any(-1).tolist()


def all_but_the_last(values: np.ndarray) -> list[bool]:
    return [True] * (len(values) - 1) + [False]


def widths(dtype: str) -> tuple[int, int]:
    return 1, VECTOR_BYTES // DTYPES[dtype].itemsize


@pytest.mark.parametrize("dtype, other", PAIRS)
@pytest.mark.parametrize("operand", ["mask", "bias"])
def test_in_an_operand_it_makes_its_row_nan(emulator, dtype, other, operand):
    for of_operand, width in product({dtype, other}, widths(dtype)):
        added = with_nans(of_operand)
        case = masked_cases.MaskedCase(
            "masked_softmax_forward", dtype, other, (len(added),), COLS, width,
            **{operand: f"{of_operand} 11"},
        )  # fmt: skip
        given = masked_cases.inputs(case) | {operand: added}
        output = run(emulator, case, given)["output"]
        assert nan_rows(output, other) == all_but_the_last(added)


@pytest.mark.parametrize("dtype, other", PAIRS)
def test_among_scores_or_in_a_gradient_it_makes_its_row_nan(emulator, dtype, other):
    for log, width in product((False, True), widths(dtype)):
        x, grad = with_nans(dtype), with_nans(other)
        case = row_cases.Case("softmax_forward", dtype, other, len(x), COLS, width, log=log)
        output = run(emulator, case, {"input": x})["output"]
        assert nan_rows(output, other) == all_but_the_last(x)
        width = min(width, VECTOR_BYTES // DTYPES[other].itemsize)
        case = row_cases.Case("softmax_backward", dtype, other, len(grad), COLS, width, log=log)
        given = row_cases.inputs(case) | {"grad_output": grad}
        found = run(emulator, case, given)["grad_input"]
        assert nan_rows(found, dtype) == all_but_the_last(grad)


@pytest.mark.parametrize("dtype, other", PAIRS)
def test_in_a_spatial_softmax_it_makes_its_row_nan(emulator, dtype, other):
    x = np.ascontiguousarray(with_nans(dtype).T)
    case = SpatialCase(SPATIAL_OPS[0], dtype, other, 1, COLS, x.shape[1], 1)
    output = run(emulator, case, {"input": x})["output"]
    assert nan_rows(output.T, other) == all_but_the_last(x.T)


@pytest.mark.parametrize("kind", norm_cases.KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_what_is_normalised_or_its_weight_it_makes_its_row_or_column_nan(emulator, kind, dtype):
    x = with_nans(dtype)
    case = norm_cases.NormCase("norm_forward", dtype, len(x), COLS, widths(dtype)[1], kind=kind)
    x[-1] = encode(np.arange(COLS), dtype)  # constant rows have a standard deviation of 0
    output = run(emulator, case, norm_cases.inputs(case) | {"input": x})["output"]
    assert nan_rows(output, dtype) == all_but_the_last(x)
    parameters = {dtype, "float32"} if DTYPES[dtype].itemsize == 2 else {dtype}
    for of_weight in parameters:
        case = norm_cases.NormCase(
            "norm_forward", dtype, 3, COLS, widths(dtype)[1], kind=kind, parameters=of_weight
        )
        for weight in with_nans(of_weight)[:-1]:
            given = norm_cases.inputs(case) | {"weight": weight[None]}
            output = decode(run(emulator, case, given)["output"], dtype)
            assert (np.isnan(output) == np.isnan(decode(weight, of_weight))).all()
