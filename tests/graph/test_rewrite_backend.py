"""The ways into Inductor (backend, enable, patch, options), its caches, and passes of others."""

import logging
from functools import partial

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as F
from processes import run_python
from test_rewrite_safety import unused_write
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_cache
from torch.torch_version import TorchVersion

import fusedops
from fusedops.backend import backend
from fusedops.graph import Pass, ReusePass


@pytest.fixture(autouse=True)
def untouched_inductor_config():
    with fusedops.patch():  # At its end it restores all options that ours set, the timing too.
        fusedops.disable()
        yield


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1))


ONE_EACH = {"layer_norm": 1, "softmax": 1}


def _check(model, compiled, ops_run):
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
        assert ops_run(compiled, x) == ONE_EACH


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mode": "default"},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune-no-cudagraphs"},
        {"options": {"epilogue_fusion": False}},
    ],
    ids=str,
)
def test_modes_and_options_compile_and_replace(model, settings, ops_run):
    _check(model, torch.compile(model, backend=backend, **settings), ops_run)


def test_mode_and_options_reach_inductor(model):
    seen = {}

    def record(graph):
        seen.update(
            max_autotune=inductor_config.max_autotune, split=inductor_config.split_reductions
        )

    options = {"pre_grad_custom_pass": record, "split_reductions": False}

    both = partial(backend, mode="max-autotune-no-cudagraphs", options=options)
    torch.compile(model, backend=both)(torch.randn(4, 8))
    assert seen == {"max_autotune": True, "split": False}


def test_the_entry_point_needs_no_import():
    program = (
        "import sys, torch\n"
        "model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Softmax(-1))\n"
        "assert 'fusedops' not in sys.modules\n"
        "compiled = torch.compile(model, backend='fusedops')\n"
        "x = torch.randn(2, 8)\n"
        "torch.testing.assert_close(compiled(x), model(x))\n"
        "from torch._dynamo.utils import counters\n"
        "print(dict(counters['fusedops']))\n"
    )
    no_cache = {f"TORCHINDUCTOR_{name}_CACHE": "0" for name in ("FX_GRAPH", "AUTOGRAD")}
    ran = run_python("-c", program, **no_cache)
    assert ran.stdout.strip() == str(ONE_EACH), ran.stderr


def test_an_unused_in_place_write_survives_inductor():
    x = torch.randn(4, 8)
    compiled = torch.compile(unused_write, backend=backend)
    torch.testing.assert_close(compiled(x), unused_write(x))


def test_there_are_no_more_graph_breaks_than_with_inductor_alone(model, caplog):
    def broken(x):
        y = model(x)
        torch._dynamo.graph_break()
        return y.softmax(0)

    counts = []
    for each in ("inductor", backend):
        torch._dynamo.reset()
        counters.clear()
        with caplog.at_level(logging.INFO, "fusedops"):
            torch.compile(broken, backend=each)(torch.randn(4, 8))
        counts.append((sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]))
    assert counts == [(1, 2), (1, 2)]
    assert counters["fusedops"]["softmax"] == 2
    lines = [record.getMessage() for record in caplog.records if record.name == "fusedops"]
    assert lines == [
        "fusedops: 2 of 2 sites replaced",
        "fusedops: 1 of 1 sites replaced; in this process 3 of 3",
    ]


def _by_options(model):
    passes = {"pre_grad_custom_pass": Pass(), "post_grad_custom_post_pass": ReusePass()}
    return torch.compile(model, options=passes)


# Until 2.11 torch ran a pre-grad pass before it looked into the caches.
LOOKS_FIRST = TorchVersion(torch.__version__) >= TorchVersion("2.12")


@pytest.mark.parametrize(
    ("compiled", "reported"),
    [
        (lambda model: torch.compile(model, backend=backend), ONE_EACH),
        (_by_options, {} if LOOKS_FIRST else ONE_EACH),
    ],
    ids=["backend", "options"],
)
def test_a_second_compilation_hits_the_caches_and_is_reported(
    model, ops_run, caplog, compiled, reported
):
    x = torch.randn(4, 8)
    with fresh_cache(), torch.no_grad(), caplog.at_level(logging.INFO, "fusedops"):
        compiled(model)(x)
        assert counters["inductor"]["fxgraph_cache_miss"] == 1
        torch._dynamo.reset()
        counters.clear()
        caplog.clear()
        again = compiled(model)
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-5)
        assert ops_run(again, x) == ONE_EACH
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert counters["fusedops"] == reported
    lines = [record.getMessage() for record in caplog.records if record.name == "fusedops"]
    assert lines == ["fusedops: 2 of 2 sites replaced"] * bool(reported)


