"""Packages run in a C++ program that links fusedops::fusedops, without Python in the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import fusedops

SOURCES = Path(__file__).parent
#: cmake and ninja as pip installs them.
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def run(*command: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)), env=os.environ | environment, capture_output=True, text=True
    )


def succeed(*command: object, **environment: str) -> subprocess.CompletedProcess:
    result = run(*command, **environment)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """The folder of what CMakeLists.txt builds."""
    build = tmp_path_factory.mktemp("cpp")
    prefixes = f"{torch.utils.cmake_prefix_path};{fusedops.cmake_prefix_path}"
    options = ["-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefixes}"]
    succeed("cmake", "-S", SOURCES, "-B", build, *options, PATH=TOOLS)
    succeed("cmake", "--build", build, PATH=TOOLS)
    return build


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
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        attn_implementation="eager",
        return_dict=False,
    )
    return BertModel(config)


def bert_inputs(batch: int) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(batch, 8, dtype=torch.long)
    mask[-1, 5:] = 0
    return torch.randint(0, 64, (batch, 8)), mask


MODELS = {"layer": (Layer, layer_inputs), "bert": (bert, bert_inputs)}


class Packaged:
    """A model, its package, and what the C++ program makes of it."""

    def __init__(self, name: str, programs: Path, folder: Path):
        build, self.inputs = MODELS[name]
        torch.manual_seed(0)
        self.model, self.programs, self.folder = build().eval(), programs, folder
        shapes = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in self.inputs(2))
        exported = torch.export.export(self.model, self.inputs(2), dynamic_shapes=shapes)
        self.path = fusedops.export.package(exported, folder / "model.pt2")

    def run(self, program: str, inputs, **environment: str) -> subprocess.CompletedProcess:
        torch.save(list(inputs), self.folder / "inputs.pt")
        arguments = self.path, self.folder / "inputs.pt", self.folder / "outputs.pt"
        return run(self.programs / program, *arguments, **environment)

    def outputs(self, inputs) -> tuple[torch.Tensor, ...]:
        result = self.run("example/run_package", inputs)
        assert result.returncode == 0, result.stderr
        return torch.load(self.folder / "outputs.pt")


@pytest.fixture(scope="module", params=MODELS)
def packaged(request, programs, tmp_path_factory) -> Packaged:
    return Packaged(request.param, programs, tmp_path_factory.mktemp(request.param))


def as_tuple(outputs) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


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


def test_the_process_loads_the_ops_and_no_python(packaged):
    loads = packaged.run("example/run_package", packaged.inputs(2), LD_DEBUG="files").stderr
    assert "file=libfusedops.so" in loads and "file=libtorch_cpu.so" in loads
    assert "wrapper.so" in loads  # the package itself is among what is listed
    assert "libpython" not in loads and "libtorch_python" not in loads


def test_a_program_without_the_ops_is_told_which_is_missing(packaged):
    result = packaged.run("run_package_without_ops", packaged.inputs(2))
    assert result.returncode == 1
    assert "Could not find schema for fusedops::" in result.stderr


def test_the_dispatcher_has_the_ops_in_cpp(programs):
    lines = succeed(programs / "call_ops").stdout.splitlines()
    assert lines == [
        "softmax: as ATen",
        "layer_norm: as ATen",
        "softmax: dim is 7, wanted a value in [-2, 1] for an input of shape [4, 257]",
    ]
