"""`python -m fusedops env`: what was built, what is loaded, and how to fix problems.

It needs only torch. Every section has its own probe; if a probe fails, the section shows the error,
so that there is always a report.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fusedops._installation import PACKAGE, hidden_installation, version
from fusedops.cli.errors import UserError
from fusedops.cli.problems import (
    FATAL,
    FATAL_TO_CAPTURING,
    FATAL_TO_COMPILING,
    Report,
    find_problems,
)

#: The module that loads the libraries.
LIBRARIES = "ops.registration.libraries"

#: The checks whose problems keep a command from running. Other commands have FATAL_TO_COMPILING;
#: `check` itself reports the problems that do not keep it from running.
FATAL_TO = {"explain": FATAL_TO_CAPTURING, "check": FATAL}

# The keys under which an operator can be registered, in the dispatcher's order.
DISPATCH_KEYS = (
    "FuncTorchBatched",
    "AutocastCPU",
    "AutocastCUDA",
    "Autograd",
    "CPU",
    "CUDA",
    "Meta",
    "CompositeImplicitAutograd",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `env`."""
    parser.add_argument("--json", action="store_true", help="print all of the report as JSON")
    parser.add_argument("--verbose", action="store_true", help="list the operators too")


def run(args: argparse.Namespace) -> int:
    """Prints the report; returns 1 if fusedops cannot run at all, else 0."""
    report = collect()
    text = json.dumps(report, indent=2, default=str) if args.json else as_text(report, args.verbose)
    print(text)
    return 1 if find_problems(report, FATAL) else 0


def collect() -> Report:
    """Runs every probe, then looks for problems in the results."""
    report: Report = {name: _guarded(probe) for name, probe in PROBES.items()}
    report["problems"] = [problem._asdict() for problem in find_problems(report)]
    return report


def require_usable(command: str) -> None:
    """Raises UserError with the fix if `command` cannot run."""
    needed = ("package", "operators", "system", "settings", "compile")
    report = {name: _guarded(PROBES[name]) for name in needed}
    for problem in find_problems(report, FATAL_TO.get(command, FATAL_TO_COMPILING)):
        raise UserError(
            f"{problem.what}; fix: {problem.fix}; for the full report run: python -m fusedops env"
        )


def describe_machine() -> str:
    """Returns the machine in one line, for the header of a measurement."""
    isa = _guarded(lambda: _module(LIBRARIES).cpu_isa())
    return (
        f"{_processor_name()}, {os.cpu_count()} cores, threads={torch.get_num_threads()}, "
        f"torch {torch.__version__}, fusedops {version()} ({isa})"
    )


def _guarded(probe: Callable[[], Any]) -> Any:
    """Returns what a probe finds or, if it raises, its error under the key "error"."""
    try:
        return probe()
    except Exception as error:  # the report must exist on a broken installation too
        return {"error": f"{type(error).__name__}: {error}"}


# --- probes, one for each section -----------------------------------------------------------------


def _module(name: str) -> Any:
    """Returns a module of fusedops. It is imported here and not at the top, because the import may
    fail without the libraries, and there has to be a report even then."""
    return importlib.import_module(f"fusedops.{name}")


def probe_package() -> Report:
    """Returns the version of fusedops, its location, and whether all of it can be imported."""
    return {
        "version": _guarded(version),
        "location": str(PACKAGE),
        "hides": hidden_installation(),
        "imports": _guarded(_import_all),
    }


def _import_all() -> bool:
    """Returns True, or raises if a part of the package does not load: `python -m fusedops` starts
    even then."""
    package = importlib.import_module("fusedops")
    return all(getattr(package, name) is not None for name in package.__all__)


def probe_operators() -> dict[str, list[str]]:
    """Returns the dispatch keys under which each operator has a kernel.

    Without CUDA kernels, the kernel registered for CUDA only raises an error, and is not listed.
    """
    _module("ops")
    refused = () if _module(LIBRARIES).has_kernels("cuda") else ("CUDA",)
    keys = [key for key in DISPATCH_KEYS if key not in refused]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    registered = torch._C._dispatch_get_all_op_names()
    names = [name for name in registered if name.startswith("fusedops::")]
    if not names:
        raise RuntimeError("importing fusedops.ops registered no operator")
    return {
        name.removeprefix("fusedops::"): [key for key in keys if has_kernel(name, key)]
        for name in sorted(names)
    }


