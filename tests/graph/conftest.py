"""Fixtures that capture and rewrite a model at each entry, and that count what ran."""

from __future__ import annotations

import copy
import csv
import re
from collections import Counter
from dataclasses import astuple, dataclass

import expressions
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code

import fusedops
from fusedops.graph import Report, rewrite_module
from fusedops.graph.policy import costs
from fusedops.graph.policy.machine import here

pytest.register_assert_rewrite("agreement")


@pytest.fixture(autouse=True)
def fresh_counters():
    counters.clear()


@dataclass
class Rewritten:
    """A captured and rewritten model, its graphs and its report."""

    call: object
    graphs: list[torch.fx.GraphModule]
    report: Report

    @property
    def code(self) -> str:
        """The graphs, with one call in each line."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes]
        return "\n".join(_line(node) for node in nodes if node.op != "placeholder")

    @property
    def calls(self) -> list[str]:
        """The calls of our operators, whose arguments are expressions of the models' inputs."""
        return [call for graph in self.graphs for call in expressions.calls(graph.graph)]

    @property
    def results(self) -> list[str]:
        """The graphs' results, as expressions of our operators' results."""
        return [result for graph in self.graphs for result in expressions.results(graph.graph)]

    @property
    def unused(self) -> list[str]:
        """The values that the graphs compute and nothing uses."""
        return [value for graph in self.graphs for value in expressions.unused(graph.graph)]

    @property
    def replaced(self) -> dict[str, int]:
        return dict(Counter(site.op for site in self.report.replaced))

    @property
    def reasons(self) -> list[str]:
        return [site.reason for site in self.report.left]


def _line(node: torch.fx.Node) -> str:
    """One call. Keywords are left out; our operators are called without."""
    if node.op == "output":
        return f"return {node.args[0]}"
    if node.op == "get_attr":
        return f"{node.name} = {node.target}"
    plain = isinstance(node.target, (str, torch._ops.OpOverload))
    target = str(node.target) if plain else node._pretty_print_target(node.target)
    return f"{node.name} = {target}({', '.join(map(str, node.args))})"


def _rewrite(graph_module: torch.fx.GraphModule) -> Report:
    """What the first run did. A second one changes nothing."""
    report = rewrite_module(graph_module)
    code = graph_module.code
    assert not rewrite_module(graph_module).replaced and graph_module.code == code
    return report


def _rewrite_dynamo(model, *args, dynamic=None) -> Rewritten:
    rewritten = Rewritten(None, [], Report())

    def record(graph_module, example_inputs):
        rewritten.report += _rewrite(graph_module)
        rewritten.graphs.append(graph_module)
        return graph_module

    rewritten.call = torch.compile(model, backend=record, dynamic=dynamic)
    rewritten.call(*args)
    return rewritten


def _as_module(function) -> torch.nn.Module:
    """A module whose inputs have the names of the function's parameters."""
    module = torch.nn.Module()
    module.forward = function
    return module


def _rewrite_export(model, *args) -> Rewritten:
    module = model if isinstance(model, torch.nn.Module) else _as_module(model)
    exported = torch.export.export(module, args)
    report = _rewrite(copy.deepcopy(exported.graph_module))
    program = fusedops.export.rewrite(exported)
    return Rewritten(program.module(), [program.graph_module], report)


def _rewrite_symbolic_trace(model, *args) -> Rewritten:
    report = _rewrite(_propagated(model, args))
    graph_module = fusedops.rewrite(torch.fx.symbolic_trace(model), *args)
    return Rewritten(graph_module, [graph_module], report)


def _propagated(model, args):
    graph_module = torch.fx.symbolic_trace(model)
    with fusedops.config.patch(fuse="never"):
        return fusedops.rewrite(graph_module, *args)


_ENTRIES = {
    "dynamo": _rewrite_dynamo,
    "export": _rewrite_export,
    "symbolic_trace": _rewrite_symbolic_trace,
}


@pytest.fixture
def rewrite_dynamo():
    """rewrite_dynamo(model, *args, dynamic=None): captured by Dynamo, rewritten, run as it is."""
    return _rewrite_dynamo


@pytest.fixture(params=_ENTRIES)
def rewrite(request):
    """rewrite(model, *args) -> Rewritten, once at each entry."""
    return _ENTRIES[request.param]


@pytest.fixture
def entries():
    """All three entries by name."""
    return _ENTRIES


@pytest.fixture
def backward_ops():
    """backward_ops(model, *args): how often the backward graph, which AOTAutograd makes of the
    rewritten model, calls each of our operators."""

    def count(model, *args) -> dict[str, int]:
        graphs = []

        def record(graph_module, example_inputs):
            graphs.append(graph_module)
            return graph_module

        compiler = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=record)

        def backend(graph_module, example_inputs):
            rewrite_module(graph_module)
            return compiler(graph_module, example_inputs)

        torch.compile(model, backend=backend)(*args).sum().backward()
        targets = [str(node.target).split(".") for graph in graphs for node in graph.graph.nodes]
        return dict(Counter(target[1] for target in targets if target[0] == "fusedops"))

    return count


@pytest.fixture
def ops_run():
    """ops_run(function, *args): how often each fusedops op really ran, in place or not, also on a
    warm cache."""

    def count(function, *args) -> dict[str, int]:
        with torch.profiler.profile() as profile:
            function(*args)
        names = [event.name for event in profile.events()]
        ours = [name for name in names if name.startswith("fusedops::")]
        names = (name.removeprefix("fusedops::").removesuffix("_output") for name in ours)
        return dict(Counter(name.strip("_") for name in names))

    return count


@pytest.fixture
def compiled_calls():
    """compiled_calls(function, *args): what a function gives that is compiled without a cache, and
    the calls of our kernels in its code, with their arguments. That of the backward pass, for the
    sum of its first result, is included."""

    def run(function, *args):
        compiled = torch.compile(function, backend="fusedops", fullgraph=True)

        def forward_and_backward():
            result = compiled(*args)
            first = result[0] if isinstance(result, (list, tuple)) else result
            if first.requires_grad:
                first.sum().backward()
            return result

        with fresh_cache():
            result, codes = run_and_get_code(forward_and_backward)
        call = r"^ *(?:\w+ = )?fusedops_kernels\.(\w+)\((.*)\)"
        return result, re.findall(call, "\n".join(codes), re.MULTILINE)

    return run


@pytest.fixture
def profitable():
    with fusedops.config.patch(fuse="profitable"):
        yield


@pytest.fixture
def no_table(monkeypatch, tmp_path):
    """Nothing was measured on any device."""
    monkeypatch.setattr(costs, "SHIPPED_FOLDER", tmp_path)


@pytest.fixture
def table(no_table, tmp_path):
    """table(op, inductor, ours, ...): the costs of 64x64 float32 rows; a copy takes 1 ms for what
    it reads or writes."""
    rows = []
    machine = astuple(here(torch.device("cpu")))

    def add(op, inductor, ours, mode="inference", rows_and_cols=(64, 64)):
        gb_per_s = 64 * 64 * 4 * 1e-6
        case = [op, mode, "float32", *rows_and_cols]
        rows.append([*machine, "0.1.0", *case, inductor, ours, gb_per_s])
        with (tmp_path / "measured.csv").open("w", newline="") as file:
            csv.writer(file).writerows([costs.COLUMNS, *rows])

    return add
