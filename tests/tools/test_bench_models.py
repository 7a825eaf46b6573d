"""`python -m tools.bench models` times whole models and says what their sites take."""

from __future__ import annotations

import argparse
import csv
import inspect
import math
import re
import sys
from dataclasses import fields, replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from processes import run_python
from rich.console import Console
from torch._inductor.exc import InductorError

from fusedops.cli.bench.command import measure_each
from fusedops.cli.bench.report import write_csv
from fusedops.cli.errors import UserError
from tools.bench import models, peers, sites, steps
from tools.bench.__main__ import main
from tools.bench.zoo import MODELS, TINY
from tools.bench.zoo.model import Model

COLUMNS = (
    "model,mode,dtype,batch,length,width,device,threads,eager_ms,inductor_ms,fusedops_ms,speedup,spread,"
    "share_before,share_after,sites_speedup,openvino_ms,onnxruntime_ms"
).split(",")


def step(name="nanogpt", mode=steps.INFERENCE, dtype=torch.float32) -> steps.Step:
    return steps.Step(name, mode, dtype, threads=1, batch=2, size=TINY)


def step_time(this=None, speedup=1.5, **changes) -> steps.StepTime:
    this = this or step()
    known = {"model": this.model, "mode": this.mode, "dtype": this.dtype_name}
    known |= {"batch": this.batch, "device": this.device, "threads": this.threads}
    known |= {"length": this.size.length, "width": this.size.width, "speedup": speedup} | changes
    names = [field.name for field in fields(steps.StepTime)]
    return steps.StepTime(**(dict.fromkeys(names, 1.0) | known))


