"""`python -m tools.bench memory` measures the peak of allocated memory, to the byte."""

from __future__ import annotations

import csv

import pytest
import torch
from processes import run_python

from fusedops.cli.bench import cases
from fusedops.cli.bench.operators import OPERATORS
from tools.bench import memory
from tools.bench.__main__ import main

FORWARD, TRAINING = cases.FORWARD, cases.BACKWARD
CAPPED = "masked_softmax[causal+softcap]"
MASKED = [op for op in OPERATORS if op.startswith("masked_softmax") and op != CAPPED]
IN_PLACE = [op for op, saving in memory.SAVING_WAYS.items() if memory.OURS_IN_PLACE in saving]

#: The bytes of a seed, and of a scalar for each operand that was added: less than a row.
A_FEW_BYTES = 64


def case(op: str, direction: str = FORWARD, dtype=torch.float32) -> cases.Case:
    return cases.Case(op, OPERATORS[op], direction, dtype, (2, 3, 64, 128), device="cpu")


def peak(provider: str, this: cases.Case) -> int:
    return memory.peak_bytes(memory.bind(this, memory.ways(this)[provider]), "cpu")


def inputs_taken(provider: str, this: cases.Case) -> float:
    return peak(provider, this) / this.input_bytes


def test_the_peak_is_the_most_that_is_allocated_at_one_time():
    def call():
        first, second = torch.empty(1000), torch.empty(10)
        del first
        return second, torch.empty(2000)

    assert memory.peak_bytes(call, "cpu") == 4 * (10 + 2000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("op", IN_PLACE)
def test_a_call_in_place_or_into_a_buffer_allocates_nothing(op, dtype):
    assert peak(memory.OURS_IN_PLACE, case(op, dtype=dtype)) == 0
    assert peak(memory.OURS_OUT, case(op, dtype=dtype)) == 0


NORMS = ("layer_norm", "std_norm", "rms_norm")
DROPOUT = "softmax_dropout[causal]"
#: The tensors as large as the input that a call allocates, forward and for training: its results,
#: the gradient, and for dropout the probabilities.
TENSORS = dict.fromkeys(("softmax", "log_softmax", *MASKED, *NORMS), (1, 2))
TENSORS |= dict.fromkeys(("add_layer_norm", "add_rms_norm"), (2, 3)) | {DROPOUT: (1, 3)}
TENSORS[CAPPED] = (1, 4)  # two more for the derivative of the cap


@pytest.mark.parametrize("op", [op for op in TENSORS if op != DROPOUT])
def test_a_call_allocates_its_results_alone(op):
    assert peak(memory.OURS, case(op)) == TENSORS[op][0] * case(op).input_bytes


@pytest.mark.parametrize(
    ("op", "direction"), [*((op, TRAINING) for op in TENSORS), (DROPOUT, FORWARD)]
)
def test_training_and_dropout_allocate_little_beside_results_and_gradients(op, direction):
    """A seed, and a norm the statistics of its rows: mean and rstd."""
    this = case(op, direction)
    expected = TENSORS[op][direction == TRAINING] * this.input_bytes
    statistics = 2 * 4 * this.rows if "norm" in op else 0
    assert expected <= peak(memory.OURS, this) <= expected + statistics + A_FEW_BYTES


def test_training_in_place_allocates_the_gradient_alone():
    this = case("softmax", TRAINING)
    assert peak(memory.OURS_IN_PLACE, this) == this.input_bytes


@pytest.mark.parametrize("op", MASKED)
def test_the_eager_chain_takes_one_tensor_more(op):
    assert inputs_taken(memory.EAGER, case(op)) == pytest.approx(2, abs=0.01)
    assert inputs_taken(memory.EAGER, case(op, TRAINING)) >= 3


def test_a_soft_cap_takes_a_tensor_in_eager():
    assert inputs_taken(memory.EAGER, case(CAPPED)) == pytest.approx(3, abs=0.01)


def test_only_calls_that_autograd_allows_are_offered_for_training():
    assert list(memory.ways(case("softmax"))) == list(memory.WAYS)
    assert list(memory.ways(case("softmax", TRAINING))) == [
        memory.EAGER,
        memory.INDUCTOR,
        memory.OURS,
        memory.OURS_IN_PLACE,
    ]


@pytest.mark.parametrize("provider", [memory.BY_HAND, memory.EAGER_OUT, memory.OURS_OUT])
def test_autograd_refuses_the_other_ways(provider):
    way = memory.ways(case("softmax"))[provider]
    with pytest.raises(RuntimeError, match="inplace operation|derivative|require"):
        memory.bind(case("softmax", TRAINING), way)()


@pytest.mark.parametrize("op", [op for op in OPERATORS if not OPERATORS[op].survivors])
def test_every_way_computes_the_same(op):
    # Float64, as rows of few channels that nearly agree lose most digits of floats in both ways.
    this = case(op, dtype=torch.float64)
    results = {
        name: memory.bind(this, way)()
        for name, way in memory.ways(this).items()
        if name != memory.INDUCTOR
    }
    for result in results.values():
        torch.testing.assert_close(result, results[memory.EAGER])


RESIDENT_PEAK = """
import re
import sys
from pathlib import Path

import torch

from fusedops.cli.bench import cases
from fusedops.cli.bench.operators import OPERATORS
from tools.bench import memory

def status(field):
    lines = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(field + r":\\s+(\\d+) kB", lines)[1])

op, provider = sys.argv[1:]
case = cases.Case(op, OPERATORS[op], "forward", torch.float32, (8, 8, 512, 512), device="cpu")
way = memory.ways(case)[provider]
memory.bind(case, way)()
call = memory.bind(case, way)
Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
before = status("VmRSS")
call()
print((status("VmHWM") - before) / case.input_bytes)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("provider", "inputs"), [(memory.EAGER, 2), (memory.OURS, 1), (memory.OURS_IN_PLACE, 0)]
)
def test_the_process_grows_by_as_much_as_is_counted(provider, inputs):
    """The system's own count would show memory that bypasses torch's allocator."""
    op = "masked_softmax[additive]"
    assert inputs_taken(provider, case(op)) == pytest.approx(inputs, abs=0.01)
    # Every block has a mapping of its own, which is returned to the system when it is freed.
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    finished = run_python("-c", RESIDENT_PEAK, op, provider, **environment)
    assert finished.returncode == 0, finished.stderr
    assert float(finished.stdout) == pytest.approx(inputs, abs=0.05)


def test_csv_holds_one_row_for_each_peak(capsys, tmp_path):
    file = tmp_path / "memory.csv"
    options = "memory --op softmax --pass forward --dtype float32 --shape 64x32 --csv"
    assert main([*options.split(), str(file)]) == 0
    assert "Peak memory" in capsys.readouterr().out
    rows = {row["provider"]: row for row in csv.DictReader(file.read_text().splitlines())}
    assert list(rows) == list(memory.WAYS)
    assert rows["fusedops"]["peak_bytes"] == rows["fusedops"]["input_bytes"] == str(64 * 32 * 4)
    assert float(rows["fusedops in place"]["peak_over_input"]) == 0
