"""`python -m fusedops bench --models` times whole models and says what their sites take."""

from __future__ import annotations

import argparse
import csv
import inspect
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.exc import InductorError

pytest.importorskip("rich", reason="needs the extra fusedops[bench]")
pytest.importorskip("pandas", reason="needs the extra fusedops[bench]")

from fusedops.cli import bench
from fusedops.cli.bench import models, sites
from fusedops.cli.errors import UserError
from fusedops.cli.models import MODELS, TINY

COLUMNS = (
    "model,mode,dtype,batch,length,width,threads,eager_ms,inductor_ms,fusedops_ms,speedup,spread,"
    "share_before,share_after,sites_speedup"
).split(",")


def step(name="nanogpt", mode=models.INFERENCE) -> models.Step:
    return models.Step(name, mode, torch.float32, batch=2, size=TINY)


def parsed(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(command.split())


def test_csv_holds_one_row_a_model_and_mode(tmp_path):
    file = tmp_path / "models.csv"
    command = "bench --quick --models nn.MultiheadAttention --length 16 --width 128 --csv"
    finished = subprocess.run(
        [sys.executable, "-m", "fusedops", *command.split(), str(file)],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert "MALLOC_MMAP_MAX_=0" in finished.stderr
    assert "nn.MultiheadAttention" in finished.stdout and "1x16x128" in finished.stdout
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == COLUMNS == [field.name for field in fields(models.StepTime)]
    assert [row["mode"] for row in rows] == ["inference", "training"]
    for row in rows:
        assert float(row["eager_ms"]) > 0 and float(row["speedup"]) > 0
        assert 0 < float(row["share_before"]) < 1


def test_a_step_is_measured_by_every_provider():
    this = step("nanogpt")
    calls = models.prepare_step(this)
    assert list(calls) == ["eager", "inductor", "fusedops"]
    timed = models.measure_step(this, calls, rounds=1)
    assert min(timed.eager_ms, timed.inductor_ms, timed.fusedops_ms) > 0
    assert 0 < timed.share_before < 1 and 0 < timed.share_after < 1
    assert timed.sites_speedup == pytest.approx(
        timed.share_before * timed.inductor_ms / (timed.share_after * timed.fusedops_ms)
    )


def test_a_step_in_training_gives_the_gradient_of_every_parameter():
    this = step("nanogpt", models.TRAINING)
    gradients = models.eager_step(this, dropout=True)()
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
        models.check_step(step(), calls)


def test_named_models_are_measured_in_both_modes_or_the_one_of_a_pass():
    def chosen(names, *directions):
        steps = models.chosen_steps(names, directions, [torch.float32], 1, TINY, quick=False)
        return [(this.model, this.mode) for this in steps]

    assert chosen(["bert", "t5"], "forward", "backward") == [
        ("bert", "inference"),
        ("bert", "training"),
        ("t5", "inference"),
        ("t5", "training"),
    ]
    assert chosen(["t5"], "forward") == [("t5", "inference")]
    assert chosen([], "backward") == [("gpt2", "training")]
    assert all(pair[0] in MODELS for pair in (*models.DEFAULT, *models.QUICK))


def test_a_step_that_inductor_cannot_compile_is_named_and_the_others_are_measured(
    monkeypatch, capsys
):
    prepare_step = models.prepare_step

    def prepare_or_fail(this):
        if this.mode == models.TRAINING:
            raise InductorError(RuntimeError("no such type"), inspect.currentframe())
        return prepare_step(this)

    monkeypatch.setattr(bench, "prepare_step", prepare_or_fail)
    args = parsed("--quick --models nanogpt --batch 1 --length 16 --width 128")
    found, left_out = bench.measure_each(*bench.step_times(args))
    assert [this.mode for this in found] == [models.INFERENCE] and left_out == 1
    error = capsys.readouterr().err
    assert "nanogpt training float32 1x16x128 is left out" in error and "no such type" in error


def test_a_missing_package_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"--models: .*pip install fusedops\[demo\]"):
        bench.require_packages([step("bert")])
    bench.require_packages([step("nanogpt")])
    with pytest.raises(ImportError, match="transformers"):
        MODELS["bert"].build(TINY, False)


@pytest.mark.parametrize(
    "name",
    [
        "fusedops::softmax_backward_",
        "graph_0_cpp_fused__softmax_add_native_dropout_where_1",
        "graph_1_cpp_fused_add_mean_mul_pow_rsqrt_13",
        "graph_0_cpp_fused_add_div_expand_mul_pow_sum_view_7",
        "graph_0_cpp_fused_add_native_dropout_backward_native_layer_norm_backward_sum_view_8",
        "graph_1_cpp_fused_native_dropout_7",
        "aten::_softmax",
    ],
)
def test_kernels_of_sites_and_of_dropout_beside_them_belong(name):
    assert sites.belongs_to_a_site(name)


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "graph_1_cpp_fused_mul_6",
        "graph_0_cpp_fused_clone_expand_view_4",
        "graph_0_cpp_fused_native_dropout_backward_threshold_backward_view_1",
        "graph_0_cpp_fused_add_mul_native_dropout_backward_pow_sum_tanh_tanh_backward_view_1",
        "Torch-Compiled Region: 0/0 softmax",
    ],
)
def test_matrix_products_activations_and_mere_arithmetic_do_not(name):
    assert not sites.belongs_to_a_site(name)


def test_a_site_takes_the_time_of_what_it_calls():
    def event(name, time, parent=None):
        return SimpleNamespace(name=name, self_cpu_time_total=time, cpu_parent=parent)

    softmax = event("fusedops::softmax", 20)
    events = [softmax, event("aten::empty", 5, parent=softmax), event("aten::mm", 75)]
    assert sites.share_in(events) == 0.25