def parsed(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    models.add_arguments(parser)
    return parser.parse_args(command.split())


class Seldom(torch.nn.Module):
    """A dropout that drops one number in a billion."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.nn.functional.dropout(x * self.weight, 1e-9, self.training)


def test_a_relu_whose_gradients_rounding_decides_is_timed_but_not_compared():
    def has_relu(dropout):
        modules = step("t5").build(dropout).modules()
        return any(isinstance(module, torch.nn.ReLU) for module in modules)

    assert has_relu(dropout=True) and not has_relu(dropout=False)


@pytest.mark.parametrize(("mode", "draws"), [(steps.TRAINING, True), (steps.INFERENCE, False)])
def test_a_step_that_draws_random_numbers_counts_as_random_even_if_it_drops_none(
    mode, draws, monkeypatch
):
    seldom = Model("plain", {}, lambda size, dropout: Seldom(), lambda *_: {"x": torch.ones(4)})
    monkeypatch.setitem(MODELS, "seldom", seldom)
    assert steps._is_random(step("seldom", mode)) == draws


@pytest.mark.exhaustive
def test_csv_holds_one_row_for_each_model_and_mode(tmp_path):
    file = tmp_path / "models.csv"
    command = "models nn.MultiheadAttention --quick --length 16 --width 128 --csv"
    finished = run_python("-m", "tools.bench", *command.split(), str(file))
    assert finished.returncode == 0, finished.stderr
    assert "MALLOC_MMAP_MAX_=0" in finished.stderr
    assert "nn.MultiheadAttention" in finished.stdout and "1x16x128" in finished.stdout
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == COLUMNS == [field.name for field in fields(steps.StepTime)]
    assert [row["mode"] for row in rows] == ["inference", "training"]
    for row in rows:
        assert float(row["eager_ms"]) > 0 and float(row["speedup"]) > 0
        assert 0 < float(row["share_before"]) < 1


@pytest.mark.slow("Inductor compiles a model twice")
def test_a_step_is_measured_by_every_provider():
    this = step("nanogpt")
    calls = steps.prepare_step(this)
    assert list(calls) == ["eager", "inductor", "fusedops"]
    timed = steps.measure_step(this, calls, turns=1)
    assert min(timed.eager_ms, timed.inductor_ms, timed.fusedops_ms) > 0
    assert math.isnan(timed.openvino_ms) and math.isnan(timed.onnxruntime_ms)
    assert 0 < timed.share_before < 1 and 0 < timed.share_after < 1
    assert timed.sites_speedup == pytest.approx(
        timed.share_before * timed.inductor_ms / (timed.share_after * timed.fusedops_ms)
    )


def test_a_step_in_training_gives_the_gradient_of_every_parameter():
    this = step("nanogpt", steps.TRAINING)
    gradients = steps.eager_step(this, dropout=True)()
    parameters = list(this.build(dropout=True).parameters())
    assert [gradient.shape for gradient in gradients] == [p.shape for p in parameters]
    assert all(gradient.count_nonzero() for gradient in gradients)


def test_a_wrong_result_is_not_timed():
    calls = {
        "eager": lambda: [torch.ones(3), torch.ones(2)],
        "inductor": lambda: [torch.ones(3), torch.ones(2)],
        "fusedops": lambda: [torch.ones(3), torch.zeros(2)],
    }
    with pytest.raises(RuntimeError, match="'fusedops' differs from eager by 6.3e-01"):
        steps.check_step(step(), calls)


def chosen(names, *directions, quick=False, dtypes=(torch.float32,), threads=(1,)):
    return steps.chosen_steps(names, directions, dtypes, threads, 1, TINY, quick, "cpu")


def test_named_models_are_measured_in_both_modes_or_the_one_of_a_pass():
    def pairs(steps):
        return [(this.model, this.mode) for this in steps]

    assert pairs(chosen(["bert", "t5"], "forward", "backward")) == [
        ("bert", "inference"),
        ("bert", "training"),
        ("t5", "inference"),
        ("t5", "training"),
    ]
    assert pairs(chosen(["t5"], "forward")) == [("t5", "inference")]
    assert pairs(chosen([], "backward", quick=True)) == [("gpt2", "training")]


def test_six_models_in_two_modes_two_dtypes_and_on_one_thread_and_all_are_48_cells():
    dtypes, both = (torch.float32, torch.bfloat16), ("forward", "backward")
    cells = chosen([], *both, dtypes=dtypes, threads=(1, 2))
    assert len(set(cells)) == len(cells) == 48
    assert {cell.model for cell in cells} == {"gpt2", "bert", "llama", "t5", "vit", "swin"}
    assert {cell.threads for cell in cells} == {1, 2}


def test_a_resumed_run_keeps_what_its_file_has_and_measures_the_rest(tmp_path, monkeypatch):
    file = tmp_path / "cells.csv"
    command = f"nanogpt gpt2 --quick --pass forward --resume --csv {file}"
    args = parsed(command)
    finished, other = (
        step_time(this, batch=1, length=512, width=768, openvino_ms=math.nan)
        for this in chosen(["nanogpt", "by_hand"], "forward")
    )
    write_csv(pd.DataFrame([other, finished]), file)
    monkeypatch.setattr(models, "time_step", lambda this, say, quick: step_time(this, speedup=2.0))
    rows, left_out, _ = measure_each(*models.step_times(args))
    assert [(row.model, row.speedup) for row in rows] == [("nanogpt", 1.5), ("gpt2", 2.0)]
    written = [row.model for row in models.read_steps(file)]
    assert written == ["by_hand", "nanogpt", "gpt2"] and not left_out


def test_a_file_of_something_else_is_not_resumed(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("op,direction\nsoftmax,forward\n")
    with pytest.raises(UserError, match="--resume: .* was not written by `models --csv`"):
        models.read_steps(file)


def test_an_interruption_keeps_the_measurements_so_far(tmp_path, monkeypatch):
    file = tmp_path / "cells.csv"
    args = parsed(f"nanogpt by_hand --quick --pass forward --csv {file}")

    def time_step(this, say, quick):
        if this.model == "by_hand":
            raise KeyboardInterrupt
        return step_time(this)

    monkeypatch.setattr(models, "time_step", time_step)
    assert measure_each(*models.step_times(args)).interrupted
    assert [row.model for row in models.read_steps(file)] == ["nanogpt"]


def test_a_cell_slower_than_inductor_by_more_than_2_percent_is_marked(capsys):
    cells = [step_time(speedup=speedup) for speedup in (0.97, 0.985, 1.3)]
    models.print_steps(pd.DataFrame(cells), Console(width=140))
    shown = capsys.readouterr().out
    assert shown.count("slower: ") == 1 and "slower: 0.97" in shown
    assert "1 of 3 cells slower than Inductor by more than 2%" in shown


def test_a_peer_that_is_not_installed_is_left_out_with_a_line(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    lines = peers.not_installed()
    assert [line.partition(" ")[0] for line in lines] == ["openvino", "onnxruntime"]
    assert all("pip install fusedops[peers]" in line for line in lines)
    assert steps.prepare_peers(step(), []) == ({}, [])


@pytest.mark.parametrize(
    ("mode", "dtype", "runs"),
    [
        (steps.INFERENCE, torch.float32, ["openvino", "onnxruntime"]),
        (steps.INFERENCE, torch.bfloat16, ["openvino"]),
        (steps.TRAINING, torch.float32, []),
    ],
)
def test_peers_are_shown_for_inference_in_the_dtypes_that_they_support(
    monkeypatch, mode, dtype, runs
):
    """The peers run eager code here; one that gives other results is left out, and named."""
    wrong = "onnxruntime"

    def prepare(peer, model, inputs, dtype, threads):
        factor = 2 if peer is steps.PEERS[wrong] else 1
        return lambda: [factor * tensor for tensor in steps._infer(model.eval(), inputs)]

    monkeypatch.setattr(peers.Peer, "missing", [])
    monkeypatch.setattr(peers.Peer, "prepare", prepare)
    this = step(mode=mode, dtype=dtype)
    expected = steps.eager_step(replace(this, mode=steps.INFERENCE), dropout=False)()
    calls, problems = steps.prepare_peers(this, expected)
    assert list(calls) == [name for name in runs if name != wrong]
    assert len(problems) == (wrong in runs)
    assert all(f"{wrong} is left out: " in problem for problem in problems)


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_a_peer_runs_what_torch_captures(name):
    peer = peers.PEERS[name]
    if peer.missing:
        pytest.skip(f"{', '.join(peer.missing)} is not installed")
    this = step("gpt2")
    model, inputs = this.build(dropout=False), this.inputs()
    run = peer.prepare(model, inputs, torch.float32, threads=1)
    for actual, expected in zip(run(), steps._infer(model, inputs), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
def test_a_step_that_inductor_cannot_compile_is_named_and_the_others_are_measured(
    monkeypatch, capsys
):
    prepare_step = steps.prepare_step

    def prepare_or_fail(this):
        if this.mode == steps.TRAINING:
            raise InductorError(RuntimeError("no such type"), inspect.currentframe())
        return prepare_step(this)

    monkeypatch.setattr(models, "prepare_step", prepare_or_fail)
    args = parsed("nanogpt --quick --batch 1 --length 16 --width 128")
    found, left_out, _ = measure_each(*models.step_times(args))
    assert [this.mode for this in found] == [steps.INFERENCE] and len(left_out) == 1
    error = capsys.readouterr().err
    assert "nanogpt training float32 1x16x128, 1 thread(s) is left out" in error
    assert "no such type" in error


def test_a_missing_package_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install fusedops\[demo\]"):
        models.require_packages([step("bert")])
    models.require_packages([step("nanogpt")])
    with pytest.raises(ImportError, match="transformers"):
        MODELS["bert"].build(TINY, False)


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "BENCHMARK"),
        ("speed", "'speed'.*'models', 'memory', 'host'"),
        ("models bert gpt5", "MODEL: got 'gpt5', wanted some of bert, .*nanogpt"),
        ("models bert --op softmax", "unrecognized arguments: --op"),
        ("models bert --batch 0", "--batch: got '0', wanted an integer from 1"),
        ("models bert --batch 99999999", ".*99999999x512x768, .* takes at least"),
        ("models bert --length 9223372036854775808", r"--length: .*to 2\^63 - 1"),
        ("models bert --length 1000000", ".*1x1000000x768, .* takes at least"),
        ("models bert --width 0", "--width: got '0', wanted a multiple of 64"),
        ("models bert --width 100", "--width: got '100', wanted a multiple of 64"),
        ("models bert --width nan", "--width: got 'nan', wanted a multiple of 64"),
        ("models bert --width 64000000", ".*1x512x64000000, .* takes at least"),
        ("models bert --dtype int32", "--dtype: invalid choice"),
        ("models bert --threads 0", "--threads: got '0', wanted"),
        ("models bert --csv /", "--csv: got '/', wanted a file"),
        ("models bert --resume", "--resume: wanted --csv with it"),
        ("memory --shape 1000000x1000000", "--shape: .* takes at least"),
        ("memory --plot /tmp", "unrecognized arguments: --plot"),
        ("host --shape 2x3", "unrecognized arguments: --shape"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(words, message, capsys):
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"python -m tools.bench: .*{message}", line)


OF_SITES = (
    "fusedops::softmax_backward_",
    "graph_0_cpp_fused__softmax_add_native_dropout_where_1",
    "graph_1_cpp_fused_add_mean_mul_pow_rsqrt_13",
    "graph_0_cpp_fused_add_div_expand_mul_pow_sum_view_7",
    "graph_0_cpp_fused_add_native_dropout_backward_native_layer_norm_backward_sum_view_8",
    "graph_1_cpp_fused_native_dropout_7",
    "graph_0_cpp_fused_native_dropout_backward_threshold_backward_view_1",
    "aten::_softmax",
)
#: Matrix products, activations and arithmetic do not count.
OTHERS = (
    "aten::mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "graph_1_cpp_fused_mul_6",
    "graph_0_cpp_fused_clone_expand_view_4",
    "graph_0_cpp_fused_relu_where_1",
    "graph_0_cpp_fused_add_mul_native_dropout_backward_pow_sum_tanh_tanh_backward_view_1",
    "Torch-Compiled Region: 0/0 softmax",
)


@pytest.mark.parametrize("name", OF_SITES + OTHERS)
def test_kernels_of_sites_and_of_the_dropout_beside_them_count(name):
    assert sites.belongs_to_a_site(name) == (name in OF_SITES)


def test_the_time_of_a_site_includes_what_it_calls():
    def event(name, time, parent=None):
        return SimpleNamespace(name=name, self_cpu_time_total=time, cpu_parent=parent)

    softmax = event("fusedops::softmax", 20)
    events = [softmax, event("aten::empty", 5, parent=softmax), event("aten::mm", 75)]
    assert sites.share_in(events) == 0.25
