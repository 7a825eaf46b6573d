"""Packages run in a C++ program that links fusedops::fusedops, without Python in the process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_models import tiny
from torch import nn

import fusedops

SOURCES = Path(__file__).parent
PAGE = (SOURCES.parents[2] / "docs" / "deployment.md").read_text()
#: cmake, ninja and python as pip and venv install them.
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "CMAKE_GENERATOR": "Ninja",
}


def blocks(language: str) -> list[str]:
    """The blocks of docs/deployment.md in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(*command: object, cwd: Path | None = None, env=ENVIRONMENT) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)


def succeed(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result


#: The three commands of docs/deployment.md: configure, build, run.
CONFIGURE, BUILD, RUN = blocks("sh")[0].splitlines()


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """The folder in which the documented commands built what CMakeLists.txt lists."""
    folder = tmp_path_factory.mktemp("cpp") / "project"
    shutil.copytree(SOURCES, folder)
    for command in (CONFIGURE, BUILD):
        succeed("bash", "-c", command, cwd=folder)
    return folder


class Layer(nn.Module):
    """A layer of a decoder, with one op called by name."""

    def __init__(self, heads: int = 2, width: int = 16):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        heads = self.project(self.before(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mask = padding[:, None, None]
        weights = fusedops.masked_softmax(q @ k.mT, mask, scale=0.35, causal=True)
        x = x + (weights @ v).transpose(1, 2).flatten(2)
        return x + self.out(torch.softmax(self.gate(self.between(x)), -1))


def layer_inputs(batch: int) -> tuple[torch.Tensor, ...]:
    padding = torch.ones(batch, 8, dtype=torch.bool)
    padding[-1, 5:] = False
    return torch.randn(batch, 8, 16), padding


def bert() -> nn.Module:
    return tiny("Bert", max_position_embeddings=16, return_dict=False)


def bert_inputs(batch: int) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(batch, 8, dtype=torch.long)
    mask[-1, 5:] = 0
    return torch.randint(0, 64, (batch, 8)), mask


class Losses(nn.Module):
    """Each token's loss, and the loss of all without their logits."""

    def __init__(self, classes: int = 50, width: int = 16):
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        each = F.cross_entropy(self.head(x).mT, labels, reduction="none")
        head = self.head.weight
        return each, fusedops.linear_cross_entropy(x, head, labels, linear_bias=self.head.bias)


def loss_inputs(batch: int) -> tuple[torch.Tensor, ...]:
    labels = torch.randint(0, 50, (batch, 8))
    labels[-1, 5:] = -100
    return torch.randn(batch, 8, 16), labels


MODELS = {
    "layer": (Layer, layer_inputs),
    "bert": (bert, bert_inputs),
    "losses": (Losses, loss_inputs),
}


class Packaged:
    """A model, its package, and the results of the C++ program."""

    def __init__(self, name: str, programs: Path, folder: Path):
        build, self.inputs = MODELS[name]
        torch.manual_seed(0)
        self.model, self.programs = build().eval(), programs
        shapes = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in self.inputs(2))
        exported = torch.export.export(self.model, self.inputs(2), dynamic_shapes=shapes)
        self.path = fusedops.export.package(exported, folder / "model.pt2")

    def run(self, inputs, command: str = RUN, **variables: str) -> subprocess.CompletedProcess:
        folder = self.programs
        torch.save(list(inputs), folder / "inputs.pt")
        (folder / "outputs.pt").unlink(missing_ok=True)
        shutil.copy(self.path, folder / "model.pt2")
        return run("bash", "-c", command, cwd=folder, env=ENVIRONMENT | variables)

    def outputs(self, inputs) -> tuple[torch.Tensor, ...]:
        result = self.run(inputs)
        assert result.returncode == 0, result.stderr
        return torch.load(self.programs / "outputs.pt")


@pytest.fixture(scope="module", params=MODELS)
def packaged(request, programs, tmp_path_factory) -> Packaged:
    return Packaged(request.param, programs, tmp_path_factory.mktemp(request.param))


def as_tuple(outputs) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", [2, 5])
def test_a_model_gives_in_cpp_what_it_gives_in_python(packaged, batch):
    inputs = packaged.inputs(batch)
    ours = packaged.outputs(inputs)
    with torch.no_grad():
        eager = as_tuple(packaged.model(*inputs))
    torch.testing.assert_close(ours, tuple(eager), rtol=1e-5, atol=1e-5)
    loaded = torch._inductor.aoti_load_package(packaged.path)
    for one, other in zip(ours, as_tuple(loaded(*inputs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.exhaustive
def test_the_process_loads_the_ops_and_no_python(packaged):
    result = packaged.run(packaged.inputs(2), LD_DEBUG="files")
    loads = result.stderr
    assert result.returncode == 0
    assert "file=libfusedops.so" in loads and "file=libtorch_cpu.so" in loads
    assert "wrapper.so" in loads  # the package itself is among what is listed
    assert "libpython" not in loads and "libtorch_python" not in loads


@pytest.mark.exhaustive
def test_a_program_without_the_ops_is_told_which_is_missing(packaged):
    result = packaged.run(packaged.inputs(2), RUN.replace("run_package", "run_package_without_ops"))
    assert result.returncode == 1
    assert "libfusedops.so, which is not loaded" in result.stderr


@pytest.mark.exhaustive
def test_the_dispatcher_has_the_ops_in_cpp(programs):
    lines = succeed(programs / "build" / "call_ops").stdout.splitlines()
    assert lines == [
        "softmax: as ATen",
        "layer_norm: as ATen",
        "softmax: dim is 7, wanted a value in [-2, 1] for an input of shape [4, 257]",
    ]


@pytest.mark.parametrize("language, file", [("cmake", "CMakeLists.txt"), ("cpp", "main.cpp")])
def test_the_documentation_shows_the_example_that_is_built(language, file):
    assert blocks(language)[0] == (SOURCES / "example" / file).read_text()


def test_the_documented_call_of_an_op_is_the_one_that_is_built():
    shown = textwrap.indent(blocks("cpp")[1], "  ")
    assert shown in (SOURCES / "call_ops.cpp").read_text()


@pytest.mark.exhaustive
def test_a_file_that_is_missing_is_named(packaged):
    result = packaged.run(packaged.inputs(2), RUN.replace("inputs.pt", "no.pt"))
    assert (result.returncode, result.stderr) == (1, "cannot read no.pt\n")
