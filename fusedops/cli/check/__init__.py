"""`python -m fusedops check` tests fusedops on this machine, in less than 20 seconds.

The module `kernels` compares the operators with their definitions in float64, and the bits of
repeated runs with each other. The module `compiler` compiles and exports a small model. The command
needs no packages but torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch.torch_version import TorchVersion

import fusedops
from fusedops.cli.check.compiler import compilation, exporting
from fusedops.cli.check.kernels import accuracy, determinism
from fusedops.cli.check.result import Result
from fusedops.cli.env import describe_machine, probe_devices, probe_policy
from fusedops.cli.errors import describe, one_line
from fusedops.cli.problems import decode_target
from fusedops.ops.registration import libraries

Check = Callable[[], Iterator[Result]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `check`."""
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs every check; returns 1 if one failed."""
    machine = describe_machine()
    sections: dict[str, list[Result]] = {}
    if not args.json:
        print(machine)
    for name, check in chosen_checks().items():
        sections[name] = _guarded(check)
        if not args.json:
            print(f"\n{name}\n{as_text(sections[name])}", flush=True)
    failed = [result for results in sections.values() for result in results if not result.passed]
    if args.json:
        listed = {name: [each._asdict() for each in results] for name, results in sections.items()}
        print(json.dumps({"machine": machine, "passed": not failed, "checks": listed}, indent=2))
    else:
        print(f"\nchecks that FAILED: {len(failed)}" if failed else "\nall checks passed")
    return 1 if failed else 0


def chosen_checks() -> dict[str, Check]:
    """Maps the title of each section to its check. The kernels are checked on each kind of device
    for which this build has them."""
    has_gpu = torch.cuda.is_available() and libraries.has_kernels("cuda")
    devices = ["cpu", "cuda"] if has_gpu else ["cpu"]
    checks: dict[str, Check] = {"installation": installation}
    for device in devices:
        ulps = "root mean square of the errors in ulps"
        checks[f"accuracy on {device}: {ulps}"] = partial(accuracy, device)
        checks[f"determinism on {device}"] = partial(determinism, device)
    checks['torch.compile(model, backend="fusedops")'] = compilation
    checks["torch.export"] = exporting
    return checks


def installation() -> Iterator[Result]:
    """Yields facts about libraries, instructions, devices and policy tables, and whether those that
    can be wrong are right."""
    target = decode_target(libraries.build_info()["torch_target"])
    suits = TorchVersion(torch.__version__) >= TorchVersion(target)
    yield Result("torch", torch.__version__, f"{target} or later", suits)
    for path in map(Path, libraries.loaded_libraries()):
        yield _version_of(path)
    if (c_library := libraries.LIB_DIR / "libfusedops_c.so").exists():
        yield _version_of(c_library)
    yield Result("CUDA kernels", libraries.cuda_status())
    yield Result("instructions", libraries.cpu_isa())
    yield from _gpus()
    for device, facts in probe_policy().items():
        if isinstance(facts, str):
            yield Result(f"policy, {device}", facts)
        elif "table" in facts:
            yield Result(f"policy, {device}", f"{facts['table']}: {facts['chosen']}")


def _version_of(library: Path) -> Result:
    found, wanted = libraries.version_of(library), fusedops.__version__
    return Result(library.name, found, wanted, found == wanted)


def _gpus() -> Iterator[Result]:
    """Yields a result for every GPU that torch can use: whether the libraries have code for it."""
    facts = probe_devices()
    gpus = {name: gpu for name, gpu in facts.items() if name.startswith("cuda:")}
    for name, gpu in gpus.items():
        has_code = bool(gpu["code"])
        code = "code" if has_code else "no code"
        found = f"{gpu['name']}, capability {gpu['capability']}: {code}"
        yield Result(name, found, "code for it", has_code)
    if not gpus:
        yield Result("GPUs", "none that torch can use")


def _guarded(check: Check) -> list[Result]:
    """Returns the results of a check. If the check raises an error, the last result is a failed one
    with the error's text."""
    results: list[Result] = []
    try:
        results.extend(check())
    except Exception as error:  # one check that fails must not keep the others from running
        results.append(Result("error", one_line(describe(error)), "none", passed=False))
    return results


def as_text(results: list[Result]) -> str:
    """Returns the results as aligned lines: the name, what was found, and what was wanted."""
    rows = [(result, _found(result)) for result in results]
    name_width = max(len(result.name) for result, _ in rows)
    found_width = max(len(found) for result, found in rows if result.wanted or len(rows) == 1)
    lines = (
        f"  {result.name:<{name_width}}  {found:<{found_width}}  {_verdict(result)}"
        for result, found in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _found(result: Result) -> str:
    if isinstance(result.found, str):
        return result.found
    return "  ".join(f"{dtype} {error:.2f}" for dtype, error in result.found.items())


def _verdict(result: Result) -> str:
    if not result.wanted:
        return ""
    return "ok" if result.passed else f"FAILED, wanted {result.wanted}"