def probe_build() -> Report:
    """Returns what the build recorded: compilers, torch, CUDA architectures.

    It is read from the file here, because the module with build_info() loads the libraries, which
    may fail.
    """
    recorded: Report = json.loads((PACKAGE / "lib" / "build_info.json").read_text())
    return recorded


def probe_libraries() -> Report:
    """Returns the libraries in use, the status of the CUDA kernels, and how eager calls run."""
    library = _module(LIBRARIES)
    is_direct = _module("ops.registration.call").IS_DIRECT
    return {
        "loaded": library.loaded_libraries(),
        "cuda": library.cuda_status(),
        "eager calls": "by op_call"
        if is_direct
        else "by torch.ops, 2 us slower: op_call is missing",
    }


def probe_torch() -> Report:
    """Returns the torch in use."""
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda or "none: this torch is built for the CPU alone",
        "location": str(Path(torch.__file__).parent),
    }


def probe_system() -> Report:
    """Returns interpreter, processor, and the instructions and threads in use."""
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "processor": _processor_name(),
        "processor flags": _vector_flags(),
        "instructions used by torch": torch.backends.cpu.get_cpu_capability(),
        "instructions used by fusedops": _guarded(lambda: _module(LIBRARIES).cpu_isa()),
        "threads": torch.get_num_threads(),
    }


def probe_devices() -> Report:
    """Returns each GPU that torch sees, its capability, the architectures of the build whose code
    runs on it, and how launches go there."""
    if not torch.cuda.is_available():
        return {"GPUs": "none that torch can use", "driver": _driver_version()}
    architectures = _guarded(lambda: probe_build()["cuda"]["architectures"])
    gpus = {f"cuda:{i}": _describe_gpu(i, architectures) for i in range(torch.cuda.device_count())}
    return {**gpus, "driver": _driver_version()}


def probe_compile() -> Report:
    """Returns the requirements of `torch.compile(..., backend="fusedops")`."""
    group = importlib.metadata.entry_points(group="torch_dynamo_backends")
    entry_points = [point.value for point in group if point.name == "fusedops"]
    compiler = os.environ.get("CXX", "g++")
    return {
        "backend entry point": entry_points[0] if entry_points else None,
        "C++ compiler": shutil.which(compiler),
        "switched off": os.environ.get("TORCH_COMPILE_DISABLE") == "1",
    }


def probe_variables() -> dict[str, str]:
    """Returns the FUSEDOPS_* environment variables."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith("FUSEDOPS_")}


def probe_settings() -> Report:
    """Returns the settings, from the FUSEDOPS_* variables and the defaults."""
    return dataclasses.asdict(_module("config").active())


def probe_policy() -> Report:
    """Returns the policy table of fuse="profitable" for each device, with one thread and with all;
    then the folder of the user's tables, their number, and what is wrong with damaged ones."""
    costs = _module("graph.policy.costs")
    report = {}
    for device in costs.devices():
        machine = costs.here(device)
        for threads in sorted({1, machine.threads}):
            name = f"{device}, {costs.count_of(threads)}"
            one = partial(_describe_table, dataclasses.replace(machine, threads=threads))
            report[name] = _guarded(one)
    checks = [_guarded(partial(costs.read, file, costs.TUNED)) for file in costs.user_files()]
    damaged = [check["error"] for check in checks if isinstance(check, dict)]
    yours = {"folder": str(costs.user_folder()), "tables": str(len(checks)), "damaged": damaged}
    return {**report, "measured by you": yours}


def _describe_table(machine: Any) -> Report | str:
    costs = _module("graph.policy.costs")
    table = next(iter(costs.tables_for(machine)), None)
    if table is None:
        return "no table: a heuristic decides; `python -m fusedops tune` measures a table"
    how = "estimated for" if table.origin == costs.ESTIMATED else "measured on"
    return {"table": str(table), "chosen": table.fit(machine), how: str(table.machine)}


