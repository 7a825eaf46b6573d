"""Operators are found by name where fusedops is installed, without `import fusedops`."""

from __future__ import annotations

import subprocess

import pytest
import torch
from processes import run_python

import fusedops


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, after `import torch` alone."""
    return run_python("-c", f"import sys, torch\n{code}", **environment)


def printed(code: str) -> str:
    finished = run(code)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    exported = torch.export.export(fusedops.nn.Softmax(-1), (torch.randn(4, 8),))
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    torch.export.save(exported, path)
    return str(path)


def test_a_program_loads_where_torch_alone_was_imported(path):
    assert printed(f"print(torch.export.load({path!r}).module()(torch.ones(4, 8)).sum())") == (
        "tensor(4.)"
    )


def test_an_operator_is_called_where_torch_alone_was_imported():
    assert printed("print(torch.ops.fusedops.softmax(torch.ones(1, 4), -1).sum())") == "tensor(1.)"


def test_torch_alone_imports_nothing_of_fusedops():
    code = "getattr(torch.ops.fusedops, '__wrapped__', None); print('fusedops' in sys.modules)"
    assert printed(code) == "False"


@pytest.mark.parametrize("first", ["import fusedops", "torch.ops.fusedops.softmax"])
def test_the_namespace_is_an_ordinary_one_after_the_import(first):
    code = f"own = torch.ops.fusedops\n{first}\nprint(own is torch.ops.fusedops, type(own))"
    assert printed(code) == "True <class 'torch._ops._OpNamespace'>"


def test_an_import_of_fusedops_before_torch_is_the_usual_one():
    code = "import fusedops; print(type(fusedops.ops.softmax).__name__)"
    finished = run_python("-c", code)
    assert finished.stdout.strip() == "module", finished.stderr


def test_an_import_that_fails_says_why_each_time():
    code = "sys.modules['fusedops'] = None\n" + 2 * (
        "try:\n    torch.ops.fusedops.softmax\nexcept ImportError as error:\n    print(error)\n"
    )
    assert printed(code).count("import of fusedops halted") == 2


def test_where_torch_loads_no_extensions_its_warnings_name_the_operator(path):
    finished = run(f"torch.export.load({path!r})", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.returncode != 0
    assert "torch.ops.fusedops.softmax" in finished.stderr
    assert "import the custom op" in finished.stderr


def test_the_folder_of_the_clone_does_not_hide_the_package(tmp_path):
    (tmp_path / "fusedops").mkdir()  # as where the clone is: a namespace package, to Python
    find = "import importlib.util; print(importlib.util.find_spec('fusedops').origin)"
    found = run_python("-c", find, cwd=tmp_path)
    assert found.stdout.strip() == fusedops.__file__