def test_the_cache_key_follows_settings_and_kernels(monkeypatch):
    always = Pass().uuid()
    with fusedops.config.patch(fuse="never"):
        never = Pass().uuid()
    monkeypatch.setattr("fusedops.graph.passes.has_kernels", lambda device_type: False)
    assert len({always, never, Pass().uuid()}) == 3


def test_config_never_compiles_without_our_ops(model, ops_run):
    x = torch.randn(4, 8)
    with fusedops.config.patch(fuse="never"), torch.no_grad():
        assert ops_run(torch.compile(model, backend=backend), x) == {}


class _Recorder(CustomGraphPass):
    """Another package's pass: remembers the calls it saw."""

    def __init__(self, name="recorder"):
        self.name = name
        self.targets = []

    def __call__(self, graph):
        calls = graph.find_nodes(op="call_function", target=F.softmax)
        self.targets += [node.target for node in calls]

    def uuid(self):
        return self.name


def test_enable_rewrites_plain_torch_compile_until_disable(model, ops_run):
    x = torch.randn(4, 8)
    fusedops.enable()
    fusedops.enable()
    _check(model, torch.compile(model), ops_run)
    fusedops.disable()
    torch._dynamo.reset()
    with torch.no_grad():
        assert ops_run(torch.compile(model), x) == {}
    assert inductor_config.pre_grad_custom_pass is None
    assert getattr(inductor_config, "pre_grad_pass_timing", "default") == "default"


@pytest.mark.parametrize("several", [False, True])
def test_enable_keeps_an_existing_pass_and_disable_restores_it(several):
    existing = [_Recorder(), _Recorder()] if several else _Recorder()
    inductor_config.pre_grad_custom_pass = existing
    fusedops.enable()
    chained = inductor_config.pre_grad_custom_pass
    fusedops.enable()
    assert inductor_config.pre_grad_custom_pass is chained
    fusedops.disable()
    assert inductor_config.pre_grad_custom_pass is existing
    has_timing = hasattr(inductor_config, "pre_grad_pass_timing")
    early = {"pre_grad_pass_timing": "early"} if has_timing else {}
    with inductor_config.patch(early):
        fusedops.disable()
        assert all(getattr(inductor_config, name) == early[name] for name in early)
    assert inductor_config.pre_grad_custom_pass is existing


def test_patch_holds_for_its_block(model, ops_run):
    with fusedops.patch():
        _check(model, torch.compile(model), ops_run)
    assert inductor_config.pre_grad_custom_pass is None


def test_the_cache_key_of_a_chain_holds_the_keys_of_both():
    keys = []
    for name in ("one", "two"):
        with inductor_config.patch(pre_grad_custom_pass=_Recorder(name)):
            fusedops.enable()
            keys.append(inductor_config.pre_grad_custom_pass.uuid())
    assert keys == [("one", Pass().uuid()), ("two", Pass().uuid())]


@pytest.mark.parametrize("given", ["by options", "by Inductor's config"])
def test_another_pass_runs_before_ours_and_the_caches_stay_on(model, ops_run, given):
    recorder = _Recorder()
    passes = {"pre_grad_custom_pass": recorder}
    options, config = (passes, {}) if given == "by options" else ({}, passes)
    with fresh_cache(), inductor_config.patch(config):
        _check(model, torch.compile(model, backend=backend, options=options), ops_run)
    assert recorder.targets == [F.softmax]
    assert counters["inductor"]["fxgraph_cache_miss"] == 1


def test_a_pass_without_uuid_still_works(model, ops_run):
    calls = []
    options = {"pre_grad_custom_pass": lambda graph: calls.append(graph)}
    _check(model, torch.compile(model, backend=backend, options=options), ops_run)
    assert len(calls) == 1


def test_autocast_compiles_to_eagers_values(ops_run):
    def model(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm((x @ x).softmax(-1), (8,))

    x = torch.randn(8, 8)
    compiled = torch.compile(model, backend=backend)
    assert compiled(x).dtype == torch.bfloat16
    torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    assert ops_run(compiled, x) == ONE_EACH
