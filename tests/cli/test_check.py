"""`python -m fusedops check` passes on a machine where fusedops works, and on no other."""

from __future__ import annotations

import json
import math
import subprocess

import pytest
import torch
from processes import run_python

import fusedops
from fusedops.cli import check, main
from fusedops.cli.check import compiler, kernels
from fusedops.cli.check.result import Result
from fusedops.ops.registration import libraries

#: A build for one machine has the kernels of one instruction set.
FEWEST = libraries.build_info()["cpu_isas"][0]
COMPILATION = 'torch.compile(model, backend="fusedops")'


def run_check(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "fusedops", "check", *argv, **variables)


@pytest.fixture(scope="module")
def report():
    """The report on this machine, with the fewest instructions that there are kernels for."""
    finished = run_check("--json", FUSEDOPS_CPU_ISA=FEWEST)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(finished.stdout)


def test_every_check_passes_here(report):
    results = [result for results in report["checks"].values() for result in results]
    assert report["passed"] and all(result["passed"] for result in results)


def test_the_report_names_libraries_versions_instructions_and_policy_tables(report):
    found = {each["name"]: each["found"] for each in report["checks"]["installation"]}
    libraries = ("libfusedops.so", "libfusedops_kernels.so", "libfusedops_c.so")
    assert {found[library] for library in libraries} == {fusedops.__version__}
    assert found["torch"] == torch.__version__ and found["instructions"] == FEWEST
    assert {"CUDA kernels", "policy, cpu, 1 thread"} <= {*found}


def test_every_operator_is_measured_in_every_dtype_forward_and_backward(report):
    (section,) = (name for name in report["checks"] if name.startswith("accuracy on cpu"))
    for result in report["checks"][section]:
        assert {*result["found"]} == {"float32", "bfloat16", "float16", "float64"}
    names = [result["name"] for result in report["checks"][section]]
    for operator in kernels.OPERATORS:
        assert operator in names and f"{operator}, gradient of x" in names


def test_the_sites_of_a_small_model_are_replaced_and_it_computes_the_same(report):
    found = {each["name"]: each["found"] for each in report["checks"][COMPILATION]}
    assert found["sites of a small model"] == "4 of 4 sites replaced"
    assert float(found["difference of the gradients"]) <= compiler.TOLERANCE


# --- what is broken is found ----------------------------------------------------------------------


def softmax_times(factor):
    """A softmax whose results are multiplied by a function of the inputs."""
    right = kernels.OPERATORS["softmax"]
    return right._replace(call=lambda given: right.call(given) * factor(given))


@pytest.mark.parametrize("ulps", [8, math.nan])
def test_an_error_of_a_few_ulps_is_found(ulps, monkeypatch):
    broken = softmax_times(lambda given: 1 + ulps * torch.finfo(given.x.dtype).eps)
    monkeypatch.setattr(kernels, "OPERATORS", {"softmax": broken})
    forward, _ = kernels.accuracy("cpu")
    assert not forward.passed and not forward.found["float32"] <= 4


def test_results_that_depend_on_the_run_the_threads_or_the_batch_are_found():
    runs = iter(range(10))
    broken = {
        "the run": softmax_times(lambda given: 1 + next(runs) * 2**-20),
        "the threads": softmax_times(lambda given: 1 + torch.get_num_threads() * 2**-20),
        "the batch": softmax_times(lambda given: 1 + len(given.x) * 2**-20),
    }
    given = kernels.draw(torch.float32, "cpu")
    with kernels._threads(2):  # so that a run on one thread has to ask for it
        assert kernels.has_same_bits(kernels.OPERATORS["softmax"], given, 2)
        assert not any(kernels.has_same_bits(operator, given, 2) for operator in broken.values())


def test_a_site_that_stays_and_a_wrong_result_are_found(monkeypatch):
    monkeypatch.setattr(compiler, "TOLERANCE", 0.0)
    monkeypatch.setattr(compiler, "FUSE", "always,layer_norm=never")
    sites, *differences = compiler.compilation()
    assert sites.found == "3 of 4 sites replaced" and not sites.passed
    assert not any(difference.passed for difference in differences)


def test_a_library_of_another_version_is_found(monkeypatch):
    monkeypatch.setattr(libraries, "version_of", lambda path: "0.0.1")
    results = {result.name: result for result in check.installation()}
    assert not results["libfusedops.so"].passed


def fails():
    yield Result("first", "found")
    raise RuntimeError("no such device")


def passes():
    yield Result("second", "1.0", "at most 2", True)


def test_a_check_that_raises_has_failed_and_the_others_run(monkeypatch, capsys):
    monkeypatch.setattr(check, "chosen_checks", lambda: {"one": fails, "two": passes})
    assert main(["check"]) == 1
    printed = capsys.readouterr().out
    assert "RuntimeError" in printed and "no such device" in printed
    assert "second  1.0  ok" in printed and printed.endswith("checks that FAILED: 1\n")


def test_a_failure_says_what_was_wanted():
    line = check.as_text([Result("softmax", {"float32": 8.0}, "at most 4", False)])
    assert line == "  softmax  float32 8.00  FAILED, wanted at most 4"
