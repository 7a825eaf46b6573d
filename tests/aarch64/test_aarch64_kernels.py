"""The kernels for ARM keep what those for x86 promise, under qemu: with the cases, the float64
references and the bounds of the CUDA emulator's tests.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from norm_kinds import KINDS
from simt import families
from simt.cases import rows as row_cases
from simt.cases.masked import MaskedCase
from simt.cases.norm import NormCase
from simt.cases.rows import Case
from simt.cases.spatial import SpatialCase
from simt.cases.stack import StackCase
from simt.emulator.library import DTYPES
from simt.families import AnyCase
from simt.judge import (
    Judge,
    assert_rows_are_independent,
    assert_special_rows_are_as_in_eager,
    same_bits,
)

from .build import COMPILER, EMULATOR, LIBRARIES, NEEDS_TOOLS, ROOT
from .driver import DENORMAL_OPERAND, UNDERFLOW, Processor, shared_memory

pytestmark = [NEEDS_TOOLS, pytest.mark.exhaustive]

ISAS = ("default", "bf16")


@pytest.fixture(scope="module", params=ISAS)
def processors(request) -> Iterator[list[Processor]]:
    """One that has one thread and one that has three, of the same instruction set."""
    those = [Processor(request.param, threads) for threads in (1, 3)]
    assert [processor.isa for processor in those] == [request.param] * 2
    yield those
    for processor in those:
        processor.close()


@pytest.fixture
def processor(processors) -> Processor:
    return processors[0]


@pytest.fixture(autouse=True)
def empty_memory() -> None:
    shared_memory().clear()


def on_cpu(case: AnyCase) -> AnyCase:
    """On the CPU norms without a mean have no bias, and a backward takes masks of bools alone."""
    if isinstance(case, StackCase):
        return replace(case, of=on_cpu(case.of))
    if isinstance(case, MaskedCase) and not case.is_forward and case.mask[:4] != "bool":
        return replace(case, mask="")
    is_norm = isinstance(case, NormCase) or (isinstance(case, SpatialCase) and case.is_norm)
    if not is_norm or KINDS[case.kind].has_mean:
        return case
    return replace(case, bias=False, wanted=(*case.wanted[:2], False))


def run(processor: Processor, case: AnyCase, given=None):
    shared_memory().clear()
    return families.run(processor, case, given)


def test_errors_are_within_their_bounds_in_every_family(processor):
    """An eighth of the cases; they are in an order that mixes dtypes, lengths and options."""
    judges = defaultdict(Judge)
    for case in map(on_cpu, families.candidates(processor)[::8]):
        shared_memory().clear()
        given = families.inputs(case)
        judges[type(case), getattr(case, "op", None)].add(case, given, run(processor, case, given))
    assert len(judges) == 19
    for judge in judges.values():
        judge.conclude()


@pytest.mark.parametrize("group", families.groups())
def test_errors_are_within_their_bounds_in_groups_of_short_rows(processor, group):
    judge = Judge()
    for base in families.groups()[group]:
        for case in map(on_cpu, families.boundary_cases(processor, base)):
            if case.cols <= 300:
                given = families.inputs(case)
                judge.add(case, given, run(processor, case, given))
    judge.conclude()


@pytest.mark.parametrize("cols", [5, 24, 200, 1030, 66_000])
@pytest.mark.parametrize("group", families.groups())
def test_a_row_has_its_bits_in_any_batch_and_on_any_number_of_threads(processors, group, cols):
    case = replace(families.groups()[group][-1], cols=cols, rows=max(3, min(4000 // cols, 100)))
    given = families.inputs(case)
    assert same_bits(*(run(processor, case, given) for processor in processors))
    shared_memory().clear()
    assert_rows_are_independent(processors[0], case)


def test_sums_over_rows_have_their_bits_on_any_number_of_threads(processors):
    for cols, dtype in itertools.product((24, 1030), DTYPES):
        case = NormCase("norm_backward", dtype, rows=300, cols=cols, width=1)
        assert same_bits(*(run(processor, case) for processor in processors))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [8, 30, 520, 66_000])
def test_inf_and_nan_come_out_as_in_eager(processor, dtype, cols):
    assert_special_rows_are_as_in_eager(processor, dtype, cols, width=1)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_doubles_whose_sums_overflow_are_as_in_eager(processor, kind):
    """Such a sum, of two doubles, has a part that is NaN; x86 tests have one long double."""
    x = torch.randn(3, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x[1, 7], x[2, 7] = np.inf, np.nan
    norm = torch.nn.functional.layer_norm if kind == "layer" else torch.nn.functional.rms_norm
    eager = norm(x, (200,), eps=0.0)
    x[0] *= 1e300
    case = NormCase("norm_forward", "float64", 3, 200, 1, kind=kind, weight=False, bias=False)
    actual = run(processor, replace(case, eps=0.0), {"input": x.numpy()})["output"]
    torch.testing.assert_close(torch.from_numpy(actual), eager, rtol=1e-13, atol=0, equal_nan=True)


@pytest.fixture(scope="module", params=ISAS)
def flushing(request) -> Iterator[Processor]:
    """A processor whose flags show every denormal: it flushes them."""
    processor = Processor(request.param, flush=True)
    yield processor
    processor.close()


def flags_of(processor: Processor, case: AnyCase, given) -> int:
    run(processor, case, given)
    return processor.flags & (UNDERFLOW | DENORMAL_OPERAND)


def test_the_flags_show_a_denormal(flushing):
    case = Case("softmax_forward", "float32", "float32", 1, 40, 1)
    small = np.full((1, 40), 1e-40, np.float32)
    assert flags_of(flushing, case, {"input": small}) == DENORMAL_OPERAND
    steep = np.linspace(-90, 0, 40, dtype=np.float32)[None]
    assert flags_of(flushing, case, {"input": steep}) == UNDERFLOW


@pytest.mark.parametrize("value", [-np.inf, -1e4, -6e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_scores_make_no_denormal(flushing, dtype, value):
    random = np.random.default_rng(1)
    for cols in (40, 100) if dtype == "float16" else (40, 1000, 4097, 70_001):
        scores = random.standard_normal((3, cols)) / 2
        hidden = random.random((3, cols)) < 0.5
        hidden[:, 0] = False
        given = {"input": row_cases.encode(np.where(hidden, value, scores), dtype)}
        for log in (False, True):
            case = Case("softmax_forward", dtype, dtype, 3, cols, 1, log=log)
            assert flags_of(flushing, case, given) == 0
        masked = MaskedCase(
            *("masked_softmax_forward", dtype, dtype, (1, 1, 3), cols, 1), mask="bool 1011"
        )
        given = {"input": row_cases.encode(scores, dtype), "mask": (~hidden)[None, None]}
        assert flags_of(flushing, replace(masked, mask_value=value), given) == 0


@pytest.mark.parametrize("kind", ["layer", "rms", "std"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_norms_of_tiny_and_constant_rows_make_no_denormal(flushing, dtype, kind):
    random = np.random.default_rng(2)
    sizes = np.array([1e-12, 1e-18, 1e-20, 1e-25, 1.0])[:, None]
    rows = {"tiny": random.standard_normal((5, 200)) * sizes, "zeros": np.zeros((5, 200))}
    rows["constant"] = np.array([0.1, 1e-8, 1e-20, 1e-28, 3.0])[:, None] + np.zeros((5, 200))
    for x in rows.values():
        case = NormCase("norm_forward", dtype, 5, 200, 1, kind=kind, weight=False, bias=False)
        assert flags_of(flushing, case, {"input": row_cases.encode(x, dtype)}) == 0


def test_the_documented_program_of_the_c_interface_runs(tmp_path):
    page = (ROOT / "docs/c_interface.md").read_text()
    (tmp_path / "main.c").write_text(re.search(r"^```c\n(.*?)^```", page, re.M | re.S)[1])
    folders = [LIBRARIES / "csrc" / name for name in ("c_api", "cpu")]
    linked = [folders[0] / "libfusedops_c.so", f"-Wl,-rpath-link={folders[1]}"]
    compiler = (COMPILER["aarch64"], "-x", "c", "main.c", "-x", "none", *linked)
    command = (*compiler, f"-I{ROOT / 'csrc/include'}", "-o", "program")
    subprocess.run(list(map(str, command)), cwd=tmp_path, check=True)
    found = f"LD_LIBRARY_PATH={':'.join(map(str, folders))}"
    program = [*EMULATOR["aarch64"], "-E", found, str(tmp_path / "program")]
    result = subprocess.run(program, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("0.0900 0.2447 0.6652 0.6652 0.2447 0.0900 ")
