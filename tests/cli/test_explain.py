"""`python -m fusedops explain` reports on a model of the user's own, and on Hugging Face's."""

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


TENSOR = torch.ones(2)


@pytest.mark.parametrize(
    ("returned", "inputs", "named"),
    [
        ((1, 2), (1, 2), {}),
        (((1, 2),), (1, 2), {}),
        (([1, 2],), (1, 2), {}),
        (({"x": 1},), (), {"x": 1}),
        ((), (), {}),
        ((TENSOR,), (TENSOR,), {}),
    ],
)
def test_inputs_may_come_flat_in_a_tuple_or_by_name(returned, inputs, named):
    model = torch.nn.Identity()
    assert explain.split_example((model, *returned)) == (model, inputs, named)


def _config(folder, model_type, **settings):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **settings}))
    return str(folder)


#: 47 GB in bfloat16.
LARGE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16384,
    "intermediate_size": 131072,
    "num_attention_heads": 128,
    "num_hidden_layers": 3,
    "dtype": "bfloat16",
}


def test_a_hugging_face_config_of_any_size_is_explained_without_its_weights(tmp_path, command):
    large = _config(tmp_path, "llama", **LARGE)
    shown = command("explain", large, "--attention", "eager", "--batch", "2", "--length", "64").out
    assert shown.startswith("fusedops: 10 of 10 sites replaced in inference")
    assert "2x128x64x64" in shown and "masked_softmax  2 times" in shown


@pytest.mark.parametrize(
    ("model_type", "settings", "inputs"),
    [
        ("t5", {"num_layers": 1}, "1x512x512"),
        ("vit", {"num_hidden_layers": 1}, "1x197x768"),
        ("gpt2", {"n_layer": 1, "n_positions": 256}, "1x256x768"),
    ],
)
def test_texts_pairs_of_texts_and_images_are_given_with_little_to_expect(
    tmp_path, command, model_type, settings, inputs
):
    shown = command("explain", _config(tmp_path, model_type, **settings)).out
    advice = "of a model whose attention runs as scaled_dot_product_attention."
    assert inputs in shown and advice in " ".join(shown.split())


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("whisper", (), "WhisperModel takes input_features, wanted"),
        ("clip", (), "images, raised AttributeError at modeling_clip.py:"),  # it takes both
        ("gpt2", ("--length", "1025"), "--length: got 1025, wanted at most 1024"),
        ("none", (), "no Hugging Face model"),
    ],
)
def test_a_config_without_known_inputs_or_model_is_refused(
    tmp_path, command, model_type, options, message
):
    ended = command("explain", _config(tmp_path, model_type), *options)
    assert ended.code == 1 + bool(options) and message in ended.err
    assert len(ended.err.splitlines()) == 1
