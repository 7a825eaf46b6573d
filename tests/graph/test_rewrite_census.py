"""Every model of the zoo: each softmax and each norm is replaced, and nothing else changes.

Captured by Dynamo in training for one batch size and in inference for any, and exported. The
rewritten graphs run as they are, without Inductor, and dropout is off: results must be equal.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from exhaustive import beyond
from torch import Tensor, nn
from torch._dynamo.testing import EagerAndRecordGraphs

import fusedops
from fusedops.graph import Report, rewrite_module
from tools.bench.zoo import MODELS, TINY, cast, main_tensors

#: The computation of each operator, whatever variant it is and whatever else it fuses.
FAMILIES = {
    "softmax": "softmax",
    "log_softmax": "softmax",
    "masked_softmax": "softmax",
    "masked_softmax_dropout": "softmax",
    "layer_norm": "layer_norm",
    "add_layer_norm": "layer_norm",
    "std_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "add_rms_norm": "rms_norm",
    "l2_norm": "l2_norm",
    "cross_entropy": "cross_entropy",
}

#: Listed, but never replaced: no softmax that is written to memory can be faster.
NO_SITE = "already runs as SDPA"

#: Models that compute softmaxes, norms or biases in float32 however precise they are themselves.
SINGLE = {
    *("bloom", "gemma2", "gpt_neox", "llama", "longformer", "mistral", "opt", "phi", "qwen2", "t5"),
    *("clip", "gpt2_loss", "llama_loss", "swin", "vit"),
}

#: With the sizes of windows symbolic too, capture alone takes more than a minute, or it breaks into
#: 31 graphs.
ONLY_THE_BATCH_IS_DYNAMIC = {"swin", "longformer"}
#: How often capture breaks because a branch depends on a tensor's values.
GRAPHS = {"longformer": 4}

#: An encoder, and a decoder with its loss, of the spellings that most models have.
FEW = ("bert", "llama_loss")
EXPORTABLE = [name for name in MODELS if name not in GRAPHS]

every_model = pytest.mark.parametrize("name", beyond(FEW, MODELS))


def build(name: str) -> nn.Module:
    return MODELS[name].build(TINY, False).to(_dtype(name))


def inputs(name: str, batch: int = 2) -> dict:
    return cast(MODELS[name].inputs(TINY, batch), _dtype(name))


def _dtype(name: str) -> torch.dtype:
    return torch.float32 if name in SINGLE else torch.float64


def call(model: nn.Module, named: dict) -> list[Tensor]:
    return main_tensors(model(**named))


def gradients(model: nn.Module, outputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of every trained parameter; zero where the outputs do not depend on it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = sum(output.sin().mean() for output in outputs)
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def assert_equal(name: str, ours: Sequence[Tensor], eager: Sequence[Tensor]) -> None:
    """Equal up to rounding, in proportion to the largest number."""
    bound = 1e-5 if name in SINGLE else 1e-12
    largest = max(tensor.abs().max().item() for tensor in eager)
    torch.testing.assert_close(ours, eager, rtol=bound, atol=bound * largest)


def assert_every_site_is_replaced(name: str, report: Report) -> None:
    replaced = Counter(FAMILIES[site.op] for site in report.replaced)
    assert dict(replaced) == MODELS[name].sites
    assert all(site.reason.strip() for site in report.left)
    assert [site for site in report.left if site.reason != NO_SITE] == []


@every_model
def test_in_training_every_site_is_replaced_and_the_gradients_are_eagers(name, rewrite_dynamo):
    model, example = build(name), inputs(name)
    rewritten = rewrite_dynamo(partial(call, model), example)
    ours, eager = rewritten.call(example), call(model, example)
    assert_equal(name, ours, eager)
    assert_equal(name, gradients(model, ours), gradients(model, eager))
    assert_every_site_is_replaced(name, rewritten.report)
    assert len(rewritten.graphs) == GRAPHS.get(name, 1)


@every_model
def test_in_inference_one_graph_serves_any_batch_and_gives_eagers_outputs(name, rewrite_dynamo):
    model, examples = build(name).eval(), batches(name)
    graphs = []
    with torch.no_grad():
        rewritten = rewrite_dynamo(partial(call, model), examples[0], dynamic=dynamic(name))
        assert_every_site_is_replaced(name, rewritten.report)
        for example in examples:
            assert_equal(name, rewritten.call(example), call(model, example))
            graphs.append(len(rewritten.graphs))
    assert graphs == (graphs_of_plain_capture(name) if name in GRAPHS else [1, 1, 1])


def batches(name: str) -> list[dict]:
    examples = [inputs(name, batch) for batch in (2, 3, 5)]
    if not dynamic(name):
        for tensor in (value for example in examples for value in example.values()):
            if isinstance(tensor, Tensor):
                torch._dynamo.mark_dynamic(tensor, 0)
    return examples


def dynamic(name: str) -> bool | None:
    return None if name in ONLY_THE_BATCH_IS_DYNAMIC else True


def graphs_of_plain_capture(name: str) -> list[int]:
    """The number of graphs after each batch size where nothing is rewritten."""
    torch._dynamo.reset()
    model, backend = build(name).eval(), EagerAndRecordGraphs()
    compiled = torch.compile(partial(call, model), backend=backend, dynamic=dynamic(name))
    with torch.no_grad():
        return [compiled(example) and len(backend.graphs) for example in batches(name)]


@pytest.mark.parametrize("name", beyond(FEW, EXPORTABLE))
def test_an_exported_program_has_the_same_sites_and_gives_eagers_outputs(name):
    model, example = build(name).eval(), inputs(name)
    exported = torch.export.export(model, (), example)
    assert_every_site_is_replaced(name, rewrite_module(copy.deepcopy(exported.graph_module)))
    program = fusedops.export.rewrite(exported)
    with torch.no_grad():
        assert_equal(name, main_tensors(program.module()(**example)), call(model, example))
