"""`python -m fusedops explain FILE:FUNCTION` reports on a model of the user's own."""

from __future__ import annotations

import json

import pytest
import torch

from fusedops.cli import explain, main

MODEL = """
import torch

def build():
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Softmax(dim=-1))
    return {returned}
"""


@pytest.fixture
def model_file(tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text(MODEL.format(returned="model, (torch.randn(32, 64),)"))
    return file


def test_the_table_and_the_json_name_the_same_sites(model_file, capsys):
    assert main(["explain", f"{model_file}:build"]) == 0
    table = capsys.readouterr().out
    assert main(["explain", f"{model_file}:build", "--json"]) == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert len(sites) == 2
    assert all(site["op"] in table for site in sites)


def test_the_whole_graphs_are_shown_on_request(model_file, command):
    changes = command("explain", f"{model_file}:build").out
    graphs = command("explain", f"{model_file}:build", "--graphs").out
    assert "--- graph 0 before" in changes and "--- graph 0 after" not in changes
    assert "--- graph 0 before" in graphs and "--- graph 0 after" in graphs


@pytest.mark.parametrize(
    ("returned", "inputs", "named"),
    [
        ((1, 2), (1, 2), {}),
        (((1, 2),), (1, 2), {}),
        (([1, 2],), (1, 2), {}),
        (({"x": 1},), (), {"x": 1}),
        ((), (), {}),
    ],
)
def test_inputs_may_come_flat_in_a_tuple_or_by_name(returned, inputs, named):
    model = torch.nn.Identity()
    assert explain.split_example((model, *returned)) == (model, inputs, named)


def test_a_single_tensor_is_one_input():
    tensor = torch.ones(2)
    _, inputs, _ = explain.split_example((torch.nn.Identity(), tensor))
    assert inputs == (tensor,)
