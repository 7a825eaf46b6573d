"""Finds problems in the report of `python -m fusedops env`, and says how to fix them.

A check is a function that reads the report and yields the problems that it finds. Its docstring
describes the state of the installation in which there is such a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.torch_version import TorchVersion

from fusedops._installation import FIX_OF_HIDDEN, REBUILD, hidden_message

REINSTALL = f"{REBUILD} (in a checkout)"

Report = dict[str, Any]


class Problem(NamedTuple):
    """A problem, and the command or step that fixes it."""

    what: str
    fix: str


Check = Callable[[Report], Iterator[Problem]]


def find_problems(report: Report, checks: Sequence[Check] | None = None) -> list[Problem]:
    """Returns the problems in `report` that `checks`, by default all, find."""
    return [problem for check in checks or CHECKS for problem in _run(check, report)]


def _run(check: Check, report: Report) -> list[Problem]:
    """Returns the problems that a check finds. If the check raises an error, the error is a problem
    itself, unless facts are missing from the report because a probe of `env` has failed."""
    try:
        return list(check(report))
    except Exception as error:
        if any("error" in facts for facts in report.values()):
            return []  # the failed probe is reported as a problem of its own
        return [Problem(f"{check.__name__}: {type(error).__name__}: {error}", "see the sections")]


def source_that_hides_the_package(report: Report) -> Iterator[Problem]:
    """Python was started in a checkout that is not built, and imports the checkout in place of the
    package that is installed."""
    if installed := report["package"].get("hides"):
        yield Problem(hidden_message(installed), FIX_OF_HIDDEN)


def what_does_not_load(report: Report) -> Iterator[Problem]:
    """The shared library is missing or does not fit this torch, or a Python file is broken. The
    effect of a hidden package or a refused setting is the same, but other checks report these."""
    if report["package"].get("hides"):
        return
    if error := report["operators"].get("error"):
        yield Problem(f"the operators do not load: {error}", REINSTALL)
        return
    imports = report["package"]["imports"]
    if isinstance(imports, dict) and "error" not in report["settings"]:
        yield Problem(f"fusedops cannot be imported: {imports['error']}", REINSTALL)


def unknown_instruction_set(report: Report) -> Iterator[Problem]:
    """FUSEDOPS_CPU_ISA is not a known instruction set, so that every operator refuses to run."""
    isa = report["system"]["instructions used by fusedops"]
    if isinstance(isa, dict) and "error" not in report["operators"]:
        yield Problem(isa["error"], "unset FUSEDOPS_CPU_ISA")


def refused_settings(report: Report) -> Iterator[Problem]:
    """A FUSEDOPS_* variable has an invalid value."""
    if error := report["settings"].get("error"):
        yield Problem(error, "unset the variable")


def policy_tables_that_are_damaged(report: Report) -> Iterator[Problem]:
    """A policy table cannot be read. If it ships with fusedops, every compilation fails. If it is
    the user's own, it is skipped."""
    for device, facts in report["policy"].items():
        if isinstance(facts, dict) and "error" in facts:
            yield Problem(f"the policy table of {device}: {facts['error']}", REINSTALL)
    for error in report["policy"]["measured by you"]["damaged"]:
        yield Problem(error, "python -m fusedops tune, or remove the file")


def operators_without_cpu_kernel(report: Report) -> Iterator[Problem]:
    """The library has another version than the Python files, and lacks some operators."""
    if "error" in report["operators"]:
        return
    lacking = [name for name, keys in report["operators"].items() if not {"CPU", "Meta"} <= {*keys}]
    if lacking:
        yield Problem(f"no CPU or no fake kernel for: {', '.join(lacking)}", REINSTALL)


def torch_older_than_the_target(report: Report) -> Iterator[Problem]:
    """The libraries use functions that this torch does not have."""
    if "torch_target" not in report["build"]:
        return
    version, oldest = report["torch"]["version"], decode_target(report["build"]["torch_target"])
    if TorchVersion(version) < TorchVersion(oldest):
        yield Problem(
            f"torch {version} is older than {oldest}, the oldest that this build runs on",
            f"pip install 'torch>={oldest}'",
        )


def gpus_without_kernels(report: Report) -> Iterator[Problem]:
    """There are no kernels for a GPU that torch can use."""
    gpus = {name: gpu for name, gpu in report["devices"].items() if name.startswith("cuda:")}
    if not gpus:
        return
    if not report["build"].get("cuda", {}).get("built"):
        status = report["libraries"].get("cuda", "the libraries did not load")
        yield Problem(f"no CUDA kernels: {status}", f"FUSEDOPS_BUILD_CUDA=1 {REINSTALL}")
        return
    for name, gpu in gpus.items():
        if not gpu["code"]:
            what = f"no code for {name} ({gpu['name']}, capability {gpu['capability']})"
            yield Problem(what, f"TORCH_CUDA_ARCH_LIST={gpu['capability']} {REINSTALL}")


def driver_that_torch_does_not_use(report: Report) -> Iterator[Problem]:
    """There is an NVIDIA driver, but torch is a CPU build or too new for the driver."""
    devices = report["devices"]
    if devices.get("driver") and not any(name.startswith("cuda:") for name in devices):
        what = (
            f"NVIDIA driver {devices['driver']}, but torch {report['torch']['version']} sees no GPU"
        )
        yield Problem(
            what, "install a CUDA build of torch that this driver runs: pytorch.org/get-started"
        )


def backend_not_installed(report: Report) -> Iterator[Problem]:
    """The package is importable but not installed, so that torch.compile, which finds its backends
    by entry points, does not know the backend."""
    if report["compile"].get("backend entry point") is None:
        yield Problem('torch.compile does not know backend="fusedops"', REINSTALL)


def no_compiler_for_inductor(report: Report) -> Iterator[Problem]:
    """There is no C++ compiler, which Inductor needs at run time for the CPU."""
    if report["compile"].get("C++ compiler") is None:
        yield Problem("torch.compile finds no C++ compiler", "install g++, or name one in CXX")


def compiler_that_is_switched_off(report: Report) -> Iterator[Problem]:
    """torch.compile is disabled and runs everything in eager mode, so that nothing is replaced."""
    if report["compile"].get("switched off"):
        yield Problem("TORCH_COMPILE_DISABLE switches torch.compile off", "unset it")


#: The checks whose problems prevent any use of fusedops. The tuples below add the checks whose
#: problems prevent capturing a model, and compiling one.
FATAL: tuple[Check, ...] = (
    source_that_hides_the_package,
    what_does_not_load,
    unknown_instruction_set,
    refused_settings,
)
FATAL_TO_CAPTURING: tuple[Check, ...] = (*FATAL, compiler_that_is_switched_off)
FATAL_TO_COMPILING: tuple[Check, ...] = (*FATAL_TO_CAPTURING, no_compiler_for_inductor)

CHECKS: tuple[Check, ...] = (
    *FATAL,
    policy_tables_that_are_damaged,
    operators_without_cpu_kernel,
    torch_older_than_the_target,
    gpus_without_kernels,
    driver_that_torch_does_not_use,
    backend_not_installed,
    no_compiler_for_inductor,
    compiler_that_is_switched_off,
)


def decode_target(target: str) -> str:
    """Returns TORCH_TARGET_VERSION, a number in hexadecimal, as a version. 0x020a000000000000 is
    2.10: the first byte is the major version, the second the minor one."""
    number = int(target, 16)
    return f"{number >> 56}.{number >> 48 & 0xFF}"