PROBES: dict[str, Callable[[], Any]] = {
    "package": probe_package,
    "build": probe_build,
    "torch": probe_torch,
    "system": probe_system,
    "devices": probe_devices,
    "libraries": probe_libraries,
    "operators": probe_operators,
    "compile": probe_compile,
    "variables": probe_variables,
    "settings": probe_settings,
    "policy": probe_policy,
}


def _cpuinfo(field: str) -> str:
    """Returns a field of /proc/cpuinfo, or "" if it is missing, as the model name on ARM."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(field))
    return next(found, "")


def _processor_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _vector_flags() -> list[str]:
    prefixes = ("avx", "fma", "f16c", "amx")
    return [flag for flag in _cpuinfo("flags").split() if flag.startswith(prefixes)]


def _driver_version() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return None
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout.strip().partition("\n")[0] or None


def _describe_gpu(index: int, architectures: Any) -> Report:
    major, minor = torch.cuda.get_device_capability(index)
    code = code_for((major, minor), architectures if isinstance(architectures, list) else [])
    return {
        "name": torch.cuda.get_device_name(index),
        "capability": f"{major}.{minor}",
        "code": code or None,
        "launches": _guarded(lambda: _module("cli.launches").describe(index)) if code else None,
    }


def code_for(capability: tuple[int, int], architectures: list[str]) -> list[str]:
    """Returns those of `architectures`, in CMake's notation, whose code runs on `capability`.

    "90-real" is machine code, which runs on the same major version with the same or a higher minor
    version. "90-virtual" is PTX, which the driver compiles for any newer GPU. "90" is both. "90a"
    runs only on 9.0, and "100f" only where the machine code "100-real" runs.
    """
    return [each for each in architectures if _runs_on(capability, each)]


def _runs_on(capability: tuple[int, int], architecture: str) -> bool:
    match = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", architecture)
    if match is None:
        return False
    major, minor, specific, kind = match.groups()
    target = int(major), int(minor)
    if specific == "a":
        return target == capability
    in_family = target[0] == capability[0] or (kind != "-real" and not specific)
    return in_family and target <= capability


# --- text -----------------------------------------------------------------------------------------


def as_text(report: Report, verbose: bool = False) -> str:
    """Returns the report as aligned plain text: a summary, the problems, and a paragraph for each
    section; the operators only if `verbose`."""
    sections = {name: facts for name, facts in report.items() if name != "problems"}
    if not verbose and "error" not in sections["operators"]:
        sections["operators"] = {"number": f"{len(sections['operators'])}; --verbose lists them"}
    paragraphs = [f"{name}\n{_lines(facts)}" for name, facts in sections.items()]
    return "\n\n".join([_summary(report), _problem_lines(report["problems"]), *paragraphs])


def _summary(report: Report) -> str:
    """Returns the first paragraph: the versions, the CPU, the status of CUDA, and the backend."""

    def fact(section: str, name: str) -> str:
        found = report[section].get(name, "unknown")
        return "unknown" if isinstance(found, dict) else _plain(found)

    python = fact("system", "python").partition(" ")[0]
    threads = fact("system", "threads")
    summary = {
        "CPU": f"{fact('system', 'instructions used by fusedops')}, "
        f"{threads} thread{'' if threads == '1' else 's'}, {fact('system', 'processor')}",
        "CUDA": fact("libraries", "cuda"),
        "backend": fact("compile", "backend entry point"),
    }
    versions = f"fusedops {fact('package', 'version')}, torch {fact('torch', 'version')}"
    return f"{versions}, Python {python}\n{_lines(summary)}"


def _lines(facts: Report) -> str:
    rows = list(_flatten(facts)) or [("none", "")]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}".rstrip() for name, value in rows)


def _flatten(facts: Report, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields a label and a text for each fact. Facts in an inner dict begin with its name."""
    for name, value in facts.items():
        label = f"{prefix}{name}".replace("_", " ") if prefix else name
        if isinstance(value, dict):
            yield from _flatten(value, f"{label} ")
        else:
            yield label, " ".join(map(str, value)) if isinstance(value, list) else _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):  # 1 is equal to True, and a number of threads can be 1
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _problem_lines(problems: list[dict[str, str]]) -> str:
    lines = [f"  {problem['what']}\n    fix: {problem['fix']}" for problem in problems]
    return "\n".join(["problems", *(lines or ["  none"])])
