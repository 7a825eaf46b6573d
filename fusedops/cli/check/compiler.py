"""Compares torch.compile and torch.export of a small model with eager in float64."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import fusedops
from fusedops.cli.check.result import Result

BATCH, LENGTH, WIDTH = 2, 16, 32
#: The largest difference allowed. Results are of order one, in float32, after a dozen roundings.
TOLERANCE = 1e-5
#: With "always" every softmax and norm is replaced. By default none would be, because the model is
#: so small that replacing does not pay.
FUSE = "always"


class Model(nn.Module):
    """A layer of a transformer in which fusedops replaces four things: a LayerNorm, the softmax of
    causal attention, a residual connection with an RMSNorm, and a log_softmax."""

    SITES = 4

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH, eps=1e-6)
        self.projection, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        states = self.projection(self.before(x))
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        scores = states @ states.mT / WIDTH**0.5
        probabilities = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return F.log_softmax(self.head(self.after(x + probabilities @ states)), dim=-1)


def compilation() -> Iterator[Result]:
    """Checks torch.compile: how many softmaxes and norms it replaces, its result and gradients."""
    model, x = _model_and_input()
    with fusedops.config.patch(fuse=FUSE):
        report = fusedops.explain(model, x)
        compiled = torch.compile(model, backend="fusedops")
        found = _result_and_gradients(compiled, model, x)
    replaced = f"{len(report.replaced)} of {len(report.sites)} sites replaced"
    wanted = f"{Model.SITES} of {Model.SITES} sites replaced"
    yield Result("sites of a small model", replaced, wanted, replaced == wanted)
    exact = copy.deepcopy(model).double()
    yield from _compare(found, _result_and_gradients(exact, exact, x.double()))


def exporting() -> Iterator[Result]:
    """Checks torch.export: the program is rewritten, saved, loaded and run."""
    model, x = _model_and_input()
    # torch.export of torch 2.13 warns about a deprecated function of torch that it calls itself.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        loaded = _rewritten_saved_and_loaded(torch.export.export(model, (x,)))
    names = {str(node.target) for node in loaded.graph.nodes}
    ours = sorted(name.split(".")[1] for name in names if name.startswith("fusedops."))
    yield Result("operators in the program", ", ".join(ours) or "none", "some", bool(ours))
    yield from _compare([loaded(x)], [model.double()(x.double())])


def _rewritten_saved_and_loaded(exported: torch.export.ExportedProgram) -> GraphModule:
    with tempfile.TemporaryDirectory() as folder, fusedops.config.patch(fuse=FUSE):
        path = Path(folder) / "model.pt2"
        torch.export.save(fusedops.export.rewrite(exported), path)
        return torch.export.load(path).module()


def _model_and_input() -> tuple[Model, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(), torch.randn(BATCH, LENGTH, WIDTH)


def _result_and_gradients(
    call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor
) -> list[Tensor]:
    output = call(x)
    return [output, *torch.autograd.grad(output.square().mean(), [*model.parameters()])]


def _compare(found: list[Tensor], wanted: list[Tensor]) -> Iterator[Result]:
    for name, actual, exact in (
        ("difference of the result", found[:1], wanted[:1]),
        ("difference of the gradients", found[1:], wanted[1:]),
    ):
        if actual:
            pairs = zip(actual, exact, strict=True)
            largest = max((a.double() - e).abs().max().item() for a, e in pairs)
            limit = f"at most {TOLERANCE:.0e}"
            yield Result(name, f"{largest:.1e}", limit, largest <= TOLERANCE)
