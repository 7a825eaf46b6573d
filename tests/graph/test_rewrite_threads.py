"""Compiled training gives eager's gradients on one thread and on several.

Each count of threads has a process of its own: Inductor's code depends on the count, and code that
writes outside a tensor must end a test and not the run.
"""

import multiprocessing
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from agreement import trained
from exhaustive import beyond
from processes import run_python
from torch import nn

import fusedops
from fusedops.backend import backend
from fusedops.graph import Pass, inductor

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 16, 8


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x, bias):
        q, k, v = self.qkv(x).unflatten(-1, (3 * HEADS, WIDTH)).transpose(1, 2).chunk(3, 1)
        weights = F.softmax(q @ k.transpose(-2, -1) + bias, dim=-1)
        return x + (weights @ v).transpose(1, 2).flatten(2)


class _SharedBias(nn.Module):
    """Two layers in two graphs, with one learned position bias that both add to their scores."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(32, HEADS)
        self.layers = nn.ModuleList(_Attention() for _ in range(2))
        hidden = torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
        self.register_buffer("mask", hidden)

    def forward(self, x):
        position = torch.arange(LENGTH)
        distance = (position[None] - position[:, None]).clamp(-15, 15) + 16
        bias = self.bias(distance).permute(2, 0, 1)[None] + self.mask
        x = self.layers[0](x, bias)
        torch._dynamo.graph_break()
        return self.layers[1](x, bias)


def _attention_differences():
    torch.manual_seed(0)
    model, x = _SharedBias(), torch.randn(BATCH, LENGTH, HEADS * WIDTH)
    ours, eager = trained(torch.compile(model, backend=backend), x), trained(model, x)
    names = [name for name, _ in model.named_parameters()]
    return {n: _difference(a, b) for n, a, b in zip(names, ours, eager, strict=True)}


def _scattered(rows, wide, first, second):
    """Sums of values that are read in two layouts, which Inductor tiles over two dimensions."""
    values = (wide + (first + second)).permute(1, 2, 0)
    total, flat = values.new_zeros(32, HEADS), rows.reshape(-1, 1).expand(-1, HEADS)
    return {
        "index_put": total.index_put((rows,), values, accumulate=True),
        "scatter_add": total.scatter_add(0, flat, values.reshape(-1, HEADS)),
        "embedding": torch.ops.aten.embedding_dense_backward(values, rows, 32, -1, False),
    }


def _scatter_differences(dtype):
    rows = torch.randint(0, 32, (LENGTH, LENGTH))
    wide = torch.randn(LENGTH, LENGTH, HEADS, dtype=dtype).permute(2, 0, 1)
    first, second = torch.randn(2, HEADS, LENGTH, LENGTH, dtype=dtype)
    ours = torch.compile(_scattered, backend=backend)(rows, wide, first, second)
    eager = _scattered(rows, wide, first, second)
    return {f"{name} {dtype}": _difference(ours[name], eager[name]) for name in eager}


def _difference(ours, eager):
    return ((ours - eager).double().norm() / eager.double().norm()).item()


def _run(differences, threads, results):
    torch.set_num_threads(threads)
    with (
        fusedops.config.patch(fuse="always"),
        torch._inductor.config.patch(force_disable_caches=True),
    ):
        results.update(differences())


def _check_in_a_process(differences, threads, count):
    """Each of so many differences is small."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager:
        results = manager.dict()
        process = spawn.Process(target=_run, args=(differences, threads, results))
        process.start()
        process.join()
        results = dict(results)
    assert process.exitcode == 0, f"ended with {process.exitcode}"
    assert len(results) == count
    assert {name: gap for name, gap in results.items() if not gap < 1e-5} == {}


@pytest.mark.slow("Inductor compiles in a process of its own")
@pytest.mark.parametrize("threads", beyond([2], [1, 2, 3]))
@pytest.mark.parametrize("dtype", beyond([torch.float32], [torch.float32, torch.float64]))
def test_sums_of_values_read_in_two_layouts_are_eagers_on_any_number_of_threads(threads, dtype):
    _check_in_a_process(partial(_scatter_differences, dtype), threads, 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_training_of_several_graphs_gives_eagers_gradients_on_any_number_of_threads(threads):
    _check_in_a_process(_attention_differences, threads, 5)


# --- what is repaired, and what is left -----------------------------------------------------------

_PLAIN = """
import torch, fusedops
from torch._inductor.codegen.cpp import CppTile2DKernel
original = CppTile2DKernel.store
torch.compile(lambda x: x.relu())(torch.randn(4))
assert CppTile2DKernel.store is original
"""


@pytest.mark.slow("Inductor compiles in a process of its own")
def test_plain_inductor_has_its_own_method_where_fusedops_is_only_imported():
    ran = run_python("-c", _PLAIN)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture
def stores(monkeypatch):
    """stores(repaired, original): whose code a parallel accumulating scatter gets."""
    from torch._inductor.codegen import cpp

    used = []
    monkeypatch.setattr(cpp.CppVecKernel, "store", lambda *args: used.append("repaired"))
    monkeypatch.setattr(cpp.CppTile2DKernel, "store", lambda *args: used.append("original"))
    monkeypatch.setattr(inductor, "_TORCH", (2, 13))
    inductor._replace_store.cache_clear()
    yield lambda: _scatter(cpp.CppTile2DKernel.store, used)
    inductor._replace_store.cache_clear()


def _scatter(store, used):
    kernel = SimpleNamespace(
        num_threads=2, rename_indexing=lambda index: index, need_vec_transpose=lambda index: False
    )
    used.clear()
    store(kernel, "out", 0, 0, "atomic_add")
    return used[0]


def test_scatters_are_repaired_in_graphs_with_our_passes_alone(stores):
    ours = Pass()
    assert stores() == "original"
    for option in ("pre_grad_custom_pass", "post_grad_custom_post_pass"):
        with torch._inductor.config.patch({option: ours}):
            assert stores() == "repaired"
    with fusedops.backend.patch():
        assert stores() == "repaired"
        with fusedops.config.patch(repair_inductor="never"):
            assert stores() == "original"
    assert stores() == "original"


def test_a_torch_without_the_defect_keeps_its_method(stores, monkeypatch):
    monkeypatch.setattr(inductor, "_TORCH", (2, 14))
    with fusedops.backend.patch():
        assert stores() == "original"


def test_a_repair_is_logged_once(stores, caplog):
    inductor._say_once.cache_clear()
    with caplog.at_level("INFO", logger="fusedops"), fusedops.backend.patch():
        stores()
        stores()
    assert [record.message[:23] for record in caplog.records] == ["in sums by index, Induc"]
